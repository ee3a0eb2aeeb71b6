"""Subscriptions that fill tables with generated columns, beside a stock subscriber."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from end_to_end.test_own_columns import wait_for
from faults.heavy import part_of_make_faults
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_PUBLISHED = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, big text, gen int GENERATED ALWAYS AS (7) STORED);"
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
    "CREATE TABLE bag (a int, gen int GENERATED ALWAYS AS (5 * a) STORED, c real);"
    "ALTER TABLE bag REPLICA IDENTITY FULL;"
    "INSERT INTO t VALUES (1, 'one', repeat(md5('1'), 2000)), (2, NULL, 'small');"
    "INSERT INTO bag VALUES (1, DEFAULT, 0.5), (1, DEFAULT, 0.5), (2, DEFAULT, NULL);"
    "CREATE PUBLICATION p FOR TABLE t, bag"
)
_TARGETS = (
    "CREATE TABLE t (gen int GENERATED ALWAYS AS (id * 22) STORED, id int PRIMARY KEY, v text,"
    " big text, bonus int DEFAULT 7,"
    " label text GENERATED ALWAYS AS (upper(v) || '-' || left(big, 5)) STORED,"
    " total numeric(8,1) GENERATED ALWAYS AS (id + bonus * 3) STORED,"
    " unsaved int GENERATED ALWAYS AS (bonus - id) VIRTUAL)",
    "CREATE TABLE bag (a int, gen int GENERATED ALWAYS AS (9 * a) STORED, c real)",
)
_CHANGES = (
    "INSERT INTO t VALUES (3, 'new', repeat(md5('3'), 2000))",
    "UPDATE t SET v = 'changed' WHERE id = 1",
    "BEGIN; INSERT INTO t VALUES (4, 'a', 'b'); UPDATE t SET v = 'c' WHERE id = 4; COMMIT",
    "UPDATE t SET id = 20 WHERE id = 2",
    "UPDATE t SET id = 30, big = NULL WHERE id = 1",
    "BEGIN; DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (3, 'again', NULL); COMMIT",
    "UPDATE bag SET a = 100 WHERE a = 2",
    "DELETE FROM bag WHERE ctid = '(0,1)'",
    "BEGIN; INSERT INTO bag VALUES (3, DEFAULT, 1); UPDATE bag SET c = 2 WHERE a = 3; COMMIT",
)
_READ = {
    "t": ("id", "gen", "v", "big", "bonus", "label", "total", "unsaved"),
    "bag": ("a", "gen", "c"),
}


def _rows(node: LocalNode, table: str) -> list[tuple[Any, ...]]:
    """By the columns of ``_READ``, at the last cut."""
    node_rows = node.node.read(table).select(*_READ[table]).collect()
    return sorted((tuple(row) for row in node_rows), key=repr)


def _wanted(stock: Database, table: str) -> list[tuple[Any, ...]]:
    return sorted(stock.rows(f"SELECT {', '.join(_READ[table])} FROM {table}"), key=repr)


@part_of_make_faults
def test_rows_are_those_of_a_stock_subscriber(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    publisher, stock, node = database_on(16), database_on(18), local_node()
    publisher.execute(_PUBLISHED)
    for statement in _TARGETS:
        stock.execute(statement)
        node.node.sql(statement)
    node.subscribe("generated", publisher, "p")
    stock.execute(f"CREATE SUBSCRIPTION gen_stock CONNECTION '{publisher.conninfo}' PUBLICATION p")
    try:
        node.caught_up("generated", publisher)
        for change in _CHANGES:
            publisher.execute(change)
        node.caught_up("generated", publisher)
        wait_for(stock, "SELECT count(*) = 1 FROM bag WHERE c = 2")
        for table in _READ:
            assert _rows(node, table) == _wanted(stock, table)
        node.node.sql("ALTER SUBSCRIPTION generated REFRESH TABLE t")
        node.caught_up("generated", publisher)
        assert _rows(node, "t") == _wanted(stock, "t")
    finally:
        stock.execute("DROP SUBSCRIPTION gen_stock")


_INCOMPATIBLE = (
    'logical replication target relation "public.t1" has incompatible generated columns: "c2", "c3"'
)


def test_a_published_column_is_generated_here(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    publisher, node = database_on(18), local_node()
    publisher.execute(
        "CREATE TABLE t1 (c1 int, c2 int, c3 int GENERATED ALWAYS AS (c1 * 2) STORED);"
        "INSERT INTO t1 VALUES (1);"
        "CREATE PUBLICATION pub1 FOR TABLE t1 (c1, c2, c3)"
    )
    node.node.sql(
        "CREATE TABLE t1 (c1 int, c2 int GENERATED ALWAYS AS (c1 + 2) STORED,"
        " c3 int GENERATED ALWAYS AS (c1 + 2) STORED)"
    )
    node.subscribe("incompatible", publisher, "pub1")
    node.wait_for(
        "incompatible",
        "the error",
        lambda status: _INCOMPATIBLE in f"{status.error} {status.tables}",
        fails=False,
    )
    publisher.execute("ALTER PUBLICATION pub1 SET TABLE t1 (c1)")
    node.node.sql("ALTER SUBSCRIPTION incompatible REFRESH PUBLICATION")
    node.node.sql("ALTER SUBSCRIPTION incompatible ENABLE")
    node.caught_up("incompatible", publisher)
    assert node.rows("t1", subscription="incompatible") == [(1, 3, 3)]


def test_a_value_that_cannot_be_made(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    publisher, node = database_on(18), local_node()
    publisher.execute(
        "CREATE TABLE ratio (a int PRIMARY KEY); CREATE TABLE other (a int PRIMARY KEY);"
        "INSERT INTO ratio VALUES (5); CREATE PUBLICATION p FOR TABLE ratio, other"
    )
    node.node.sql(
        "CREATE TABLE ratio (a int PRIMARY KEY, q int GENERATED ALWAYS AS (100 / a) STORED)"
    )
    node.subscribe("ratio", publisher, "p", "on_table_error = park")
    node.caught_up("ratio", publisher)
    assert node.rows("ratio", subscription="ratio") == [(5, 20)]
    publisher.execute("INSERT INTO ratio VALUES (0)")
    publisher.execute("INSERT INTO other VALUES (1)")
    node.caught_up_but_parked("ratio", publisher)
    assert node.rows("other", subscription="ratio") == [(1,)]
    (parked,) = [table for table in node.status("ratio").tables if table.state == "p"]
    assert "division by zero" in str(parked)
    publisher.execute("DELETE FROM ratio WHERE a = 0")
    node.node.sql("ALTER SUBSCRIPTION ratio REFRESH PUBLICATION")
    node.caught_up("ratio", publisher)
    assert node.rows("ratio", subscription="ratio") == [(5, 20)]
