"""Tables that a transaction block makes and fills, beside a PostgreSQL 18: what its statements see,
what others see, savepoints, names that others have taken meanwhile; and what subscribers hear.

All of it without Spark: what is staged is written by files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from faults.heavy import HEAVY, in_make_faults
from fix_postgres import Database
from penstock import failpoint
from penstock.embedded import wait_until
from penstock.errors import StorageError
from penstock.executor import block_commit
from penstock.executor.block_commit import NewTables
from penstock.lakehouse.change import StagedCommit
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.warehouse import Warehouse
from publishing.lake_node import PASSWORD, LakeNode, drop_subscriptions
from publishing.psql_pair import Pair
from publishing.test_transaction_blocks import members

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("kept_log")]

_SCRIPT = r"""
CREATE TABLE there (id int PRIMARY KEY, v text);
CREATE TYPE mood AS ENUM ('sad', 'fine');
BEGIN;
CREATE TABLE one (a int PRIMARY KEY, b text UNIQUE);
\d one
SELECT * FROM one;
INSERT INTO one VALUES (1, 'x'), (2, 'y');
INSERT INTO there SELECT * FROM one;
UPDATE one SET b = b || '!' WHERE a = 2;
SELECT * FROM one ORDER BY a;
SELECT one.b, there.v FROM one JOIN there ON a = id ORDER BY 1;
COPY one TO STDOUT;
ALTER TABLE one REPLICA IDENTITY FULL;
SELECT relname, relreplident FROM pg_class WHERE relname IN ('one', 'there') ORDER BY 1;
DELETE FROM one WHERE a = 1;
COMMIT;
\d one
SELECT * FROM one;
SELECT * FROM there ORDER BY id;
BEGIN;
CREATE TABLE two (a int);
INSERT INTO two VALUES (1);
ROLLBACK;
SELECT * FROM two;
\d two
BEGIN;
CREATE TABLE two (a int);
CREATE TABLE two (a int);
INSERT INTO two VALUES (1);
COMMIT;
SELECT * FROM two;
BEGIN;
CREATE TABLE IF NOT EXISTS one (z int);
CREATE TABLE two (id serial, w int GENERATED ALWAYS AS IDENTITY, v text, m mood);
INSERT INTO two (v) VALUES ('a'), ('b');
INSERT INTO two (m) VALUES ('fine');
SELECT currval('two_id_seq'), nextval('two_id_seq'), lastval();
SELECT * FROM two ORDER BY id;
\d two
COMMIT;
SELECT currval('two_id_seq');
INSERT INTO two (v) VALUES ('c');
SELECT * FROM two ORDER BY id;
BEGIN;
CREATE TABLE three (a int);
INSERT INTO three VALUES (1);
SAVEPOINT s;
CREATE TABLE four (a int);
INSERT INTO four VALUES (2);
DROP TABLE three;
SELECT * FROM three;
ROLLBACK TO s;
SELECT * FROM three;
SELECT * FROM four;
ROLLBACK TO s;
SAVEPOINT t;
DROP TABLE three, four;
ROLLBACK TO t;
DROP TABLE IF EXISTS four;
DROP TABLE three;
CREATE TABLE three (b text DEFAULT 'none', c int);
INSERT INTO three VALUES ('new', 1);
INSERT INTO three (c) VALUES (2);
RELEASE s;
COMMIT AND CHAIN;
SELECT * FROM three ORDER BY c;
CREATE TABLE five (a int);
ROLLBACK;
SELECT * FROM five;
BEGIN;
CREATE TABLE five (LIKE three);
INSERT INTO five SELECT * FROM three;
DROP TABLE five;
COMMIT;
SELECT * FROM five;
BEGIN READ ONLY;
CREATE TABLE five (a int);
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM three ORDER BY c;
CREATE TABLE five (a int);
INSERT INTO five VALUES (5);
UPDATE five SET a = a + 1;
SELECT * FROM five;
COMMIT;
BEGIN;
CREATE TABLE six ();
CREATE TABLE nowhere.six (a int);
ROLLBACK;
BEGIN;
CREATE TABLE six (a int, a text);
ROLLBACK;
BEGIN;
CREATE TABLE one (a int);
ROLLBACK;
BEGIN;
CREATE TABLE mood (a int);
ROLLBACK;
BEGIN;
CREATE TABLE six (a int UNIQUE);
CREATE TABLE six_a_key (a int);
COMMIT;
BEGIN;
CREATE TABLE six (a int);
COMMIT;
\d
DROP TABLE there, one, two, three, five, six;
DROP TYPE mood;
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    with LakeNode(tmp_path_factory.mktemp("tables") / "node", None) as started:
        yield started


