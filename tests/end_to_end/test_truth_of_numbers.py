"""What status and metrics tell while a publisher is away, a subscription rests, or nobody runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry
from typer.testing import CliRunner

from end_to_end.local_node import LocalNode
from fix_postgres import Database
from fix_proxy import Proxy
from penstock.cli.main import app
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.lsn import Lsn
from penstock.node.monitoring import NodeCollector
from penstock.node.status import Health, SubscriptionStatus, health

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text);"
    "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5000) i;"
    "CREATE PUBLICATION p FOR TABLE t"
)
_ACTIVE = "SELECT active FROM pg_replication_slots WHERE slot_name = 's'"
_WRITE_MUCH = (
    "CREATE TABLE IF NOT EXISTS u (v text);"
    "INSERT INTO u SELECT repeat('x', 1000) FROM generate_series(1, 5000)"
)
_RETAINED = (
    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8"
    " FROM pg_replication_slots WHERE slot_name = 's'"
)


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(18) as server:
        yield server


@pytest.fixture
def publisher(server: EmbeddedPostgres, database_on: Callable[..., Database]) -> Database:
    database = database_on(server)
    database.execute(_SETUP)
    return database


@pytest.fixture
def node(local_node: Callable[..., LocalNode], publisher: Database) -> LocalNode:
    node = local_node(wal_retrieve_retry_interval="200ms")
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    return node


def metrics(node: LocalNode) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(NodeCollector(node.node._report))
    return {
        sample.name.removeprefix("penstock_"): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.labels.get("subscription") == "s"
    }


def state_of_node(node: LocalNode) -> Health:
    """As ``penstock status`` tells scripts, which prints what the library gives."""
    done = CliRunner().invoke(app, ["status", "-D", str(node.folder), "--json"])
    (told,) = json.loads(done.stdout)
    assert told["name"] == "s"
    assert done.exit_code == health([node.status("s")], running=node.node.running)
    return Health(done.exit_code)


def grows(node: LocalNode, field: str) -> None:
    """The number goes with the clock, and the metric with it."""
    first = getattr(node.status("s"), field)
    assert first is not None
    node.wait_for("s", f"more {field}", lambda s: getattr(s, field) > first + 0.5, fails=False)
    assert metrics(node)[f"subscription_{field}"] > first + 0.5


def told_as_there(node: LocalNode, publisher: Database) -> Callable[[SubscriptionStatus], bool]:
    """Whether lag and retained WAL are at least what the publisher says now, before it goes on."""
    retained = publisher.value(_RETAINED)
    position = Lsn.parse(publisher.value("SELECT pg_current_wal_flush_lsn()::text"))
    cut = node.cut().lsn

    def state(status: SubscriptionStatus) -> bool:
        known = (status.retained_wal_bytes or 0) >= retained
        return known and (status.lag_bytes or 0) >= position - cut

    return state


def test_while_it_streams(node: LocalNode, publisher: Database) -> None:
    node.wait_for(
        "s",
        "an answer of the publisher",
        lambda s: s.lag_seconds == 0.0 and s.wal_status == "reserved" and s.lag_bytes == 0,
    )
    status = node.status("s")
    (table,) = status.tables
    heap = publisher.value("SELECT pg_relation_size('t')")
    assert (table.rows_copied, table.bytes_copied, table.bytes_total) == (5000, heap, heap)
    assert state_of_node(node) is Health.FOLLOWS
    told = metrics(node)
    assert told["table_copied_bytes"] == told["table_copy_bytes"] == heap
    assert (told["table_copied_rows"], told["table_state"]) == (5000, 1)
    assert told["subscription_slot_gone"] == 0
    # A server writes WAL of its own accord, so that there may be some lag at any moment.
    node.wait_for("s", "no lag", lambda _: metrics(node)["subscription_lag_seconds"] == 0)
    shown = (
        "SELECT pid, last_msg_receipt_time, lag_seconds FROM pg_stat_subscription"
        " JOIN pg_stat_lake_subscription USING (subid)"
    )
    node.wait_for("s", "a message", lambda _: node.node.sql(shown).rows[0][1] is not None)
    node.wait_for("s", "no lag", lambda _: node.node.sql(shown).rows[0][2] == 0.0)
    ((pid, heard, _),) = node.node.sql(shown).rows
    assert pid is not None
    assert abs(datetime.fromisoformat(heard).timestamp() - time.time()) < 60


def test_while_the_publisher_is_away(
    node: LocalNode, publisher: Database, server: EmbeddedPostgres
) -> None:
    node.wait_for("s", "an answer", lambda s: s.retained_wal_bytes is not None)
    server.stop()
    node.wait_for(
        "s",
        "nobody knows what the slot keeps",
        lambda s: s.retained_wal_bytes is None and s.state == "waiting to retry",
    )
    grows(node, "lag_seconds")
    grows(node, "publisher_age_seconds")
    grows(node, "cut_age_seconds")
    assert "subscription_retained_wal_bytes" not in metrics(node)
    assert state_of_node(node) is Health.TRIES_AGAIN
    server.start()
    publisher.execute("INSERT INTO t VALUES (5001, 'back')")
    node.caught_up("s", publisher)
    node.wait_for("s", "no lag", lambda s: s.lag_seconds == 0.0 and s.wal_status == "reserved")
    assert state_of_node(node) is Health.FOLLOWS


def test_an_error_goes_when_the_stream_is_back(
    local_node: Callable[..., LocalNode],
    publisher: Database,
    server: EmbeddedPostgres,
    make_proxy: Callable[[int], Proxy],
) -> None:
    """Also if nobody writes at the publisher."""
    node, proxy = local_node(wal_retrieve_retry_interval="200ms"), make_proxy(server.port)
    publisher.execute("CREATE TABLE idle (id int PRIMARY KEY); CREATE PUBLICATION q FOR TABLE idle")
    conninfo = proxy.conninfo(publisher.conninfo)
    node.node.sql(f"CREATE SUBSCRIPTION idle CONNECTION '{conninfo}' PUBLICATION q")
    node.caught_up("idle", publisher)
    for _ in range(3):
        proxy.refuse()
        proxy.cut()
        node.wait_for("idle", "an error", lambda s: s.error is not None)
        assert health([node.status("idle")], running=True) is Health.TRIES_AGAIN
        proxy.resume()
        node.wait_for("idle", "no error", lambda s: s.error is None and s.state == "streaming")
        assert health([node.status("idle")], running=True) is Health.FOLLOWS
    node.node.sql("DROP SUBSCRIPTION idle")


def test_while_it_is_disabled_or_stopped(node: LocalNode, publisher: Database) -> None:
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    # Until its walsender has ended, what was acknowledged last may still move the slot.
    wait_until(lambda: not publisher.value(_ACTIVE), "the end of the walsender")
    publisher.execute(_WRITE_MUCH)
    node.wait_for("s", "true numbers", told_as_there(node, publisher))
    grows(node, "lag_seconds")
    assert state_of_node(node) is Health.FOLLOWS  # it is not to follow
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", publisher)
    publisher.execute(
        "ALTER TABLE t ALTER v TYPE bytea USING ''; UPDATE t SET id = id WHERE id = 1"
    )
    node.stopped("s")
    publisher.execute(_WRITE_MUCH)
    told = told_as_there(node, publisher)
    node.wait_for("s", "true numbers", told, fails=False)
    grows(node, "lag_seconds")
    assert state_of_node(node) is Health.NEEDS_A_PERSON


def test_while_nobody_runs_the_node(
    node: LocalNode, publisher: Database, server: EmbeddedPostgres
) -> None:
    node.node.stop()
    publisher.execute(_WRITE_MUCH)
    told = told_as_there(node, publisher)

    def asked() -> SubscriptionStatus:
        (status,) = node.node.status(patience=30.0)
        return status

    first = asked()
    assert told(first)
    assert first.state == "not running"
    assert first.lag_seconds is not None
    assert (asked().lag_seconds or 0) > first.lag_seconds
    assert state_of_node(node) is Health.NOT_RUNNING
    server.stop()
    away = asked()
    assert (away.lag_seconds or 0) > first.lag_seconds
    assert (away.cut_age_seconds or 0) > 0


def test_the_numbers_of_an_earlier_run_are_kept(node: LocalNode, publisher: Database) -> None:
    before = node.status("s")
    node.node.stop()
    publisher.server.stop()
    node.node.start()
    node.wait_for("s", "a first try", lambda s: s.state == "waiting to retry")
    now = node.status("s")
    assert now.cut_lsn == before.cut_lsn
    assert (now.lag_seconds or 0) > 0
    assert now.tables[0].rows_copied == 5000
    publisher.server.start()


def test_an_empty_node(local_node: Callable[..., LocalNode]) -> None:
    node: Any = local_node()
    done = CliRunner().invoke(app, ["status", "-D", str(node.folder)])
    assert done.exit_code == Health.FOLLOWS
    node.node.stop()
    assert CliRunner().invoke(app, ["status", "-D", str(node.folder)]).exit_code == 3
