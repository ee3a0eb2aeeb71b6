"""A publisher's synchronous_standby_names may name a subscription: COMMIT waits for the cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from end_to_end.local_node import LocalNode
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
