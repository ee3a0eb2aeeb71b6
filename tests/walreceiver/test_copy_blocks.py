"""Blocks of a copy hold what the server has sent, however it comes; and no end is taken for one
that is none."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tls
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import ConnectionFailure, PenstockError, ProtocolViolation, PublisherError
from penstock.protocol.copy_block import CopyBlock, whole_rows
from penstock.protocol.framing import frame
from penstock.walreceiver import copy_blocks
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.copy_blocks import Prefixes, blocks_of, start_copy
from penstock.walreceiver.stream import CopyReader

pytestmark = pytest.mark.postgres

Row = tuple[bytes | None, ...]
WORDS = Prefixes("could not start: ", "could not read: ")
BOTH = pytest.mark.parametrize("by_libpq", [False, True], ids=["socket", "libpq"])
LOOKS_LIKE_A_ROW = b"d\0\0\0\x0b\0\2\0\0\0\1x"


@contextmanager
def session(conninfo: str) -> Iterator[Connection]:
    with Connection.connect(ConnInfo.parse(conninfo), "penstock", replication=False) as connection:
        yield connection


def blocks(
    connection: Any, query: str, fields: int, by_libpq: bool, block_bytes: int = 1 << 20
) -> Any:
    return blocks_of(
        start_copy(
            connection, query, fields, by_libpq=by_libpq, block_bytes=block_bytes, prefixes=WORDS
        )
    )


def rows_of(block: CopyBlock, fields: int) -> list[Row]:
    cells = block.cells(fields)
    return [tuple(column.raw(index) for column in cells) for index in range(len(block))]


def read(
    connection: Any, query: str, fields: int, by_libpq: bool, block_bytes: int = 1 << 20
) -> list[Row]:
    found: list[Row] = []
    with closing(blocks(connection, query, fields, by_libpq, block_bytes)) as came:
        for block in came:
            found += rows_of(block, fields)
    return found


def said_by_psycopg(server: EmbeddedPostgres, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        return connection.execute(query).fetchall()


values = st.none() | st.binary(max_size=9) | st.sampled_from([LOOKS_LIKE_A_ROW * 3, b"d" * 40_000])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(values, values), max_size=40),
    block_bytes=st.sampled_from([1, 7, 100, 5_000, 1 << 20]),
    by_libpq=st.booleans(),
    times=st.integers(1, 3),
)
def test_rows_of_any_size(
    postgres: EmbeddedPostgres, rows: list[Row], block_bytes: int, by_libpq: bool, times: int
) -> None:
    def literal(value: bytes | None) -> str:
        return "NULL" if value is None else f"'\\x{value.hex()}'"

    listed = ", ".join(f"({literal(a)}::bytea, {literal(b)}::bytea)" for a, b in rows)
    query = f"SELECT * FROM (VALUES {listed}) AS t" if rows else "SELECT ''::bytea, NULL LIMIT 0"
    with session(postgres.conninfo()) as connection:
        for _ in range(times):
            assert read(connection, query, 2, by_libpq, block_bytes) == rows
        assert connection.query("SELECT 1") == [("1",)], "libpq goes on"


@BOTH
def test_many_rows_of_many_sizes(postgres: EmbeddedPostgres, by_libpq: bool) -> None:
    query = (
        "SELECT int4send(i), convert_to(repeat('d', i % 50), 'UTF8') FROM generate_series(1,"
        " 200000) AS i"
    )
    wanted = [(struct.pack("!i", i), b"d" * (i % 50)) for i in range(1, 200_001)]
    with session(postgres.conninfo()) as connection:
        assert read(connection, query, 2, by_libpq, 300_000) == wanted


@BOTH
def test_a_server_that_lingers(postgres: EmbeddedPostgres, by_libpq: bool) -> None:
    query = (
        "SELECT int4send(i), CASE WHEN i IN (1, 4000) THEN pg_sleep(0.5) END::text::bytea"
        " FROM generate_series(1, 5000) AS i"
    )
    with session(postgres.conninfo()) as connection:
        found = read(connection, query, 2, by_libpq)
    assert [key for key, _ in found] == [struct.pack("!i", i) for i in range(1, 5001)]


@BOTH
def test_notices_and_parameters_between_rows(database: Any, by_libpq: bool) -> None:
    database.execute(
        "CREATE FUNCTION loud(i int) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN"
        " IF i % 3 = 0 THEN RAISE WARNING 'a row %', i; END IF;"
        " IF i % 5 = 0 THEN PERFORM set_config('application_name', 'a' || i, false); END IF;"
        " RETURN int4send(i); END $$"
    )
    query = "SELECT public.loud(i) FROM generate_series(1, 1000) AS i"
    with session(database.conninfo) as connection:
        connection.query("SET client_min_messages = notice")
        for block_bytes in (500, 1 << 20):
            found = read(connection, query, 1, by_libpq, block_bytes)
            assert found == [(struct.pack("!i", i),) for i in range(1, 1001)]
        assert connection.query("SELECT 1") == [("1",)]


def test_what_is_here_is_not_gone_through_for_each_notice(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE FUNCTION loud(i int) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE WARNING 'a row'; RETURN repeat('x', 100 + i % 3)::bytea; END $$"
    )
    looked_at: list[int] = []

    def counted(buffer: Any, at: int, end: int, fields: int) -> CopyBlock:
        looked_at.append(end - at)
        return whole_rows(buffer, at, end, fields)

    monkeypatch.setattr(copy_blocks, "whole_rows", counted)
    with session(database.conninfo) as connection:
        assert connection.query("SHOW client_min_messages") == [("error",)]
        connection.query("SET client_min_messages = notice")
        query = "SELECT public.loud(i) FROM generate_series(1, 3000) AS i"
        assert len(read(connection, query, 1, False)) == 3000
    assert sum(looked_at) < 3000 * (64 << 10)


@BOTH
def test_errors_are_the_servers(postgres: EmbeddedPostgres, by_libpq: bool) -> None:
    middle = "SELECT int4send(1 / (i - 3000)) FROM generate_series(1, 5000) AS i"
    for query, message, sqlstate in (
        (
            "SELECT * FROM nothing",
            'could not start: relation "nothing" does not exist',
            "42P01",
        ),
        (middle, "could not read: division by zero", "22012"),
    ):
        with session(postgres.conninfo()) as connection:
            with pytest.raises(PublisherError) as caught:
                read(connection, query, 1, by_libpq)
            assert (caught.value.message, caught.value.sqlstate) == (message, sqlstate)


@BOTH
def test_a_session_that_is_ended(postgres: EmbeddedPostgres, by_libpq: bool) -> None:
    query = "SELECT int4send(i) FROM generate_series(1, 30000000) AS i"
    with session(postgres.conninfo()) as connection:
        came = blocks(connection, query, 1, by_libpq, 100_000)
        next(came)
        end = f"SELECT pg_terminate_backend({connection.backend_pid}, 0)"
        assert said_by_psycopg(postgres, end) == [(True,)]
        with pytest.raises(ConnectionFailure) as caught:
            for _ in came:
                pass
        assert caught.value.message.startswith("could not read: ")
        assert not connection.is_open or by_libpq


@BOTH
def test_one_that_is_left_closes_the_session(postgres: EmbeddedPostgres, by_libpq: bool) -> None:
    query = "SELECT int4send(i) FROM generate_series(1, 30000000) AS i"
    with session(postgres.conninfo()) as connection:
        copy = start_copy(
            connection, query, 1, by_libpq=by_libpq, block_bytes=100_000, prefixes=WORDS
        )
        with closing(blocks_of(copy)) as came:
            next(came)
        assert not connection.is_open
        with pytest.raises(ConnectionFailure):
            while True:  # a rest may be here
                copy.read(0, 0)


@BOTH
def test_a_row_with_other_fields(postgres: EmbeddedPostgres, by_libpq: bool) -> None:
    refused = pytest.raises(ProtocolViolation, match="does not have 3 fields")
    with session(postgres.conninfo()) as connection, refused:
        read(connection, "SELECT 'a', 'b'", 3, by_libpq)


def recorded(postgres: EmbeddedPostgres, query: str) -> bytes:
    """All that a server answers to the copy."""
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        descriptor = os.dup(connection.pgconn.socket)
        with socket.socket(fileno=descriptor) as direct:
            os.set_blocking(descriptor, True)
            sql = f"COPY ({query}) TO STDOUT (FORMAT binary)"
            direct.sendall(frame(b"Q", sql.encode() + b"\0"))
            answer = b""
            while answer[-6:-1] != frame(b"Z", b"I")[:-1]:
                answer += direct.recv(1 << 20)
    return answer


def replayed(pieces: list[bytes], fields: int, block_bytes: int = 200) -> list[Row]:
    """What is read where a server that has gone afterwards sends these."""
    here, there = socket.socketpair()
    here.setblocking(False)

    def send() -> None:
        there.recv(1 << 16)
        try:
            for piece in pieces:
                there.sendall(piece)
        except OSError:
            pass  # nobody reads any more
        there.close()

    closed: list[bool] = []
    connection = SimpleNamespace(
        socket=here.fileno(),
        broken=lambda text, prefix: ConnectionFailure(prefix + text),
        close=lambda: closed.append(True),
    )
    sender = threading.Thread(target=send)
    sender.start()
    try:
        found = read(connection, "SELECT", fields, False, block_bytes)
        assert not closed
        return found
    finally:
        here.close()
        sender.join()


QUERY = (
    "SELECT int4send(i), CASE WHEN i % 3 > 0 THEN decode(repeat('64000000', i % 4), 'hex') END"
    " FROM generate_series(1, 12) AS i"
)


def test_byte_by_byte(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_blocks, "_PAUSE_S", 0)
    wanted = said_by_psycopg(postgres, QUERY)
    stream = recorded(postgres, QUERY)
    assert replayed([stream[at : at + 1] for at in range(len(stream))], 2) == wanted
    for size in range(1, len(stream)):
        assert replayed([stream[:size], stream[size:]], 2) == wanted


def test_no_end_is_none(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_blocks, "_PAUSE_S", 0)
    stream = recorded(postgres, QUERY)
    for size in range(len(stream)):
        with pytest.raises(ConnectionFailure, match="server closed the connection unexpectedly"):
            replayed([stream[:size]], 2)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_message_may_be_missing_or_torn(postgres: EmbeddedPostgres, data: st.DataObject) -> None:
    stream = recorded(postgres, QUERY)
    messages, at = [], 0
    while at < len(stream):
        size = 1 + int.from_bytes(stream[at + 1 : at + 5], "big")
        messages.append(stream[at : at + size])
        at += size
    wanted = said_by_psycopg(postgres, QUERY)
    kinds = [message[:1] for message in messages]
    number = data.draw(st.integers(0, len(messages) - 1))
    message = messages[number]
    if data.draw(st.booleans()):
        if kinds[number] == b"d" and 1 < number < len(messages) - 4:
            return  # nobody could know
        del messages[number]
    else:
        at = data.draw(st.integers(0, 6))
        messages[number] = message[:at] + b"\xee" + message[at + 1 :]
    try:
        found = replayed([b"".join(messages)], 2)
    except PenstockError:
        return
    assert found == wanted or messages[number][:7] == message[:7], "only values may differ"


@pytest.fixture
def tls_server(postgres_version: Callable[[int], EmbeddedPostgres]) -> Iterator[EmbeddedPostgres]:
    postgres_version(17)  # or it is skipped
    with EmbeddedPostgres(17) as server:
        tls.switch_on(server)
        yield server


def test_an_encrypted_connection_is_read_by_libpq(tls_server: EmbeddedPostgres) -> None:
    wanted = said_by_psycopg(tls_server, QUERY)
    for mode, encrypted in (("require", True), ("disable", False)):
        with session(f"{tls_server.conninfo()} sslmode={mode}") as connection:
            assert connection.is_encrypted() is encrypted
            assert read(connection, QUERY, 2, encrypted) == wanted


def test_a_stream_by_tls_is_read_without_pauses_while_more_is_here(
    tls_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read brings a record at most, which is no sign that the socket is empty."""
    with session(f"{tls_server.conninfo()} sslmode=require") as connection:
        connection.execute(
            "COPY (SELECT repeat('x', 100) FROM generate_series(1, 10000)) TO STDOUT"
        )
        wait_until(lambda: waiting(connection.socket) > 100_000, "many records in the socket", 20)
        pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", pauses.append)
        reader = CopyReader(connection.pgconn)
        reader._last_at = time.monotonic()  # it is busy
        rows = reader.read(max_bytes=80_000, max_messages=10_000)
        assert sum(map(len, rows)) >= 80_000
        assert not pauses


def waiting(descriptor: int) -> int:
    """Bytes that the kernel holds for us."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


@BOTH
def test_a_session_that_libpq_knows_to_be_lost(postgres: EmbeddedPostgres, by_libpq: bool) -> None:
    with session(postgres.conninfo()) as connection:
        end = f"SELECT pg_terminate_backend({connection.backend_pid}, 5000)"
        assert said_by_psycopg(postgres, end) == [(True,)]
        with pytest.raises(ConnectionFailure):
            connection.query("SELECT 1")
        with pytest.raises(ConnectionFailure):
            read(connection, QUERY, 2, by_libpq)


@BOTH
def test_one_that_ends_before_the_copy(postgres: EmbeddedPostgres, by_libpq: bool) -> None:
    with session(postgres.conninfo()) as connection:
        end = f"SELECT pg_terminate_backend({connection.backend_pid}, 5000)"
        assert said_by_psycopg(postgres, end) == [(True,)]
        with pytest.raises(ConnectionFailure) as caught:
            read(connection, QUERY, 2, by_libpq)
        assert "terminating connection due to administrator command" in caught.value.message