def test_statements_of_blocks_are_as_on_a_server(pair: Pair) -> None:
    pair.both(_SCRIPT)


def folders(lake: LakeNode) -> set[str]:
    """Of tables, and of what is none."""
    return {path.name for path in (lake.node.folder / "warehouse" / "public").glob("*")}


def known(lake: LakeNode) -> list[str]:
    return [name for (name,) in lake.rows("SELECT relname FROM pg_class WHERE relkind = 'r'")]


@pytest.mark.parametrize("end", ["ROLLBACK", "an error", "the session", "COMMIT"])
def test_nobody_else_sees_it_before_commit(lake: LakeNode, end: str) -> None:
    name = f"seen_{end.split()[-1].lower()}"
    with contextlib.closing(lake.connect()) as session:
        session.execute(f"BEGIN; CREATE TABLE {name} (id int PRIMARY KEY); SELECT 1")
        session.execute(f"INSERT INTO {name} VALUES (1)")
        assert session.execute(f"SELECT * FROM {name}").fetchall() == [(1,)]
        assert name not in known(lake)
        with pytest.raises(psycopg.errors.UndefinedTable):
            lake.execute(f"SELECT * FROM {name}")
        with pytest.raises(psycopg.errors.UndefinedTable):
            lake.execute(f"INSERT INTO {name} VALUES (2)")
        assert lake.node.serving is not None
        lake.node.serving.sequencer.step(discover=True)
        assert name not in known(lake)
        if end == "an error":
            with pytest.raises(psycopg.errors.DivisionByZero):
                session.execute(f"INSERT INTO {name} VALUES (1/0)")
            session.execute("COMMIT")
        elif end != "the session":
            session.execute(end)
    if end == "COMMIT":
        assert lake.rows(f"SELECT * FROM {name}") == [(1,)]
        assert members(lake)[-1] == {name}
        lake.execute(f"DROP TABLE {name}")
        return
    wait_until(lambda: name not in folders(lake), "the end of the session's folder")
    assert name not in known(lake)
    lake.execute(f"CREATE TABLE {name} (other text)", f"INSERT INTO {name} VALUES ('a')")
    assert lake.rows(f"SELECT * FROM {name}") == [("a",)]
    lake.execute(f"DROP TABLE {name}")


