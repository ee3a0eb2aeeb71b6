"""Settings of a session follow its transactions, and modes of transactions its defaults: beside a
stock server, every statement's answer, what the client is told of, and SHOW after each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backend.two_servers import Server, outcome, two_servers
from faults.heavy import in_make_faults
from fix_postgres import Database

pytestmark = pytest.mark.postgres

_SHOWN = (
    "application_name",
    "work_mem",
    "search_path",
    "synchronous_commit",
    "my.value",
    "default_transaction_read_only",
    "default_transaction_isolation",
    "transaction_read_only",
    "transaction_isolation",
    "transaction_deferrable",
)
_TOLD = (
    "application_name",
    "client_encoding",
    "search_path",
    "default_transaction_read_only",
    "TimeZone",
)

_SETTINGS = """
SET application_name = 'é'
SELECT set_config('application_name', 'ü', false)
SET application_name = 'one'
SET work_mem = '1MB'
BEGIN
SET application_name = 'two'
SET SESSION work_mem = '2MB'
ROLLBACK
BEGIN
SET application_name = 'two'
COMMIT
BEGIN
SET LOCAL application_name = 'three'
SET LOCAL work_mem = '3MB'
SET LOCAL search_path = a, b
COMMIT
BEGIN
SET LOCAL application_name = 'three'
ROLLBACK
BEGIN
SET LOCAL application_name = 'local'
SET application_name = 'after local'
COMMIT
BEGIN
SET application_name = 'session'
SET LOCAL application_name = 'after session'
COMMIT
BEGIN
SET application_name = 'session again'
SET LOCAL application_name = 'after session'
ROLLBACK
BEGIN
SET LOCAL application_name = 'local'
RESET application_name
COMMIT
SET application_name = 'kept'
BEGIN
RESET application_name
ROLLBACK
BEGIN
RESET ALL
ROLLBACK
BEGIN
SET LOCAL application_name TO DEFAULT
COMMIT
BEGIN
SET application_name = 'lost'
SELECT 1/0
SHOW application_name
COMMIT
BEGIN
SET application_name = 'lost'
SET nothing = 1
ROLLBACK
SET LOCAL application_name = 'nowhere'
SET LOCAL nothing = 1
SET LOCAL work_mem = 'much'
SET LOCAL my.value = 'nowhere'
SELECT set_config('application_name', 'nowhere', true)
SELECT set_config('application_name', 'here', false)
SELECT set_config('application_name', 'gone', false), 1/0
SELECT set_config('application_name', 'local', true), current_setting('application_name')
SELECT set_config('work_mem', NULL, false)
BEGIN
SELECT set_config('application_name', 'local', true)
SELECT current_setting('application_name')
SELECT set_config('work_mem', '7MB', false)
COMMIT
BEGIN
SELECT set_config('work_mem', '8MB', false)
SELECT set_config('my.other', 'x', false)
ROLLBACK
SHOW my.other
RESET my.other
SHOW my.other
SHOW my.nothing
RESET nothing
RESET fsync
SET my.value = 'there'
BEGIN
SET application_name = 'a0'
SAVEPOINT s
SET application_name = 'a1'
SET LOCAL work_mem = '11MB'
ROLLBACK TO s
SET LOCAL work_mem = '12MB'
SAVEPOINT t
SET work_mem = '13MB'
RELEASE t
COMMIT
BEGIN
SAVEPOINT s
SET LOCAL work_mem = '14MB'
RELEASE s
SHOW work_mem
COMMIT
BEGIN
SET work_mem = '15MB'
SAVEPOINT s
SET LOCAL work_mem = '16MB'
RELEASE s
COMMIT
BEGIN
SET LOCAL work_mem = '17MB'
SAVEPOINT s
SET work_mem = '18MB'
SET LOCAL work_mem = '19MB'
RELEASE s
COMMIT
BEGIN
SET LOCAL work_mem = '17MB'
SAVEPOINT s
SET work_mem = '20MB'
ROLLBACK TO s
COMMIT
BEGIN
SET application_name = 'b0'
SAVEPOINT s
SET application_name = 'b1'
SAVEPOINT t
SET application_name = 'b2'
SELECT 1/0
ROLLBACK TO t
SET application_name = 'b3'
SELECT 1/0
ROLLBACK TO s
COMMIT
BEGIN
SAVEPOINT s
SET application_name = 'b4'
SELECT 1/0
ROLLBACK TO nothing
COMMIT
BEGIN
SET application_name = 'c0'
SET LOCAL work_mem = '21MB'
COMMIT AND CHAIN
SET application_name = 'c1'
SET LOCAL work_mem = '22MB'
ROLLBACK AND CHAIN
SET LOCAL search_path = c
COMMIT
BEGIN
SET LOCAL synchronous_commit = off
COMMIT
SET client_encoding = latin1
BEGIN
SET client_encoding = utf8
ROLLBACK
BEGIN
SET LOCAL client_encoding = utf8
COMMIT
RESET client_encoding
BEGIN
SET LOCAL application_name = 'prepared'
SET my.value = 'prepared'
PREPARE TRANSACTION 'nothing prepared'
BEGIN
SELECT 1/0
PREPARE TRANSACTION 'nothing prepared'
BEGIN
DISCARD ALL
ROLLBACK
SET application_name = 'discarded'
DISCARD ALL
"""

_MODES = """
SET transaction_read_only = on
SET transaction_isolation = serializable
RESET transaction_read_only
SET transaction_isolation TO DEFAULT
SET transaction_read_only = maybe
SET LOCAL transaction_read_only = on
SET TRANSACTION READ ONLY
BEGIN
SET TRANSACTION READ ONLY
CREATE TABLE never (a int)
ROLLBACK
BEGIN
SET transaction_read_only = on
SET transaction_isolation = 'repeatable read'
SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')
COMMIT
BEGIN
SELECT set_config('transaction_read_only', 'on', true)
SELECT 1
SET TRANSACTION READ WRITE
ROLLBACK
BEGIN READ ONLY
SET TRANSACTION READ WRITE
COMMIT
BEGIN READ ONLY
SAVEPOINT s
SET TRANSACTION READ WRITE
ROLLBACK
BEGIN
SAVEPOINT s
SET TRANSACTION READ ONLY
ROLLBACK TO s
RELEASE s
COMMIT
BEGIN
BEGIN READ ONLY ISOLATION LEVEL SERIALIZABLE
COMMIT
BEGIN
SELECT 1
SET transaction_isolation = serializable
ROLLBACK
BEGIN
SET default_transaction_read_only = on
SHOW transaction_read_only
ROLLBACK
SET default_transaction_isolation = 'repeatable read'
BEGIN
SHOW transaction_isolation
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
COMMIT AND CHAIN
COMMIT
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY
START TRANSACTION
COMMIT
BEGIN READ WRITE
COMMIT
RESET default_transaction_isolation
SET transaction_deferrable = on
BEGIN DEFERRABLE
SET TRANSACTION NOT DEFERRABLE
SET transaction_deferrable = on
COMMIT AND CHAIN
SELECT 1
SET TRANSACTION DEFERRABLE
ROLLBACK
BEGIN
SAVEPOINT s
SET TRANSACTION NOT DEFERRABLE
ROLLBACK
SET SESSION CHARACTERISTICS AS TRANSACTION DEFERRABLE
BEGIN
COMMIT
BEGIN NOT DEFERRABLE
COMMIT
RESET default_transaction_deferrable
BEGIN ISOLATION LEVEL REPEATABLE READ
SELECT 1
BEGIN ISOLATION LEVEL REPEATABLE READ
BEGIN ISOLATION LEVEL SERIALIZABLE
ROLLBACK
BEGIN
SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE
ROLLBACK
INSERT INTO there VALUES (1)
UPDATE there SET a = 1
DELETE FROM there
TRUNCATE there
CREATE TABLE never (a int)
CREATE TABLE never AS SELECT 1 AS a
CREATE TABLE IF NOT EXISTS there (a int)
DROP TABLE there
DROP TABLE nothing
DROP TABLE IF EXISTS nothing
ALTER TABLE there ADD COLUMN b int
ALTER TABLE there REPLICA IDENTITY FULL
ALTER TABLE there SET SCHEMA public
CREATE SCHEMA never
DROP SCHEMA never
CREATE UNIQUE INDEX never ON there (a)
DROP INDEX never
CREATE TYPE never AS ENUM ('a')
ALTER TYPE never ADD VALUE 'b'
DROP TYPE never
CREATE ROLE t_never
ALTER ROLE t_never NOLOGIN
ALTER ROLE t_never RENAME TO t_ever
DROP ROLE t_never
GRANT SELECT ON there TO t_reader
REVOKE SELECT ON there FROM t_reader
CREATE PUBLICATION never
ALTER PUBLICATION never SET (publish = 'insert')
ALTER PUBLICATION never ADD TABLE there
ALTER PUBLICATION never OWNER TO t_reader
ALTER PUBLICATION never RENAME TO ever
DROP PUBLICATION never
CREATE SUBSCRIPTION never CONNECTION 'dbname=x' PUBLICATION p WITH (connect = false)
ALTER SUBSCRIPTION never ENABLE
ALTER SUBSCRIPTION never RENAME TO ever
ALTER SUBSCRIPTION never SET (binary)
ALTER SUBSCRIPTION never SKIP (lsn = NONE)
ALTER SUBSCRIPTION never CONNECTION 'dbname=x'
ALTER SUBSCRIPTION never OWNER TO t_reader
ALTER SUBSCRIPTION never REFRESH PUBLICATION
ALTER SUBSCRIPTION never SET PUBLICATION p
DROP SUBSCRIPTION never
SELECT nextval('there_a_seq')
SELECT setval('there_a_seq', 5)
SELECT currval('there_a_seq')
SELECT count(*) FROM pg_class WHERE relname = 'never'
VALUES (1)
UNLISTEN *
DEALLOCATE ALL
BEGIN
INSERT INTO there VALUES (1)
ROLLBACK
BEGIN
CREATE TABLE never (a int)
COMMIT
BEGIN READ WRITE
CREATE TABLE ever (a int)
ROLLBACK
SET default_transaction_read_only = off
CREATE TABLE ever (a int)
DROP TABLE ever
"""

_SETUP = ["CREATE TABLE there (a serial PRIMARY KEY)", "CREATE ROLE t_reader"]


@pytest.fixture
def servers(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, _SETUP) as both:
        yield both


def told(session: Any) -> list[str | None]:
    """Values that the client holds for the server's."""
    return [session.info.parameter_status(name) for name in _TOLD]


