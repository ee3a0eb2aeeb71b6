"""A role without rights learns nothing of tables that it may not read, by whatever door."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg.errors import Diagnostic

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import PASSWORD, LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

SECRET = "the treasure is under the oak"
SETUP = [
    "CREATE TABLE secret (id integer PRIMARY KEY, note text)",
    "CREATE TABLE open_table (id integer PRIMARY KEY, note text)",
    f"INSERT INTO secret VALUES (1, '{SECRET}')",
    "INSERT INTO open_table VALUES (1, 'for all')",
    "CREATE PUBLICATION everything FOR ALL TABLES",
]
ROLES = [
    f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'",
    f"CREATE ROLE receiver LOGIN REPLICATION PASSWORD '{PASSWORD}'",
    "GRANT SELECT ON open_table TO reader",
    "CREATE SCHEMA own AUTHORIZATION reader",
]
DENIED = "permission denied for table secret"
STATEMENTS: list[tuple[str, str, str]] = [
    ("SELECT * FROM secret", "42501", DENIED),
    ("SELECT count(*) FROM public.secret", "42501", DENIED),
    ("SELECT o.note FROM open_table o WHERE EXISTS (SELECT 1 FROM secret s)", "42501", DENIED),
    ("WITH q AS (SELECT * FROM secret) SELECT * FROM q", "42501", DENIED),
    ("SELECT note FROM open_table UNION SELECT note FROM secret", "42501", DENIED),
    ("SELECT (SELECT max(note) FROM secret) FROM open_table", "42501", DENIED),
    ("COPY secret TO STDOUT", "42501", DENIED),
    ("COPY secret (id) TO STDOUT", "42501", DENIED),
    ("COPY (SELECT note FROM secret) TO STDOUT", "42501", DENIED),
    ("COPY (SELECT note FROM secret WHERE id > 0) TO STDOUT (FORMAT binary)", "42501", DENIED),
    ("COPY open_table (id, note, id) TO STDOUT", "42701", 'column "id" specified more than once'),
    ("COPY open_table (id, nope) TO STDOUT", "42703",
     'column "nope" of relation "open_table" does not exist'),
    ("COPY (SELECT id, nope FROM open_table) TO STDOUT", "42703", 'column "nope" does not exist'),
    ("CREATE TABLE own.liked (LIKE secret)", "42501", DENIED),
    ("CREATE TABLE own.liked AS SELECT * FROM secret", "42501", DENIED),
    ("INSERT INTO secret VALUES (2, 'x')", "42501", DENIED),
    ("UPDATE secret SET note = ''", "42501", DENIED),
    ("DELETE FROM secret", "42501", DENIED),
    ("TRUNCATE secret", "42501", DENIED),
    ("INSERT INTO open_table VALUES (2, 'x')", "42501", "permission denied for table open_table"),
    ("DELETE FROM open_table", "42501", "permission denied for table open_table"),
    ("TRUNCATE open_table", "42501", "permission denied for table open_table"),
    ("DROP TABLE secret", "42501", "must be owner of table secret"),
    ("ALTER TABLE secret ADD COLUMN x int", "42501", "must be owner of table secret"),
    ("ALTER TABLE secret REPLICA IDENTITY FULL", "42501", "must be owner of table secret"),
    ("ALTER PUBLICATION everything SET (publish = 'insert')", "42501",
     "must be owner of publication everything"),
    ("ALTER PUBLICATION everything OWNER TO reader", "42501",
     "must be owner of publication everything"),
    ("ALTER PUBLICATION everything RENAME TO e", "42501",
     "must be owner of publication everything"),
    ("DROP PUBLICATION everything", "42501", "must be owner of publication everything"),
    ("SELECT rolpassword FROM pg_authid", "42501", "permission denied for table pg_authid"),
    ("SELECT * FROM pg_authid", "42501", "permission denied for table pg_authid"),
    ("SELECT count(*) FROM pg_authid a", "42501", "permission denied for table pg_authid"),
    ("SELECT subconninfo FROM pg_subscription", "42501",
     "permission denied for table pg_subscription"),
    ("SELECT * FROM pg_subscription", "42501", "permission denied for table pg_subscription"),
    ("SELECT s.* FROM pg_subscription s", "42501", "permission denied for table pg_subscription"),
    ("SELECT subname FROM pg_subscription WHERE subconninfo LIKE 'h%'", "42501",
     "permission denied for table pg_subscription"),
]  # fmt: skip
ALSO_REFUSED = [
    "SELECT passwd FROM pg_shadow",
    "TABLE pg_subscription",
    "SELECT x.subname FROM (SELECT * FROM pg_subscription) x",
    "SELECT subname FROM pg_subscription ORDER BY subconninfo",
    "SELECT subname FROM pg_subscription GROUP BY subname, subconninfo",
    "SELECT (SELECT max(subconninfo) FROM pg_subscription)",
    "SELECT 1 FROM pg_class WHERE EXISTS (SELECT 1 FROM pg_subscription WHERE subconninfo > '')",
    "WITH q AS (SELECT subconninfo AS c FROM pg_subscription) SELECT 1 FROM q",
    "SELECT a.rolname FROM pg_authid a JOIN pg_roles r ON r.oid = a.oid",
    "SELECT 1 FROM pg_class WHERE relname IN (SELECT rolpassword FROM pg_authid)",
    "GRANT SELECT ON secret TO reader",
    "CREATE ROLE more LOGIN",
    "ALTER ROLE reader SUPERUSER",
    "ALTER ROLE reader REPLICATION",
    "ALTER ROLE receiver PASSWORD 'x'",
    "ALTER ROLE receiver RENAME TO r",
    "DROP ROLE receiver",
    "CREATE PUBLICATION mine FOR TABLE secret",
    "CREATE PUBLICATION mine FOR TABLE open_table",
    "CREATE PUBLICATION mine FOR ALL TABLES",
    "CREATE SUBSCRIPTION s CONNECTION 'host=nowhere' PUBLICATION p WITH (connect = false)",
    "CREATE TABLE public.mine (a int)",
    "CREATE SCHEMA mine",
    "ALTER TABLE secret OWNER TO reader",
    "ALTER PUBLICATION everything ADD TABLE secret",
    "ALTER PUBLICATION everything DROP TABLE secret",
    "DROP TABLE secret, open_table",
]
SAME_FOR_ALL = [
    "SELECT relname, relkind FROM pg_class WHERE relname IN ('secret', 'open_table') ORDER BY 1",
    "SELECT attname FROM pg_attribute WHERE attrelid = 'secret'::regclass AND attnum > 0"
    " ORDER BY attnum",
    "SELECT rolname, rolpassword FROM pg_roles WHERE rolname IN ('reader', 'receiver') ORDER BY 1",
    "SELECT usename, passwd FROM pg_user WHERE usename IN ('reader', 'receiver') ORDER BY 1",
    "SELECT has_table_privilege('secret', 'SELECT'), has_table_privilege('open_table', 'SELECT')",
    "SELECT pubname, tablename FROM pg_publication_tables WHERE tablename IN"
    " ('secret', 'open_table') ORDER BY 2",
    "SELECT subname, subenabled FROM pg_subscription",
]
"""What PostgreSQL shows everybody: names, and not what they stand for."""


@pytest.fixture(scope="module")
def kept(lake: LakeNode) -> LakeNode:
    lake.execute(*SETUP, *ROLES)
    return lake


@pytest.fixture
def server(database: Database) -> Iterator[Database]:
    """A PostgreSQL with the same objects; roles are the cluster's and go."""
    try:
        for statement in (*SETUP, *ROLES):
            database.execute(statement)
        yield database
    finally:
        database.execute("DROP OWNED BY reader, receiver; DROP ROLE reader, receiver")


