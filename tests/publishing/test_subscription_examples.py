"""The worked examples of PostgreSQL's documentation, chapter "Subscription": a node publishes.

Publications, subscriptions that combine them, and slots that are made apart from subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode
from publishing.psql_pair import Pair, psql

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = """
CREATE TABLE t1(a int, b text, PRIMARY KEY(a));
CREATE TABLE t2(c int, d text, PRIMARY KEY(c));
CREATE TABLE t3(e int, f text, PRIMARY KEY(e));
"""

_ROWS = """
INSERT INTO t1 VALUES (1, 'one'), (2, 'two'), (3, 'three');
INSERT INTO t2 VALUES (1, 'A'), (2, 'B'), (3, 'C');
INSERT INTO t3 VALUES (1, 'i'), (2, 'ii'), (3, 'iii');
"""

_PUBLICATIONS = r"""
CREATE PUBLICATION pub1 FOR TABLE t1;
CREATE PUBLICATION pub2 FOR TABLE t2 WITH (publish = 'truncate');
CREATE PUBLICATION pub3a FOR TABLE t3 WITH (publish = 'truncate');
CREATE PUBLICATION pub3b FOR TABLE t3 WHERE (e > 5);
\dRp
\dRp+
\d t3
"""

_MORE = """
INSERT INTO t1 VALUES (4, 'four'), (5, 'five'), (6, 'six');
INSERT INTO t2 VALUES (4, 'D'), (5, 'E'), (6, 'F');
INSERT INTO t3 VALUES (4, 'iv'), (5, 'v'), (6, 'vi');
SELECT * FROM t1 ORDER BY a;
SELECT * FROM t2 ORDER BY c;
SELECT * FROM t3 ORDER BY e;
"""


@part_of_make_faults
def test_publications_combined(
    pair: Pair, lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    target = subscriber(18)
    target.execute(_TABLES)
    pair.both(_TABLES + _ROWS + _PUBLICATIONS)
    for name, publications in (("sub1", "pub1"), ("sub2", "pub2"), ("sub3", "pub3a, pub3b")):
        lake.subscribe(target, name, publications)
    assert target.rows("SELECT * FROM t1 ORDER BY a") == [(1, "one"), (2, "two"), (3, "three")]
    assert target.rows("SELECT * FROM t2 ORDER BY c") == [(1, "A"), (2, "B"), (3, "C")]
    assert target.rows("SELECT * FROM t3 ORDER BY e") == [(1, "i"), (2, "ii"), (3, "iii")]
    pair.both(_MORE)
    for name in ("sub1", "sub2", "sub3"):
        lake.caught_up(name)
    assert target.value("SELECT count(*) FROM t1") == 6
    assert target.value("SELECT count(*) FROM t2") == 3
    assert target.rows("SELECT * FROM t3 ORDER BY e") == [
        *((1, "i"), (2, "ii"), (3, "iii")),
        (6, "vi"),
    ]
    lake.execute("DROP PUBLICATION pub1", "DROP PUBLICATION pub2")
    lake.execute("DROP PUBLICATION pub3a, pub3b", "DROP TABLE t1, t2, t3")


@pytest.fixture
def unconnected(
    lake: LakeNode, superuser: str, subscriber: Callable[..., Database]
) -> Iterator[Database]:
    """A subscriber; the node has pub1 with table t1."""
    target = subscriber(18)
    for execute in (lake.execute, target.execute):
        execute("CREATE TABLE t1(a int, b text, PRIMARY KEY(a))")
    lake.execute("INSERT INTO t1 VALUES (1, 'one')", "CREATE PUBLICATION pub1 FOR TABLE t1")
    yield target
    target.execute("DROP SUBSCRIPTION IF EXISTS sub1")
    lake.execute("DROP PUBLICATION pub1", "DROP TABLE t1")
    assert lake.rows("SELECT slot_name FROM pg_replication_slots") == []


def follows(lake: LakeNode, target: Database, slot: str) -> None:
    lake.copied(target, "sub1")
    lake.execute("INSERT INTO t1 VALUES (2, 'two')", "UPDATE t1 SET b = 'uno' WHERE a = 1")
    lake.caught_up(slot)
    assert target.rows("SELECT * FROM t1 ORDER BY a") == [(1, "uno"), (2, "two")]


def create_subscription(lake: LakeNode, target: Database, options: str) -> str:
    conninfo = lake.conninfo().replace("'", "''")
    return psql(
        target.conninfo,
        f"CREATE SUBSCRIPTION sub1 CONNECTION '{conninfo}' PUBLICATION pub1 WITH ({options});",
    )


def create_slot(lake: LakeNode, superuser: str, name: str) -> None:
    printed = psql(
        lake.conninfo(superuser),
        f"SELECT * FROM pg_create_logical_replication_slot('{name}', 'pgoutput');",
    )
    assert f" {name}" in printed, printed
    assert "(1 row)" in printed, printed


@pytest.mark.parametrize(
    ("options", "slot"),
    [("connect=false", "sub1"), ("connect=false, slot_name='myslot'", "myslot")],
    ids=["slot named like the subscription", "slot with a name"],
)
def test_a_subscription_that_does_not_connect(
    lake: LakeNode, superuser: str, unconnected: Database, options: str, slot: str
) -> None:
    """Examples 1 and 2 of deferred slots."""
    printed = create_subscription(lake, unconnected, options)
    assert "subscription was created, but is not connected" in printed, printed
    create_slot(lake, superuser, slot)
    unconnected.execute("ALTER SUBSCRIPTION sub1 ENABLE")
    unconnected.execute("ALTER SUBSCRIPTION sub1 REFRESH PUBLICATION")
    follows(lake, unconnected, slot)


def test_a_subscription_without_a_slot(
    lake: LakeNode, superuser: str, unconnected: Database
) -> None:
    """Example 3: slot_name = NONE."""
    printed = create_subscription(
        lake, unconnected, "slot_name=NONE, enabled=false, create_slot=false"
    )
    assert "CREATE SUBSCRIPTION\n" in printed, printed
    create_slot(lake, superuser, "myslot")
    unconnected.execute("ALTER SUBSCRIPTION sub1 SET (slot_name='myslot')")
    unconnected.execute("ALTER SUBSCRIPTION sub1 ENABLE")
    follows(lake, unconnected, "myslot")


def test_a_slot_outlives_its_subscription(
    lake: LakeNode, superuser: str, unconnected: Database
) -> None:
    """create_slot = false on a slot that there is; then slot_name = NONE and DROP."""
    create_slot(lake, superuser, "sub1")
    create_subscription(lake, unconnected, "create_slot=false")
    follows(lake, unconnected, "sub1")
    for statement in ("DISABLE", "SET (slot_name = NONE)"):
        unconnected.execute(f"ALTER SUBSCRIPTION sub1 {statement}")
    unconnected.execute("DROP SUBSCRIPTION sub1")
    slots = "SELECT slot_name, active FROM pg_replication_slots"
    wait_until(lambda: lake.rows(slots) == [("sub1", False)], "the end of the stream")
    lake.execute("SELECT pg_drop_replication_slot('sub1')")
