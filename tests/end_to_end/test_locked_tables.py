"""Statements while somebody holds a published table locked: they end by themselves, say who it is,
and leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import PublisherError

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_LOCKED = "canceling statement due to lock timeout"
_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY); CREATE TABLE u (id integer PRIMARY KEY);"
    "INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); CREATE PUBLICATION p FOR TABLE t, u"
)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.walreceiver.publisher.LOCK_PATIENCE", "300ms")


def refused(node: LocalNode, database: Database, statement: str) -> None:
    """The statement fails, and its hint's query finds the session that is in the way."""
    with database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE u IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(PublisherError) as failed:
            node.node.sql(statement)
        assert _LOCKED in failed.value.message
        assert failed.value.sqlstate == "55P03"
        query = str(failed.value.hint).split("on the publisher: ")[1]
        found = database.rows(query)
        assert (holder.info.backend_pid, "u", True) in found
        holder.rollback()


@pytest.mark.parametrize("version", [16, 18])
def test_statements_do_not_wait_for_ever(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database], version: int
) -> None:
    database = database_on(version)
    database.execute(_SETUP)
    node = local_node()
    create = f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p"
    refused(node, database, create)
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert database.value(slots) == 0
    assert node.node.status() == []
    node.node.sql(create)
    node.caught_up("s", database)
    database.execute("CREATE TABLE v (id integer PRIMARY KEY); ALTER PUBLICATION p ADD TABLE v")
    before = node.status("s").tables
    refused(node, database, "ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    assert [t.name for t in node.status("s").tables] == [t.name for t in before]
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    node.caught_up("s", database)
    assert database.value(slots) == 1


def test_a_locked_table_keeps_no_binary_stream_from_beginning(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p", "binary = true")
    node.caught_up("s", database)
    node.node.stop()
    with database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE u IN ACCESS EXCLUSIVE MODE")
        database.execute("INSERT INTO t VALUES (2)")
        node.node.start()
        node.caught_up("s", database)
        assert sorted(node.rows("t")) == [(1,), (2,)]
        holder.rollback()


def test_creating_waits_for_transactions_as_before(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """A slot's making waits until transactions end, which is no matter of patience."""
    database.execute(_SETUP)
    node = local_node()
    create = f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p"
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 's'"
        " AND wait_event_type = 'Lock' AND state_change < clock_timestamp() - interval '600 ms'"
    )
    with database.connect(autocommit=False) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("INSERT INTO t VALUES (2)")
        created = pool.submit(node.node.sql, create)

        def guard() -> None:
            assert not created.done()

        wait_until(lambda: database.value(waits), "a wait for the lock", 30, guard=guard)
        writer.commit()
        created.result(30)
    node.caught_up("s", database)
