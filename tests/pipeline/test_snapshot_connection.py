"""What the driver knows of a server's types is of one round of copies, and of one thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.embedded import wait_until
from penstock.pipeline import snapshot_connection
from penstock.pipeline.snapshot_connection import connect

pytestmark = pytest.mark.postgres


def rows(database: Any, round_: str, query: str) -> list[tuple[Any, ...]]:
    with connect(database.conninfo, round_) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def known() -> object:
    return snapshot_connection._known.database


def test_types_are_read_once_a_round(database: Any) -> None:
    assert rows(database, "a", "SELECT 1") == [(1,)]
    first = known()
    assert first is not None
    assert rows(database, "a", "SELECT 'x'") == [("x",)]
    assert known() is first, "it outlives its connections"
    assert rows(database, "", "SELECT 2") == [(2,)]
    assert known() is first
    assert rows(database, "b", "SELECT 3") == [(3,)]
    assert known() is not first


def test_between_connections_there_is_no_session(database: Any) -> None:
    rows(database, "s", "SELECT 1")
    assert known() is not None
    with database.connect() as connection:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        wait_until(lambda: connection.execute(others).fetchone() == (1,), "no session but ours")


def test_the_next_round_knows_the_types_that_were_made_meanwhile(database: Any) -> None:
    rows(database, "c", "SELECT 1")
    database.execute("CREATE TYPE mood AS ENUM ('fine')")
    database.execute("CREATE DOMAIN small AS int CHECK (VALUE < 10)")
    query = "SELECT 'fine'::mood, 7::small, ARRAY['fine'::mood]"
    assert rows(database, "d", query) == [("fine", 7, ["fine"])]


def test_an_error_leaves_nothing_that_a_round_would_take_for_its_own(database: Any) -> None:
    with pytest.raises(Exception, match="connect"):
        connect("host=127.0.0.1 port=1", "e")
    assert known() is None
    assert rows(database, "e", "SELECT 1") == [(1,)]


def test_threads_have_their_own(database: Any) -> None:
    rows(database, "f", "SELECT 1")
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(known()))
    thread.start()
    thread.join()
    assert seen == [None]