def refusal(connection: psycopg.Connection[Any], statement: str) -> tuple[str | None, str | None]:
    with pytest.raises(psycopg.Error) as error:
        if statement.startswith("COPY"):
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.read()
        else:
            connection.execute(statement)
    assert SECRET not in str(error.value)
    return error.value.diag.sqlstate, error.value.diag.message_primary


def as_reader(server: Database, **options: Any) -> psycopg.Connection[Any]:
    conninfo = psycopg.conninfo.make_conninfo(server.conninfo, user="reader", password=PASSWORD)
    return psycopg.connect(conninfo, autocommit=True, **options)


def test_what_may_not_be_read_is_refused_as_postgresql_refuses_it(
    kept: LakeNode, server: Database
) -> None:
    with kept.connect("reader") as ours, as_reader(server) as theirs:
        assert ours.execute("SELECT note FROM open_table").fetchall() == [("for all",)]
        for statement, sqlstate, message in STATEMENTS:
            assert refusal(theirs, statement) == (sqlstate, message), statement
            assert refusal(ours, statement) == (sqlstate, message), statement
    assert kept.rows("SELECT * FROM secret") == [(1, SECRET)]
    assert kept.rows("SELECT * FROM open_table") == [(1, "for all")]


def test_what_else_is_refused_as_postgresql_refuses_it(kept: LakeNode, server: Database) -> None:
    wrong = []
    with kept.connect("reader") as ours, as_reader(server) as theirs:
        for statement in ALSO_REFUSED:
            sqlstate, message = refusal(theirs, statement)
            expected = sqlstate, (message or "").replace(server.name, "lake")
            assert sqlstate == "42501", (statement, message)
            try:
                found = refusal(ours, statement)
            except pytest.fail.Exception:
                found = None, "done"
            if found != expected:
                wrong.append(f"{statement}\n  {expected}\n  {found}")
    assert not wrong, "\n".join(wrong)


