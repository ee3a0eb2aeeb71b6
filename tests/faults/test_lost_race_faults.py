"""Others write to a target just before a batch is committed, or after a kill amid its commits.

Then some tables have transactions that another one cannot get: they are taken back, the
subscription stops at a cut, and SKIP and pg_replication_origin_advance work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from end_to_end.compare import Row, delta_rows, query
from faults.heavy import in_make_faults, part_of_make_faults
from faults.node_process import NodeProcess
from faults.unread import unread
from fix_postgres import Database
from penstock import Node, failpoint
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.lakehouse.history_table import history_of
from penstock.lsn import Lsn

pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.slow]

TABLES: Final = "abcdefghijkl"
"""More than commit at once."""
PARTITIONS: Final = "; ".join(
    f"CREATE TABLE {table} (i int PRIMARY KEY, v text) PARTITION BY RANGE (i);"
    f"CREATE TABLE {table}_0 PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO (3);"
    f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (3) TO (MAXVALUE)"
    for table in TABLES
)
COPIED: Final = [(0, "copied"), (9, "copied")]
SENT: Final = (
    "INSERT INTO {0} VALUES (1, 'x')",
    "INSERT INTO {0} VALUES (2, 'x'), (3, 'x'); UPDATE {0} SET v = 'y' WHERE i = 0;"
    " DELETE FROM {0} WHERE i = 9",
    "INSERT INTO {0} VALUES (4, 'x')",
)
"""Three transactions, each of all tables; the second one conflicts in one of them."""
BEFORE: Final = [(0, "copied"), (1, "x"), (9, "copied")]
PASSED: Final = [*BEFORE, (4, "x")]
LOCAL: Final = (2, "local")
"""A row that somebody else writes."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path / "node")
    try:
        yield made
    finally:
        made.close()


def begin(
    node: NodeProcess, database: Database, options: str, made: str, **parameters: str
) -> None:
    """Follow the tables, and be killed. What is published at once comes in one batch, even on a
    machine with other work."""
    for table in TABLES:
        database.execute(f"CREATE TABLE {table} (i int PRIMARY KEY, v text)")
        database.execute(f"INSERT INTO {table} VALUES {', '.join(map(str, COPIED))}")
    database.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(TABLES)}")
    node.init({"apply_batch_delay": "3s", "apply_batch_idle": "500ms", **parameters})
    if made:
        node.sql(made)
    node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p{options}")
    node.start()
    follow(node, database)
    node.kill9()


def publish(database: Database) -> Lsn:
    """Where the second one of three transactions finishes. No node runs."""
    for changes in SENT:
        whole = "; ".join(changes.format(table) for table in TABLES)
        database.execute(f"BEGIN; {whole}; COMMIT")
    return unread(database, b"B")[-2]


def follow(node: NodeProcess, database: Database) -> None:
    target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def reached() -> bool:
        ((status),) = node.status()
        ready = len(status["tables"]) == len(TABLES)
        ready = ready and all(table["state"] == "r" for table in status["tables"])
        return ready and Lsn.parse(status["cut_lsn"] or "0/0") >= target

    node.wait_for("a cut with all of it", reached, 120)


def stopped(node: NodeProcess) -> None:
    wait_until(lambda: "has stopped because of" in node.news(), "the error", 120)
    assert "insert_exists" in node.news(), node.log_tail()
    node.forgive()


def uris(node: NodeProcess, table: str) -> list[str]:
    """Of a table, or of its partitions."""
    folder = node.warehouse / "public"
    leaves = [folder / f"{table}_0", folder / f"{table}_1"]
    return [str(each) for each in (leaves if leaves[0].exists() else [folder / table])]


def newest(node: NodeProcess, table: str) -> list[Row]:
    return sorted(row[:2] for uri in uris(node, table) for row in delta_rows(uri))


def at_cut(node: NodeProcess, table: str) -> list[Row]:
    with Node(node.folder) as reader:
        cut = reader.cut("s")
    assert cut is not None
    pins = [cut.tables["public", Path(uri).name] for uri in uris(node, table)]
    return sorted(row[:2] for pin in pins for row in delta_rows(pin.uri, pin.version))


def write_conflict(node: NodeProcess, table: str) -> None:
    row = pa.table({"i": pa.array([LOCAL[0]], pa.int32()), "v": [LOCAL[1]]})
    write_deltalake(uris(node, table)[0], row, mode="append")


def check(node: NodeProcess, conflicting: str, wanted: list[Row]) -> None:
    """Nothing of the second transaction is in any version of a table that comes last."""
    for table in TABLES:
        local = [LOCAL] if table == conflicting else []
        assert newest(node, table) == sorted([*wanted, *local]), table
        assert set(at_cut(node, table)) - {LOCAL} == set(wanted), table


