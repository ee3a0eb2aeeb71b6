"""The node's state is put back to an older copy: a table has joined or left the cuts since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deltalake import DeltaTable

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock import Node

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_REFRESH = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
_KEPT = "copy_data = false"
_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text); CREATE TABLE u (id integer PRIMARY KEY);"
    "CREATE PUBLICATION p FOR TABLE t, u"
)


@contextmanager
def put_back(node: LocalNode, spark: Any, first: str | None = None) -> Iterator[None]:
    """What happens in the block is not in the node's state afterwards. ``first``: a statement that
    comes before the next start."""

    def reopen(first: str | None = None) -> None:
        node.node = Node(node.folder, spark=spark)
        if first is not None:
            node.node.sql(first)
        node.node.start()

    node.node.close()
    saved = {file.name: file.read_bytes() for file in node.folder.glob("state.db*")}
    reopen()
    yield
    node.node.close()
    for file in node.folder.glob("state.db*"):
        file.unlink()
    for name, content in saved.items():
        (node.folder / name).write_bytes(content)
    reopen(first)


def came_back(node: LocalNode, database: Database) -> None:
    """The table leaves the subscription and comes back into it, with the rows that it has."""
    database.execute("ALTER PUBLICATION p DROP TABLE t")
    node.node.sql(_REFRESH)
    node.new_cut("s")
    database.execute("ALTER PUBLICATION p ADD TABLE t")
    node.node.sql(f"{_REFRESH} WITH ({_KEPT})")
    database.execute("INSERT INTO u VALUES (2)")
    node.caught_up("s", database)


def joins(node: LocalNode, database: Database, statement: str = _REFRESH) -> None:
    """The table t joins the subscription, and gets changes."""
    database.execute("INSERT INTO t SELECT i, 'before' FROM generate_series(1, 100) i")
    node.node.sql(statement)
    node.caught_up("s", database)
    database.execute("INSERT INTO t VALUES (101, 'streamed'); DELETE FROM t WHERE id = 1")
    node.caught_up("s", database)


def is_equal(node: LocalNode, database: Database, table: str = "t") -> None:
    """The table has the publisher's rows, after some more changes."""
    database.execute(
        "UPDATE t SET v = 'after' WHERE id < 10;"
        "INSERT INTO t SELECT coalesce(max(id), 0) + 1, 'after' FROM t;"
        "INSERT INTO u SELECT coalesce(max(id), 0) + 1 FROM u"
    )
    node.caught_up("s", database)
    with database.connect() as connection:
        wanted = publisher_rows(connection, f"public.{table}")
    assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def copies(node: LocalNode, table: str = "t") -> int:
    """How many copies of the table were committed."""
    pin = node.cut("s").tables["public", table]
    return [entry["operation"] for entry in DeltaTable(pin.uri).history()].count("COPY")


@pytest.mark.parametrize("first", [None, _REFRESH, f"{_REFRESH} WITH ({_KEPT})"])
def test_a_table_that_joined_since(
    local_node: Callable[..., LocalNode], database: Database, spark: Any, first: str | None
) -> None:
    """It goes on where it is, also after REFRESH, which PostgreSQL's subscriber would need."""
    database.execute(_SETUP.replace("TABLE t, u", "TABLE u"))
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    with put_back(node, spark, first):
        database.execute("ALTER PUBLICATION p ADD TABLE t")
        joins(node, database)
    is_equal(node, database)
    assert copies(node) == (2 if first == _REFRESH else 1)
    node.node.sql(_REFRESH)
    is_equal(node, database, "u")
    assert copies(node) == (2 if first == _REFRESH else 1)


def test_a_table_of_a_publication_that_was_added_since(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    """Its changes are not sent, which is an error, until it is copied again or leaves."""
    database.execute(_SETUP.replace("TABLE t, u", "TABLE u; CREATE PUBLICATION q FOR TABLE t"))
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    with put_back(node, spark):
        joins(node, database, "ALTER SUBSCRIPTION s ADD PUBLICATION q")
    told = str(node.stopped("s"))
    assert 'table "public.t" must be copied again' in told and "REFRESH PUBLICATION" in told
    database.execute("INSERT INTO t VALUES (700, 'meanwhile')")
    node.node.sql("ALTER SUBSCRIPTION s ADD PUBLICATION q")
    is_equal(node, database)


def test_a_table_that_has_left_before_the_next_cut(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """The last cut has it, and the state knows that it has left."""
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    node.node.stop()
    database.execute("ALTER PUBLICATION p DROP TABLE t")
    node.node.sql(_REFRESH)
    database.execute("ALTER PUBLICATION p ADD TABLE t; INSERT INTO u VALUES (2)")
    node.node.start()
    node.caught_up("s", database)
    assert [table.name for table in node.status("s").tables] == ["public.u"]
    node.node.sql(_REFRESH)
    is_equal(node, database)


@pytest.mark.parametrize(
    ("copied", "returned", "changed"),
    [
        ("true", False, True),
        in_make_faults("false", False, True),
        in_make_faults("false", False, False),
        in_make_faults("false", True, True),
    ],
)
def test_a_table_that_was_parked_since(
    local_node: Callable[..., LocalNode],
    database: Database,
    spark: Any,
    copied: str,
    returned: bool,
    changed: bool,
) -> None:
    """Changes of it were passed by: it stops, wherever its rows came from."""
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p", f"copy_data = {copied}, on_table_error = park")
    if changed:
        database.execute("INSERT INTO t SELECT i, 'first' FROM generate_series(1, 5) i")
    database.execute("INSERT INTO u VALUES (1)")
    node.caught_up("s", database)
    if returned:
        came_back(node, database)
    rows = f"delta.`{node.warehouse / 'public' / 't'}`"
    with put_back(node, spark):
        spark.sql(f"INSERT INTO {rows} VALUES (500, 'of somebody')")
        database.execute("INSERT INTO t VALUES (500, 'of the publisher')")
        node.wait_for("s", "parked", lambda s: "p" in [t.state for t in s.tables])
        database.execute(
            "INSERT INTO t VALUES (501, 'passed by'); UPDATE t SET v = 'too' WHERE id = 1;"
            "INSERT INTO u VALUES (501)"
        )
        node.caught_up_but_parked("s", database)
        spark.sql(f"DELETE FROM {rows} WHERE id = 500")
    node.wait_for("s", "parked again", lambda s: "p" in [t.state for t in s.tables])
    (table,) = [t for t in node.status("s").tables if t.state == "p"]
    assert table.name == "public.t" and "is not in the last cut" in str(table.error)
    node.node.sql(_REFRESH)
    database.execute("INSERT INTO t VALUES (502, 'on')")
    node.caught_up("s", database)
    with database.connect() as connection:
        wanted = publisher_rows(connection, "public.t")
    assert not (lack := difference("t", wanted, node.rows("t"))), str(lack)


def test_a_table_without_a_copy_that_had_no_change_yet(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    """It is in the cuts without a position of its own, and a restart finds nothing wrong."""
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p", _KEPT)
    database.execute("INSERT INTO u VALUES (1)")
    node.caught_up("s", database)
    with put_back(node, spark):
        node.caught_up("s", database)
    database.execute("INSERT INTO t VALUES (1, 'first')")
    node.caught_up("s", database)
    assert node.rows("t") == [(1, "first")]