def _take_by_create(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE taken (mine text)", "INSERT INTO taken VALUES ('mine')")


def _take_by_block(lake: LakeNode) -> None:
    with lake.connect() as other:
        other.execute("BEGIN; CREATE TABLE taken (mine text); INSERT INTO taken VALUES ('mine')")
        other.execute("COMMIT")


def _take_as_others(lake: LakeNode) -> None:
    """By a writer that knows nothing of the node, which has not seen it yet."""
    warehouse = Warehouse(str(lake.node.folder / "warehouse"))
    warehouse.create("public", "taken", TableSchema((), ()))


@pytest.mark.parametrize("take", [_take_by_create, _take_by_block, _take_as_others])
def test_a_name_that_is_taken_meanwhile(lake: LakeNode, take: Any) -> None:
    """Who commits first has it, and keeps it; of the block nothing is left."""
    lake.execute("CREATE TABLE beside (id int)")
    before = members(lake)
    with lake.connect() as session:
        session.execute("BEGIN; INSERT INTO beside VALUES (1); CREATE TABLE taken (id int)")
        session.execute("INSERT INTO taken VALUES (1)")
        take(lake)
        with pytest.raises(psycopg.errors.DuplicateTable) as raised:
            session.execute("COMMIT")
        assert raised.value.diag.message_primary == 'relation "taken" already exists'
    assert lake.rows("SELECT * FROM beside") == []
    if take is not _take_as_others:
        assert lake.rows("SELECT * FROM taken") == [("mine",)]
        files = list((lake.node.folder / "warehouse" / "public" / "taken").glob("*.parquet"))
        assert len(files) == 1
        assert members(lake) == [*before, {"taken"}]
    lake.execute("DROP TABLE taken", "DROP TABLE beside")


def test_what_it_needs_is_gone_meanwhile(lake: LakeNode) -> None:
    lake.execute("CREATE SCHEMA going", "CREATE TYPE leaving AS ENUM ('a')")
    dropped = {
        "going.t (a int)": ("DROP SCHEMA going", psycopg.errors.InvalidSchemaName),
        "t (a leaving)": ("DROP TYPE leaving", psycopg.errors.UndefinedObject),
    }
    for table, (drop, error) in dropped.items():
        with lake.connect() as session:
            session.execute(f"BEGIN; CREATE TABLE {table}")
            lake.execute(drop)
            with pytest.raises(error):
                session.execute("COMMIT")
    assert "t" not in known(lake)


def test_what_it_needs_stays_while_it_is_committed(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL would wait."""
    lake.execute("CREATE SCHEMA needed", "CREATE TYPE wanted AS ENUM ('a')")

    def stop(name: str) -> None:
        raise RuntimeError(name)

    with monkeypatch.context() as patched:
        patched.setattr(block_commit, "failpoint", stop)
        with lake.connect() as session, pytest.raises(psycopg.Error):
            session.execute("BEGIN; CREATE TABLE needed.t (a wanted)")
            session.execute("INSERT INTO needed.t VALUES ('a')")
            session.execute("COMMIT")
    for what in ("SCHEMA needed", "TYPE wanted"):
        with pytest.raises(psycopg.errors.ObjectInUse, match='makes table "t"'):
            lake.execute(f"DROP {what} CASCADE")
    assert lake.node.serving is not None
    lake.node.serving._blocks.finish()
    assert lake.rows("SELECT * FROM needed.t") == [("a",)]
    lake.execute("DROP SCHEMA needed CASCADE", "DROP TYPE wanted")


_PLACES = failpoint.BLOCK_TABLE_NAMES
_BLOCKS = 40 if HEAVY else 15
"""Of a story."""


@pytest.mark.parametrize("place", _PLACES)
def test_one_that_stops_at_its_commit_goes_on(
    lake: LakeNode, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sees a part of it, nor takes its name, whoever looks into the warehouse meanwhile.
    What stands for kill -9 here, ``faults.test_block_faults`` does."""
    new, old = f"new_{_PLACES.index(place)}", f"old_{_PLACES.index(place)}"
    lake.execute(f"CREATE TABLE {old} (id int)")

    def stop(name: str) -> None:
        if name == place:
            raise RuntimeError(name)

    with monkeypatch.context() as patched:
        patched.setattr(block_commit, "failpoint", stop)
        with lake.connect() as session, pytest.raises(psycopg.Error):
            session.execute(f"BEGIN; CREATE TABLE {new} (id serial, v text)")
            session.execute(f"INSERT INTO {new} (v) VALUES ('a'), ('b')")
            session.execute(f"INSERT INTO {old} VALUES (1)")
            session.execute("COMMIT")
    before = members(lake)
    with pytest.raises(psycopg.errors.UndefinedTable):
        lake.rows(f"SELECT * FROM {new}")
    assert lake.rows(f"SELECT * FROM {old}") == []
    with pytest.raises(psycopg.errors.DuplicateTable):
        lake.execute(f"CREATE TABLE {new} (id int)")
    assert members(lake) == before
    assert lake.node.serving is not None
    lake.node.serving._blocks.finish()
    assert sorted(lake.rows(f"SELECT * FROM {new}")) == [(1, "a"), (2, "b")]
    assert lake.rows(f"SELECT * FROM {old}") == [(1,)]
    assert members(lake) == [*before, {new, old}]
    lake.execute(f"INSERT INTO {new} (v) VALUES ('c')")
    assert lake.rows(f"SELECT id FROM {new} WHERE v = 'c'") == [(3,)]


def test_a_store_that_fails_at_its_commit(lake: LakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is rolled back: at once, or when the store can be written again."""
    lake.execute("CREATE TABLE full_old (id int)")
    before, put, undo = members(lake), StagedCommit.put, NewTables.undo

    def failing(commit: StagedCommit, *state: Any) -> int:
        if commit.change.name == "public.full_old":
            raise StorageError("the disk is full", sqlstate="53100")
        return put(commit, *state)

    def failing_undo(*given: Any) -> bool:
        raise StorageError("the disk is full", sqlstate="53100")

    for taken_back in (undo, failing_undo):
        with monkeypatch.context() as patched, contextlib.closing(lake.connect()) as session:
            patched.setattr(StagedCommit, "put", failing)
            patched.setattr(NewTables, "undo", taken_back)
            session.execute(
                "BEGIN; CREATE TABLE full_new (id int); INSERT INTO full_new VALUES (1)"
            )
            session.execute("INSERT INTO full_old VALUES (1)")
            with pytest.raises(psycopg.errors.DiskFull):
                session.execute("COMMIT")
        assert lake.node.serving is not None
        lake.node.serving._blocks.finish()
        assert lake.rows("SELECT * FROM full_old") == []
        assert "full_new" not in known(lake)
        assert "full_new" not in folders(lake)
        assert members(lake) == before
    lake.execute("CREATE TABLE full_new (id int)", "DROP TABLE full_new")


def test_others_have_written_to_a_table_that_is_taken_back(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays with their rows."""
    lake.execute("CREATE TABLE last (id int)")
    put = StagedCommit.put

    def failing(commit: StagedCommit, *state: Any) -> int:
        if commit.change.name != "public.last":
            return put(commit, *state)
        table = Warehouse(str(lake.node.folder / "warehouse")).open("public", "others")
        assert table is not None
        table.commit(app_id="somebody else", operation="WRITE")
        raise StorageError("the disk is full", sqlstate="53100")

    with monkeypatch.context() as patched, contextlib.closing(lake.connect()) as session:
        patched.setattr(StagedCommit, "put", failing)
        session.execute("BEGIN; CREATE TABLE others (id int); INSERT INTO others VALUES (1)")
        session.execute("INSERT INTO last VALUES (1)")
        with pytest.raises(psycopg.errors.DiskFull):
            session.execute("COMMIT")
    assert lake.rows("SELECT * FROM others") == []
    assert lake.rows("SELECT * FROM last") == []


_REFUSED = (
    ("CREATE TABLE p (a int) PARTITION BY LIST (a)", "of a partitioned table or a partition"),
    ("CREATE TABLE p1 PARTITION OF made FOR VALUES IN (1)", "of a partitioned table"),
    ("ALTER TABLE made ADD COLUMN b int", "ALTER TABLE other than REPLICA IDENTITY"),
    ("ALTER TABLE other REPLICA IDENTITY FULL", "that the block has not made"),
    ("DROP TABLE other", "that the block has not made"),
    ("DROP TABLE made, other", "that the block has not made"),
    ("CREATE PUBLICATION x", "commands after changes of rows"),
    ("GRANT SELECT ON made TO lake", "commands after changes of rows"),
    ("TRUNCATE made", "TRUNCATE cannot run inside a transaction block"),
    ("CREATE TABLE made_as AS SELECT * FROM made", "CREATE TABLE AS cannot run inside"),
    ("PREPARE TRANSACTION 'made'", "PREPARE TRANSACTION after CREATE TABLE"),
)


def test_what_is_refused_by_name(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE other (a int)")
    for statement, message in _REFUSED:
        with contextlib.closing(lake.connect()) as session:
            session.execute("BEGIN; CREATE TABLE made (a int); INSERT INTO made VALUES (1)")
            with pytest.raises(psycopg.errors.FeatureNotSupported, match=message):
                session.execute(statement)
    lake.execute("DROP TABLE other")


@pytest.mark.parametrize("seed", [1, *(in_make_faults(seed) for seed in range(2, 8))])
def test_a_story_of_blocks(pair: Pair, seed: int) -> None:
    """The same statements on both, in blocks and after them."""
    random, before = Random(seed), members(pair.lake)
    with psycopg.connect(
        pair.server.conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as server:
        for number in range(_BLOCKS):
            tables = [f"k{seed}_{number}_{name}" for name in "ab"]
            for statement in _block(random, tables):
                results = [_outcome(one, statement) for one in (server, pair.lake.connection)]
                assert results[1] == results[0], f"seed {seed}, block {number}: {statement}"
    with pair.lake.node._catalog.read() as t:
        assert t.block_commits.all() == ()
    assert len(members(pair.lake)) - len(before) <= _BLOCKS, "a block is one transaction"


def _block(random: Random, tables: Sequence[str]) -> Iterator[str]:
    yield "BEGIN"
    for _ in range(random.randint(3, 14)):
        table, key = random.choice(tables), random.randint(1, 5)
        yield random.choice(
            [
                f"CREATE TABLE {table} (id serial, v int DEFAULT 7)",
                f"CREATE TABLE IF NOT EXISTS {table} (id serial, v int)",
                f"INSERT INTO {table} (v) VALUES ({key}), (NULL)",
                f"INSERT INTO {table} (v) SELECT v FROM {random.choice(tables)}",
                f"UPDATE {table} SET v = v + 1 WHERE id = {key}",
                f"DELETE FROM {table} WHERE id = {key}",
                f"ALTER TABLE {table} REPLICA IDENTITY FULL",
                f"SELECT * FROM {table}",
                f"SELECT relname, relreplident FROM pg_class WHERE relname = '{table}'",
                f"DROP TABLE IF EXISTS {table}",
                f"SAVEPOINT s{key % 2}",
                f"SAVEPOINT s{key % 2}",
                f"ROLLBACK TO s{key % 2}",
                f"ROLLBACK TO s{key % 2}",
                f"RELEASE s{key % 2}",
            ]
        )
    yield random.choice(["COMMIT", "COMMIT", "ROLLBACK"])
    for table in tables:
        yield f"SELECT * FROM {table}"


def _outcome(session: psycopg.Connection[Any], statement: str) -> Any:
    try:
        cursor = session.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary
    rows = sorted(map(str, cursor.fetchall())) if cursor.description else None
    return cursor.statusmessage, rows


def test_statements_with_parameters(lake: LakeNode) -> None:
    """In the extended protocol, which describes a statement before it runs it."""
    with psycopg.connect(lake.conninfo(), autocommit=True) as session:
        session.execute("BEGIN")
        session.execute("CREATE TABLE bound (id int PRIMARY KEY, v text)")
        for number in (1, 2):
            values = number, f"v{number}"
            session.execute("INSERT INTO bound VALUES (%s, %s)", values, prepare=True)
        query = "SELECT v FROM bound WHERE id = %s"
        for binary in (False, True):
            found = session.execute(query, (2,), prepare=True, binary=binary).fetchall()
            assert found == [("v2",)]
        named = "SELECT relname FROM pg_class WHERE relname = %s"
        assert session.execute(named, ("bound",)).fetchall() == [("bound",)]
        session.execute("COMMIT")
        assert session.execute(query, (1,), prepare=True).fetchall() == [("v1",)]
    lake.execute("DROP TABLE bound")


def test_roles(lake: LakeNode) -> None:
    """Who makes a table owns it; who may not, does not."""
    lake.execute(
        f"CREATE ROLE maker LOGIN PASSWORD '{PASSWORD}'", "CREATE SCHEMA makes AUTHORIZATION maker"
    )
    with lake.connect("maker") as session:
        session.execute("BEGIN; CREATE TABLE makes.own (id int); INSERT INTO makes.own VALUES (1)")
        session.execute("COMMIT")
        assert session.execute("SELECT * FROM makes.own").fetchall() == [(1,)]
        session.execute("BEGIN")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("CREATE TABLE not_own (id int)")
        session.execute("ROLLBACK; BEGIN; CREATE TABLE makes.other (id int)")
        lake.execute("DROP TABLE makes.own")
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'makes'"
        assert session.execute(tables).fetchall() == [("other",)]
        session.execute("ROLLBACK")
    lake.execute("DROP SCHEMA makes", "DROP ROLE maker")


_PUBLISHED = (
    "CREATE TABLE elder (id int)",
    "CREATE PUBLICATION every FOR ALL TABLES",
    "SELECT 1 FROM pg_create_logical_replication_slot('s', 'pgoutput')",
    "BEGIN",
    "CREATE TABLE younger (id int PRIMARY KEY, v text)",
    "INSERT INTO younger VALUES (1, 'a')",
    "COMMIT",
    "BEGIN",
    "INSERT INTO elder VALUES (7)",
    "CREATE TABLE youngest (id serial, v text)",
    "ALTER TABLE youngest REPLICA IDENTITY FULL",
    "INSERT INTO youngest (v) VALUES ('b')",
    "COMMIT",
    "UPDATE youngest SET v = 'c'",
    "BEGIN",
    "CREATE TABLE empty (id int)",
    "COMMIT",
    "INSERT INTO empty VALUES (8)",
)
_DECODED = (
    "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, 'proto_version', '1', "
    "'publication_names', 'every')"
)
_AFTER = (
    "SELECT pg_drop_replication_slot('s')",
    "DROP PUBLICATION every",
    "DROP TABLE elder, younger, youngest, empty",
)


def test_first_rows_are_decoded_as_on_a_server(pair: Pair) -> None:
    """Messages without positions and oids; a server may tell of a relation again."""
    with psycopg.connect(
        pair.server.conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as server:
        decoded = [_messages(session) for session in (server, pair.lake.connection)]
    assert decoded[1] == decoded[0]


def _messages(session: psycopg.Connection[Any]) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for statement in _PUBLISHED:
        session.execute(statement)
    for (data,) in session.execute(_DECODED).fetchall():
        kind = bytes(data[:1])
        message = kind, b"" if kind in b"BC" else bytes(data[5:])
        if kind != b"R" or message not in found:
            found.append(message)
    for statement in _AFTER:
        session.execute(statement)
    return found


def test_first_rows_reach_a_subscriber(tmp_path: Path, subscriber: Callable[..., Database]) -> None:
    """Of a publication of all tables: in the transaction that has made the table, too."""
    database = subscriber()
    database.execute("CREATE TABLE elder (id int PRIMARY KEY)")
    database.execute("CREATE TABLE younger (id int PRIMARY KEY, v text)")
    with LakeNode(tmp_path / "node", None) as lake:
        lake.execute("CREATE TABLE elder (id int PRIMARY KEY)")
        lake.execute("CREATE PUBLICATION every FOR ALL TABLES")
        lake.subscribe(database, "lakes", "every")
        lake.execute("SELECT pg_create_logical_replication_slot('raw', 'pgoutput')")
        lake.execute(
            "BEGIN; CREATE TABLE younger (id int PRIMARY KEY, v text);"
            "INSERT INTO younger VALUES (1, 'a'), (2, 'b'); INSERT INTO elder VALUES (7); COMMIT"
        )
        messages = lake.rows(
            "SELECT data FROM pg_logical_slot_get_binary_changes('raw', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'every')"
        )
        kinds = sorted(bytes(data)[:1] for (data,) in messages)
        assert kinds == [b"B", b"C", *[b"I"] * 3, *[b"R"] * 2]
        wait_until(lambda: database.rows("SELECT id FROM elder") == [(7,)], "the row of elder")
        assert database.rows("SELECT * FROM younger") == []  # not refreshed, as with a server
        database.execute("ALTER SUBSCRIPTION lakes REFRESH PUBLICATION")
        lake.copied(database, "lakes")
        assert sorted(database.rows("SELECT * FROM younger")) == [(1, "a"), (2, "b")]
        lake.execute("INSERT INTO younger VALUES (3, 'c')")
        lake.caught_up("lakes")
        assert len(database.rows("SELECT * FROM younger")) == 3
        drop_subscriptions(database)
