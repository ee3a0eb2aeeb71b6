"""Two subscriptions, of two publishers, fill one table: no copy takes the other's rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.compare import delta_rows
from end_to_end.local_node import LocalNode
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_REFRESH = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
_FILLED = 'target table "public.t" is filled by another subscription too'
_TABLE = "CREATE TABLE t (id integer PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t"


def refused(node: LocalNode) -> str:
    """The hint of the copy that is refused."""
    node.wait_for("s", _FILLED, lambda s: _FILLED in [t.error for t in s.tables])
    (table,) = node.status("s").tables
    assert 'changes of subscription "s2"' in str(table.error_detail)
    return str(table.error_hint)


@pytest.mark.parametrize("parked", [False, True])
def test_a_copy_keeps_the_rows_of_the_other_shard(
    local_node: Callable[..., LocalNode], database_on: Callable[[int], Database], parked: bool
) -> None:
    first, second = database_on(18), database_on(18)
    for database in (first, second):
        database.execute(_TABLE)
    first.execute("INSERT INTO t SELECT i, 'first' FROM generate_series(1, 5) i")
    node = local_node(wal_retrieve_retry_interval="1s")
    node.subscribe("s", first, "p", "on_table_error = park")
    node.caught_up("s", first)
    node.subscribe("s2", second, "p", "copy_data = false, slot_name = s2")
    second.execute("INSERT INTO t SELECT i, 'second' FROM generate_series(101, 105) i")
    node.caught_up("s2", second)
    first.execute("INSERT INTO t VALUES (6, 'first')")
    node.caught_up("s", first)
    uri = str(node.warehouse / "public" / "t")
    rows = sorted(delta_rows(uri))
    assert len(rows) == 11
    if parked:
        first.execute("INSERT INTO t VALUES (105, 'first')")
        node.wait_for("s", "parked", lambda s: "p" in [t.state for t in s.tables])
        first.execute("DELETE FROM t WHERE id = 105")
    else:
        first.execute("ALTER PUBLICATION p DROP TABLE t")
        node.node.sql(_REFRESH)
        first.execute("ALTER PUBLICATION p ADD TABLE t")
    node.node.sql(_REFRESH)
    hint = refused(node)
    second.execute("UPDATE t SET v = 'on' WHERE id = 101")
    node.caught_up("s2", second)
    rows = [(101, "on") if row[0] == 101 else row for row in rows]
    assert sorted(delta_rows(uri)) == rows
    assert hint.endswith(f"Run {_REFRESH} WITH (copy_data = false).")
    for change in ("DROP", "ADD"):
        first.execute(f"ALTER PUBLICATION p {change} TABLE t")
        node.node.sql(hint[hint.index("ALTER SUBSCRIPTION") :].rstrip("."))
    first.execute("INSERT INTO t VALUES (7, 'first')")
    node.caught_up("s", first)
    second.execute("DELETE FROM t WHERE id = 102")
    node.caught_up("s2", second)
    wanted = [row for row in rows if row[0] != 102] + [(7, "first")]
    assert sorted(delta_rows(uri)) == sorted(wanted)
    node.node.sql("DROP SUBSCRIPTION s2")
