"""disable_on_error and SKIP: an error names its transaction, which is passed by, and nothing else.

Beside a stock subscriber, PostgreSQL 17, which says where the transaction finishes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import InvalidParameterValue
from penstock.lsn import Lsn
from penstock.node.status import Health, health

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = "CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE u (i int PRIMARY KEY, v text);"
_SYNCED = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
_CONTEXT = (
    r'CONTEXT:  processing remote data for replication origin "pg_\d+" during message type '
    r'"INSERT" for replication target relation "public.t" in transaction (\d+), finished at '
    r"([0-9A-F]+/[0-9A-F]+)"
)
_ENABLED = "SELECT subenabled FROM pg_subscription WHERE subname = '{name}'"
_SKIP = "SELECT subskiplsn FROM pg_subscription WHERE subname = '{name}'"


@pytest.fixture
def stock(database: Database, database_on: Callable[[int], Database]) -> Iterator[Database]:
    """A server that subscribes to the publication p of ``database``."""
    server = database_on(17)
    server.execute(_TABLES)
    yield server
    server.execute("DROP SUBSCRIPTION IF EXISTS stock")


def _subscribe(node: LocalNode, stock: Database, database: Database) -> None:
    options = "disable_on_error = true"
    node.subscribe("s", database, "p", options)
    stock.execute(
        f"CREATE SUBSCRIPTION stock CONNECTION '{database.conninfo}' PUBLICATION p WITH ({options})"
    )
    node.caught_up("s", database)
    wait_until(lambda: stock.value(_SYNCED), "copied tables", 90)


def _foreign_row(node: LocalNode, stock: Database, spark: Any, value: int) -> None:
    uri = node.cut().tables["public", "t"].uri
    spark.sql(f"INSERT INTO delta.`{uri}` VALUES ({value})").collect()
    stock.execute(f"INSERT INTO t VALUES ({value})")


def _sql(node: LocalNode, text: str) -> Any:
    ((value,),) = node.node.sql(text).rows
    return value


@pytest.mark.parametrize("size", [in_make_faults(1), 6000])
def test_the_transaction_of_an_error_is_named_and_skipped_alone(
    local_node: Callable[..., LocalNode],
    database: Database,
    stock: Database,
    spark: Any,
    caplog: pytest.LogCaptureFixture,
    size: int,
) -> None:
    database.execute(f"{_TABLES} CREATE PUBLICATION p FOR TABLE t, u")
    node = local_node(logical_decoding_work_mem="64kB", apply_queue_mem="256kB")
    _subscribe(node, stock, database)
    _foreign_row(node, stock, spark, 50)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    log_size = stock.server.log_path.stat().st_size
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("INSERT INTO u VALUES (1)")
    database.execute(
        "BEGIN; INSERT INTO u SELECT i, repeat('x', 50)"
        f" FROM generate_series(1000, 999 + {size}) i;"
        "INSERT INTO t VALUES (50); DELETE FROM u WHERE i = 1; COMMIT"
    )
    database.execute("INSERT INTO t VALUES (3); INSERT INTO u VALUES (3)")
    caplog.set_level(logging.INFO, "penstock")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    status = node.stopped("s")
    wait_until(lambda: not stock.value(_ENABLED.format(name="stock")), "the disabling", 60)

    assert not status.enabled
    assert health([status], running=True) is Health.NEEDS_A_PERSON
    assert not _sql(node, _ENABLED.format(name="s"))
    counts = "SELECT apply_error_count, sync_error_count, confl_insert_exists"
    counts += " FROM pg_stat_subscription_stats"
    assert node.node.sql(counts).rows == ((1, 0, 1),)
    said = "\n".join(caplog.messages)
    assert 'subscription "s" has been disabled because of an error' in said
    found = re.findall(_CONTEXT, said)
    server_log = stock.server.log_path.read_bytes()[log_size:].decode()
    assert found == re.findall(_CONTEXT, server_log)
    lsn = found[0][1]
    assert sorted(node.rows("t")) == [(1,), (50,)]
    assert node.rows("u") == [(1, None)]
    skip = f"ALTER SUBSCRIPTION s SKIP (lsn = '{lsn}')"
    ways_on = f"To skip the transaction: {skip}, and then ALTER SUBSCRIPTION s ENABLE."
    last = "Whatever is done, ALTER SUBSCRIPTION s ENABLE comes last: it is disabled now."
    assert str(status.error_hint).endswith(f"{ways_on} {last}")

    node.node.sql(f"{skip}; ALTER SUBSCRIPTION s ENABLE")
    stock.execute(f"ALTER SUBSCRIPTION stock SKIP (lsn = '{lsn}'); ALTER SUBSCRIPTION stock ENABLE")
    node.caught_up("s", database)
    database.wait_confirmed("stock", 90)
    for table in "tu":
        assert sorted(node.rows(table)) == sorted(stock.rows(f"SELECT * FROM {table}")), table
    assert sorted(node.rows("u")) == [(1, None), (3, None)]
    wait_until(lambda: _sql(node, _SKIP.format(name="s")) == "0/0", "the end of SKIP")
    assert f"logical replication completed skipping transaction at LSN {lsn}" in caplog.messages
    assert "cleared" not in caplog.text
    # Once: the same LSN means nothing any more.
    refused = "skip WAL location \\(LSN .*\\) must be greater than origin LSN .*"
    for run in (node.node.sql, stock.execute):
        name = "s" if run == node.node.sql else "stock"
        with pytest.raises(Exception, match=refused) as raised:
            run(f"ALTER SUBSCRIPTION {name} SKIP (lsn = '{lsn}')")
        assert getattr(raised.value, "sqlstate", None) == InvalidParameterValue.default_sqlstate


@pytest.mark.parametrize(
    "way_on", ["REFRESH PUBLICATION", in_make_faults("SET (on_table_error = park)")]
)
def test_other_ways_on_of_a_disabled_subscription(
    local_node: Callable[..., LocalNode], database: Database, spark: Any, way_on: str
) -> None:
    database.execute(f"{_TABLES} CREATE PUBLICATION p FOR TABLE t, u")
    node = local_node()
    node.subscribe("s", database, "p", "disable_on_error = true")
    node.caught_up("s", database)
    uri = node.cut().tables["public", "t"].uri
    spark.sql(f"INSERT INTO delta.`{uri}` VALUES (50)").collect()
    database.execute("INSERT INTO t VALUES (50), (51); INSERT INTO u VALUES (1)")
    status = node.stopped("s")
    assert not status.enabled
    assert f"ALTER SUBSCRIPTION s {way_on}" in str(status.error_hint)
    node.node.sql(f"ALTER SUBSCRIPTION s {way_on}; ALTER SUBSCRIPTION s ENABLE")
    node.caught_up_but_parked("s", database)
    assert node.rows("u") == [(1, None)]
    if way_on == "REFRESH PUBLICATION":
        node.caught_up("s", database)
        assert sorted(node.rows("t")) == [(50,), (51,)]


@part_of_make_faults
def test_a_right_that_a_copy_lacks_disables_it(
    local_node: Callable[..., LocalNode], database: Database, stock: Database
) -> None:
    database.execute(f"{_TABLES} CREATE PUBLICATION p FOR TABLE t, u")
    database.execute("CREATE ROLE on_error LOGIN REPLICATION; GRANT SELECT ON u TO on_error")
    options = (
        f"CONNECTION '{database.conninfo} user=on_error' PUBLICATION p"
        " WITH (disable_on_error = true)"
    )
    node = local_node()
    node.node.sql(f"CREATE SUBSCRIPTION s {options}")
    stock.execute(f"CREATE SUBSCRIPTION stock {options}")
    status = node.stopped("s")
    assert not status.enabled and "permission denied for table t" in str(status.error)
    wait_until(lambda: not stock.value(_ENABLED.format(name="stock")), "it is disabled there, too")
    database.execute("GRANT SELECT ON t TO on_error")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    node.node.sql("DROP SUBSCRIPTION s")
    stock.execute("DROP SUBSCRIPTION stock")
    database.execute("DROP OWNED BY on_error; DROP ROLE on_error")


def test_another_transaction_takes_skip_back(
    local_node: Callable[..., LocalNode],
    database: Database,
    stock: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database.execute(f"{_TABLES} CREATE PUBLICATION p FOR TABLE t, u")
    node = local_node()
    _subscribe(node, stock, database)
    node.node.sql("ALTER SUBSCRIPTION s SKIP (lsn = 'FFFF/1')")
    stock.execute("ALTER SUBSCRIPTION stock SKIP (lsn = 'FFFF/1')")
    assert _sql(node, _SKIP.format(name="s")) == "FFFF/1"
    log_size = stock.server.log_path.stat().st_size
    database.execute("INSERT INTO t VALUES (1)")
    node.caught_up("s", database)
    wait_until(lambda: _sql(node, _SKIP.format(name="s")) == "0/0", "the end of SKIP")
    wait_until(lambda: stock.value(_SKIP.format(name="stock")) == "0/0", "the end of SKIP")
    assert sorted(node.rows("t")) == stock.rows("SELECT * FROM t") == [(1,)]
    detail = (
        r"DETAIL:  Remote transaction's finish WAL location \(LSN\) ([0-9A-F/]+) did not match "
        r"skip-LSN FFFF/1\."
    )
    server_log = stock.server.log_path.read_bytes()[log_size:].decode()
    told = re.findall(detail, "\n".join(caplog.messages))
    assert told
    assert told == re.findall(detail, server_log)
    assert 'WARNING:  skip-LSN of subscription "s" cleared' in "\n".join(caplog.messages)


def test_an_error_of_a_copy_disables(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE filled (i int PRIMARY KEY); INSERT INTO filled VALUES (1);"
        "CREATE TABLE good (i int PRIMARY KEY); INSERT INTO good VALUES (1);"
        "CREATE PUBLICATION first FOR TABLE filled; CREATE PUBLICATION p FOR TABLE filled, good"
    )
    node = local_node()
    node.subscribe("first", database, "first")
    node.caught_up("first", database)
    node.node.sql("DROP SUBSCRIPTION first")
    node.subscribe("s", database, "p", "disable_on_error = true")
    status = node.stopped("s")
    assert not status.enabled
    assert "is not empty" in str(status.error)
    node.no_worker()
    counts = "SELECT apply_error_count, sync_error_count FROM pg_stat_subscription_stats"
    assert node.node.sql(counts).rows == ((0, 1),)
    # The remedy, and what was asked for: without a copy of that table.
    node.node.sql(
        "ALTER SUBSCRIPTION s SET (disable_on_error = false); ALTER SUBSCRIPTION s ENABLE"
    )
    node.wait_for("s", "the good table", lambda s: "r" in {table.state for table in s.tables})
    database.execute("INSERT INTO good VALUES (2)")
    node.wait_for("s", "the new row", lambda _: sorted(node.rows("good")) == [(1,), (2,)])


@pytest.mark.parametrize("identity", ["FULL", "NOTHING", in_make_faults("DEFAULT")])
def test_a_key_of_the_node_alone_is_kept(
    local_node: Callable[..., LocalNode], database: Database, stock: Database, identity: str
) -> None:
    """The publisher tells rows apart by all their columns, or not at all."""
    database.execute(
        f"CREATE TABLE bag (i int, v text); ALTER TABLE bag REPLICA IDENTITY {identity};"
        "INSERT INTO bag VALUES (1, 'a'); CREATE PUBLICATION p FOR TABLE bag"
        " WITH (publish = 'insert, update, delete')"
    )
    node = local_node()
    for run in (node.node.sql, stock.execute):
        run("CREATE TABLE bag (i int PRIMARY KEY, v text)")
    _subscribe(node, stock, database)
    database.execute("INSERT INTO bag VALUES (2, 'b'), (3, 'c')")
    if identity == "FULL":
        database.execute(
            "UPDATE bag SET v = 'x' WHERE i = 2; UPDATE bag SET i = 4 WHERE i = 3;"
            "DELETE FROM bag WHERE i = 1"
        )
    node.caught_up("s", database)
    database.wait_confirmed("stock", 90)
    assert sorted(node.rows("bag")) == stock.rows("SELECT * FROM bag ORDER BY 1")
    database.execute("INSERT INTO bag VALUES (2, 'again')")
    status = node.stopped("s")
    wait_until(lambda: not stock.value(_ENABLED.format(name="stock")), "the disabling", 60)
    assert 'conflict detected on relation "public.bag": conflict=insert_exists' in str(status.error)
    told = (
        r'Key already exists in unique index "bag_pkey", modified by origin "pg_\d+" '
        r"in transaction \d+ at \S+ \S+\+00\.\nKey \(i\)=\(2\); existing local row \(2, "
    )
    assert re.match(told, str(status.error_detail))
    # Copied again, it has the key still.
    database.execute("ALTER TABLE bag REPLICA IDENTITY FULL; DELETE FROM bag WHERE v = 'again'")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION; ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert sorted(node.rows("bag")) == database.rows("SELECT * FROM bag ORDER BY 1")
    database.execute("ALTER TABLE bag ADD COLUMN more int; INSERT INTO bag VALUES (2, 'again', 1)")
    assert "bag_pkey" in str(node.stopped("s").error_detail)


def test_what_passes_by_itself_disables_nothing(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(f"{_TABLES} CREATE PUBLICATION p FOR TABLE t, u")
    node = local_node()
    node.subscribe("s", database, "p", "disable_on_error = true")
    node.caught_up("s", database)
    before = node.status("s").error_count
    end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"

    def failed() -> bool:
        database.rows(f"{end} WHERE slot_name = 's' AND database = current_database()")
        return node.status("s").error_count > before

    wait_until(failed, "an error", 60)
    database.execute("INSERT INTO t VALUES (1)")
    node.caught_up("s", database)
    assert node.status("s").enabled
    assert Lsn.parse(_sql(node, _SKIP.format(name="s"))) == 0
