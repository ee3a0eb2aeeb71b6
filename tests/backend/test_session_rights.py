"""What a role may do is looked up at each statement: open sessions keep nothing of the past."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backend.two_servers import PASSWORD, Node, Server, outcome, two_servers
from fix_postgres import Database
from penstock.backend.services import shown_text

pytestmark = pytest.mark.postgres

_SETUP = [
    "CREATE TABLE secret (id int PRIMARY KEY, note text)",
    "CREATE TABLE shown (id int PRIMARY KEY, note text)",
    "CREATE PUBLICATION everything FOR ALL TABLES",
    f"CREATE ROLE t_boss LOGIN SUPERUSER PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_reader LOGIN PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_receiver LOGIN REPLICATION PASSWORD '{PASSWORD}'",
    "CREATE ROLE t_other",
    "GRANT SELECT ON shown TO t_reader",
]
_OF_SUPERUSERS = [
    "SELECT rolpassword FROM pg_authid",
    "SELECT * FROM pg_authid",
    "SELECT passwd FROM pg_shadow",
    "SELECT subconninfo FROM pg_subscription",
    "SELECT * FROM secret",
    "SELECT count(*) FROM secret",
    "WITH q AS (SELECT * FROM secret) SELECT * FROM q",
    "COPY secret TO STDOUT",
    "COPY (SELECT note FROM secret) TO STDOUT",
    "COPY (SELECT rolpassword FROM pg_authid) TO STDOUT",
    "INSERT INTO secret VALUES (1, 'x')",
    "INSERT INTO secret SELECT * FROM secret",
    "UPDATE secret SET note = 'x'",
    "DELETE FROM secret",
    "TRUNCATE secret",
    "DROP TABLE secret",
    "ALTER TABLE secret ADD COLUMN c int",
    "ALTER TABLE secret OWNER TO t_reader",
    "ALTER TABLE secret REPLICA IDENTITY FULL",
    "GRANT SELECT ON secret TO t_reader",
    "REVOKE SELECT ON shown FROM t_reader",
    "CREATE TABLE public.another (id int)",
    "CREATE SCHEMA another",
    "CREATE PUBLICATION another FOR ALL TABLES",
    "CREATE PUBLICATION another FOR TABLE secret",
    "ALTER PUBLICATION everything SET (publish = 'insert')",
    "ALTER PUBLICATION everything RENAME TO nothing",
    "DROP PUBLICATION everything",
    "CREATE SUBSCRIPTION s CONNECTION 'host=nowhere' PUBLICATION p WITH (connect = false)",
    "CREATE ROLE t_another",
    "ALTER ROLE t_other SUPERUSER",
    "ALTER ROLE t_other PASSWORD 'x'",
    "ALTER ROLE t_other RENAME TO t_more",
    "DROP ROLE t_other",
    "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
    "SELECT pg_drop_replication_slot('s')",
    "SELECT pg_replication_slot_advance('s', '0/1')",
]


@pytest.fixture
def both(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, _SETUP) as servers:
        yield servers


def outcomes(server: Server, session: Any, statements: list[str]) -> dict[str, object]:
    return {statement: outcome(session, statement, server) for statement in statements}


def test_a_superuser_that_is_none_any_more(both: list[Server]) -> None:
    seen = []
    for server in both:
        with server.connect("t_boss") as session:
            for allowed in (
                "SELECT rolpassword FROM pg_authid",
                "CREATE SCHEMA before",
                "CREATE ROLE t_before",
                "SET session_replication_role = replica",
            ):
                assert outcome(session, allowed) == (None, None, None)
            server.execute("ALTER ROLE t_boss NOSUPERUSER")
            statements = [
                *_OF_SUPERUSERS,
                "ALTER ROLE t_boss SUPERUSER",
                "SET session_replication_role = origin",
                "SELECT set_config('session_replication_role', 'origin', false)",
            ]
            seen.append(outcomes(server, session, statements))
            server.execute("ALTER ROLE t_boss SUPERUSER")
            assert outcome(session, "SELECT rolpassword FROM pg_authid") == (None, None, None)
    assert seen[1] == seen[0]
    assert all(found[0] == "42501" for found in seen[0].values()), seen[0]  # type: ignore[index]


def test_a_role_that_is_gone(both: list[Server]) -> None:
    seen = []
    for server in both:
        with server.connect("t_boss") as session:
            (oid,) = session.execute(
                "SELECT oid FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            server.execute("DROP ROLE t_boss")
            statements = [
                *_OF_SUPERUSERS,
                "SELECT current_user",
                "SELECT session_user",
                "ALTER ROLE CURRENT_USER PASSWORD 'x'",
            ]
            found = outcomes(server, session, statements)
            seen.append(
                {
                    statement: tuple(re.sub(rf"\b{oid}\b", "OID", text or "") for text in told)
                    for statement, told in found.items()
                    if isinstance(told, tuple)
                }
            )
            assert session.execute("SELECT 1").fetchone() == (1,)
            assert session.execute("SELECT has_table_privilege('secret', 'SELECT')").fetchone() == (
                False,
            )
        with pytest.raises(psycopg.OperationalError):
            server.connect("t_boss")
    assert seen[1] == seen[0]
    assert seen[0]["SELECT current_user"][1] == "invalid role OID: OID"


def test_what_a_role_may_read_was_revoked(both: list[Server]) -> None:
    for server in both:
        with server.connect("t_reader") as session:
            raw = session.pgconn
            assert raw.prepare(b"p", b"SELECT note FROM shown").error_message == b""
            server.execute("REVOKE SELECT ON shown FROM t_reader")
            assert outcome(session, "SELECT note FROM shown", server) == (
                "42501",
                "permission denied for table shown",
                None,
            )
            assert b"permission denied for table shown" in raw.exec_prepared(b"p", []).error_message


def test_a_new_name_is_the_same_role(both: list[Server]) -> None:
    for server in both:
        with server.connect("t_reader") as session:
            server.execute("ALTER ROLE t_reader RENAME TO t_renamed")
            query = "SELECT current_user, has_table_privilege('shown', 'SELECT')"
            assert session.execute(query).fetchone() == ("t_renamed", True)


def test_login_is_asked_for_at_login(both: list[Server]) -> None:
    for server in both:
        with server.connect("t_reader") as session:
            server.execute("ALTER ROLE t_reader NOLOGIN")
            assert session.execute("SELECT current_user").fetchone() == ("t_reader",)
            with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
                server.connect("t_reader")


def test_a_walsender_without_replication_gets_nothing_more(both: list[Server]) -> None:
    """PostgreSQL asks a walsender when it starts only; what its SQL functions say is said here."""
    commands = [
        "IDENTIFY_SYSTEM",
        "CREATE_REPLICATION_SLOT more LOGICAL pgoutput",
        "DROP_REPLICATION_SLOT more",
        "START_REPLICATION SLOT more LOGICAL 0/0 (proto_version '1', publication_names 'p')",
    ]
    function = "SELECT pg_create_logical_replication_slot('s', 'pgoutput')"
    for server in both:
        with server.connect("t_receiver", replication="database") as session:
            session.execute("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput")
            server.execute("ALTER ROLE t_receiver NOREPLICATION")
            refused = outcome(session, function, server)
            assert refused[:2] == ("42501", "permission denied to use replication slots")
            if isinstance(server, Node):
                for command in commands:
                    assert outcome(session, command) == refused
            else:
                assert outcome(session, commands[0]) == (None, None, None)


@pytest.mark.parametrize("taken", ["ALTER ROLE t_receiver NOREPLICATION", "DROP ROLE t_receiver"])
def test_slots_are_no_longer_made(both: list[Server], taken: str) -> None:
    seen = []
    for server in both:
        with server.connect("t_receiver") as session:
            server.execute(taken)
            statements = [
                "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
                "SELECT * FROM pg_create_logical_replication_slot('s', 'pgoutput')",
                "SELECT pg_drop_replication_slot('s')",
            ]
            seen.append(outcomes(server, session, statements))
    assert seen[1] == seen[0]


def test_like_reads_a_table(both: list[Server]) -> None:
    seen = []
    for server in both:
        server.execute("CREATE SCHEMA own AUTHORIZATION t_reader")
        with server.connect("t_reader") as session:
            statements = [
                f"CREATE TABLE own.{table} (LIKE {table})" for table in ("secret", "shown")
            ]
            seen.append(outcomes(server, session, statements))
    assert seen[1] == seen[0]
    assert [found[0] for found in seen[0].values()] == ["42501", None]  # type: ignore[index]


def test_only_superusers_see_where_the_warehouse_is(both: list[Server]) -> None:
    node = both[1]
    assert isinstance(node, Node)
    warehouse = Path(node.lake.warehouse.uri.removeprefix("file://"))
    entry = warehouse / "public" / "shown" / "_delta_log" / f"{0:020}.json"
    entry.write_bytes(entry.read_bytes()[:-20])
    with node.connect("t_boss") as boss, pytest.raises(psycopg.errors.DataCorrupted) as theirs:
        boss.execute("SELECT * FROM shown")
    with node.connect("t_reader") as reader, pytest.raises(psycopg.errors.DataCorrupted) as ours:
        reader.execute("SELECT * FROM shown")
    assert str(warehouse) in str(theirs.value)
    told = str(ours.value)
    assert str(warehouse) not in told and "file:" not in told
    assert "public/shown/_delta_log" in told
    # A longer name is another place.
    others = [f"SELECT '{text}'::int" for text in (f"{warehouse}2/x", f"/elsewhere{warehouse}")]
    seen = []
    for server in both:
        with server.connect("t_reader") as session:
            seen.append(outcomes(server, session, others))
    assert seen[1] == seen[0]
    # An error is told even if nobody can look up the role.
    node.lake.catalog.close()
    assert shown_text(told, 0, node.lake.catalog, node.lake.warehouse) == told
    text = f'file "{warehouse}/t" of {warehouse}'
    assert shown_text(text, 10, node.lake.catalog, node.lake.warehouse) == 'file "t" of '