class Extended(psycopg.Cursor[Any]):
    """Sends Parse, Bind, Execute and Sync for every statement."""

    def execute(self, query: Any, *rest: Any, **options: Any) -> Any:
        return super().execute(query, *rest, **{**options, "binary": True})


def run(server: Server, script: str, cursors: Any = None, **options: Any) -> list[Any]:
    """Of each statement: what it comes to, its tag and rows, warnings, what is told and shown."""
    notices: list[Any] = []
    done = []
    with server.connect(**options) as session:
        session.add_notice_handler(
            lambda notice: notices.append((notice.sqlstate, notice.message_primary))
        )
        session.execute("SET my.value = 'first'")
        for statement in script.strip().splitlines():
            cursor = session.cursor() if cursors is None else cursors(session)
            came_to = outcome(cursor, statement, server)
            rows = cursor.fetchall() if cursor.description else None
            tag = cursor.statusmessage if came_to[0] is None else None
            failed = session.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
            shown = [] if failed else [session.execute(f"SHOW {n}").fetchone()[0] for n in _SHOWN]
            done.append((statement, came_to, tag, rows, tuple(notices), told(session), shown))
            notices.clear()
    return done


def compare(servers: list[Server], script: str, **options: Any) -> None:
    stock, node = servers
    options = {"application_name": "began", **options}
    ours, theirs = (run(server, script, **options) for server in (node, stock))
    wrong = [
        f"{number}: {one[0]}\n  server {two[1:]}\n  node   {one[1:]}"
        for number, (one, two) in enumerate(zip(ours, theirs, strict=True))
        if one != two
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("cursors", [in_make_faults(None), Extended])
def test_settings_are_those_of_transactions(servers: list[Server], cursors: Any) -> None:
    compare(servers, _SETTINGS, cursors=cursors)


@pytest.mark.parametrize("cursors", [in_make_faults(None), Extended])
def test_modes_are_those_of_settings(servers: list[Server], cursors: Any) -> None:
    compare(servers, _MODES, cursors=cursors)
    _, node = servers
    node.execute("CREATE TABLE never (a int)")


def test_defaults_of_the_startup_packet(servers: list[Server]) -> None:
    script = """
SHOW transaction_read_only
CREATE TABLE never (a int)
SET default_transaction_read_only TO off
SET default_transaction_read_only TO DEFAULT
SET application_name TO DEFAULT
BEGIN
CREATE TABLE never (a int)
ROLLBACK
SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE
RESET ALL
DISCARD ALL
"""
    options = (
        "-c default_transaction_read_only=yes -c default_transaction_isolation=serializable"
        " -c search_path=a"
    )
    compare(servers, script, options=options)
    begun = []
    for server in servers:
        with server.connect(options=options) as session:
            begun.append(told(session)[1:])
    assert begun[0] == begun[1]
    assert "on" in begun[0]


def test_others_see_the_name_that_is(servers: list[Server]) -> None:
    seen: list[list[Any]] = []
    for server in servers:
        names: list[Any] = []
        with server.connect(application_name="began") as one, server.connect() as other:
            pid = one.info.backend_pid
            for statement in (
                "BEGIN",
                "SET LOCAL application_name = 'local'",
                "COMMIT",
                "BEGIN",
                "SELECT set_config('application_name', 'lost', false)",
                "SELECT 1/0",
                "ROLLBACK",
                "SET application_name = 'other'",
                "RESET application_name",
            ):
                outcome(one, statement)
                row = other.execute(
                    f"SELECT application_name FROM pg_stat_activity WHERE pid = {pid}"
                ).fetchone()
                names.append((statement, row, one.info.parameter_status("application_name")))
        seen.append(names)
    assert seen[0] == seen[1]