def test_a_torn_log_does_not_tell_where_the_warehouse_is(kept: LakeNode) -> None:
    kept.execute("CREATE TABLE torn (id integer)", "GRANT SELECT ON torn TO reader")
    kept.execute("INSERT INTO torn VALUES (1)")
    warehouse = str(kept.node.parameters.warehouse)
    entries = sorted(Path(warehouse, "public", "torn", "_delta_log").glob("*.json"))
    content = entries[-1].read_bytes()
    entries[-1].write_bytes(content[: len(content) // 2])

    def told(user: str) -> str:
        with kept.connect(user) as session:
            diag = refused(session, "SELECT * FROM torn")
            return " ".join(filter(None, (diag.message_primary, diag.message_detail)))

    try:
        assert warehouse in told("lake")
        assert "torn/_delta_log" in told("reader")
        assert warehouse not in told("reader")
    finally:
        entries[-1].write_bytes(content)
    kept.execute("DROP TABLE torn")


def refused(session: psycopg.Connection[Any], statement: str) -> Diagnostic:
    with pytest.raises(psycopg.Error) as raised:
        session.execute(statement.encode())
    return raised.value.diag


def test_names_are_public_as_in_postgresql(kept: LakeNode, server: Database) -> None:
    with kept.connect("reader") as ours, as_reader(server) as theirs:
        for query in SAME_FOR_ALL:
            expected = theirs.execute(query).fetchall()
            assert ours.execute(query).fetchall() == expected, query


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM open_table",
        "SELECT input_file_name() FROM open_table",
        "SELECT * FROM table_changes_by_path('{secret}', 0)",
        "SELECT * FROM identifier('delta.`{secret}`')",
        'SELECT * FROM delta."{secret}"',
        'SELECT * FROM parquet."{secret}"',
        "WITH q AS (SELECT 1) DELETE FROM open_table",
        "EXPLAIN SELECT * FROM secret",
        "SELECT note INTO other FROM open_table",
    ],
)
def test_no_door_of_spark_leads_around_the_rights(kept: LakeNode, statement: str) -> None:
    uri = f"{kept.node.parameters.warehouse}/public/secret"
    with kept.connect("reader") as reader:
        text = statement.replace("{secret}", uri)
        sqlstate, _ = refusal(reader, text)
        assert sqlstate in ("0A000", "42883", "42P01")


