"""What stored values depend on, read from real servers of every version."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.attribute import Attribute
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.embedded.installation import as_account, find_installation, server_account
from penstock.lsn import Lsn
from penstock.walreceiver import table_definition
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.table_definition import (
    Membership,
    SeenTransactions,
    TableDefinition,
    parse_definition,
    read_definitions,
    rows_are_older,
    rows_came_with,
)

VERSIONS = [14, 15, 16, 17, 18]

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN moods AS mood[];
CREATE TYPE pair AS (x int, m mood);
CREATE TYPE span AS RANGE (SUBTYPE = pair);
CREATE TABLE t (id int PRIMARY KEY, n numeric(10,2), gone int, m moods, s span,
                g int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE t DROP COLUMN gone;
INSERT INTO t VALUES (1, 1);
ALTER TABLE t ADD COLUMN five int DEFAULT 5, ADD COLUMN words text[] DEFAULT '{a,"b,c"}',
              ADD COLUMN shape box DEFAULT '(1,1),(0,0)';
CREATE TABLE root (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE branch PARTITION OF root FOR VALUES FROM (0) TO (20) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF branch FOR VALUES FROM (0) TO (10);
CREATE PUBLICATION p FOR TABLE t, root;
CREATE PUBLICATION q FOR ALL TABLES WITH (publish = 'insert, truncate');
CREATE PUBLICATION other FOR TABLE t;
"""


@pytest.fixture(params=VERSIONS)
def database(request: pytest.FixtureRequest, database_on: Callable[..., Database]) -> Database:
    made = database_on(request.param)
    made.execute(SCHEMA)
    return made


def look(database: Database, *tables: str) -> list[TableDefinition]:
    oids = [database.value(f"SELECT '{table}'::regclass::oid::int") for table in tables]
    with Publisher.connect(database.conninfo, "looks") as publisher:
        found = read_definitions(publisher.connection, ["p", "q"], oids)
    assert found is not None and found.lsn > Lsn(0)
    return [parse_definition(found.tables[oid]) for oid in oids]


def test_a_table_is_read_whole(database: Database) -> None:
    (table,) = look(database, "t")
    columns = table.by_name
    assert [(a.number, a.attribute.name) for a in table.attributes] == [
        *[(1, "id"), (2, "n"), (4, "m"), (5, "s"), (6, "g")],
        *[(7, "five"), (8, "words"), (9, "shape")],
    ]
    assert columns["n"].attribute == Attribute("n", 1700, (10 << 16 | 2) + 4)
    assert columns["g"].attribute.generated == "s" and len(columns["g"].expression) == 32
    assert [(columns[n].has_missing, columns[n].missing) for n in ("five", "words", "shape")] == [
        (True, "5"),
        (True, '{a,"b,c"}'),
        (True, None),  # its arrays have another delimiter
    ]
    assert not columns["n"].has_missing
    assert {name for t in table.types for _, name in t.labels} == {"sad", "ok"}
    assert next(a for t in table.types if t.attributes for a in t.attributes) == (1, 23)
    memberships = [(m.name, m.operations, m.entry > 0) for m in table.memberships]
    assert memberships == [("p", "iudt", True), ("q", "it", False)]
    assert table.filenode and table.toast and not table.leaves


def test_a_partitioned_table_has_its_leaves(database: Database) -> None:
    (before,) = look(database, "root")
    assert [leaf.name for leaf in before.leaves] == ["leaf"]
    assert before.filenode == 0
    database.execute("TRUNCATE leaf")
    (after,) = look(database, "root")
    assert after.leaves[0].oid == before.leaves[0].oid
    assert after.leaves[0].filenode != before.leaves[0].filenode


def came_with(database: Database, leaf: str, role: str = "") -> bool:
    """Whether a partition of root has come with rows, as of now."""
    (root,) = look(database, "root")
    oid = database.value(f"SELECT '{leaf}'::regclass::oid::int")
    links = [link for link in root.path(oid) if not link.born]
    with Publisher.connect(database.conninfo, "looks") as publisher:
        if role:
            publisher.connection.query(f"SET ROLE {role}")
        came = rows_came_with(publisher.connection, oid, links, ended=3) if links else None
        return came is not None and (came.certain or came.unread or bool(came.xids))


