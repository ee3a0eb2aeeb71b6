"""The worked examples of PostgreSQL's documentation with a node that subscribes.

The publisher is PostgreSQL 18, or another node. Every statement goes through a port, and every
table that is printed there is compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode, Rows

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


@dataclass
class Peers:
    """``publisher``: what publishes; ``node``: what subscribes."""

    publisher: Any
    conninfo: str
    node: LakeNode

    def publish(self, *statements: str) -> None:
        for statement in statements:
            self.publisher.execute(statement)

    def subscribe(self, name: str, publications: str, options: str = "") -> None:
        conninfo = self.conninfo.replace("'", "''")
        self.node.execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {publications}"
            + (f" WITH ({options})" if options else "")
        )

    def caught_up(self, name: str) -> None:
        """The node has what the publisher has committed until now, in every table."""
        ((target,),) = self.publisher.rows("SELECT pg_current_wal_lsn()::text")
        wait_until(lambda: self.node.node.cut(name) is not None, "the first cut")
        self.node.node.wait_for(target, subscription=name, timeout=90)
        wait_until(
            lambda: set(self.states(name)) <= {"r"}, f"the copy of {name}: {self.states(name)}"
        )

    def states(self, name: str) -> list[str]:
        """srsubstate of every table."""
        return [
            state
            for (state,) in self.node.rows(
                "SELECT srsubstate FROM pg_subscription_rel r JOIN pg_subscription s "
                f"ON s.oid = r.srsubid WHERE subname = '{name}'"
            )
        ]

    def rows(self, table: str) -> Rows:
        """Rows at the node, in order."""
        return sorted(self.node.rows(f"SELECT * FROM {table}"))


@pytest.fixture(params=["postgres", in_make_faults("node")])
def peers(
    request: pytest.FixtureRequest,
    spark: Any,
    tmp_path: Path,
    database_on: Callable[..., Database],
) -> Iterator[Peers]:
    """A publisher of each kind and a node that subscribes, all of them fresh."""
    with contextlib.ExitStack() as stack:
        if request.param == "node":
            other = stack.enter_context(LakeNode(tmp_path / "other", spark))
            found = Peers(other, other.conninfo(), LakeNode(tmp_path / "node", spark))
        else:
            database = database_on(18)
            found = Peers(database, database.conninfo, LakeNode(tmp_path / "node", spark))
        stack.enter_context(found.node)
        yield found


def test_row_filters(peers: Peers) -> None:
    table = "CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c))"
    peers.publish(table, "CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW')")
    peers.node.execute(table)
    peers.subscribe("s1", "p1")
    peers.publish(
        "INSERT INTO t1 VALUES (2, 102, 'NSW')",
        "INSERT INTO t1 VALUES (3, 103, 'QLD'), (4, 104, 'VIC'), (5, 105, 'ACT')",
        "INSERT INTO t1 VALUES (6, 106, 'NSW')",
        "INSERT INTO t1 VALUES (7, 107, 'NT'), (8, 108, 'QLD')",
        "INSERT INTO t1 VALUES (9, 109, 'NSW')",
    )
    peers.caught_up("s1")
    assert peers.rows("t1") == [(6, 106, "NSW"), (9, 109, "NSW")]
    peers.publish("UPDATE t1 SET b = 999 WHERE a = 6")
    peers.caught_up("s1")
    assert peers.rows("t1") == [(6, 999, "NSW"), (9, 109, "NSW")]
    peers.publish("UPDATE t1 SET a = 555 WHERE a = 2")
    peers.caught_up("s1")
    assert peers.rows("t1") == [(6, 999, "NSW"), (9, 109, "NSW"), (555, 102, "NSW")]
    peers.publish("UPDATE t1 SET c = 'VIC' WHERE a = 9")
    peers.caught_up("s1")
    assert peers.rows("t1") == [(6, 999, "NSW"), (555, 102, "NSW")]


def test_filters_of_partitions(peers: Peers) -> None:
    peers.publish(
        "CREATE TABLE parent(a int PRIMARY KEY) PARTITION BY RANGE(a)",
        "CREATE TABLE child PARTITION OF parent DEFAULT",
        "CREATE PUBLICATION p4 FOR TABLE parent WHERE (a < 5), child WHERE (a >= 5) "
        "WITH (publish_via_partition_root=true)",
    )
    values = ("INSERT INTO parent VALUES (2), (4), (6)", "INSERT INTO child VALUES (3), (5), (7)")
    peers.subscribe("s4", "p4")
    peers.publish(*values)
    peers.caught_up("s4")
    assert peers.rows("parent") == [(2,), (3,), (4,)]
    peers.publish(
        "DROP PUBLICATION p4",
        "CREATE PUBLICATION p4 FOR TABLE parent, child WHERE (a >= 5) "
        "WITH (publish_via_partition_root=false)",
    )
    peers.node.execute("ALTER SUBSCRIPTION s4 REFRESH PUBLICATION")
    peers.publish("TRUNCATE TABLE parent", *values)
    peers.caught_up("s4")
    assert peers.rows("child") == [(5,), (6,), (7,)]


def test_column_lists(peers: Peers) -> None:
    peers.publish(
        "CREATE TABLE t1(id int, a text, b text, c text, d text, e text, PRIMARY KEY(id))",
        "CREATE PUBLICATION p1 FOR TABLE t1 (id, a, b, d)",
        "INSERT INTO t1 VALUES(1, 'a-1', 'b-1', 'c-1', 'd-1', 'e-1')",
    )
    peers.node.execute("CREATE TABLE t1(id int, b text, a text, d text, PRIMARY KEY(id))")
    peers.subscribe("s1", "p1")
    peers.publish(
        "INSERT INTO t1 VALUES(2, 'a-2', 'b-2', 'c-2', 'd-2', 'e-2')",
        "INSERT INTO t1 VALUES(3, 'a-3', 'b-3', 'c-3', 'd-3', 'e-3')",
    )
    peers.caught_up("s1")
    assert peers.rows("t1") == [(n, f"b-{n}", f"a-{n}", f"d-{n}") for n in (1, 2, 3)]


def test_publications_combined(peers: Peers) -> None:
    for number, columns in enumerate(("a int, b text", "c int, d text", "e int, f text"), 1):
        key = columns[0]
        peers.publish(f"CREATE TABLE t{number}({columns}, PRIMARY KEY({key}))")
        peers.publish(f"INSERT INTO t{number} VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    peers.publish(
        "CREATE PUBLICATION pub1 FOR TABLE t1",
        "CREATE PUBLICATION pub2 FOR TABLE t2 WITH (publish = 'truncate')",
        "CREATE PUBLICATION pub3a FOR TABLE t3 WITH (publish = 'truncate')",
        "CREATE PUBLICATION pub3b FOR TABLE t3 WHERE (e > 5)",
    )
    for name, publications in (("sub1", "pub1"), ("sub2", "pub2"), ("sub3", "pub3a, pub3b")):
        peers.subscribe(name, publications)
        peers.caught_up(name)
    first = [(1, "one"), (2, "two"), (3, "three")]
    assert [peers.rows(f"t{number}") for number in (1, 2, 3)] == [first] * 3
    for number in (1, 2, 3):
        peers.publish(f"INSERT INTO t{number} VALUES (4, 'four'), (5, 'five'), (6, 'six')")
    for name in ("sub1", "sub2", "sub3"):
        peers.caught_up(name)
    assert peers.rows("t1") == [*first, (4, "four"), (5, "five"), (6, "six")]
    assert peers.rows("t2") == first
    assert peers.rows("t3") == [*first, (6, "six")]


_SLOTS = [
    # (options, slot, what comes before ENABLE)
    ("connect=false", "sub1", ""),
    ("connect=false, slot_name='myslot'", "myslot", ""),
    ("slot_name=NONE, enabled=false, create_slot=false", "myslot", "SET (slot_name='myslot')"),
]


@pytest.mark.parametrize(("options", "slot", "before"), _SLOTS, ids=["1", "2", "3"])
def test_slots_apart_from_subscriptions(peers: Peers, options: str, slot: str, before: str) -> None:
    peers.publish(
        "CREATE TABLE t1(a int, b text, PRIMARY KEY(a))",
        "INSERT INTO t1 VALUES (1, 'one')",
        "CREATE PUBLICATION pub1 FOR TABLE t1",
    )
    peers.subscribe("sub1", "pub1", options)
    made = peers.publisher.rows(
        f"SELECT slot_name FROM pg_create_logical_replication_slot('{slot}', 'pgoutput')"
    )
    assert made == [(slot,)]
    if before:
        peers.node.execute(f"ALTER SUBSCRIPTION sub1 {before}")
    peers.node.execute("ALTER SUBSCRIPTION sub1 ENABLE")
    if "connect" in options:
        peers.node.execute("ALTER SUBSCRIPTION sub1 REFRESH PUBLICATION")
    peers.publish("INSERT INTO t1 VALUES (2, 'two')")
    peers.caught_up("sub1")
    assert peers.rows("t1") == [(1, "one"), (2, "two")]
    # a slot outlives its subscription where that has let it go
    for statement in ("DISABLE", "SET (slot_name = NONE)"):
        peers.node.execute(f"ALTER SUBSCRIPTION sub1 {statement}")
    peers.node.execute("DROP SUBSCRIPTION sub1")

    def is_dropped() -> bool:
        """A worker that has begun meanwhile takes the slot once more."""
        with contextlib.suppress(psycopg.errors.ObjectInUse):
            peers.publisher.rows(f"SELECT pg_drop_replication_slot('{slot}')")
            return True
        return False

    wait_until(is_dropped, "the end of the stream")
