"""Publishers where nobody writes, and subscriptions without tables: cuts and slots go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres
from penstock.lsn import Lsn
from penstock.node.status import SubscriptionStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_WRITE_NOTHING = {"autovacuum": "off", "wal_sender_timeout": "0", "checkpoint_timeout": "1h"}


def states(wanted: str) -> Callable[[SubscriptionStatus], bool]:
    return lambda status: "".join(t.state for t in status.tables) == wanted


@pytest.mark.parametrize("version", [*map(in_make_faults, (14, 18))])
def test_a_table_joins_an_idle_publisher(
    local_node: Callable[..., LocalNode], version: int
) -> None:
    """A server of its own: what other databases write moves the positions of all. The copy of b
    takes longer than a cut of the idle stream, which then is at the publisher's end already.
    """
    with EmbeddedPostgres(version, settings=_WRITE_NOTHING) as server:
        database = Database(server, "postgres")
        database.execute(
            "CREATE TABLE a (id integer PRIMARY KEY); INSERT INTO a VALUES (1);"
            "CREATE TABLE b (id integer PRIMARY KEY, v text);"
            "ALTER TABLE b ALTER v SET STORAGE EXTERNAL;"
            "INSERT INTO b SELECT i, repeat('x', 8000) FROM generate_series(1, 8000) i;"
            "CREATE PUBLICATION p FOR TABLE a"
        )
        node = local_node(copy_unit_size="1MB")
        node.subscribe("s", database, "p")
        node.wait_for("s", "the first table", states("r"))
        database.execute("ALTER PUBLICATION p ADD TABLE b; CHECKPOINT")
        node.caught_up("s", database)
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        node.wait_for("s", "the copy", lambda s: states("rf")(s) or states("rr")(s))
        # The server's own background writer notes a position every 15 s at most.
        node.wait_for("s", "the table without a write", states("rr"), timeout=8)
        assert sorted(node.cut().tables) == [("public", "a"), ("public", "b")]
        database.execute("INSERT INTO b VALUES (0, 'y'); DELETE FROM b WHERE id = 5")
        node.caught_up("s", database)
        with database.connect() as connection:
            for table in ("a", "b"):
                wanted = publisher_rows(connection, f"public.{table}")
                assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def test_a_subscription_without_tables_streams_and_acknowledges(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute("CREATE TABLE t (id integer PRIMARY KEY, v text); CREATE PUBLICATION p")
    node = local_node()
    node.subscribe("s", database, "p")
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 1000) i")
    written = Lsn.parse(database.value("SELECT pg_current_wal_flush_lsn()::text"))

    def acknowledged(_: Any) -> bool:
        slot = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 's'"
        return Lsn.parse(database.value(slot)) >= written

    node.wait_for("s", "the acknowledgement", acknowledged)
    assert node.cut().tables == {}
    node.wait_for("s", "its stream", lambda status: status.state == "streaming")
    database.execute("ALTER PUBLICATION p ADD TABLE t; INSERT INTO t VALUES (1001, 'w')")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    database.execute("UPDATE t SET v = 'x' WHERE id <= 10")
    node.caught_up("s", database)
    with database.connect() as connection:
        wanted = publisher_rows(connection, "public.t")
    assert not (lack := difference("t", wanted, node.rows("t"))), str(lack)
    # Without its only table it goes on too, and the cuts say so.
    database.execute("ALTER PUBLICATION p DROP TABLE t")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    node.wait_for("s", "a cut without tables", lambda _: node.cut().tables == {})
