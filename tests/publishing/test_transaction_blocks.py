"""Transaction blocks over tables of the lake, beside a PostgreSQL 18: what statements of a block
see, what others see, savepoints, errors; and what becomes of one that stops between two tables.

All of it without Spark: what is staged is written by files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import psycopg
import pytest
from pyroaring import BitMap

from faults.heavy import HEAVY, in_make_faults
from fix_postgres import Database
from penstock import failpoint
from penstock.catalog import TwoPhaseKind
from penstock.embedded import wait_until
from penstock.errors import StorageError
from penstock.executor import block_commit
from penstock.lakehouse.change import StagedCommit
from penstock.lakehouse.warehouse import Warehouse
from publishing.heard import heard, listen
from publishing.lake_node import LakeNode
from publishing.psql_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("kept_log")]

_SCRIPT = """
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, n bigint);
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO a VALUES (1, 'one'), (2, 'two'), (3, 'three');
BEGIN;
INSERT INTO a VALUES (4, 'four'), (5, NULL);
UPDATE a SET v = v || '!' WHERE id IN (1, 4);
SELECT * FROM a ORDER BY id;
DELETE FROM a WHERE id IN (2, 5);
UPDATE a SET id = id + 100 WHERE id > 3;
SELECT count(*), max(id) FROM a;
COPY (SELECT id FROM a WHERE id > 1 AND v IS NOT NULL) TO STDOUT;
SAVEPOINT s;
INSERT INTO b SELECT id, id * 2 FROM a;
SELECT a.id, b.n FROM a JOIN b USING (id) ORDER BY 1;
DELETE FROM a;
SAVEPOINT "S";
SELECT count(*) FROM a;
INSERT INTO b VALUES (1/0, 0);
SELECT 1;
SAVEPOINT t;
RELEASE s;
ROLLBACK TO nothing;
ROLLBACK TO SAVEPOINT s;
SELECT count(*) FROM a;
SELECT count(*) FROM b;
ROLLBACK TO "S";
SELECT 2;
ROLLBACK TO s;
INSERT INTO p VALUES (1, 'x'), (11, 'y');
UPDATE p SET id = 19 - id WHERE id = 1;
INSERT INTO p1 VALUES (5, 'five');
SELECT * FROM p ORDER BY id;
SELECT * FROM p2 ORDER BY id;
RELEASE SAVEPOINT s;
ROLLBACK TO s;
ROLLBACK;
SELECT * FROM a ORDER BY id;
SELECT * FROM p;
BEGIN;
DELETE FROM a WHERE id = 3;
INSERT INTO b VALUES (7, 7);
INSERT INTO p VALUES (3, 'three');
COMMIT AND CHAIN;
UPDATE b SET n = n * 2;
SELECT * FROM b;
ROLLBACK;
SELECT * FROM a ORDER BY id;
SELECT * FROM b;
SELECT * FROM p;
BEGIN;
INSERT INTO p VALUES (50, 'nowhere');
COMMIT;
BEGIN READ ONLY;
DELETE FROM a;
ROLLBACK;
BEGIN;
SAVEPOINT x;
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
END;
SAVEPOINT x;
RELEASE x;
ROLLBACK TO x;
COMMIT;
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO b VALUES (8, 8);
SAVEPOINT x;
SAVEPOINT x;
DELETE FROM b;
RELEASE x;
SELECT * FROM b;
ROLLBACK TO x;
SELECT * FROM b ORDER BY id;
COMMIT;
SELECT * FROM b ORDER BY id;
"""
_BLOCKS = 12 if HEAVY else 6
"""Of a story."""
_PLACES = (failpoint.AFTER_BLOCK_INTENT, failpoint.BETWEEN_BLOCK_COMMITS)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    with LakeNode(tmp_path_factory.mktemp("blocks") / "node", None) as started:
        yield started


def parquet_files(lake: LakeNode) -> set[Path]:
    return set((lake.node.folder / "warehouse").rglob("*.parquet"))


def members(lake: LakeNode) -> list[set[str]]:
    """The tables of each transaction of the log that is committed."""
    with lake.node._catalog.read() as t:
        found = t.transactions.after(0, 10_000)  # type: ignore[arg-type]
    return [
        {member.uri.rpartition("/")[2] for member in one.members}
        for one in found
        if one.two_phase is None or one.two_phase.kind is TwoPhaseKind.COMMIT_PREPARED
    ]


def test_statements_of_blocks_are_as_on_a_server(pair: Pair) -> None:
    pair.both(_SCRIPT)


def test_others_see_all_of_it_or_nothing(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE c (id int PRIMARY KEY, v int)", "CREATE TABLE d (id int, v int)")
    lake.execute("INSERT INTO c VALUES (1, 1), (2, 2)")
    before = parquet_files(lake)
    other = lake.connect()
    with contextlib.closing(other):
        for statement in (
            "BEGIN",
            "UPDATE c SET v = 10 WHERE id = 1",
            "INSERT INTO d VALUES (1, 1)",
        ):
            other.execute(statement)
        assert lake.rows("SELECT * FROM d") == []
        other.execute("SELECT * FROM d")
    wait_until(lambda: parquet_files(lake) == before, "the end of the session's files")
    with lake.connect() as other:
        other.execute("BEGIN; UPDATE c SET v = 10 WHERE id = 1; INSERT INTO d VALUES (1, 1)")
        lake.execute("UPDATE c SET v = 20 WHERE id = 2", "INSERT INTO d VALUES (2, 2)")
        assert other.execute("SELECT v FROM c ORDER BY v").fetchall() == [(10,), (20,)]
        other.execute("COMMIT")
    assert members(lake)[-1] == {"c", "d"}
    assert sorted(lake.rows("SELECT id FROM d")) == [(1,), (2,)]


def test_first_committer_wins(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE e (id int PRIMARY KEY, v int)", "INSERT INTO e VALUES (1, 1), (2, 2)"
    )
    files = parquet_files(lake)
    for level, failing in (("READ COMMITTED", "SELECT 1 FROM e"), ("REPEATABLE READ", "COMMIT")):
        with lake.connect() as one, lake.connect() as two:
            for session, id_ in ((one, 1), (two, 1)):
                session.execute(f"BEGIN ISOLATION LEVEL {level}")
                session.execute(f"UPDATE e SET v = v + 1 WHERE id = {id_}")
            two.execute("INSERT INTO e VALUES (3, 3)")
            one.execute("COMMIT")
            with pytest.raises(psycopg.errors.SerializationFailure) as raised:
                two.execute(failing)
            message = raised.value.diag.message_primary
            assert message == "could not serialize access due to concurrent update"
            two.execute("ROLLBACK")
    assert len(parquet_files(lake)) == len(files) + 2, "of both that were committed"
    with lake.connect() as one, lake.connect() as two:
        for session, id_ in ((one, 10), (two, 11)):
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            session.execute(f"INSERT INTO e VALUES ({id_}, 0)")
        one.execute("COMMIT")
        assert two.execute("SELECT count(*) FROM e").fetchone() == (3,)
        two.execute("COMMIT")
    assert sorted(lake.rows("SELECT * FROM e")) == [(1, 3), (2, 2), (10, 0), (11, 0)]


def test_what_a_block_cannot_have(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE f (id int)")
    refused = [
        ("BEGIN ISOLATION LEVEL SERIALIZABLE", "DELETE FROM f", "SERIALIZABLE"),
        ("BEGIN", "TRUNCATE f", "TRUNCATE cannot run inside a transaction block"),
        ("BEGIN; DELETE FROM f", "CREATE PUBLICATION x", "commands after changes of rows"),
    ]
    for begin, statement, message in refused:
        with contextlib.closing(lake.connect()) as session:
            session.execute(begin)
            with pytest.raises(psycopg.errors.FeatureNotSupported, match=message):
                session.execute(statement)


@pytest.mark.parametrize("place", _PLACES)
def test_one_that_stops_between_two_tables_goes_on(
    lake: LakeNode, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sees a part of it. What stands for kill -9 here, ``faults.test_block_faults`` does."""
    one, two = f"one_{_PLACES.index(place)}", f"two_{_PLACES.index(place)}"
    lake.execute(f"CREATE TABLE {one} (id int)", f"CREATE TABLE {two} (id int)")

    def stop(name: str) -> None:
        if name == place:
            raise RuntimeError(name)

    with monkeypatch.context() as patched:
        patched.setattr(block_commit, "failpoint", stop)
        with lake.connect() as session, pytest.raises(psycopg.Error):
            session.execute(f"BEGIN; INSERT INTO {one} VALUES (1); INSERT INTO {two} VALUES (1)")
            session.execute("COMMIT")
    known = members(lake)
    for table in (one, two):
        assert lake.rows(f"SELECT * FROM {table}") == []
    assert members(lake) == known
    assert lake.node.serving is not None
    lake.node.serving._blocks.finish()
    for table in (one, two):
        assert lake.rows(f"SELECT * FROM {table}") == [(1,)]
    assert members(lake) == [*known, {one, two}]


