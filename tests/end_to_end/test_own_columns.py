"""Columns of the node's own in tables that CREATE TABLE has made, beside a stock subscriber."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from end_to_end.compare import delta_rows
from end_to_end.local_node import LocalNode
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TARGET = (
    "CREATE TABLE t (local text DEFAULT 'it''s', id int {key}, v text, big text,"
    " at timestamptz DEFAULT now(), n numeric(6,2) DEFAULT -1.5, nothing int)"
)
_CHANGES = (
    "INSERT INTO t VALUES (3, 'new', repeat(md5('3'), 2000))",
    "UPDATE t SET v = 'changed' WHERE id = 1",
    "BEGIN; INSERT INTO t VALUES (4, 'a', 'b'); UPDATE t SET v = 'c' WHERE id = 4; COMMIT",
    "UPDATE t SET id = 20 WHERE id = 2",
    "BEGIN; DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (3, 'again', NULL); COMMIT",
)
_COLUMNS = ("id", "v", "big", "local", "n", "nothing")
_WAIT_SECONDS = 60.0


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["own key", "key of the publisher"])
def test_own_columns_keep_their_values(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    key: str,
) -> None:
    publisher, stock = database_on(16), database_on(18)
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text);"
        "INSERT INTO t VALUES (1, 'one', repeat(md5('1'), 2000)), (2, 'two', 'small');"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    stock.execute(_TARGET.format(key="PRIMARY KEY"))
    node = local_node()
    node.node.sql(_TARGET.format(key=key))
    node.subscribe("own_columns", publisher, "p")
    stock.execute(f"CREATE SUBSCRIPTION own_stock CONNECTION '{publisher.conninfo}' PUBLICATION p")
    try:
        node.caught_up("own_columns", publisher)
        for change in _CHANGES:
            publisher.execute(change)
        node.caught_up("own_columns", publisher)
        wait_for(stock, "SELECT count(*) = 4 AND bool_or(v = 'again') AND bool_or(id = 20) FROM t")
        expected = stock.rows(f"SELECT {', '.join(_COLUMNS)}, at IS NULL FROM t ORDER BY id")
    finally:
        stock.execute("DROP SUBSCRIPTION own_stock")
    assert _rows(node) == expected


def wait_for(database: Database, query: str) -> None:
    """Until it is true."""
    end = time.monotonic() + _WAIT_SECONDS
    while not database.value(query):
        assert time.monotonic() < end, query
        time.sleep(0.1)


def _rows(node: LocalNode) -> list[tuple[Any, ...]]:
    pin = node.cut("own_columns").tables["public", "t"]
    names = [column.name for column in node.node.read("t").schema.fields]
    rows = [dict(zip(names, row, strict=True)) for row in delta_rows(pin.uri, pin.version)]
    shown = [(*(row[name] for name in _COLUMNS), row["at"] is None) for row in rows]
    return sorted(shown)
