"""DROP COLUMN on tables that a subscription fills, beside a stock subscriber."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from end_to_end.test_own_columns import wait_for
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def publisher(database_on: Callable[..., Database]) -> Database:
    """Of ``t``, which has no key."""
    publisher: Database = database_on(16)
    publisher.execute(
        "CREATE TABLE t (a int, b text, c int); ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2); CREATE PUBLICATION p FOR TABLE t"
    )
    return publisher


@pytest.fixture
def stock(database_on: Callable[..., Database], publisher: Database) -> Iterator[Database]:
    """A subscriber."""
    stock: Database = database_on(18)
    stock.execute("CREATE TABLE t (a int, b text, c int)")
    stock.execute(f"CREATE SUBSCRIPTION dropped CONNECTION '{publisher.conninfo}' PUBLICATION p")
    yield stock
    stock.execute("DROP SUBSCRIPTION dropped")


@pytest.fixture
def node(local_node: Callable[..., LocalNode], publisher: Database) -> LocalNode:
    node: LocalNode = local_node()
    node.node.sql("CREATE TABLE t (a int, b text, c int)")
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    return node


def rows(node: LocalNode) -> list[tuple[Any, ...]]:
    return sorted(node.rows("t"))


def test_both_sides_drop_a_column(node: LocalNode, publisher: Database, stock: Database) -> None:
    """The stream tells of the column's end with the next change only."""
    wait_for(stock, "SELECT count(*) = 2 FROM t")
    publisher.execute("ALTER TABLE t DROP COLUMN b")
    node.node.sql("ALTER TABLE t DROP COLUMN b")
    stock.execute("ALTER TABLE t DROP COLUMN b")
    publisher.execute("UPDATE t SET a = 100 WHERE a = 1; DELETE FROM t WHERE a = 2")
    node.caught_up("s", publisher)
    wait_for(stock, "SELECT count(*) = 1 AND bool_and(a = 100) FROM t")
    assert rows(node) == stock.rows("SELECT a, c FROM t")


def test_a_column_that_is_published_is_missed(
    node: LocalNode, publisher: Database, stock: Database
) -> None:
    """As there, it does not come back by itself; the statement of the hint brings it."""
    wait_for(stock, "SELECT count(*) = 2 FROM t")
    node.node.sql("ALTER TABLE t DROP COLUMN b, DROP COLUMN c")
    stock.execute("ALTER TABLE t DROP COLUMN b, DROP COLUMN c")
    publisher.execute("INSERT INTO t VALUES (3, 'three', 3)")
    message = (
        'logical replication target relation "public.t" is missing replicated columns: "b", "c"'
    )
    status = node.stopped("s")
    assert status.error == message
    wait_until(lambda: message in stock.server.log(), "the server's error")
    statement = "ALTER TABLE public.t ADD COLUMN b text, ADD COLUMN c integer"
    assert str(status.error_hint).startswith(f"Run {statement}. Then run ALTER SUBSCRIPTION s")
    node.node.sql(statement)
    stock.execute(statement)
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", publisher)
    wait_for(stock, "SELECT count(*) = 3 FROM t")
    found = sorted(node.rows("t"), key=lambda row: row[0])
    assert found == stock.rows("SELECT a, b, c FROM t ORDER BY a")
