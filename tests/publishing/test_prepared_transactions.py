"""PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED of blocks over tables of the lake,
beside a PostgreSQL 18: what they answer, what others see and may do meanwhile, and what is left.

All of it without Spark: what is staged is written by files.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from pyroaring import BitMap

from faults.heavy import part_of_make_faults
from fix_postgres import Database, _database
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import StorageError
from penstock.executor import modify
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.held_rows import HeldRows
from penstock.executor.modify import TruncateTables
from penstock.executor.two_phase import TwoPhase
from penstock.lakehouse.change import StagedCommit
from penstock.lakehouse.warehouse import Warehouse
from publishing.heard import heard, listen
from publishing.lake_node import PASSWORD, LakeNode, drop_subscriptions
from publishing.psql_pair import SUPERUSER, Pair
from publishing.test_transaction_blocks import members, parquet_files

pytestmark = [pytest.mark.postgres]

_MOST = 4
_SCRIPT = f"""
SHOW max_prepared_transactions;
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, n bigint);
INSERT INTO a VALUES (1, 'one'), (2, 'two');
PREPARE TRANSACTION 'outside';
COMMIT PREPARED 'nothing';
ROLLBACK PREPARED 'nothing';
BEGIN;
UPDATE a SET v = 'first' WHERE id = 1;
SAVEPOINT s;
DELETE FROM a;
ROLLBACK TO s;
INSERT INTO b SELECT id, 10 FROM a;
PREPARE TRANSACTION 'it''s "one"';
SELECT * FROM a ORDER BY id;
SELECT * FROM b;
SELECT gid, owner, prepared <= now() AS ago FROM pg_prepared_xacts
 WHERE database = current_database();
BEGIN;
INSERT INTO b VALUES (9, 9);
PREPARE TRANSACTION 'it''s "one"';
SELECT * FROM b;
BEGIN;
COMMIT PREPARED 'it''s "one"';
SELECT 1;
ROLLBACK PREPARED 'it''s "one"';
PREPARE TRANSACTION 'failed';
BEGIN;
ROLLBACK PREPARED 'it''s "one"';
ROLLBACK;
BEGIN;
INSERT INTO b VALUES (3, 30);
PREPARE TRANSACTION 'two';
BEGIN READ ONLY;
SELECT count(*) FROM a;
PREPARE TRANSACTION 'empty';
BEGIN;
PREPARE TRANSACTION '{"x" * 199}';
SELECT length(gid) FROM pg_prepared_xacts ORDER BY 1;
BEGIN;
DELETE FROM a WHERE id = 2;
PREPARE TRANSACTION 'one too many';
BEGIN;
PREPARE TRANSACTION '{"y" * 200}';
BEGIN;
PREPARE TRANSACTION '{"ä" * 100}';
ROLLBACK PREPARED '{"x" * 199}';
COMMIT PREPARED 'empty';
COMMIT PREPARED 'it''s "one"';
COMMIT PREPARED 'it''s "one"';
SELECT * FROM a ORDER BY id;
SELECT * FROM b ORDER BY id;
ROLLBACK PREPARED 'two';
ROLLBACK PREPARED 'two';
SELECT count(*) FROM pg_prepared_xacts;
SELECT * FROM b ORDER BY id;
BEGIN;
DELETE FROM a;
PREPARE TRANSACTION 'two';
COMMIT PREPARED 'two';
SELECT * FROM a;
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    folder = tmp_path_factory.mktemp("prepared") / "node"
    with LakeNode(folder, None, max_prepared_transactions=_MOST) as started:
        yield started


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """On a server with prepared transactions."""
    settings = {"max_prepared_transactions": _MOST}
    with (
        EmbeddedPostgres(18, settings=settings) as server,
        contextlib.closing(server),
        _database(server) as database,
    ):
        yield database
        drop_subscriptions(database)


