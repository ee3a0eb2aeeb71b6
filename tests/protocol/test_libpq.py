"""The session machine under a real libpq: what a stock client makes of our bytes."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from penstock.embedded import wait_until
from penstock.lsn import Lsn
from penstock.protocol import frontend_messages as m
from penstock.protocol.copy_both import StandbyStatusUpdate
from penstock.protocol.replication_grammar import ReplicationKind, StartReplication
from penstock.protocol.startup import (
    PROTOCOL_3_0,
    PROTOCOL_3_2,
    SslRequest,
    StartupMessage,
)
from protocol.client_messages import (
    PrimaryKeepalive,
    XLogData,
    decode_sender_message,
    status_update,
)
from protocol.tiny_server import ROWS, SEND_TIME, STREAM, Settings, TinyServer, tiny_server

Connect = Callable[..., PGconn]


def open_connection(conninfo: str) -> PGconn:
    """PQconnectdb would keep the interpreter's lock while it waits for our thread."""
    connection = pq.PGconn.connect_start(conninfo.encode())
    poll(connection.connect_poll, lambda: connection.socket)
    return connection


def poll(step: Callable[[], int], socket: Callable[[], int]) -> None:
    while (status := step()) not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
        reading = status == pq.PollingStatus.READING
        waiting = [socket()]
        ready = select.select(waiting if reading else [], [] if reading else waiting, [], 10)
        assert any(ready), "the server does not answer"


@pytest.fixture(params=[1, 7, 1 << 16], ids=["bytes", "sevens", "whole"])
def server(request: pytest.FixtureRequest) -> Iterator[TinyServer]:
    with tiny_server(Settings(chunk=request.param)) as running:
        yield running


@pytest.fixture
def connect(server: TinyServer) -> Iterator[Connect]:
    connections = []

    def opened(**more: str) -> PGconn:
        connection = open_connection(server.conninfo(**more))
        connections.append(connection)
        return connection

    yield opened
    for connection in connections:
        connection.finish()


def answer(connection: PGconn) -> PGresult:
    """The last result of what was sent by a ``send_`` function, waited for without the lock."""
    last = next_result(connection)
    assert last is not None
    while (result := next_result(connection)) is not None:
        last = result
    return last


def next_result(connection: PGconn) -> PGresult | None:
    connection.flush()
    while connection.is_busy():
        assert select.select([connection.socket], [], [], 10)[0], "the server does not answer"
        connection.consume_input()
    return connection.get_result()


def field(result: PGresult, which: pq.DiagnosticField) -> str | None:
    value = result.error_field(which)
    return None if value is None else value.decode()


