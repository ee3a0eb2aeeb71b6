"""Slots read on a node and on stock servers: bytes, warnings, errors and counts are equal."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.sqlstate import CharacterNotInRepertoire
from publishing.lake_node import LakeNode
from publishing.recvlogical import recvlogical

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

Session = psycopg.Connection[Any]
_NOWHERE = "'proto_version', '4', 'publication_names', 'nowhere, somewhere'"
_LSN = re.compile(r"[0-9A-F]+/[0-9A-F]+")


@contextmanager
def _each(lake: LakeNode, stock: Database) -> Iterator[tuple[Session, Session]]:
    with lake.connect() as ours, stock.connect() as theirs:
        yield ours, theirs


@contextmanager
def _slot(sessions: tuple[Session, Session], name: str, plugin: str) -> Iterator[None]:
    for session in sessions:
        session.execute(f"SELECT pg_create_logical_replication_slot('{name}', '{plugin}')")
    try:
        yield
    finally:
        for session in sessions:
            session.execute(f"SELECT pg_drop_replication_slot('{name}')")


def _bytes(session: Session, query: str) -> Any:
    """The first column's bytes, or the SQLSTATE of the error."""
    result = session.pgconn.exec_(query.encode())
    if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
        return result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
    return [result.get_value(row, 0) for row in range(result.ntuples)]


