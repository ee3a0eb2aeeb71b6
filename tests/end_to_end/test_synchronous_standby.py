"""A publisher's synchronous_standby_names may name a subscription: COMMIT waits for the cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def publisher() -> Iterator[Database]:
    """A server of its own: all of its commits wait."""
    with EmbeddedPostgres(18) as server:
        database = Database(server, "postgres")
        database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        yield database


def test_a_commit_returns_when_the_change_is_in_a_cut(
    local_node: Callable[..., LocalNode], publisher: Database
) -> None:
    node = local_node()
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    publisher.execute("ALTER SYSTEM SET synchronous_standby_names = 's'")
    publisher.execute("SELECT pg_reload_conf()")
    wait_until(
        lambda: publisher.value("SELECT max(sync_state) FROM pg_stat_replication") == "sync",
        "the server to wait for its standby",
    )
    number, began = 0, time.monotonic()
    with publisher.connect() as connection:
        for waits_for in ("on", "remote_apply", "remote_write"):
            connection.execute(f"SET synchronous_commit = {waits_for}")
            for _ in range(5):
                number += 1
                connection.execute("INSERT INTO t VALUES (%s)", (number,))
                if waits_for != "remote_write":  # which waits for less
                    assert max(node.rows("t")) == (number,)
    assert time.monotonic() - began < 30  # it is told at once, not every ten seconds
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    writer = threading.Thread(target=publisher.execute, args=("INSERT INTO t VALUES (100)",))
    writer.start()
    try:
        wait_until(lambda: publisher.value(_WAITING) == 1, "the commit to wait")
        assert (100,) not in node.rows("t")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        writer.join(60)
        assert not writer.is_alive()
        assert (100,) in node.rows("t")
    finally:
        publisher.execute("ALTER SYSTEM RESET synchronous_standby_names")
        publisher.execute("SELECT pg_reload_conf()")
        writer.join()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t ADD COLUMN c int DEFAULT 5; INSERT INTO t VALUES (2, 6)",
        in_make_faults("CREATE TABLE leaf PARTITION OF root DEFAULT; INSERT INTO root VALUES (2)"),
        in_make_faults("ALTER TYPE mood RENAME VALUE 'ok' TO 'x'; INSERT INTO e VALUES ('x')"),
    ],
)
def test_a_commit_that_defines_waits_until_somebody_sees_it(
    local_node: Callable[..., LocalNode], publisher: Database, change: str
) -> None:
    """Nobody sees what the transaction has defined before its COMMIT returns, which waits for the
    node. It holds its locks as well, so no copy helps."""
    publisher.execute(
        "INSERT INTO t VALUES (1); CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE e (m mood); INSERT INTO e VALUES ('ok');"
        "ALTER PUBLICATION p ADD TABLE root, e;"
        "ALTER PUBLICATION p SET (publish_via_partition_root)"
    )
    node = local_node()
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    publisher.execute("ALTER SYSTEM SET synchronous_standby_names = 's'")
    publisher.execute("SELECT pg_reload_conf()")
    wait_until(
        lambda: publisher.value("SELECT max(sync_state) FROM pg_stat_replication") == "sync",
        "the server to wait for its standby",
    )
    writer = threading.Thread(target=publisher.execute, args=(f"BEGIN; {change}; COMMIT",))
    writer.start()
    try:
        error = node.retrying("s").error or ""
        assert "cannot be read at the publisher yet" in error
        # as the hint says
        publisher.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )
        writer.join(60)
        assert not writer.is_alive()
        node.caught_up("s", publisher)
        with publisher.connect() as connection:
            for table in ("t", "root", "e"):
                wanted = publisher_rows(connection, f"public.{table}")
                assert not difference(table, wanted, node.rows(table))
    finally:
        publisher.execute("ALTER SYSTEM RESET synchronous_standby_names")
        publisher.execute("SELECT pg_reload_conf()")
        writer.join()
