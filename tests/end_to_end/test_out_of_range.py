"""``out_of_range = null | clamp``: values that no Delta type has need not stop a subscription."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.local_node import LocalNode
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = """
CREATE TABLE t (id int PRIMARY KEY, d date, ts timestamp, n numeric(6,2), a date[], big text);
CREATE TABLE bag (d date, n numeric(6,2));
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE keys (d date PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 'infinity', '-infinity', 'NaN', '{{2020-01-01}}', 'copied'),
    (2, '2020-02-29', '2020-02-29 01:02:03', 1.5, '{2020-01-01}', 'copied');
INSERT INTO bag VALUES ('infinity', 'NaN'), ('10000-01-01', 1);
CREATE PUBLICATION p FOR ALL TABLES
"""


def _rows(node: LocalNode, table: str) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, row)) for row in node.rows(table))


@pytest.mark.parametrize(("policy", "binary"), [("clamp", "false"), ("null", "true")])
def test_copy_and_stream(
    local_node: Callable[..., LocalNode], database: Database, policy: str, binary: str
) -> None:
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p", f"out_of_range = {policy}, binary = {binary}")
    node.caught_up("s", database)
    clamps = policy == "clamp"
    last, first = ("9999-12-31", "0001-01-01") if clamps else ("None", "None")
    start = "0001-01-01 00:00:00" if clamps else "None"
    two = ("2", "2020-02-29", "2020-02-29 01:02:03", "1.50", "(datetime.date(2020, 1, 1),)")
    assert _rows(node, "t") == [
        ("1", last, start, "None", "None", "copied"),
        (*two, "copied"),
    ]
    assert _rows(node, "bag") == sorted([(last, "None"), (last, "1.00")])
    database.execute("UPDATE t SET big = 'changed'; INSERT INTO t VALUES (3, '0044-03-15 BC')")
    database.execute("UPDATE t SET n = 'NaN', ts = 'infinity' WHERE id = 2")
    database.execute("DELETE FROM bag WHERE n = 1; INSERT INTO bag VALUES ('-infinity', 2)")
    node.caught_up("s", database)
    end = "9999-12-31 23:59:59.999999" if clamps else "None"
    assert _rows(node, "t") == [
        ("1", last, start, "None", "None", "changed"),
        ("2", "2020-02-29", end, "None", two[4], "changed"),
        ("3", first, "None", "None", "None", "None"),
    ]
    assert _rows(node, "bag") == sorted([(last, "None"), (first, "2.00")])
    counted = node.node.sql("SELECT values_out_of_range FROM pg_stat_lake_subscription").rows
    assert counted[0][0] >= 8
    assert node.node.verify(subscription="s").equal
    # two keys must not become the same one
    database.execute("INSERT INTO keys VALUES ('infinity', 1)")
    assert "cannot be represented" in str(node.stopped("s").error)


def test_it_is_set_later(local_node: Callable[..., LocalNode], database: Database) -> None:
    """What stopped it goes on."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date); CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute("INSERT INTO t VALUES (1, '2020-01-01'); INSERT INTO t VALUES (2, 'infinity')")
    assert "out_of_range" in str(node.stopped("s").error_hint)
    node.node.sql("ALTER SUBSCRIPTION s SET (out_of_range = clamp)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert _rows(node, "t") == [("1", "2020-01-01"), ("2", "9999-12-31")]