def test_text_of_a_plugin_is_sent_as_it_is(
    lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    """A server does not check it; in text format it ends at the first NUL."""
    peek = "pg_logical_slot_peek_changes('raw', NULL, NULL, 'include-xids', '0')"
    with _each(lake, database_on(17)) as both, _slot(both, "raw", "test_decoding"):
        found = []
        for session in both:
            for content in (r"\xff01", r"\x61006200", r"\xc3bc"):
                session.execute(f"SELECT pg_logical_emit_message(true, 'p', '{content}'::bytea)")
            copied = []
            for form in "text", "binary":
                statement = f"COPY (SELECT data FROM {peek}) TO STDOUT (FORMAT {form})"
                with session.cursor().copy(statement.encode()) as copy:
                    copied.append(b"".join(map(bytes, copy)))
            query = f"SELECT data FROM {peek}"
            sent = session.pgconn.exec_params(query.encode(), [], result_format=1)
            rows = [sent.get_value(row, 0) for row in range(sent.ntuples)]
            found.append([_bytes(session, query), copied, rows])
        assert found[0] == found[1]
        # A condition needs text that the node can compute with.
        assert _bytes(both[0], f"SELECT data FROM {peek} WHERE data <> ''") == b"22021"


_NESTED = (
    "SELECT * FROM pg_replication_slot_advance('mirror', (SELECT max(lsn) FROM {call}))",
    "SELECT left(data, 6) FROM pg_logical_slot_peek_changes('mirror', NULL, NULL)",
    "SELECT count(*) FROM unnest(ARRAY(SELECT data FROM {call}))",
    "SELECT * FROM unnest(ARRAY(SELECT left(data, 6) FROM {call}))",
    "SELECT left(upper, 6) FROM upper((SELECT max(data) FROM {call}))",
    "SELECT left(data, 6) FROM pg_logical_slot_peek_changes('mirror',"
    " (SELECT max(lsn) FROM {call}), NULL)",
    "SELECT data IS NULL FROM pg_logical_slot_peek_changes('nested', NULL, (SELECT 1 + count(*)"
    " FROM {call})::integer)",
)


def test_slots_read_for_an_argument(lake: LakeNode, database_on: Callable[..., Database]) -> None:
    with (
        _each(lake, database_on(17)) as both,
        _slot(both, "nested", "test_decoding"),
        _slot(both, "mirror", "test_decoding"),
    ):
        found = []
        for session in both:
            for content in "one", "two":
                session.execute(f"SELECT pg_logical_emit_message(true, 'p', '{content}')".encode())
            call = "pg_logical_slot_peek_changes('nested', NULL, NULL)"
            answers = [_bytes(session, each.format(call=call)) for each in _NESTED]
            answers[0] = _LSN.sub("LSN", str(answers[0]))
            found.append(answers)
        assert found[0] == found[1]


def test_slots_by_the_library(lake: LakeNode) -> None:
    """Warnings come with the result, and bytes that are no text raise an error."""
    lake.execute(
        "CREATE TABLE said (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('said', 'pgoutput')",
        "SELECT pg_create_logical_replication_slot('bytes_said', 'test_decoding')",
        "INSERT INTO said VALUES (1)",
        r"SELECT pg_logical_emit_message(true, 'p', '\xff01'::bytea)",
    )
    peek = "SELECT data FROM pg_logical_slot_peek{}_changes('{}', NULL, NULL{})"
    result = lake.node.sql(peek.format("_binary", "said", f", {_NOWHERE}"))
    assert 'skipped loading publication "nowhere"' in [each.message for each in result.notices]
    with pytest.raises(CharacterNotInRepertoire) as raised:
        lake.node.sql(peek.format("", "bytes_said", ""))
    assert raised.value.hint is not None
    for name in "said", "bytes_said":
        lake.execute(f"SELECT pg_drop_replication_slot('{name}')")


def test_rows_in_all_formats(lake: LakeNode, database_on: Callable[..., Database]) -> None:
    options = "'proto_version', '1', 'publication_names', 'formats'"
    call = f"pg_logical_slot_peek_binary_changes('formats', NULL, NULL, {options})"
    with _each(lake, database_on(18)) as both:
        for session in both:
            session.execute("CREATE TABLE formats (id integer PRIMARY KEY, v text)")
            session.execute("CREATE PUBLICATION formats FOR TABLE formats")
        with _slot(both, "formats", "pgoutput"):
            found = []
            for session in both:
                session.execute(
                    "INSERT INTO formats SELECT i, 'v' || i FROM generate_series(1, 9) i"
                )
                read = []
                for binary in (False, True):
                    cursor = psycopg.Cursor(session)
                    cursor.execute(f"SELECT data, lsn, xid, data FROM {call}", binary=binary)
                    read.append([row[0] for row in cursor if row[0] == row[3]])
                    columns = [(c.name, c.type_code) for c in cursor.description or ()]
                some: Any = psycopg.Cursor(session).stream(f"SELECT data FROM {call}", size=1)
                with closing(some):
                    assert [next(some)[0][:1] for _ in range(2)] == [b"B", b"R"]
                assert read[0] == read[1]
                found.append((columns, [row[5:] for row in read[0] if row[:1] == b"I"]))
    assert found[0] == found[1]


def _told(session: Session, query: str) -> list[Any]:
    """Warnings and the error of a query."""
    told: list[Any] = []

    def notice(diagnostic: psycopg.errors.Diagnostic) -> None:
        context = _LSN.sub("LSN", diagnostic.context or "")
        told.append(
            (
                *(diagnostic.severity, diagnostic.sqlstate, diagnostic.message_primary),
                *(diagnostic.message_detail, diagnostic.message_hint, context),
            )
        )

    session.add_notice_handler(notice)
    try:
        session.execute(query.encode())
    except psycopg.Error as error:
        notice(error.diag)
    finally:
        session.remove_notice_handler(notice)
    return told


def _messages(session: Session, query: str) -> list[str]:
    """The kinds of messages that the server sends, in order."""
    with tempfile.TemporaryFile("w+") as file:
        session.pgconn.trace(file.fileno())
        with suppress(psycopg.Error):
            if query.startswith("COPY"):
                with session.cursor().copy(query.encode()) as copy:
                    list(copy)
            else:
                session.execute(query.encode())
        session.pgconn.untrace()
        file.seek(0)
        lines = [line.split("\t") for line in file]
    return [line[3].split()[0] for line in lines if line[1] == "B"]


@pytest.mark.parametrize("version", [17, 18])
def test_publications_that_do_not_exist(
    version: int, database_on: Callable[..., Database], spark: Any, tmp_path: Any
) -> None:
    """18 warns, and 17 raises an error; both with the context of the callback."""
    with (
        LakeNode(tmp_path, spark, server_version=version) as lake,
        _each(lake, database_on(version)) as both,
        _slot(both, "missing", "pgoutput"),
    ):
        for session in both:
            session.execute("CREATE TABLE missing (id integer PRIMARY KEY)")
            session.execute("INSERT INTO missing VALUES (1)")
        call = f"pg_logical_slot_peek_binary_changes('missing', NULL, NULL, {_NOWHERE})"
        for query in (f"SELECT data FROM {call}", f"SELECT count(*) FROM {call}"):
            ours, theirs = (_told(session, query) for session in both)
            assert ours == theirs != []
        ours, theirs = (_messages(session, f"SELECT data FROM {call}") for session in both)
        assert ours == theirs
        copy = f"COPY (SELECT data FROM {call}) TO STDOUT"
        ours, theirs = (_messages(session, copy) for session in both)
        assert ours == theirs


def test_warnings_of_a_stream(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE streamed (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('streamed', 'pgoutput')",
        "INSERT INTO streamed VALUES (1)",
    )
    end = lake.rows("SELECT pg_current_wal_lsn()")[0][0]
    options = ["-o", "proto_version=4", "-o", "publication_names=nowhere"]
    with recvlogical(
        lake, "lake", "--slot", "streamed", "--start", "-f", "-", "-E", end, *options
    ) as client:
        _, told = client.communicate(timeout=60)
    assert 'WARNING:  skipped loading publication "nowhere"' in told
    lake.execute("SELECT pg_drop_replication_slot('streamed')")


_COUNTED = (
    "SELECT total_txns, total_bytes > 0, stream_txns, stream_count > 1, stream_bytes > 0,"
    " stats_reset IS NULL FROM pg_stat_replication_slots WHERE slot_name = 'counted'"
)
_READ = "SELECT count(*) FROM pg_logical_slot_{}_changes('counted', NULL, NULL{})"


@pytest.mark.parametrize("temporary", ["false", "true"])
def test_what_sql_reads_is_counted(
    temporary: str, database_on: Callable[..., Database], spark: Any, tmp_path: Any
) -> None:
    """3,000 rows of one text are streamed: the size of decoded changes counts, not of files."""
    stock, found = database_on(17), []
    stock.execute(f"ALTER DATABASE {stock.name} SET logical_decoding_work_mem = '64kB'")
    with (
        LakeNode(tmp_path, spark, logical_decoding_work_mem="64kB") as lake,
        _each(lake, stock) as both,
    ):
        for session in both:
            told: list[Any] = []
            for statement in (
                "CREATE TABLE counted (id integer PRIMARY KEY, v text)",
                "SELECT 1 FROM pg_create_logical_replication_slot('counted', 'test_decoding',"
                f" {temporary})",
                "INSERT INTO counted VALUES (1, 'one')",
                "INSERT INTO counted VALUES (2, 'two')",
                _COUNTED,
                _READ.format("peek", ""),
                _COUNTED,
                _READ.format("get", ""),
                _COUNTED,
                "SELECT pg_stat_reset_replication_slot('counted')",
                _COUNTED,
                "INSERT INTO counted SELECT i, repeat('x', 100) FROM generate_series(10, 3009) i",
                "SELECT count(*) > 2 FROM pg_logical_slot_peek_changes('counted', NULL, NULL,"
                " 'stream-changes', '1') WHERE data LIKE 'opening a streamed block%'",
                _COUNTED,
                _READ.format("get", ", 'stream-changes', '0'"),
                "SELECT pg_stat_reset_replication_slot('none')",
                "SELECT pg_stat_reset_replication_slot(NULL)",
                _COUNTED,
                "SELECT catalog_xmin IS NULL, age(catalog_xmin) >= 0 FROM pg_replication_slots"
                " WHERE slot_name = 'counted'",
                "SELECT pg_drop_replication_slot('counted')",
                _COUNTED,
            ):
                try:
                    told.append(session.execute(statement.encode()).fetchall())
                except psycopg.Error as error:
                    told.append(error.diag.message_primary)
            found.append(told)
    assert found[0] == found[1]


_UPDATES = (
    "CREATE TABLE keyless (id integer, v text)",
    "CREATE TABLE nothing (id integer PRIMARY KEY, v text)",
    "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
    "SELECT pg_create_logical_replication_slot('updates', 'test_decoding')",
    "INSERT INTO keyless VALUES (1, 'one'), (2, 'two'), (2, 'two'), (3, NULL)",
    "INSERT INTO nothing VALUES (1, 'one'), (2, 'two')",
    "UPDATE keyless SET v = 'changed' WHERE id = 1",
    "UPDATE keyless SET id = id + 10",
    "UPDATE nothing SET v = 'changed' WHERE id = 1",
    "UPDATE nothing SET id = id + 10",
    "DELETE FROM keyless WHERE id = 12",
)


def test_updates_without_a_replica_identity(
    lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    call = "pg_logical_slot_get_changes('updates', NULL, NULL, 'include-xids', '0')"
    with _each(lake, database_on(17)) as both:
        found = []
        for session in both:
            for statement in _UPDATES:
                session.execute(statement.encode())
            lines = [data for (data,) in session.execute(f"SELECT data FROM {call}")]
            found.append([sorted(text.split("BEGIN ")) for text in " ".join(lines).split("COMMIT")])
            session.execute("SELECT pg_drop_replication_slot('updates')")
    assert found[0] == found[1]


def test_names_that_are_cut(lake: LakeNode, database_on: Callable[..., Database]) -> None:
    long = "n" * 70
    found = []
    for conninfo in (lake.conninfo(), database_on(18).conninfo):
        with psycopg.connect(f"{conninfo} replication=database", autocommit=True) as session:
            found.append(
                [
                    [each[:5] for each in _told(session, statement)]
                    for statement in (
                        f"CREATE_REPLICATION_SLOT {long} LOGICAL pgoutput",
                        f'DROP_REPLICATION_SLOT "{long}"',
                        f"DROP_REPLICATION_SLOT {long} {long}",
                        f"SELECT pg_create_logical_replication_slot('{long}', 'pgoutput')",
                        f"SELECT pg_drop_replication_slot('{long}')",
                        f"SELECT 1 AS {long}",
                    )
                ]
            )
    assert found[0] == found[1]


_FIELDS = (
    "SELECT (pg_create_logical_replication_slot('made', 'test_decoding')).slot_name",
    "SELECT (pg_create_logical_replication_slot('made', 'test_decoding')).slot_name",
    "SELECT (pg_create_logical_replication_slot('made2', 'test_decoding')).lsn IS NOT NULL AS made",
    "SELECT length((pg_copy_logical_replication_slot('made', 'made3')).slot_name::text), 1",
    "SELECT (pg_replication_slot_advance('made', pg_current_wal_lsn())).slot_name::text",
    "SELECT (pg_replication_slot_advance('made', NULL)).end_lsn",
    "SELECT (pg_create_logical_replication_slot('made4', 'test_decoding')).nothing",
    "SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'made%' ORDER BY 1",
    "SELECT pg_logical_emit_message(true, 'p', 'content') IS NULL",
    "SELECT (pg_logical_slot_peek_changes('made', NULL, NULL, 'include-xids', '0')).data",
    "SELECT upper((pg_logical_slot_peek_changes('made', NULL, NULL, 'include-xids', '0')).data)"
    " LIMIT 2",
    "SELECT count(*) FROM (SELECT (pg_logical_slot_get_changes('made', NULL, NULL)).data) d",
    "SELECT (pg_logical_slot_peek_changes('made', NULL, NULL)).xid",
    "SELECT count(*) > 0 FROM pg_logical_slot_peek_changes('made2', NULL, NULL)",
    "SELECT (SELECT count(*) FROM pg_logical_slot_peek_changes('made2', NULL, NULL)) > 0",
    "SELECT 1 + (SELECT count(*) FROM pg_logical_slot_peek_changes('made', NULL, NULL)) AS n,"
    " EXISTS (SELECT FROM pg_logical_slot_peek_changes('made3', NULL, NULL))",
    "SELECT nullif((SELECT max(data) FROM pg_logical_slot_get_changes('made2', NULL, NULL,"
    " 'include-xids', '0')), ''), count(*) FROM generate_series(1, 3)",
    "SELECT count(*) FROM pg_logical_slot_peek_changes('made2', NULL, NULL)",
)


def test_fields_of_a_function_in_the_list(
    lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    with _each(lake, database_on(17)) as both:
        found = []
        for session in both:
            answers = []
            for statement in _FIELDS:
                try:
                    cursor = session.execute(statement.encode())
                    names = [column.name for column in cursor.description or ()]
                    answers.append((statement, names, cursor.fetchall()))
                except psycopg.Error as error:
                    told = error.diag.sqlstate, error.diag.message_primary
                    answers.append((statement, [], [told]))
            for name in "made", "made2", "made3":
                session.execute(f"SELECT pg_drop_replication_slot('{name}')")
            found.append(answers)
    assert found[0] == found[1]


_FROM_BYTES = (
    "get_byte(data, 0), encode(data, 'hex'), encode(data, 'base64'), encode(data, 'escape'),"
    " octet_length(data), length(data), md5(data), data::text"
)


def test_functions_over_bytes_of_a_slot(
    lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    peek = "pg_logical_slot_peek_binary_changes('bytes', NULL, NULL, 'include-xids', '0')"
    with _each(lake, database_on(17)) as both, _slot(both, "bytes", "test_decoding"):
        found = []
        for session in both:
            contents = [r"\xff01", r"\x005c", r"\xc3bc" + "61" * 100]
            contents += [r"\x" + "61" * size for size in (5, 6, 7, 61, 62, 63)]  # whole lines
            for content in contents:
                session.execute(f"SELECT pg_logical_emit_message(true, 'p', '{content}'::bytea)")
            rows = session.execute(f"SELECT {_FROM_BYTES} FROM {peek}".encode()).fetchall()
            told = [_told(session, f"SELECT {call} FROM {peek}")[0][1:3] for call in _WRONG]
            slots = "SELECT plugin FROM pg_get_replication_slots() WHERE slot_name = 'bytes'"
            found.append([rows, told, session.execute(slots).fetchall()])
    assert found[0] == found[1]


_WRONG = ("get_byte(data, 999)", "encode(data, 'none')")


def test_what_is_refused_is_named(lake: LakeNode) -> None:
    """Queries over slots that a server answers."""
    lake.execute(
        "CREATE TABLE beside (id integer PRIMARY KEY, v text)",
        "SELECT pg_create_logical_replication_slot('refused', 'test_decoding')",
    )
    call = "pg_logical_slot_peek_changes('refused', NULL, NULL)"
    refused = "function pg_logical_slot_peek_changes is not supported in FROM of this query"
    for statement, message in (
        (f"SELECT b.id, data FROM beside b, {call}", refused),
        (f"SELECT b.id, s.data FROM beside b JOIN {call} s ON s.data = b.v", refused),
        (f"CREATE TABLE made AS SELECT data FROM {call}", refused),
        (f"INSERT INTO beside SELECT 1, data FROM {call}", refused),
        ("SELECT xid FROM beside, pg_stat_get_wal_receiver() x", "pg_stat_get_wal_receiver"),
        (f"SELECT ({call}).data, ({call}).xid", "call it in FROM"),
        (f"SELECT CASE WHEN true THEN ({call}).data END", "call it in FROM"),
        (f"SELECT ({call}).data FROM beside", "call it in FROM"),
        (f"SELECT {call}", "pg_logical_slot_peek_changes"),
        (
            "SELECT r.slot_name, s.data FROM pg_replication_slots r, LATERAL "
            "pg_logical_slot_peek_changes(r.slot_name, NULL, NULL) s",
            "pg_logical_slot_peek_changes",
        ),
        ("DECLARE c CURSOR FOR SELECT 1", "DECLARE is not supported"),
    ):
        with pytest.raises(psycopg.Error) as raised:
            lake.rows(statement)
        assert raised.value.sqlstate == "0A000", statement
        assert message in str(raised.value), statement
    lake.execute("SELECT pg_drop_replication_slot('refused')")