def check_history(node: NodeProcess) -> None:
    """A row for each change, and none of what was taken back."""
    with Node(node.folder) as reader:
        cut = reader.cut("s")
    assert cut is not None
    for table in TABLES:
        pin = cut.tables[history_of(("public", table))]
        found = query("SELECT i FROM t", t=DeltaTable(pin.uri, version=pin.version))
        assert sorted(found["i"].to_pylist()) == [0, 1, 4, 9], table


def skip(node: NodeProcess, lsn: Lsn) -> None:
    node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{lsn}'); ALTER SUBSCRIPTION s ENABLE")


def advance(node: NodeProcess, lsn: Lsn) -> None:
    node.kill9()
    node.sql("ALTER SUBSCRIPTION s DISABLE")
    oid = "'pg_' || oid, '{}') FROM pg_subscription"
    node.sql(f"SELECT pg_replication_origin_advance({oid.format(Lsn(lsn + 1))}")
    node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.start()


PassBy = Callable[[NodeProcess, Lsn], None]


def past(node: NodeProcess, database: Database, conflicting: str, lsn: Lsn, by: PassBy) -> None:
    """The subscription has stopped; pass its transaction by."""
    check(node, conflicting, BEFORE)
    by(node, lsn)
    follow(node, database)
    node.kill9()
    check(node, conflicting, PASSED)


@part_of_make_faults
@pytest.mark.parametrize(
    ("options", "made", "by"),
    [
        ("", "", skip),
        in_make_faults("", PARTITIONS, skip),
        in_make_faults(" WITH (history = true)", "", skip),
        in_make_faults(" WITH (streaming = parallel)", "", advance),
        in_make_faults(" WITH (on_table_error = park)", "", None),
    ],
)
def test_a_race_is_lost_between_the_look_and_the_commits(
    node: NodeProcess, database: Database, options: str, made: str, by: PassBy | None
) -> None:
    begin(node, database, options, made)
    lsn = publish(database)
    node.start(f"{failpoint.BEFORE_COMMITS}:1:stop")
    node.wait_stopped()
    write_conflict(node, "f")
    node.go_on()
    if by is None:
        wait_until(lambda: 'table "public.f" of subscription "s" is parked' in node.log(), "it", 60)
        wait_until(lambda: (4, "x") in at_cut(node, "a"), "the other tables", 60)
        assert at_cut(node, "a") == [(0, "y"), (1, "x"), (2, "x"), (3, "x"), (4, "x")]
        return
    stopped(node)
    past(node, database, "f", lsn, by)
    if "history" in options:
        check_history(node)


def killed_amid_commits(node: NodeProcess, commits: int = 1) -> str:
    """A table without the batch, of which others have it, or one of their partitions."""
    node.start(f"{failpoint.BETWEEN_COMMITS}:{commits}")
    assert node.wait_end(120) == -9, node.log_tail()
    inserted = {2, 3}
    lacking = [table for table in TABLES if not inserted & dict(newest(node, table)).keys()]
    assert 0 < len(lacking) < len(TABLES), lacking
    return lacking[-1]


@pytest.mark.parametrize(
    ("options", "made", "by", "kills"),
    [
        ("", "", skip, 1),
        in_make_faults("", "", advance, 0),
        in_make_faults("", PARTITIONS, skip, 2),
        in_make_faults("", PARTITIONS, advance, 0),
        in_make_faults(" WITH (history = true)", "", skip, 2),
        in_make_faults(" WITH (streaming = on)", "", skip, 0),
        in_make_faults(" WITH (streaming = parallel)", "", skip, 1),
    ],
)
def test_a_conflict_comes_after_a_kill_amid_the_commits(
    node: NodeProcess, database: Database, options: str, made: str, by: PassBy, kills: int
) -> None:
    """``kills``: while the batch is taken back."""
    begin(node, database, options, made)
    lsn = publish(database)
    # Histories come first, all of them. Kill number n comes after n tables are taken back.
    table = killed_amid_commits(node, len(TABLES) if "history" in options else 1 + kills)
    write_conflict(node, table)
    for number in range(1, kills + 1):
        node.start(f"{failpoint.AFTER_REVERSAL}:{number}")
        assert node.wait_end(120) == -9, node.log_tail()
    node.start()
    stopped(node)
    past(node, database, table, lsn, by)
    if "history" in options:
        check_history(node)


@part_of_make_faults
@pytest.mark.parametrize("made", ["", PARTITIONS])
def test_what_is_skipped_after_a_kill_is_in_no_table(
    node: NodeProcess, database: Database, made: str
) -> None:
    """Without a conflict."""
    begin(node, database, "", made)
    lsn = publish(database)
    killed_amid_commits(node)
    node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{lsn}')")
    node.start()
    follow(node, database)
    node.kill9()
    check(node, "", PASSED)


@part_of_make_faults
@pytest.mark.parametrize("made", ["", PARTITIONS])
def test_an_origin_is_put_past_what_some_tables_have(
    node: NodeProcess, database: Database, made: str
) -> None:
    begin(node, database, "", made)
    lsn = publish(database)
    killed_amid_commits(node)
    advance(node, lsn)
    follow(node, database)
    node.kill9()
    check(node, "", [*COPIED, (4, "x")])


