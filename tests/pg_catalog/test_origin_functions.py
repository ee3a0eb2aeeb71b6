"""Functions of replication origins: the answers, errors and rights of a stock server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backend.two_servers import PASSWORD, Server, two_servers
from fix_postgres import Database

pytestmark = pytest.mark.postgres

_SETUP = [
    f"CREATE ROLE t_plain LOGIN PASSWORD '{PASSWORD}'",
    "CREATE SUBSCRIPTION origins CONNECTION 'host=nowhere.invalid' PUBLICATION p"
    " WITH (connect = false, slot_name = NONE)",
]
_STATUS = (
    "SELECT external_id = '{name}', remote_lsn FROM {status} WHERE external_id = '{name}'"
    " AND local_id = pg_replication_origin_oid('{name}')"
)
_QUERIES = [
    "SELECT pg_replication_origin_oid('{name}') IS NULL, pg_replication_origin_oid('o')",
    "SELECT roname = '{name}' FROM pg_replication_origin"
    " WHERE roident = pg_replication_origin_oid('{name}')",
    "SELECT pg_replication_origin_progress('{name}', true)",
    _STATUS.replace("{status}", "pg_replication_origin_status"),
    "SELECT pg_replication_origin_advance('{name}', '0/50')",
    "SELECT pg_replication_origin_progress('{name}', false)",
    _STATUS.replace("{status}", "pg_replication_origin_status"),
    _STATUS.replace("{status}", "pg_show_replication_origin_status()"),
    "SELECT pg_replication_origin_advance('{name}', '0/30')",
    "SELECT pg_replication_origin_progress('{name}', true)",
    "SELECT pg_replication_origin_advance('{name}', '0/0')",
    "SELECT pg_replication_origin_progress('{name}', true)",
    "SELECT pg_replication_origin_advance('{name}', NULL)",
    "SELECT pg_replication_origin_advance(NULL, '0/1')",
    "SELECT pg_replication_origin_advance('o', '0/1')",
    "SELECT pg_replication_origin_advance('{name}', 'x')",
    "SELECT pg_replication_origin_progress('o', true)",
    "SELECT pg_replication_origin_progress(NULL, true)",
    "SELECT pg_replication_origin_create('pg_1')",
    "SELECT pg_replication_origin_create('any')",
    "SELECT pg_replication_origin_create('None')",
    "SELECT pg_replication_origin_drop('o')",
    "SELECT pg_replication_origin_session_setup('o')",
    "SELECT pg_replication_origin_session_is_setup()",
    "SELECT pg_replication_origin_session_progress(true)",
    "SELECT pg_replication_origin_session_reset()",
    "SELECT pg_replication_origin_xact_setup('0/1', now())",
    "SELECT pg_replication_origin_xact_reset()",
]


@pytest.fixture
def servers(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, _SETUP) as both:
        yield both
        database.execute("DROP SUBSCRIPTION origins")


def _answers(session: Any, name: str, queries: list[str]) -> Iterator[tuple[str, object]]:
    for query in queries:
        try:
            yield query, session.execute(query.replace("{name}", name)).fetchall()
        except psycopg.Error as error:
            diag = error.diag
            yield query, (diag.sqlstate, diag.message_primary, diag.message_detail)


def test_they_answer_as_a_servers(servers: list[Server]) -> None:
    seen: list[list[tuple[str, object]]] = []
    for server in servers:
        with server.connect() as root, server.connect("t_plain") as plain:
            query = "SELECT 'pg_' || oid FROM pg_subscription WHERE subname = 'origins'"
            name = str(root.execute(query).fetchall()[0][0])
            # A server looks at rights before there are rows, and the node when there are some.
            others = [query for query in _QUERIES if "FROM pg_show" not in query]
            seen.append([*_answers(root, name, _QUERIES), *_answers(plain, name, others)])
    theirs, ours = seen
    wrong = [f"{a[0]}\n  {a[1]}\n  {b[1]}" for a, b in zip(theirs, ours, strict=True) if a != b]
    assert not wrong, "\n".join(wrong)


def test_what_a_node_does_not_have(servers: list[Server]) -> None:
    with servers[1].connect() as session:
        for call in ("create('o')", "drop('{name}')", "session_setup('{name}')"):
            query = "SELECT 'pg_' || oid FROM pg_subscription"
            name = session.execute(query).fetchall()[0][0]
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                session.execute(f"SELECT pg_replication_origin_{call.replace('{name}', name)}")
        session.execute("ALTER SUBSCRIPTION origins SET (slot_name = x)")
        session.execute("ALTER SUBSCRIPTION origins ENABLE")
        with pytest.raises(psycopg.errors.ObjectInUse):
            session.execute(f"SELECT pg_replication_origin_advance('{name}', '0/1')")
