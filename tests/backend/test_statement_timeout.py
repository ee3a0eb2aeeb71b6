"""``statement_timeout`` beside a stock server: which statements it ends, and what the client is
told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backend.two_servers import Node, Server, outcome, two_servers
from fix_postgres import Database

pytestmark = pytest.mark.postgres

_SLOW = (
    "SELECT count(*) FROM pg_type a, pg_type b, pg_type c, pg_type d, pg_type e "
    "WHERE a.typname < e.typname"
)
_FUNCTIONS = f"SELECT max(format_type(a.oid, NULL)) {_SLOW[15:]}"
_STATEMENTS = f"""
SET statement_timeout = '500ms'
{_SLOW}
{_FUNCTIONS}
SHOW statement_timeout
SELECT 1; {_SLOW}
BEGIN
{_SLOW}
SELECT 1
ROLLBACK
SET statement_timeout = 'soon'
SET statement_timeout = -1
SET statement_timeout = 0
BEGIN
SET LOCAL statement_timeout = 500
{_SLOW}
ROLLBACK
SHOW statement_timeout
SELECT set_config('statement_timeout', '0.5s', false)
SHOW statement_timeout
{_SLOW}
RESET statement_timeout
SHOW statement_timeout
SET statement_timeout = '1min'
SELECT 1
""".strip().splitlines()


@pytest.fixture
def servers(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, []) as servers:
        yield servers


def _told(server: Server, cursors: type[psycopg.Cursor[Any]], prepare: bool) -> list[Any]:
    found: list[Any] = []
    with server.connect() as session:
        cursor = cursors(session)
        for statement in _STATEMENTS:
            if prepare and ";" in statement:
                continue
            began = time.monotonic()
            try:
                cursor.execute(statement, prepare=prepare)
                found.append(cursor.fetchall() if statement.startswith("SHOW") else None)
            except psycopg.Error as error:
                found.append((error.diag.sqlstate, error.diag.message_primary, statement))
            assert time.monotonic() - began < 20
    return found


@pytest.mark.parametrize("prepare", [False, True])
def test_statements_end_as_on_a_server(servers: list[Server], prepare: bool) -> None:
    cursors = psycopg.Cursor if prepare else psycopg.ClientCursor
    stock, node = (_told(server, cursors, prepare) for server in servers)
    assert sum("due to statement timeout" in str(told) for told in stock) >= 4
    assert node == stock


def test_each_statement_of_a_string_has_its_own_time(servers: list[Server]) -> None:
    """Together they take longer."""
    node = servers[1]
    with node.connect() as session:
        began = time.monotonic()
        session.execute("SELECT count(*) FROM pg_type a, pg_type b, pg_type c")
        longest = 10 * (time.monotonic() - began) + 0.5
        session.execute(f"SET statement_timeout = {int(1000 * longest)}")
        began = time.monotonic()
        while time.monotonic() - began < longest:
            session.execute(";".join(["SELECT count(*) FROM pg_type a, pg_type b, pg_type c"] * 12))
        assert outcome(session, "SELECT 1") == (None, None, None)


def test_the_node_has_one_for_all_sessions(servers: list[Server]) -> None:
    node = servers[1]
    assert isinstance(node, Node)
    node.lake.settings["statement_timeout"] = "1s"
    with node.connect() as session:
        assert session.execute("SHOW statement_timeout").fetchone() == ("1s",)
        sqlstate, message, _ = outcome(session, _SLOW)
        assert (sqlstate, message) == ("57014", "canceling statement due to statement timeout")
        session.execute("SET statement_timeout = 0")
        assert outcome(session, "SELECT 1") == (None, None, None)
