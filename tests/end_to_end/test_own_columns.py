"""Columns of the node's own in tables that CREATE TABLE has made, beside a stock subscriber."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TARGET = (
    "CREATE TABLE t (local text DEFAULT 'it''s', id int {key}, v text, big text,"
    " at timestamptz DEFAULT now(), n numeric(4,1) DEFAULT -1.26, nothing int,"
    " f char(4) DEFAULT 'a', g int DEFAULT 1.5, h date DEFAULT '2024-1-1', j text DEFAULT true)"
)
_CHANGES = (
    "INSERT INTO t VALUES (3, 'new', repeat(md5('3'), 2000))",
    "UPDATE t SET v = 'changed' WHERE id = 1",
    "BEGIN; INSERT INTO t VALUES (4, 'a', 'b'); UPDATE t SET v = 'c' WHERE id = 4; COMMIT",
    "UPDATE t SET id = 20 WHERE id = 2",
    "BEGIN; DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (3, 'again', NULL); COMMIT",
)
_COLUMNS = ("id", "v", "big", "local", "n", "nothing", "f", "g", "h", "j")
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
        wait_until(
            lambda: stock.value(
                "SELECT count(*) = 4 AND bool_or(v = 'again') AND bool_or(id = 20) FROM t"
            ),
            "the rows",
            _WAIT_SECONDS,
        )
        expected = stock.rows(f"SELECT {', '.join(_COLUMNS)}, at IS NULL FROM t ORDER BY id")
    finally:
        stock.execute("DROP SUBSCRIPTION own_stock")
    assert _rows(node) == expected


def test_a_column_that_is_renamed_is_missed(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    """In a table that CREATE TABLE has made, and in a column that ALTER TABLE has."""
    publisher, stock = database_on(16), database_on(18)
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one');"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.node.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stock.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    node.subscribe("own_columns", publisher, "p")
    stock.execute(f"CREATE SUBSCRIPTION own_stock CONNECTION '{publisher.conninfo}' PUBLICATION p")
    try:
        wait_for(stock, "SELECT count(*) = 1 FROM t")
        node.caught_up("own_columns", publisher)
        for side in (node.node.sql, stock.execute, publisher.execute):
            side("ALTER TABLE t ADD COLUMN late int DEFAULT 5")
        publisher.execute("INSERT INTO t VALUES (2, 'two', 2)")
        node.caught_up("own_columns", publisher)
        node.node.stop()
        publisher.execute("ALTER TABLE t RENAME v TO w; ALTER TABLE t RENAME late TO later")
        publisher.execute("INSERT INTO t VALUES (3, 'three', 3)")
        node.node.start()
        message = (
            'logical replication target relation "public.t" is missing replicated columns: "w", '
            '"later"'
        )
        status = node.stopped("own_columns")
        assert status.error == message
        assert '"v" is no longer published' in str(status.error_detail)
        wait_until(lambda: message in stock.server.log(), "the server's error")
        expected = stock.rows("SELECT id, v, late FROM t ORDER BY id")
        assert expected == [(1, "one", 5), (2, "two", 2)]
        assert sorted(node.rows("t", subscription="own_columns")) == expected
    finally:
        stock.execute("DROP SUBSCRIPTION own_stock")
    node.node.sql("ALTER SUBSCRIPTION own_columns REFRESH PUBLICATION")
    node.node.sql("ALTER SUBSCRIPTION own_columns ENABLE")
    node.caught_up("own_columns", publisher)
    copied = {(row["id"], row["w"], row["later"]) for row in _by_name(node)}
    assert copied == {(1, "one", 5), (2, "two", 2), (3, "three", 3)}


def wait_for(database: Database, query: str) -> None:
    """Until it is true."""
    wait_until(lambda: database.value(query), query, _WAIT_SECONDS)


def _rows(node: LocalNode) -> list[tuple[Any, ...]]:
    shown = [(*(row[name] for name in _COLUMNS), row["at"] is None) for row in _by_name(node)]
    return sorted(shown)


def _by_name(node: LocalNode) -> list[dict[str, Any]]:
    names = [column.name for column in node.node.read("t").schema.fields]
    rows = node.rows("t", subscription="own_columns")
    return [dict(zip(names, row, strict=True)) for row in rows]
