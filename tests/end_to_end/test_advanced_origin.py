"""pg_replication_origin_advance: a subscription goes on further on, as on a server."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import PenstockError
from penstock.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = "CREATE TABLE t (i int PRIMARY KEY); CREATE TABLE u (i int PRIMARY KEY);"
_FINISHED = re.compile(
    r'relation "public\.t" in transaction \d+, finished at ([0-9A-F]+/[0-9A-F]+)'
)
_ADVANCE = "SELECT pg_replication_origin_advance('pg_' || oid, '{lsn}') FROM pg_subscription"
_PROGRESS = "SELECT pg_replication_origin_progress('pg_' || oid, true) FROM pg_subscription"


@pytest.fixture
def stock(database: Database, database_on: Callable[[int], Database]) -> Iterator[Database]:
    """A server that subscribes to the publication p of ``database``."""
    server = database_on(17)
    server.execute(_TABLES)
    yield server
    server.execute("DROP SUBSCRIPTION IF EXISTS stock")


def _value(node: LocalNode, text: str) -> Any:
    ((value,),) = node.node.sql(text).rows
    return value


def _of_stock(query: str) -> str:
    return f"{query} WHERE subname = 'stock'"


def _same(node: LocalNode, stock: Database) -> bool:
    return all(
        sorted(node.rows(table)) == sorted(stock.rows(f"SELECT * FROM {table}")) for table in "tu"
    )


def _go_on(node: LocalNode, lsn: object) -> None:
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    node.node.sql(_ADVANCE.format(lsn=lsn))
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")


@part_of_make_faults
def test_a_transaction_is_passed_by_as_by_a_server(
    local_node: Callable[..., LocalNode],
    database: Database,
    stock: Database,
    spark: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database.execute(f"{_TABLES} CREATE PUBLICATION p FOR TABLE t, u")
    node = local_node()
    node.subscribe("s", database, "p", "disable_on_error = true")
    stock.execute(
        f"CREATE SUBSCRIPTION stock CONNECTION '{database.conninfo}' PUBLICATION p"
        " WITH (disable_on_error = true)"
    )
    synced = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
    wait_until(lambda: stock.value(synced), "copied tables", 90)
    node.caught_up("s", database)
    spark.sql(f"INSERT INTO delta.`{node.cut().tables['public', 't'].uri}` VALUES (50)").collect()
    stock.execute("INSERT INTO t VALUES (50)")
    with pytest.raises(PenstockError) as ours:
        node.node.sql(_ADVANCE.format(lsn="0/1"))
    with pytest.raises(psycopg.Error) as theirs:
        stock.execute(_of_stock(_ADVANCE.format(lsn="0/1")))
    words = "replication origin with ID N is already active for PID N"
    assert re.sub(r"\d+", "N", ours.value.message) == words
    assert re.sub(r"\d+", "N", str(theirs.value.diag.message_primary)) == words
    assert ours.value.sqlstate == theirs.value.sqlstate == "55006"

    # A session that begins after the foreign commit loses no race to it, between two tables.
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    caplog.set_level(logging.INFO, "penstock")
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("BEGIN; INSERT INTO u VALUES (10); INSERT INTO t VALUES (50); COMMIT")
    database.execute("INSERT INTO t VALUES (3); INSERT INTO u VALUES (3)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.stopped("s")
    enabled = "SELECT subenabled FROM pg_subscription WHERE subname = 'stock'"
    wait_until(lambda: not stock.value(enabled), "the disabling", 60)
    lsn = Lsn.parse(_FINISHED.findall("\n".join(caplog.messages))[-1])
    past = Lsn(lsn + 1)
    node.node.sql(_ADVANCE.format(lsn=past))
    stock.execute(_of_stock(_ADVANCE.format(lsn=past)))
    assert _value(node, _PROGRESS) == str(past) == stock.value(_of_stock(_PROGRESS))
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    stock.execute("ALTER SUBSCRIPTION stock ENABLE")
    node.caught_up("s", database)
    wait_until(lambda: _same(node, stock), "the same rows", 60)
    assert (sorted(node.rows("t")), node.rows("u")) == ([(1,), (3,), (50,)], [(3,)])
    assert Lsn.parse(_value(node, _PROGRESS)) > past

    _numbers_in_spark(node, spark)
    # Backwards nothing comes again: the tables hold it.
    _go_on(node, "0/1")
    database.execute("INSERT INTO u VALUES (4)")
    node.caught_up("s", database)
    assert sorted(node.rows("u")) == [(3,), (4,)]
    _what_a_slot_has_lost(node, database)


def _numbers_in_spark(node: LocalNode, spark: Any) -> None:
    """Views of Spark, and /metrics, have what the catalogs have."""
    names = node.node.statistics_views(spark)
    counts = "SELECT apply_error_count, confl_insert_exists FROM pg_stat_subscription_stats"
    assert [tuple(row) for row in spark.sql(counts).collect()] == list(node.node.sql(counts).rows)
    for name in names:
        assert spark.table(name).columns == list(node.node.sql(f"SELECT * FROM {name}").columns)
    found = spark.sql(
        "SELECT s.subname, s.subpublications, st.latest_end_time, r.srsubstate"
        " FROM pg_subscription s JOIN pg_stat_subscription st ON st.subid = s.oid"
        " JOIN pg_subscription_rel r"
        " ON r.srsubid = s.oid JOIN pg_replication_origin_status o"
        " ON o.external_id = concat('pg_', s.oid)"
    ).collect()
    assert [(row[0], row[1], row[3]) for row in found] == [("s", ["p"], "r")] * 2
    assert found[0][2].year >= 2024
    (report,) = node.node._report().subscriptions
    told = report.counts
    assert (told.apply_error_count, told.conflicts["insert_exists"]) == (1, 1)


def _what_a_slot_has_lost(node: LocalNode, database: Database) -> None:
    """It is accepted as lost, and what has not come yet is not passed by."""
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    database.execute("INSERT INTO u VALUES (5)")
    database.execute("SELECT pg_replication_slot_advance('s', pg_current_wal_flush_lsn())")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    assert "the slot of" in str(node.stopped("s").error)
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 's'"
    _go_on(node, "FFFF/0")
    assert "was put to FFFF/0" in str(node.stopped("s").error)
    _go_on(node, database.value(confirmed))
    database.execute("INSERT INTO u VALUES (6)")
    node.caught_up("s", database)
    assert sorted(node.rows("u")) == [(3,), (4,), (6,)]