def table(result: PGresult) -> list[tuple[bytes | None, ...]]:
    return [
        tuple(result.get_value(row, column) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]


def test_a_login_with_scram(server: TinyServer, connect: Connect) -> None:
    connection = connect(application_name="büro", client_encoding="latin1", options="-c a.b=c")
    assert connection.status == pq.ConnStatus.OK, connection.error_message
    assert connection.parameter_status(b"server_version") == b"18.0"
    assert connection.server_version == 180000
    assert connection.parameter_status(b"client_encoding") == b"LATIN1"
    assert connection.backend_pid == 4711
    assert connection.transaction_status == pq.TransactionStatus.IDLE
    heard = server.connections[0].heard
    assert isinstance(heard[0], SslRequest)
    startup = next(event for event in heard if isinstance(event, StartupMessage))
    assert dict(startup.parameters)["options"] == "-c a.b=c"
    assert startup.protocol == PROTOCOL_3_0
    assert "secret" not in repr(heard)


@pytest.mark.parametrize("user", ["ada", "nobody"])
def test_a_wrong_password_and_an_unknown_user_look_the_same(connect: Connect, user: str) -> None:
    connection = connect(user=user, password="guess")
    assert connection.status == pq.ConnStatus.BAD
    expected = f'FATAL:  password authentication failed for user "{user}"'
    assert expected in connection.error_message.decode()


@pytest.mark.parametrize(
    "password", ["päß wörd", "\u00aa", "🙂", "a\u00ad", "\u0007bell", "q'\\\"="]
)
def test_passwords_that_saslprep_changes_or_refuses(password: str) -> None:
    with tiny_server(Settings(users={"ada": password})) as server:
        escaped = password.replace("\\", "\\\\").replace("'", "\\'")
        connection = open_connection(server.conninfo(password=escaped))
        assert connection.status == pq.ConnStatus.OK, connection.error_message
        connection.finish()


@pytest.mark.parametrize("latest", [PROTOCOL_3_0, PROTOCOL_3_2])
@pytest.mark.parametrize("asked", ["3.0", "3.2", "latest"])
def test_protocol_versions(latest: int, asked: str) -> None:
    if pq.version() < 180000:
        pytest.skip("libpq knows 3.0 only")
    with tiny_server(Settings(latest_protocol=latest)) as server:
        connection = open_connection(server.conninfo(max_protocol_version=asked))
        assert connection.status == pq.ConnStatus.OK, connection.error_message
        assert server.connections[0].session.protocol == (
            PROTOCOL_3_0 if asked == "3.0" else latest
        )
        connection.finish()


def test_simple_queries(connect: Connect) -> None:
    connection = connect()
    result = connection.exec_(b"SELECT 1")
    assert result.status == pq.ExecStatus.TUPLES_OK
    assert table(result) == ROWS
    assert [result.fname(0), result.fname(1)] == [b"id", b"note"]
    assert [result.ftype(0), result.fsize(0), result.fmod(0)] == [23, 4, -1]
    assert result.command_status == b"SELECT 3"
    assert connection.exec_(b"").status == pq.ExecStatus.EMPTY_QUERY
    assert connection.exec_(b"BEGIN").command_status == b"BEGIN"
    assert connection.transaction_status == pq.TransactionStatus.INTRANS


def test_an_error_and_what_comes_after(connect: Connect) -> None:
    connection = connect()
    result = connection.exec_(b"NO")
    fields = pq.DiagnosticField
    assert [
        field(result, which)
        for which in (
            fields.SEVERITY,
            fields.SEVERITY_NONLOCALIZED,
            fields.SQLSTATE,
            fields.MESSAGE_PRIMARY,
            fields.MESSAGE_DETAIL,
            fields.MESSAGE_HINT,
        )
    ] == ["ERROR", "ERROR", "0A000", "no", "d", "h"]
    assert connection.exec_(b"SELECT 1").status == pq.ExecStatus.TUPLES_OK


def test_text_in_the_clients_encoding(server: TinyServer, connect: Connect) -> None:
    connection = connect(client_encoding="LATIN1")
    notices: list[bytes] = []
    connection.notice_handler = lambda result: notices.append(
        result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
    )
    connection.exec_("ECHO Grüße".encode("latin-1"))
    assert notices == ["Grüße".encode("latin-1")]
    assert m.Query("ECHO Grüße") in server.connections[0].heard


def test_the_extended_query_protocol(server: TinyServer, connect: Connect) -> None:
    connection = connect()
    connection.send_prepare(b"s", b"SELECT $1", [23])
    assert answer(connection).status == pq.ExecStatus.COMMAND_OK
    connection.send_describe_prepared(b"s")
    described = answer(connection)
    assert (described.nparams, described.param_type(0), described.nfields) == (1, 23, 2)
    connection.send_query_prepared(b"s", [b"\0\0\0\1"], [pq.Format.BINARY])
    assert table(answer(connection)) == ROWS
    connection.send_query_params(b"SELECT $1", [None])
    assert table(answer(connection)) == ROWS
    connection.send_prepare(b"t", b"BAD")
    assert answer(connection).status == pq.ExecStatus.FATAL_ERROR
    connection.send_query_params(b"SELECT 1", None)
    assert table(answer(connection)) == ROWS
    binds = [event for event in server.connections[0].heard if isinstance(event, m.Bind)]
    assert binds[0] == m.Bind("", "s", (1,), (b"\0\0\0\1",), (0,))
    assert binds[1].values == (None,)


def test_a_pipeline_skips_to_sync_after_an_error(server: TinyServer) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.adapters.register_loader(23, psycopg.types.string.TextLoader)
        with pytest.raises(psycopg.errors.SyntaxError), connection.pipeline():
            connection.execute("BAD %s", (1,), prepare=False)
            connection.execute("SELECT %s", (1,), prepare=False)
        assert connection.execute("SELECT %s", (1,)).fetchone() == ("1", "a\tb")


@pytest.mark.parametrize("binary", [False, True])
def test_copy_out(server: TinyServer, binary: bool) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        kind = "binary" if binary else "text"
        copy_statement = f"COPY OUT {kind}".encode()
        with connection.cursor().copy(copy_statement) as copy:
            rows = list(copy.rows())
        wanted = [tuple(None if c is None else c.decode() for c in row) for row in ROWS]
        assert rows == (ROWS if binary else wanted)


def test_copy_in_done_failed_and_out_of_place(server: TinyServer, connect: Connect) -> None:
    connection = connect()
    assert connection.exec_(b"COPY IN").status == pq.ExecStatus.COPY_IN
    connection.put_copy_data(b"1\ta\n")
    connection.put_copy_data(b"2\tb\n")
    connection.put_copy_end()
    assert answer(connection).command_status == b"COPY 1"
    assert server.connections[0].received == b"1\ta\n2\tb\n"
    assert connection.exec_(b"COPY IN").status == pq.ExecStatus.COPY_IN
    connection.put_copy_end(b"enough")
    failed = answer(connection)
    assert field(failed, pq.DiagnosticField.SQLSTATE) == "57014"
    assert field(failed, pq.DiagnosticField.MESSAGE_PRIMARY) == "COPY from stdin failed: enough"
    assert connection.exec_(b"SELECT 1").status == pq.ExecStatus.TUPLES_OK


def copy_data(connection: PGconn) -> bytes | None:
    """The next CopyData, None after CopyDone."""
    while True:
        size, data = connection.get_copy_data(1)
        if size > 0:
            return bytes(data)
        if size < 0:
            return None
        assert select.select([connection.socket], [], [], 10)[0], "the server does not answer"
        connection.consume_input()


def test_streaming(server: TinyServer, connect: Connect) -> None:
    connection = connect(replication="database")
    identified = connection.exec_(b"IDENTIFY_SYSTEM")
    assert table(identified) == [(b"7", b"1", b"0/64", b"lake")]
    command = b'START_REPLICATION SLOT "s" LOGICAL 0/64 (proto_version \'4\', "binary")'
    assert connection.exec_(command).status == pq.ExecStatus.COPY_BOTH
    for lsn, body in STREAM:
        got = decode_sender_message(copy_data(connection) or b"")
        assert got == XLogData(lsn, lsn, SEND_TIME, body)
    got = decode_sender_message(copy_data(connection) or b"")
    assert got == PrimaryKeepalive(Lsn(200), SEND_TIME, True)
    update = StandbyStatusUpdate(Lsn(200), Lsn(140), Lsn(140), SEND_TIME + 1, False)
    connection.put_copy_data(status_update(update))
    connection.put_copy_end()
    assert copy_data(connection) is None
    tags = []
    while (result := next_result(connection)) is not None:
        tags.append((result.status, result.command_status))
    # libpqwalreceiver takes the first for the end of the COPY, the second for the command's.
    assert tags == [
        (pq.ExecStatus.COMMAND_OK, b"COPY 0"),
        (pq.ExecStatus.COMMAND_OK, b"START_REPLICATION"),
    ]
    heard = server.connections[0].heard
    assert update in heard
    options = (("proto_version", "4"), ("binary", None))
    assert StartReplication("s", ReplicationKind.LOGICAL, Lsn(100), options=options) in heard
    assert connection.exec_(b"IDENTIFY_SYSTEM").status == pq.ExecStatus.TUPLES_OK


def test_a_walsender_refuses_the_extended_protocol(connect: Connect) -> None:
    connection = connect(replication="database")
    connection.send_query_params(b"SELECT 1", None)
    result = answer(connection)
    assert field(result, pq.DiagnosticField.SQLSTATE) == "08P01"
    text = field(result, pq.DiagnosticField.MESSAGE_PRIMARY)
    assert text == "extended query protocol not supported in a replication connection"
    assert connection.exec_(b"identify_system").status == pq.ExecStatus.FATAL_ERROR
    assert connection.exec_(b"SELECT 1").status == pq.ExecStatus.TUPLES_OK


def test_a_bad_value_of_replication(connect: Connect) -> None:
    connection = connect(replication="maybe")
    assert connection.status == pq.ConnStatus.BAD
    text = connection.error_message.decode()
    assert 'FATAL:  invalid value for parameter "replication": "maybe"' in text
    assert 'HINT:  Valid values are: "false", 0, "true", 1, "database".' in text


def test_cancel(server: TinyServer, connect: Connect) -> None:
    connection = connect()
    canceling = connection.cancel_conn()
    canceling.start()
    poll(canceling.poll, lambda: canceling.socket)
    wait_until(
        lambda: len(server.connections) > 1 and server.connections[1].heard, "the request", 10
    )
    request = server.connections[1].heard[-1]
    assert (request.process_id, request.key) == (4711, b"key!")  # type: ignore[attr-defined]