def test_a_store_that_fails_between_two_tables(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block is rolled back: at once, or when the store can be written again. So it is after any
    other error."""
    lake.execute("CREATE TABLE m (id int)", "CREATE TABLE n (id int)", "INSERT INTO m VALUES (1)")
    known, put = members(lake), StagedCommit.put

    def failing(commit: StagedCommit, *state: Any) -> int:
        if commit.change.name == "public.n":
            raise StorageError("the disk is full", sqlstate="53100")
        return put(commit, *state)

    def broken(commit: StagedCommit, *state: Any) -> int:
        if commit.change.name == "public.n":
            raise duckdb.OutOfMemoryException("while keys are checked")
        return put(commit, *state)

    def failing_undo(commit: StagedCommit) -> None:
        raise StorageError("the disk is full", sqlstate="53100")

    for fails, undo, sqlstate in (
        (failing, StagedCommit.undo, "53100"),
        (failing, failing_undo, "53100"),
        (broken, StagedCommit.undo, "XX000"),
    ):
        with monkeypatch.context() as patched, contextlib.closing(lake.connect()) as session:
            patched.setattr(StagedCommit, "put", fails)
            patched.setattr(StagedCommit, "undo", undo)
            session.execute("BEGIN; DELETE FROM m; INSERT INTO n VALUES (1)")
            with pytest.raises(psycopg.Error) as raised:
                session.execute("COMMIT")
            assert raised.value.sqlstate == sqlstate
        assert (lake.rows("SELECT * FROM m"), lake.rows("SELECT * FROM n")) == ([(1,)], [])
        lake.execute("BEGIN; UPDATE m SET id = 1; INSERT INTO n SELECT 5 FROM n; COMMIT")
        assert lake.rows("SELECT * FROM m") == [(1,)]
        assert members(lake) == [*known, {"m"}]
        known = members(lake)


def test_another_writer_between_two_tables(lake: LakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """At other rows: the block goes on. At the same ones: it is taken back, and no subscriber has
    heard of it."""
    lake.execute(
        "CREATE TABLE g (id int PRIMARY KEY, v int)", "CREATE PUBLICATION g FOR ALL TABLES"
    )
    lake.execute(
        "CREATE TABLE h (id int PRIMARY KEY, v int)", "INSERT INTO h VALUES (1, 1), (2, 2)"
    )
    known = members(lake)
    put = StagedCommit.put

    def racing(position: int) -> None:
        def after_first(commit: StagedCommit, *state: Any) -> int:
            version = put(commit, *state)
            if commit.change.name == "public.g":
                _delete_as_others(lake, position)
            return version

        monkeypatch.setattr(StagedCommit, "put", after_first)

    racing(1)
    lake.execute("BEGIN; INSERT INTO g VALUES (1, 1); UPDATE h SET v = 10 WHERE id = 1; COMMIT")
    assert lake.rows("SELECT * FROM h") == [(1, 10)]
    assert members(lake) == [*known, {"h"}, {"g", "h"}]
    racing(0)
    with pytest.raises(psycopg.errors.SerializationFailure):
        lake.execute("BEGIN; DELETE FROM g; UPDATE h SET v = 20 WHERE id = 1; COMMIT")
    assert (lake.rows("SELECT * FROM g"), lake.rows("SELECT * FROM h")) == ([(1, 1)], [])
    assert members(lake) == [*known, {"h"}, {"g", "h"}, {"h"}]
    lake.execute("DROP PUBLICATION g")


def _delete_as_others(lake: LakeNode, position: int) -> None:
    """A row of the only file, by a writer that knows nothing of the node."""
    table = Warehouse(str(lake.node.folder / "warehouse")).open("public", "h")
    assert table is not None
    (path,) = table.files
    table.stage(deleted={path: BitMap([position])})
    table.commit(app_id="somebody else", operation="DELETE")


@pytest.mark.parametrize("seed", [1, *(in_make_faults(seed) for seed in range(2, 8))])
def test_a_story_of_blocks(pair: Pair, seed: int) -> None:
    """The same statements on both; a subscriber hears of whole transactions only."""
    tables = [f"x{seed}", f"y{seed}"]
    with psycopg.connect(
        pair.server.conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as server:
        for table in tables:
            _both(pair, server, f"CREATE TABLE {table} (id int, v int, t text)")
        for number, statement in enumerate(_story(Random(seed), tables)):
            _both(pair, server, statement, f"seed {seed}, statement {number}: {statement}")


def _both(pair: Pair, server: psycopg.Connection[Any], statement: str, told: str = "") -> None:
    results = [_outcome(server, statement), _outcome(pair.lake.connection, statement)]
    assert results[1] == results[0], told or statement


def _outcome(session: psycopg.Connection[Any], statement: str) -> Any:
    try:
        cursor = session.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary
    rows = sorted(cursor.fetchall()) if cursor.description else None
    return cursor.statusmessage, rows


def _story(random: Random, tables: Sequence[str]) -> Iterator[str]:
    """Blocks with savepoints and errors; and statements between blocks."""
    next_id = 0
    for _ in range(_BLOCKS):
        level = random.choice(["", "", " ISOLATION LEVEL REPEATABLE READ"])
        yield random.choice(["BEGIN", "START TRANSACTION"]) + level
        for _ in range(random.randrange(1, 12)):
            table, other = random.sample(list(tables), 2)
            match random.randrange(13):
                case 0 | 1 | 2:
                    ids = range(next_id, next_id + random.randrange(1, 5))
                    next_id = ids.stop
                    values = ", ".join(f"({i}, {i % 7}, 't{i}')" for i in ids)
                    yield f"INSERT INTO {table} VALUES {values}"
                case 3 | 4:
                    some = f"id % 3 = {random.randrange(3)}"
                    yield f"UPDATE {table} SET v = v + 1, t = t || '.' WHERE {some}"
                case 5:
                    yield f"DELETE FROM {table} WHERE v = {random.randrange(9)}"
                case 6:
                    yield f"INSERT INTO {table} SELECT id + 1000, v, t FROM {other} WHERE v < 3"
                case 7:
                    yield f"UPDATE {table} SET v = (SELECT count(*) FROM {other}) WHERE id % 5 = 1"
                case 8 | 9:
                    yield f"SAVEPOINT s{random.randrange(3)}"
                case 10:
                    yield f"ROLLBACK TO s{random.randrange(3)}"
                case 11:
                    yield f"RELEASE s{random.randrange(3)}"
                case 12 if random.random() < 0.3:
                    yield f"DELETE FROM {table} WHERE v / 0 = 1"
            yield f"SELECT * FROM {random.choice(tables)}"
            yield f"SELECT count(*), sum(a.v) FROM {table} a JOIN {other} b ON a.id = b.id"
        yield random.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"])
        for table in tables:
            yield f"SELECT * FROM {table}"


def test_a_subscriber_hears_of_whole_blocks(lake: LakeNode, subscriber: Any) -> None:
    database: Database = subscriber()
    for create in ("k (id int PRIMARY KEY, v int)", "l (id int PRIMARY KEY, v int)"):
        lake.execute(f"CREATE TABLE {create}")
        database.execute(f"CREATE TABLE {create}")
    lake.execute("CREATE PUBLICATION kl FOR TABLE k, l")
    lake.subscribe(database, "kl", "kl")
    listen(database, "k", "l")
    lake.execute("BEGIN; INSERT INTO k VALUES (1, 1), (2, 2); INSERT INTO l VALUES (1, 1); COMMIT")
    lake.execute(
        "BEGIN; UPDATE k SET v = 5 WHERE id = 1; UPDATE l SET id = 9; DELETE FROM k WHERE id = 2"
    )
    lake.execute("SAVEPOINT s; DELETE FROM l; ROLLBACK TO s; COMMIT")
    lake.caught_up("kl")
    first, second = heard(database)
    assert sum(first.values()) == 3
    assert second == {
        ("k", "UPDATE", "(1,1)", "(1,5)"): 1,
        ("k", "DELETE", "(2,2)", None): 1,
        ("l", "UPDATE", "(1,1)", "(9,1)"): 1,
    }