@pytest.fixture
def two_phase_database() -> Iterator[Database]:
    with EmbeddedPostgres(18, settings={"max_prepared_transactions": 2}) as server:
        yield Database(server, "postgres")


def begin_with_two_phase(node: NodeProcess, database: Database, options: str) -> None:
    begin(node, database, f" WITH (two_phase{options})", "", logical_decoding_work_mem="64kB")
    node.start()
    enabled = "SELECT subtwophasestate FROM pg_subscription"
    wait_until(lambda: "\n e" in node.sql(enabled), "two-phase commit", 60)
    follow(node, database)
    node.kill9()


def publish_prepared(
    node: NodeProcess, database: Database, kept: bool, text: str = "x"
) -> tuple[Lsn, Lsn]:
    """As ``publish``, the second transaction in two phases: where its PREPARE finishes, and its
    COMMIT PREPARED. ``kept``: a node that has ended has acknowledged the PREPARE; ``text``: in the
    rows that the transaction inserts."""
    first, second, third = ("; ".join(s.format(t) for t in TABLES) for s in SENT)
    second = second.replace("'x'", f"'{text}'")
    prepare = f"BEGIN; {second}; PREPARE TRANSACTION 'x'"
    if not kept:
        database.execute(f"BEGIN; {first}; COMMIT")
    database.execute(prepare)
    (where,) = unread(database, b"P")
    if kept:
        node.start()
        follow(node, database)
        node.kill9()
        database.execute(f"BEGIN; {first}; COMMIT")
    database.execute("COMMIT PREPARED 'x'")
    database.execute(f"BEGIN; {third}; COMMIT")
    (finished,) = unread(database, b"K")
    return where, finished


@pytest.mark.parametrize(
    ("kept", "options", "by_prepare"),
    [
        in_make_faults(True, ", streaming = off", False),
        in_make_faults(False, "", False),
        in_make_faults(True, "", True),
        in_make_faults(False, "", True),
        in_make_faults(True, ", history = true", False),
        in_make_faults(False, ", streaming = on", True),
    ],
)
@pytest.mark.parametrize("text", ["x", in_make_faults("x" * 20_000, id="large")])
def test_a_prepared_transaction_loses_the_race_at_its_commit(
    node: NodeProcess,
    two_phase_database: Database,
    kept: bool,
    options: str,
    by_prepare: bool,
    text: str,
) -> None:
    """``text``: a large one is in pieces on disk."""
    database = two_phase_database
    begin_with_two_phase(node, database, options)
    prepared, committed = publish_prepared(node, database, kept, text)
    node.start(f"{failpoint.BEFORE_COMMITS}:1:stop")
    node.wait_stopped()
    write_conflict(node, "f")
    node.go_on()
    stopped(node)
    assert f"finished at {committed}" in node.log()
    past(node, database, "f", prepared if by_prepare else committed, skip)
    assert "0 rows" in node.sql("SELECT gid FROM pg_prepared_xacts")
    kept_files = (node.warehouse / "_penstock" / "prepared").rglob("*")
    assert not [path for path in kept_files if path.is_file()]


@part_of_make_faults
@pytest.mark.parametrize(
    ("kept", "by_prepare", "kills"),
    [(True, False, 1), (False, True, 1), (True, True, 0), (False, False, 0)],
)
def test_a_prepared_transaction_meets_a_conflict_after_a_kill_amid_its_commits(
    node: NodeProcess, two_phase_database: Database, kept: bool, by_prepare: bool, kills: int
) -> None:
    """``kills``: while it is taken back."""
    database = two_phase_database
    begin_with_two_phase(node, database, "")
    prepared, committed = publish_prepared(node, database, kept)
    table = killed_amid_commits(node)
    write_conflict(node, table)
    for number in range(1, kills + 1):
        node.start(f"{failpoint.AFTER_REVERSAL}:{number}")
        assert node.wait_end(120) == -9, node.log_tail()
    node.start()
    stopped(node)
    past(node, database, table, prepared if by_prepare else committed, skip)
    assert "0 rows" in node.sql("SELECT gid FROM pg_prepared_xacts")


@part_of_make_faults
@pytest.mark.parametrize(("kept", "by_prepare"), [(True, True), (False, False)])
def test_a_prepared_transaction_is_skipped_after_a_kill_amid_its_commits(
    node: NodeProcess, two_phase_database: Database, kept: bool, by_prepare: bool
) -> None:
    """Without a conflict."""
    database = two_phase_database
    begin_with_two_phase(node, database, "")
    prepared, committed = publish_prepared(node, database, kept)
    killed_amid_commits(node)
    lsn = prepared if by_prepare else committed
    node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{lsn}')")
    node.start()
    follow(node, database)
    node.kill9()
    check(node, "", PASSED)