def test_rows_that_came_with_their_partition(database: Database) -> None:
    database.execute("CREATE TABLE l2 (id int, v text); INSERT INTO l2 VALUES (11)")
    database.execute("ALTER TABLE branch ATTACH PARTITION l2 FOR VALUES FROM (10) TO (15)")
    database.execute(
        "CREATE TABLE l3 PARTITION OF branch (v DEFAULT 'x', PRIMARY KEY (id))"
        " FOR VALUES FROM (15) TO (20)"
    )
    database.execute("CREATE TABLE l4 (id int, v text)")
    database.execute("ALTER TABLE root ATTACH PARTITION l4 FOR VALUES FROM (20) TO (30)")
    inserts = "; ".join(f"INSERT INTO root VALUES ({i})" for i in (12, 16, 21, 17, 22, 18))
    database.execute(f"BEGIN; {inserts}; COMMIT")
    assert [came_with(database, leaf) for leaf in ("leaf", "l2", "l3", "l4")] == [
        *(False, True, False, False)
    ]


@pytest.mark.parametrize("filled", ["INSERT INTO l2 VALUES (21)", "SAVEPOINT a; {0}; RELEASE a"])
@pytest.mark.parametrize("made", ["CREATE TABLE l2 (id int, v text)", "ALTER TABLE l2 ADD v text"])
def test_rows_of_the_transaction_that_attached(
    database_on: Callable[..., Database], filled: str, made: str
) -> None:
    """Before it did, in subtransactions, too, which have greater numbers than it."""
    database = database_on(18)
    database.execute(SCHEMA)
    if made.startswith("ALTER"):
        database.execute("CREATE TABLE l2 (id int)")
    insert = "INSERT INTO l2 VALUES (21)"
    attach = "ALTER TABLE root ATTACH PARTITION l2 FOR VALUES FROM (20) TO (30)"
    database.execute(f"BEGIN; {made}; {filled.format(insert)}; {attach}; COMMIT")
    assert came_with(database, "l2")


def test_rows_that_came_with_a_branch(database: Database) -> None:
    """The leaf's own place in its branch is older than they are."""
    database.execute("CREATE TABLE b2 (id int, v text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE l2 PARTITION OF b2 FOR VALUES FROM (20) TO (30)")
    database.execute("INSERT INTO b2 VALUES (21)")
    database.execute("ALTER TABLE root ATTACH PARTITION b2 FOR VALUES FROM (20) TO (40)")
    assert came_with(database, "l2")


def test_rows_of_partitions_that_may_not_be_read(database: Database) -> None:
    database.execute("CREATE TABLE l2 (id int, v text)")
    database.execute("ALTER TABLE branch ATTACH PARTITION l2 FOR VALUES FROM (10) TO (15)")
    database.execute("CREATE TABLE l3 PARTITION OF branch FOR VALUES FROM (15) TO (20)")
    for leaf, wanted in (("l2", True), ("l3", False)):
        assert came_with(database, leaf, "pg_monitor") is wanted
    with Publisher.connect(database.conninfo, "looks") as publisher:
        publisher.connection.query("SET ROLE pg_monitor")
        oid = database.value("SELECT 'l3'::regclass::oid::int")
        assert not rows_are_older(publisher.connection, oid, 3)


