"""Published enum columns into tables of the node with an enum of its own."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.node.status import SubscriptionStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TYPE = "CREATE TYPE mood AS ENUM ('sad', 'so, so', 'é😀', '')"
_TABLE = "CREATE TABLE t (id int PRIMARY KEY, m mood, n text)"
_CHANGES = (
    "INSERT INTO t VALUES (3, 'é😀', 'new'), (4, NULL, NULL)",
    "UPDATE t SET m = '' WHERE id = 1",
    "UPDATE t SET m = NULL WHERE id = 2",
    "DELETE FROM t WHERE id = 4",
)


@part_of_make_faults
def test_an_enum_fills_the_nodes_enum(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    publisher = database_on(18)
    publisher.execute(
        f"{_TYPE}; {_TABLE}; INSERT INTO t VALUES (1, 'sad', 'a'), (2, 'so, so', 'b');"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    # The node's oids are not the publisher's: other types come first, and another column.
    node.node.sql("CREATE TYPE first AS ENUM ('x')")
    node.node.sql(_TYPE)
    node.node.sql("CREATE TABLE t (own first DEFAULT 'x', id int PRIMARY KEY, n text, m mood)")
    node.subscribe("enums", publisher, "p")
    node.caught_up("enums", publisher)
    for change in _CHANGES:
        publisher.execute(change)
    node.caught_up("enums", publisher)
    assert _rows(node) == publisher.rows("SELECT id, m::text, n FROM t ORDER BY id")
    assert {row["own"] for row in _all(node)} == {"x"}
    assert _types(node) == [("own", "first"), ("id", "integer"), ("n", "text"), ("m", "mood")]
    # A label that the node's enum does not have stops the subscription, as a server's.
    publisher.execute("ALTER TYPE mood ADD VALUE 'it''s late'")
    publisher.execute("INSERT INTO t VALUES (5, 'it''s late', NULL)")
    status = node.stopped("enums")
    assert status.error == 'invalid input value for enum mood: "it\'s late"'
    (statement,) = re.findall(r"(ALTER TYPE .*?)\. Then run ALTER SUBSCRIPTION", _hint(status))
    node.node.sql(statement)
    node.node.sql("ALTER SUBSCRIPTION enums ENABLE")
    node.caught_up("enums", publisher)
    assert _rows(node) == publisher.rows("SELECT id, m::text, n FROM t ORDER BY id")
    # Copied again, the columns keep their types.
    node.node.sql("ALTER SUBSCRIPTION enums REFRESH TABLE t")
    node.caught_up("enums", publisher)
    assert _rows(node) == publisher.rows("SELECT id, m::text, n FROM t ORDER BY id")
    assert set(_types(node)) == {
        *(("own", "first"), ("id", "integer"), ("n", "text"), ("m", "mood"))
    }


def test_a_publishers_enum_is_none_of_the_nodes(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    """Where the node makes the table, the column is text, whatever oids the node has given."""
    publisher = database_on(18)
    publisher.execute(f"{_TYPE}; {_TABLE}; CREATE PUBLICATION p FOR TABLE t")
    theirs = publisher.value("SELECT 'mood'::regtype::oid::int")
    node = local_node()
    with closing(sqlite3.connect(node.folder / "state.db")) as state, state:
        state.execute("UPDATE penstock_control SET next_oid = ?", (theirs,))
    node.node.sql("CREATE TYPE other AS ENUM ('a')")
    node.subscribe("enums", publisher, "p")
    publisher.execute("INSERT INTO t VALUES (1, 'sad', 'a')")
    node.caught_up("enums", publisher)
    assert _rows(node) == [(1, "sad", "a")]
    assert node.node.sql("SELECT oid FROM pg_type WHERE typname = 'other'").rows == ((theirs,),)
    assert ("m", "other") not in _types(node)
    node.node.sql("DROP TYPE other")


def _hint(status: SubscriptionStatus) -> str:
    return str(status.error_hint)


def _types(node: LocalNode) -> list[tuple[Any, ...]]:
    found = node.node.sql(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum"
    )
    return list(found.rows)


def _all(node: LocalNode) -> list[dict[str, Any]]:
    return [row.asDict() for row in node.node.read("t").collect()]


def _rows(node: LocalNode) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["m"], row["n"]) for row in _all(node))