@pytest.fixture(scope="module")
def superuser(lake: LakeNode) -> str:
    lake.execute(f"CREATE ROLE {SUPERUSER} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    return SUPERUSER


def gids(lake: LakeNode) -> list[str]:
    return [gid for (gid,) in lake.rows("SELECT gid FROM pg_prepared_xacts")]


def prepare(lake: LakeNode, gid: str, *statements: str) -> None:
    with contextlib.closing(lake.connect()) as session:
        for statement in ("BEGIN", *statements, f"PREPARE TRANSACTION '{gid}'"):
            session.execute(statement)


def make(lake: LakeNode, *tables: str) -> set[Path]:
    """Tables with two rows; the files that there are."""
    for table in tables:
        lake.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v int)",
            f"INSERT INTO {table} VALUES (1, 100), (2, 100)",
        )
    return parquet_files(lake)


def test_statements_are_as_on_a_server(lake: LakeNode, superuser: str, database: Database) -> None:
    before = parquet_files(lake)
    Pair(lake, database).both(_SCRIPT)
    assert len(parquet_files(lake) - before) == 3, "of what is committed"


def test_others_finish_it_and_see_all_of_it_or_nothing(lake: LakeNode) -> None:
    before = make(lake, "c", "d")
    known = members(lake)
    lake.execute(
        f"CREATE ROLE one LOGIN PASSWORD '{PASSWORD}'",
        "CREATE TABLE e (id int)",
        "ALTER TABLE c OWNER TO one",
        "ALTER TABLE d OWNER TO one",
    )
    with contextlib.closing(lake.connect("one")) as session:
        for gid in ("first", "second"):
            session.execute("BEGIN; UPDATE c SET v = v - 10 WHERE id = 1")
            session.execute("UPDATE d SET v = v + 10 WHERE id = 1")
            session.execute(f"PREPARE TRANSACTION '{gid}'")
            assert session.execute("SELECT sum(v) FROM c").fetchone() == (200,)
            if gid == "first":
                session.execute("ROLLBACK PREPARED 'first'")
                assert parquet_files(lake) == before
    lake.execute(f"CREATE ROLE two LOGIN PASSWORD '{PASSWORD}'")
    (row,) = lake.rows("SELECT gid, owner, database FROM pg_prepared_xacts")
    assert row == ("second", "one", "lake")
    ((xid,),) = lake.rows("SELECT transaction FROM pg_prepared_xacts")
    assert lake.rows(f"SELECT txid_status({xid})") == [("in progress",)]
    with contextlib.closing(lake.connect("two")) as session:
        for verb in ("COMMIT", "ROLLBACK"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
                session.execute(f"{verb} PREPARED 'second'")
            message = refused.value.diag.message_primary
            assert message == "permission denied to finish prepared transaction"
    lake.execute("COMMIT PREPARED 'second'")
    assert members(lake) == [*known, {"c", "d"}]
    for table, value in (("c", 90), ("d", 110)):
        assert lake.rows(f"SELECT v FROM {table} WHERE id = 1") == [(value,)]


def test_nobody_on_the_node_changes_its_rows(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(lake, "f")
    prepare(lake, "held", "UPDATE f SET v = 1 WHERE id = 1", "INSERT INTO f VALUES (3, 3)")
    refused = [
        "UPDATE f SET v = 2 WHERE id = 1",
        "DELETE FROM f",
        "TRUNCATE f",
        "BEGIN; UPDATE f SET v = 2 WHERE id = 1; COMMIT",
        "BEGIN; DELETE FROM f WHERE id = 1; PREPARE TRANSACTION 'other'",
    ]
    for statement in refused:
        with (
            contextlib.closing(lake.connect()) as session,
            pytest.raises(psycopg.errors.SerializationFailure) as raised,
        ):
            session.execute(statement)
        detail = raised.value.diag.message_detail
        assert detail == 'The prepared transaction "held" changes rows of table "public.f".'
    with monkeypatch.context() as patched, pytest.raises(psycopg.errors.SerializationFailure):
        patched.setattr(modify, "MAX_BYTES", -1)
        lake.execute("UPDATE f SET v = 2 WHERE id = 2")  # which Spark would do
    for statement in ("DROP TABLE f", "ALTER TABLE f ADD COLUMN w int"):
        with pytest.raises(psycopg.errors.ObjectInUse, match='prepared transaction "held"'):
            lake.execute(statement)
    assert len(parquet_files(lake) - before) == 2
    lake.execute(
        "UPDATE f SET v = 2 WHERE id = 2",
        "BEGIN; UPDATE f SET v = v + 1 WHERE id = 2; INSERT INTO f VALUES (4, 4); COMMIT",
        "INSERT INTO f VALUES (5, 5)",
        "COMMIT PREPARED 'held'",
    )
    assert sorted(lake.rows("SELECT * FROM f")) == [(1, 1), (2, 3), (3, 3), (4, 4), (5, 5)]
    lake.execute("UPDATE f SET v = 2 WHERE id = 1", "DROP TABLE f")


def test_nobody_empties_a_table_for_which_rows_are_prepared(lake: LakeNode) -> None:
    """PostgreSQL would wait. A subscriber that has prepared the rows could not empty its table, and
    would never be told of their end."""
    make(lake, "emptied")
    prepare(lake, "new", "INSERT INTO emptied VALUES (3, 3)")
    with pytest.raises(psycopg.errors.SerializationFailure) as raised:
        lake.execute("TRUNCATE emptied")
    detail = raised.value.diag.message_detail
    assert detail == 'The prepared transaction "new" changes rows of table "public.emptied".'
    lake.execute("DELETE FROM emptied WHERE id = 1", "COMMIT PREPARED 'new'")
    assert sorted(lake.rows("SELECT id FROM emptied")) == [(2,), (3,)]
    lake.execute("TRUNCATE emptied", "DROP TABLE emptied")


def test_rows_are_not_prepared_while_their_table_is_emptied(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PREPARE TRANSACTION waits for TRUNCATE, and comes after it in the log."""
    make(lake, "emptied")
    lake.rows("SELECT pg_create_logical_replication_slot('s', 'test_decoding', false, true)")
    entered, go_on = threading.Event(), threading.Event()
    run, wait = TruncateTables.run, HeldRows.wait_for_statements

    def stops(truncates: TruncateTables, members: Any) -> None:
        entered.set()
        assert go_on.wait(60)
        run(truncates, members)

    def waits(held: HeldRows, changes: Any, interrupts: Any) -> None:
        wait(held, changes, SimpleNamespace(check=go_on.set))

    monkeypatch.setattr(TruncateTables, "run", stops)
    monkeypatch.setattr(HeldRows, "wait_for_statements", waits)
    truncate = threading.Thread(target=lambda: once(lake, "TRUNCATE emptied"))
    truncate.start()
    assert entered.wait(60)
    prepare(lake, "after", "INSERT INTO emptied VALUES (3, 3)")
    truncate.join()
    changes = "SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL, 'include-xids', '0')"
    assert [data for (data,) in lake.rows(changes)] == [
        *("BEGIN", "table public.emptied: TRUNCATE: (no-flags)", "COMMIT"),
        *("BEGIN", "table public.emptied: INSERT: id[integer]:3 v[integer]:3"),
        "PREPARE TRANSACTION 'after'",
    ]
    lake.execute("COMMIT PREPARED 'after'")
    assert lake.rows("SELECT id FROM emptied") == [(3,)]
    lake.rows("SELECT pg_drop_replication_slot('s')")
    lake.execute("DROP TABLE emptied")


def once(lake: LakeNode, statement: str) -> None:
    """In a session of its own."""
    with contextlib.closing(lake.connect()) as session:
        session.execute(statement)


def test_what_was_changed_since_is_not_prepared(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a statement that runs when it is prepared: PREPARE TRANSACTION waits for its end."""
    before = make(lake, "g")
    entered, go_on, check = threading.Event(), threading.Event(), TwoPhase._claim

    with contextlib.closing(lake.connect()) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; UPDATE g SET v = 0 WHERE id = 1")
        lake.execute("UPDATE g SET v = 7 WHERE id = 1")
        with pytest.raises(psycopg.errors.SerializationFailure):
            session.execute("PREPARE TRANSACTION 'late'")
        assert session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert gids(lake) == []
    assert len(parquet_files(lake) - before) == 1

    commit = CommitBlocks.commit

    def slowly(*arguments: Any, **options: Any) -> None:
        entered.set()
        assert go_on.wait(60)
        commit(*arguments, **options)

    def claim(*arguments: Any) -> None:
        check(*arguments)
        go_on.set()

    monkeypatch.setattr(CommitBlocks, "commit", slowly)
    monkeypatch.setattr(TwoPhase, "_claim", claim)
    with contextlib.closing(lake.connect()) as one, contextlib.closing(lake.connect()) as two:
        two.execute("BEGIN; UPDATE g SET v = 0 WHERE id = 2")
        running = threading.Thread(target=one.execute, args=("UPDATE g SET v = 8 WHERE id = 2",))
        running.start()
        assert entered.wait(60)
        with pytest.raises(psycopg.errors.SerializationFailure):
            two.execute("PREPARE TRANSACTION 'late'")
        running.join()
    assert sorted(lake.rows("SELECT * FROM g")) == [(1, 7), (2, 8)]
    assert gids(lake) == []


def test_others_who_write_the_tables_by_themselves(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is prepared still when it cannot be committed, be it found before or between two tables'
    commits."""
    make(lake, "h", "i")
    known, put = members(lake), StagedCommit.put
    changes = ("UPDATE h SET v = v - 1 WHERE id = 2", "UPDATE i SET v = v + 1 WHERE id = 2")
    prepare(lake, "first", *changes)

    def after_the_first(commit: StagedCommit, *state: Any) -> int:
        version = put(commit, *state)
        if commit.change.name == "public.h":
            _delete_as_others(lake, "i", 1)
        return version

    with monkeypatch.context() as patched:
        patched.setattr(StagedCommit, "put", after_the_first)
        with pytest.raises(psycopg.errors.SerializationFailure) as raised:
            lake.execute("COMMIT PREPARED 'first'")
    hint = raised.value.diag.message_hint
    assert hint == "The transaction is prepared still; ROLLBACK PREPARED ends it."
    for _ in range(2):
        assert gids(lake) == ["first"]
        assert sorted(lake.rows("SELECT * FROM h")) == [(1, 100), (2, 100)]
        assert lake.rows("SELECT * FROM i") == [(1, 100)]
        with pytest.raises(psycopg.errors.SerializationFailure):
            lake.execute("COMMIT PREPARED 'first'")
    lake.execute("ROLLBACK PREPARED 'first'", "UPDATE h SET v = 99 WHERE id = 2")
    assert members(lake) == [*known, {"i"}, {"h"}]
    prepare(lake, "second", "UPDATE h SET v = 1 WHERE id = 2", "INSERT INTO i VALUES (3, 3)")

    def failing(commit: StagedCommit, *state: Any) -> int:
        raise StorageError("the disk is full", sqlstate="53100")

    with monkeypatch.context() as patched, pytest.raises(psycopg.errors.DiskFull):
        patched.setattr(StagedCommit, "put", failing)
        lake.execute("COMMIT PREPARED 'second'")
    assert gids(lake) == ["second"]
    lake.execute("COMMIT PREPARED 'second'")
    assert members(lake)[-1] == {"h", "i"}
    assert sorted(lake.rows("SELECT * FROM h")) == [(1, 100), (2, 1)]
    assert sorted(lake.rows("SELECT * FROM i")) == [(1, 100), (3, 3)]
    assert gids(lake) == []


def _delete_as_others(lake: LakeNode, table: str, position: int) -> None:
    """A row of the only file, by a writer that knows nothing of the node."""
    found = Warehouse(str(lake.node.folder / "warehouse")).open("public", table)
    assert found is not None
    (path,) = found.files
    found.stage(deleted={path: BitMap([position])})
    found.commit(app_id="somebody else", operation="DELETE")


def test_a_driver_that_knows_two_phase_commit(lake: LakeNode) -> None:
    """DB-API's, in the extended protocol; what it finds again afterwards."""
    make(lake, "t")
    with contextlib.closing(psycopg.connect(lake.conninfo())) as session:
        xid = session.xid(7, "global", "branch")
        session.tpc_begin(xid)
        session.execute("UPDATE t SET v = %s WHERE id = %s", (5, 1))
        session.tpc_prepare()
    with contextlib.closing(psycopg.connect(lake.conninfo())) as session:
        (found,) = session.tpc_recover()
        assert (found.format_id, found.gtrid, found.bqual) == (7, "global", "branch")
        assert (found.database, found.owner) == ("lake", "lake")
        session.rollback()
        session.tpc_commit(found)
    assert sorted(lake.rows("SELECT * FROM t")) == [(1, 5), (2, 100)]


def test_an_old_copy_of_the_state_comes_back(lake: LakeNode) -> None:
    """It has what is committed as prepared still: nothing is put twice, and no row is lost."""
    make(lake, "q")
    prepare(lake, "old", "INSERT INTO q VALUES (3, 3)")
    with lake.node._catalog.read() as t:
        block = t.prepared_blocks.find("old")
    assert block is not None
    lake.execute("COMMIT PREPARED 'old'", "INSERT INTO q VALUES (4, 4)")
    with lake.node._catalog.write() as t:
        t.prepared_blocks.put(block)
    with pytest.raises(psycopg.errors.SerializationFailure):
        lake.execute("COMMIT PREPARED 'old'")
    lake.execute("ROLLBACK PREPARED 'old'")
    assert sorted(lake.rows("SELECT id FROM q")) == [(1,), (2,), (3,), (4,)]


@part_of_make_faults
def test_the_banks_sum(lake: LakeNode) -> None:
    """Transfers of several sessions, a third of them in two phases, while others look."""
    accounts = 6
    lake.execute("CREATE TABLE r (id int, v int)", "CREATE TABLE s (id int, v int)")
    values = ", ".join(f"({i}, 100)" for i in range(accounts))
    lake.execute(f"INSERT INTO r VALUES {values}", f"INSERT INTO s VALUES {values}")
    done: list[str] = []
    wrong: list[object] = []

    def transfer(seed: int) -> None:
        random = Random(seed)
        with contextlib.closing(lake.connect()) as session:
            for number in range(12):
                amount, gid = random.randrange(1, 50), f"{seed} {number}"
                one, two = (random.randrange(accounts) for _ in range(2))
                way = random.choice(["COMMIT", "COMMIT PREPARED", "ROLLBACK PREPARED"])
                try:
                    session.execute(f"BEGIN; UPDATE r SET v = v - {amount} WHERE id = {one}")
                    session.execute(f"UPDATE s SET v = v + {amount} WHERE id = {two}")
                    session.execute("COMMIT" if way == "COMMIT" else f"PREPARE TRANSACTION '{gid}'")
                except psycopg.errors.SerializationFailure:
                    session.execute("ROLLBACK")
                    continue
                except psycopg.errors.OutOfMemory:  # too many are prepared
                    continue
                if way != "COMMIT":
                    session.execute(f"{way} '{gid}'")  # which cannot fail
                done.append(way)

    def run(seed: int) -> None:
        try:
            transfer(seed)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    with contextlib.closing(lake.connect()) as session:
        while any(thread.is_alive() for thread in threads):
            both = "SELECT sum(v) FROM (SELECT v FROM r UNION ALL SELECT v FROM s) AS x"
            wrong += [row for row in session.execute(both) if row != (200 * accounts,)]
    assert wrong == []
    assert {*done} == {"COMMIT", "COMMIT PREPARED", "ROLLBACK PREPARED"}
    assert lake.rows("SELECT sum(v) FROM r")[0][0] + lake.rows("SELECT sum(v) FROM s")[0][0] == 1200
    assert gids(lake) == []


def test_subscribers_without_two_phase_hear_of_it_when_it_is_committed(
    lake: LakeNode, database: Database
) -> None:
    for create in ("k (id int PRIMARY KEY, v int)", "l (id int PRIMARY KEY, v int)"):
        lake.execute(f"CREATE TABLE {create}")
        database.execute(f"CREATE TABLE {create}")
    lake.execute("CREATE PUBLICATION kl FOR TABLE k, l", "INSERT INTO k VALUES (1, 1), (2, 2)")
    lake.subscribe(database, "kl", "kl")
    create = "SELECT pg_create_logical_replication_slot('kl2', 'test_decoding')"
    lake.rows(create)
    listen(database, "k", "l")
    prepare(lake, "kept", "UPDATE k SET v = 5 WHERE id = 1", "INSERT INTO l VALUES (1, 1)")
    prepare(lake, "gone", "DELETE FROM k WHERE id = 2")
    lake.execute("INSERT INTO k VALUES (3, 3)", "ROLLBACK PREPARED 'gone'")
    lake.caught_up("kl")
    lake.execute("COMMIT PREPARED 'kept'")
    lake.caught_up("kl")
    first, second = heard(database)
    changes = "pg_logical_slot_get_changes('kl2', NULL, NULL, 'include-xids', 'off')"
    assert [data for (data,) in lake.rows(f"SELECT data FROM {changes}")] == [
        "BEGIN",
        "table public.k: INSERT: id[integer]:3 v[integer]:3",
        "COMMIT",
        "BEGIN",
        "table public.k: UPDATE: id[integer]:1 v[integer]:5",
        "table public.l: INSERT: id[integer]:1 v[integer]:1",
        "COMMIT",
    ]
    lake.rows("SELECT pg_drop_replication_slot('kl2')")
    assert first == {("k", "INSERT", None, "(3,3)"): 1}
    assert second == {("k", "UPDATE", "(1,1)", "(1,5)"): 1, ("l", "INSERT", None, "(1,1)"): 1}


def test_a_node_that_starts_again_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    with LakeNode(folder, None, max_prepared_transactions=2) as lake:
        before = make(lake, "m", "n")
        for gid in ("one", "two"):
            id_ = 1 if gid == "one" else 2
            prepare(lake, gid, f"DELETE FROM m WHERE id = {id_}", f"DELETE FROM n WHERE id = {id_}")
        after = parquet_files(lake)
        lake.connection.close()
        lake.node.stop()
        lake.node.start()
        lake.connection = lake.connect()
        assert gids(lake) == ["one", "two"]
        assert parquet_files(lake) == after
        with pytest.raises(psycopg.errors.SerializationFailure):
            lake.execute("DELETE FROM m")
        lake.execute("COMMIT PREPARED 'two'", "ROLLBACK PREPARED 'one'")
        assert lake.rows("SELECT id FROM m UNION ALL SELECT id FROM n") == [(1,), (1,)]
        wait_until(lambda: parquet_files(lake) == before, "the end of the files")


def test_by_default_there_are_none(tmp_path: Path) -> None:
    with LakeNode(tmp_path / "node", None) as lake:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as raised:
            lake.execute("BEGIN; PREPARE TRANSACTION 'x'")
        assert raised.value.diag.message_primary == "prepared transactions are disabled"
        hint = raised.value.diag.message_hint
        assert hint == 'Set "max_prepared_transactions" to a nonzero value.'
