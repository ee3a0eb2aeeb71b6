"""PREPARE, EXECUTE and LOCK TABLE in psql: a node prints what a server prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus

from publishing.lake_node import PASSWORD, LakeNode
from publishing.psql_pair import Pair, psql

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_PREPARED = """
CREATE TYPE prep_mood AS ENUM ('sad', 'glad');
CREATE TABLE prep (id int PRIMARY KEY, name text, mood prep_mood);
PREPARE ins (int, text, prep_mood) AS INSERT INTO prep VALUES ($1, $2, $3);
EXECUTE ins(1, 'ink', 'glad');
EXECUTE ins(1 + 1, upper('pen'), NULL);
EXECUTE ins('3', 4, 'sad');
EXECUTE ins('x', 'y', 'sad');
EXECUTE ins(4, 'y', 'other');
EXECUTE ins(1);
EXECUTE ins(true, 'y', 'sad');
EXECUTE ins(4.6, 7, 'sad'::prep_mood);
EXECUTE ins(count(*), 'y', 'sad');
EXECUTE ins((SELECT 1), 'y', 'sad');
EXECUTE ins(generate_series(1, 2), 'y', 'sad');
EXECUTE ins(row_number() OVER (), 'y', 'sad');
EXECUTE ins($1, 'y', 'sad');
EXECUTE ins(id, 'y', 'sad');
PREPARE ins AS SELECT 1;
PREPARE sel AS SELECT id, name, mood FROM prep WHERE id > $1 ORDER BY id;
EXECUTE sel(1);
EXECUTE sel('0');
PREPARE all_of AS TABLE prep ORDER BY id;
EXECUTE all_of;
EXECUTE all_of(1);
PREPARE class (oid, name[]) AS SELECT relname FROM pg_class WHERE oid > $1 AND relname = ANY ($2);
EXECUTE class('0', '{prep,none}');
PREPARE wrong AS SELECT nowhere FROM prep;
EXECUTE wrong;
EXECUTE nothing;
DEALLOCATE sel;
EXECUTE sel(1);
BEGIN READ ONLY;
EXECUTE ins(9, 'no', NULL);
EXECUTE all_of;
ROLLBACK;
BEGIN;
EXECUTE ins(5, 'in a block', NULL);
EXECUTE all_of;
ROLLBACK;
EXECUTE all_of;
DISCARD PLANS;
DISCARD SEQUENCES;
DISCARD TEMP;
EXECUTE all_of;
PREPARE mood (prep_mood, prep_mood[]) AS SELECT $1, $2;
EXECUTE mood('sad', '{glad,sad}');
EXECUTE mood('nothing', NULL);
CREATE SCHEMA prep_schema;
CREATE TYPE prep_schema.tone AS ENUM ('low');
PREPARE tone (prep_schema.tone) AS SELECT $1::text;
EXECUTE tone('low');
DEALLOCATE ALL;
EXECUTE all_of;
"""
_LOCKED = """
CREATE TABLE locked (id int);
LOCK TABLE locked IN ACCESS SHARE MODE;
BEGIN;
LOCK TABLE locked IN ACCESS SHARE MODE;
LOCK locked, ONLY pg_class IN ACCESS SHARE MODE NOWAIT;
SELECT * FROM locked;
COMMIT;
SELECT 1 \\; LOCK TABLE locked IN ACCESS SHARE MODE \\; SELECT 2;
BEGIN;
LOCK TABLE locked, nowhere IN ACCESS SHARE MODE;
SELECT 1;
ROLLBACK;
"""


@pytest.mark.parametrize("script", [_PREPARED, _LOCKED], ids=["prepare", "lock"])
def test_psql_prints_the_same(pair: Pair, script: str) -> None:
    pair.both(script)


def test_a_lock_needs_the_right_to_read(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE locked_away (id int)",
        f"CREATE ROLE locks_nothing LOGIN PASSWORD '{PASSWORD}'",
    )
    with lake.connect("locks_nothing") as connection:
        connection.execute("BEGIN")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("LOCK TABLE locked_away IN ACCESS SHARE MODE")


def test_other_locks_are_refused_by_name(lake: LakeNode, superuser: str) -> None:
    lake.execute("CREATE TABLE not_locked (id int)")
    printed = psql(lake.conninfo(superuser), "BEGIN;\nLOCK TABLE not_locked;\nROLLBACK;\n")
    assert "ERROR:  0A000: LOCK TABLE in modes other than ACCESS SHARE is not supported" in printed


def test_statements_that_execute_one_another_end(both: Callable[..., tuple[Any, Any]]) -> None:
    """Only Parse gives a prepared statement an EXECUTE."""
    for session in both():
        for name, text in (("one", b"EXECUTE two"), ("two", b"EXECUTE one")):
            session.execute(f"PREPARE {'two' if name == 'one' else 'none'} AS SELECT 1")
            assert session.pgconn.prepare(name.encode(), text).status == ExecStatus.COMMAND_OK
            session.execute(f"DEALLOCATE {'two' if name == 'one' else 'none'}")
        with pytest.raises(psycopg.errors.StatementTooComplex, match="stack depth limit exceeded"):
            session.execute("EXECUTE one")
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_a_driver_describes_execute(both: Callable[..., tuple[Any, Any]]) -> None:
    found = []
    for session in both("CREATE TABLE described (id int, name text)"):
        session.execute("INSERT INTO described VALUES (1, 'a')")
        session.execute("PREPARE d (int) AS SELECT name, id FROM described WHERE id = $1")
        cursor = psycopg.Cursor(session)
        cursor.execute("EXECUTE d(1)", prepare=True)
        found.append(([c.name for c in cursor.description or ()], cursor.fetchall()))
    assert found[0] == found[1] == (["name", "id"], [("a", 1)])