def test_spark_substitutes_nothing_in_a_string(kept: LakeNode) -> None:
    with kept.connect("reader") as reader:
        query = "SELECT '${env:HOME} ${spark.app.name} ${system:user.home}' FROM open_table"
        assert reader.execute(query).fetchall() == [
            ("${env:HOME} ${spark.app.name} ${system:user.home}",)
        ]
    kept.execute("INSERT INTO secret VALUES (7, '${env:HOME}\\')", "DELETE FROM open_table")
    assert kept.rows("SELECT note FROM secret WHERE id = 7") == [("${env:HOME}\\",)]
    kept.execute("DELETE FROM secret WHERE id = 7", "INSERT INTO open_table VALUES (1, 'for all')")


def test_a_walsender_needs_the_attribute_and_its_copies_the_right(
    kept: LakeNode, server: Database
) -> None:
    for connect in (kept.connect, lambda user, **o: as_reader(server, **o)):
        with pytest.raises(psycopg.OperationalError) as error:
            connect("reader", replication="database")
        assert "permission denied to start WAL sender" in str(error.value)
    with kept.connect("receiver", replication="database") as session:
        for statement in (
            "COPY secret TO STDOUT",
            "COPY (SELECT id FROM secret) TO STDOUT",
            "SELECT * FROM secret",
        ):
            assert refusal(session, statement) == ("42501", DENIED)


def test_replication_commands_are_none_to_a_plain_session(kept: LakeNode, server: Database) -> None:
    with kept.connect("reader") as ours, as_reader(server) as theirs:
        for statement in (
            "IDENTIFY_SYSTEM",
            "CREATE_REPLICATION_SLOT s LOGICAL pgoutput",
            "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')",
            "DROP_REPLICATION_SLOT s",
        ):
            expected = refusal(theirs, statement)
            assert expected[0] == "42601"
            assert refusal(ours, statement) == expected


def start_streaming(session: psycopg.Connection[Any]) -> None:
    """Until the first bytes of the stream are there."""
    session.execute("CREATE_REPLICATION_SLOT rights TEMPORARY LOGICAL pgoutput")
    session.pgconn.send_query(
        b"START_REPLICATION SLOT rights LOGICAL 0/0"
        b" (proto_version '1', publication_names 'everything')"
    )
    while session.pgconn.is_busy():
        select.select([session.pgconn.socket], [], [], 20)
        session.pgconn.consume_input()
    result = session.pgconn.get_result()
    assert result is not None and result.status == pq.ExecStatus.COPY_BOTH


def test_who_streams_is_public_and_how_far_is_not(kept: LakeNode, server: Database) -> None:
    query = (
        "SELECT pid IS NULL, usename, application_name, client_addr IS NULL, state,"
        " sent_lsn IS NULL, sync_state FROM pg_stat_replication WHERE usename = 'receiver'"
    )
    theirs_info = psycopg.conninfo.make_conninfo(
        server.conninfo, user="receiver", password=PASSWORD, replication="database"
    )
    seen = []
    for stream, reader, owner in (
        (psycopg.connect(theirs_info, autocommit=True), as_reader(server), server.connect()),
        (kept.connect("receiver", replication="database"), kept.connect("reader"), kept.connect()),
    ):
        with reader, owner, contextlib.closing(stream):
            start_streaming(stream)
            wait_until(
                lambda owner=owner: bool(owner.execute(query).fetchall()),  # type: ignore[misc]
                "the stream",
            )
            seen.append(
                [
                    reader.execute(query).fetchall(),
                    owner.execute(
                        query.replace("client_addr IS NULL, state", "true, ''")
                    ).fetchall(),
                ]
            )
    assert seen[1] == seen[0]
    assert seen[0][0] == [(False, "receiver", "", True, None, True, None)]
