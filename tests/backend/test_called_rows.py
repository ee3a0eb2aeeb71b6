"""Functions that do something are called for the rows that LIMIT leaves, as a server calls them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.two_servers import Server, outcome, two_servers
from fix_postgres import Database

pytestmark = pytest.mark.postgres

_SLOTS = ("called_1", "called_2", "called_3")
_FROM = "FROM pg_replication_slots WHERE slot_name LIKE 'called%'"
_LEFT = f"SELECT slot_name::text {_FROM} ORDER BY slot_name"
_MAKE = "SELECT slot_name FROM pg_create_logical_replication_slot('{}', 'pgoutput')"
_DROP = "pg_drop_replication_slot(slot_name)"

STATEMENTS = [
    f"SELECT {_DROP} {_FROM} ORDER BY slot_name LIMIT 1",
    f"SELECT slot_name, {_DROP} {_FROM} ORDER BY slot_name DESC LIMIT 1",
    f"SELECT 'x' || slot_name, {_DROP}, active {_FROM} ORDER BY active, 1 DESC OFFSET 1",
    f"SELECT {_DROP} {_FROM} ORDER BY slot_name FETCH FIRST 2 ROWS ONLY",
    f"SELECT {_DROP} {_FROM} ORDER BY slot_name LIMIT 0",
    f"SELECT {_DROP}, count(*) {_FROM} GROUP BY slot_name ORDER BY slot_name LIMIT 1",
    f"WITH q AS (SELECT slot_name AS n {_FROM}) SELECT n, pg_drop_replication_slot(n) FROM q"
    " ORDER BY n LIMIT 1",
    f"SELECT * FROM (SELECT {_DROP} {_FROM} ORDER BY slot_name LIMIT 1) AS q",
    "SELECT pg_drop_replication_slot(a.slot_name) FROM pg_replication_slots a"
    " JOIN pg_replication_slots b USING (slot_name) WHERE a.slot_name LIKE 'called%'"
    " ORDER BY b.slot_name LIMIT 1",
]


@pytest.fixture
def both(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, []) as servers:
        yield servers


def _left(server: Server, session: Any, statement: str) -> tuple[object, list[str]]:
    """The outcome, and the slots that are there afterwards; then there is none."""
    for slot in _SLOTS:
        session.execute(_MAKE.format(slot))
    found = outcome(session, statement, server)
    left = [slot for (slot,) in session.execute(_LEFT).fetchall()]
    for slot in left:
        session.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    return found, left


def test_limit_spares_the_other_slots(both: list[Server]) -> None:
    seen: list[dict[str, object]] = []
    for server in both:
        with server.connect() as session:
            seen.append({each: _left(server, session, each) for each in STATEMENTS})
    assert seen[0] == seen[1]


def test_what_would_be_called_for_more_rows_is_refused(both: list[Server]) -> None:
    node = both[1]
    with node.connect() as session:
        statement = f"SELECT {_DROP} {_FROM} UNION ALL SELECT NULL LIMIT 1"
        found, left = _left(node, session, statement)
    assert found == (
        "0A000",
        "LIMIT of a UNION that calls volatile functions is not supported",
        None,
    )
    assert left == list(_SLOTS)
