"""TRUNCATE as a stock subscriber takes it: of empty tables too, of several as one transaction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]


def test_of_an_empty_table(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    lake.execute("CREATE TABLE none (id int PRIMARY KEY)", "CREATE PUBLICATION none FOR TABLE none")
    target = subscriber()
    target.execute("CREATE TABLE none (id int PRIMARY KEY)")
    lake.subscribe(target, "none", "none")
    target.execute("INSERT INTO none VALUES (1), (2)")
    lake.execute("TRUNCATE none")
    lake.caught_up("none")
    assert target.rows("SELECT * FROM none") == []
    lake.execute("INSERT INTO none VALUES (3)", "TRUNCATE none", "INSERT INTO none VALUES (4)")
    lake.caught_up("none")
    assert target.rows("SELECT * FROM none") == [(4,)]


def test_of_several_tables_is_one_transaction(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """A table that another one refers to cannot be emptied without it."""
    lake.execute(
        "CREATE TABLE heads (id int PRIMARY KEY)",
        "CREATE TABLE lines (id int PRIMARY KEY, head int)",
        "CREATE TABLE unused (id int PRIMARY KEY)",
        "INSERT INTO heads VALUES (1)",
        "INSERT INTO lines VALUES (10, 1)",
        "CREATE PUBLICATION orders FOR TABLE heads, lines, unused",
    )
    target = subscriber()
    target.execute(
        "CREATE TABLE heads (id int PRIMARY KEY);"
        "CREATE TABLE lines (id int PRIMARY KEY, head int REFERENCES heads);"
        "CREATE TABLE unused (id int PRIMARY KEY)"
    )
    lake.subscribe(target, "orders", "orders", "disable_on_error = true")
    lake.execute("TRUNCATE lines, unused, heads", "INSERT INTO heads VALUES (2)")
    lake.caught_up("orders")
    assert target.rows("SELECT * FROM lines") == []
    assert target.rows("SELECT * FROM heads") == [(2,)]
    assert target.rows("SELECT subenabled FROM pg_subscription WHERE subname = 'orders'") == [
        (True,)
    ]