def _go_on_at(server: EmbeddedPostgres, xid: int) -> None:
    """Restart a server with the first transaction number of a file of pg_xact."""
    for name in ("postgres", "template1"):
        Database(server, name).execute("VACUUM FREEZE")
    server.stop()
    segment = server.data_dir / "pg_xact" / f"{xid // _XIDS_OF_A_FILE:04X}"
    segment.write_bytes(bytes(_XIDS_OF_A_FILE // 4))
    account = server_account()
    if account is not None:
        os.chown(segment, account.uid, account.gid)
    reset = find_installation(18).program("pg_resetwal")
    command: list[str | Path] = [reset, "-x", str(xid), "-D", server.data_dir]
    subprocess.run(command, check=True, cwd="/", capture_output=True, **as_account(account))
    server.start()


_XIDS_OF_A_FILE = 32 * 4 * 8192


@part_of_make_faults
def test_rows_that_are_older_than_half_of_all_numbers() -> None:
    """They have a negative age."""
    with EmbeddedPostgres(18, settings={"autovacuum": False}) as server:
        database = Database(server, "postgres")
        database.execute("CREATE TABLE l2 (id int, v text); INSERT INTO l2 VALUES (21)")
        for xid in (1900 * _XIDS_OF_A_FILE, 2100 * _XIDS_OF_A_FILE):
            _go_on_at(server, xid)
        assert database.value("SELECT age(xmin) FROM l2") < 0
        database.execute(
            "CREATE TABLE root (id int, v text) PARTITION BY RANGE (id);"
            "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
        )
        database.execute("ALTER TABLE root ATTACH PARTITION l2 FOR VALUES FROM (20) TO (30)")
        database.execute("INSERT INTO root VALUES (22)")
        assert came_with(database, "l2")


def test_a_partition_that_was_emptied_has_no_older_rows(database: Database) -> None:
    database.execute("INSERT INTO root VALUES (1), (2)")
    oid = database.value("SELECT 'leaf'::regclass::oid::int")
    with Publisher.connect(database.conninfo, "looks") as publisher:
        seen = read_definitions(publisher.connection, ["p"], [oid])
        assert seen is not None
        database.execute("VACUUM FULL leaf; ")
        database.execute("INSERT INTO root VALUES (3)")
        assert rows_are_older(publisher.connection, oid, seen.xid)
        database.execute("TRUNCATE leaf")
        assert not rows_are_older(publisher.connection, oid, seen.xid)
        database.execute("INSERT INTO root VALUES (4)")
        assert not rows_are_older(publisher.connection, oid, seen.xid)


def test_lists_and_filters(database_on: Callable[..., Database]) -> None:
    database = database_on(18)
    database.execute(
        "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, v text);"
        "CREATE PUBLICATION p FOR TABLE s.t (id) WHERE (id > 0);"
        "CREATE PUBLICATION q FOR TABLES IN SCHEMA s WITH (publish_generated_columns = stored);"
    )

    def memberships() -> tuple[Membership, ...]:
        (table,) = look(database, "s.t")
        return table.memberships

    before = memberships()
    assert [m.columns for m in before] == ["1", None]
    assert [m.row_filter is None for m in before] == [False, True]
    assert [m.generated for m in before] == ["n", "s"]
    database.execute("ALTER PUBLICATION p SET TABLE s.t (id) WHERE (id > 0)")
    assert memberships() == before
    database.execute("ALTER PUBLICATION p DROP TABLE s.t")
    database.execute("ALTER PUBLICATION p ADD TABLE s.t (id) WHERE (id > 0)")
    after = memberships()
    assert after[0].selects == before[0].selects
    assert after[0].entry != before[0].entry
    database.execute("ALTER PUBLICATION q RENAME TO r; ALTER PUBLICATION r RENAME TO q")
    assert memberships()[1].changed != before[1].changed


def test_a_transaction_that_was_sent_is_waited_for(database: Database) -> None:
    oid = database.value("SELECT 't'::regclass::oid::int")
    with (
        Publisher.connect(database.conninfo, "looks") as publisher,
        database.connect(autocommit=False) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("ALTER TABLE t ADD COLUMN late int")
        ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
        before = read_definitions(publisher.connection, ["p"], [oid])
        assert before is not None
        assert not before.seen.has([xid])
        reading = pool.submit(read_definitions, publisher.connection, ["p"], [oid], [xid])
        with pytest.raises(TimeoutError):
            reading.result(0.2)
        other.execute("COMMIT")
        after = reading.result(30)
        assert after is not None
        assert after.seen.has([xid])
        assert "late" in parse_definition(after.tables[oid]).by_name
        assert before.lsn <= before.until <= after.until


def test_a_transaction_that_waits_for_standbys_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for us: its commit record is flushed, and nobody can see it."""
    monkeypatch.setattr(table_definition, "_SEEN_S", 60)
    with EmbeddedPostgres(18, settings={"synchronous_standby_names": "nobody"}) as server:
        database = Database(server, "postgres")
        with psycopg.connect(database.conninfo, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute("CREATE TABLE t (id int)")
        oid = database.value("SELECT 't'::regclass::oid::int")
        with (
            Publisher.connect(database.conninfo, "looks") as publisher,
            database.connect(autocommit=False) as other,
            ThreadPoolExecutor(2) as pool,
        ):
            other.execute("SET LOCAL synchronous_commit = on")
            other.execute("ALTER TABLE t ADD COLUMN late int")
            ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
            commit = pool.submit(other.execute, "COMMIT")
            wait_until(
                lambda: database.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"),
                "a commit that waits for a standby",
            )
            reading = pool.submit(read_definitions, publisher.connection, ["p"], [oid], [xid])
            found = reading.result(30)
            assert found is not None
            assert not found.seen.has([xid])
            assert "late" not in parse_definition(found.tables[oid]).by_name
            database.execute(f"SELECT pg_cancel_backend({other.info.backend_pid})")
            commit.result(30)


@pytest.mark.parametrize(
    ("xid", "seen"), [(99, True), (100, False), (101, False), (2**32 - 5, True), (98, False)]
)
def test_numbers_of_transactions_go_round(xid: int, seen: bool) -> None:
    assert SeenTransactions(100, frozenset({98})).has([xid]) is seen
    assert SeenTransactions(100).has([])
