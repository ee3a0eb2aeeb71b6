"""The same bytes to PostgreSQL's socket and to our session: same severity, SQLSTATE and message."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import psycopg
import pytest

from penstock.embedded import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.protocol import frontend_messages as m
from penstock.protocol.backend_messages import parameter_status
from penstock.protocol.framing import FrameReader, frame
from penstock.protocol.session import ServerSession
from penstock.protocol.startup import (
    PROTOCOL_3_0,
    PROTOCOL_3_2,
    ReplicationMode,
    StartupMessage,
    read_startup,
    reported_parameters,
)
from protocol.client_messages import encode_frontend, encode_startup

Failure = tuple[str, str, str, str | None]
USER = ("user", "postgres")
DATABASE = ("database", "postgres")
WALSENDER = (USER, DATABASE, ("replication", "database"))


def startup(*parameters: tuple[str, str], protocol: int = PROTOCOL_3_0) -> bytes:
    return encode_startup(StartupMessage(protocol, parameters))


def packet(body: bytes) -> bytes:
    return struct.pack("!I", len(body) + 4) + body


STARTUPS = {
    "no user": startup(DATABASE),
    "empty user": startup(("user", "")),
    "replication": startup(USER, DATABASE, ("replication", "databas")),
    "replication empty": startup(USER, DATABASE, ("replication", "")),
    "replication o": startup(USER, DATABASE, ("replication", "o")),
    "options": startup(USER, DATABASE, ("options", "-c work_mem")),
    "options long": startup(USER, DATABASE, ("options", "--work-mem")),
    "options word": startup(USER, DATABASE, ("options", "-c work_mem=1MB word")),
    "options end": startup(USER, DATABASE, ("options", "-c")),
    "encoding": startup(USER, DATABASE, ("client_encoding", "latin99")),
    "major 5": packet(b"\0\5\0\0"),
    "major 4": packet(b"\0\4\0\7user\0x\0\0"),
    "terminator": packet(b"\0\3\0\0user\0postgres\0"),
    "behind": packet(b"\0\3\0\0user\0postgres\0\0x"),
    "no value": packet(b"\0\3\0\0user\0"),
    "no zero": packet(b"\0\3\0\0user"),
    "nothing": packet(b"\0\3\0\0"),
}

Q = b"Q"
MESSAGES = {
    "type": b"Z\0\0\0\4",
    "type 255": b"\xff\0\0\0\4",
    "query without end": frame(Q, b"SELECT 1"),
    "query with more": frame(Q, b"SELECT 1\0x"),
    "query without anything": frame(Q),
    "parse": frame(b"P", b"\0SELECT 1\0"),
    "parse types": frame(b"P", b"\0SELECT 1\0\0\2\0\0\0\1"),
    "parse behind": frame(b"P", b"\0SELECT 1\0\0\0\0"),
    "bind formats": frame(b"P", b"\0SELECT $1::text\0\0\0")
    + frame(b"B", b"\0\0\0\2\0\0\0\0\0\1\0\0\0\1a\0\0"),
    "bind format code": frame(b"P", b"\0SELECT $1::text\0\0\0")
    + frame(b"B", b"\0\0\0\1\0\7\0\1\0\0\0\1a\0\0"),
    "bind short": frame(b"P", b"\0SELECT $1::text\0\0\0")
    + frame(b"B", b"\0\0\0\0\0\1\0\0\0\5a\0\0"),
    "bind negative": frame(b"P", b"\0SELECT $1::text\0\0\0")
    + frame(b"B", b"\0\0\0\0\0\1\xff\xff\xff\xfe\0\0"),
    "describe": frame(b"D", b"X\0"),
    "describe nothing": frame(b"D"),
    "close": frame(b"C", b"X\0"),
    "close without end": frame(b"C", b"Sx"),
    "execute": frame(b"E", b"\0\0\0"),
    "sync with more": frame(b"S", b"x"),
    "flush with more": frame(b"H", b"x"),
    "not UTF8": frame(Q, b"SELECT '\xe2\x28\xa1'\0"),
    "not UTF8 at the end": frame(Q, b"SELECT '\xe2\x82\0"),
    "copy fail": frame(Q, b"COPY t FROM STDIN\0") + frame(b"f", b"enough\0"),
    "copy other": frame(Q, b"COPY t FROM STDIN\0") + frame(Q, b"SELECT 1\0"),
    "walsender parse": frame(b"P", b"\0SELECT 1\0\0\0"),
    "walsender sync": frame(b"S", b"x"),
    "walsender function": frame(b"F", b"\0\0\0\1\0\0\0\0\0\0"),
}


@pytest.fixture(scope="module")
def prepared(postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a text)")
        yield postgres
        connection.execute("DROP TABLE t")


def failure(response: bytes) -> Failure | None:
    """Of the first ErrorResponse in what a server has sent."""
    reader = FrameReader()
    reader.feed(response)
    while (one := reader.next_frame(lambda kind: 1 << 20)) is not None:
        if one.kind == ord("E"):
            parts = {p[:1]: p[1:].decode() for p in one.payload.split(b"\0") if p}
            return parts[b"S"], parts[b"C"], parts[b"M"], parts.get(b"H")
    return None


def exchange(server: EmbeddedPostgres, *messages: bytes) -> list[bytes]:
    """What a server answers to each, up to ReadyForQuery or the end."""
    parameters = psycopg.conninfo.conninfo_to_dict(server.conninfo())
    answers = []
    address = (str(parameters["host"]), int(str(parameters["port"])))
    with socket.create_connection(address, timeout=10) as peer:
        for message in messages:
            peer.sendall(message)
            answer = b""
            while not answer.endswith((b"Z\0\0\0\5I", b"Z\0\0\0\5E")):
                data = peer.recv(1 << 16)
                if not data:
                    break
                answer += data
            answers.append(answer)
    return answers


def ours(first: bytes, *messages: bytes) -> Failure | None:
    """What our session answers; statements are only looked at where the case needs it."""
    session = ServerSession()
    try:
        session.feed(first)
        packet = session.next_event()
        assert isinstance(packet, StartupMessage)
        wanted = read_startup(packet)
        session.client_encoding = wanted.client_encoding()
        session.walsender = wanted.replication is not ReplicationMode.NONE
        session.authentication_ok()
        session.ready_for_query()
        session.feed(b"".join(messages))
        while (event := session.next_event()) is not None:
            match event:
                case m.Query(text) if text.startswith("COPY"):
                    session.copy_in_response(1)
                case m.CopyFail(message):
                    raise PenstockError(f"COPY from stdin failed: {message}", sqlstate="57014")
                case m.Parse():
                    session.parse_complete()
                case m.Sync():
                    session.ready_for_query()
    except PenstockError as error:
        return failure(session.fail(error))
    return None


@pytest.mark.parametrize("case", STARTUPS)
def test_startup_packets(prepared: EmbeddedPostgres, case: str) -> None:
    (answer,) = exchange(prepared, STARTUPS[case])
    assert ours(STARTUPS[case]) == failure(answer)


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(prepared: EmbeddedPostgres, case: str) -> None:
    parameters = WALSENDER if case.startswith("walsender") else (USER, DATABASE)
    message = MESSAGES[case] + encode_frontend(m.Sync())
    _, answer = exchange(prepared, startup(*parameters), message)
    got = ours(startup(*parameters), message)
    assert got is not None
    if case == "copy other":
        # The server says it twice: first as an error, then as the end of the connection.
        got = ("ERROR", *got[1:])
    assert got == failure(answer)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-c application_name=a\\ b", "--application-name=x  -c application_name=y",
        "-c application_name=a\\\\b\\'", "-capplication_name=z", "--application_name=a=b",
        "-c application_name=", "--application-name=dash",
        "-c\tapplication_name=tab", "\\-c application_name=q", "--",
    ],
)  # fmt: skip
def test_options(postgres: EmbeddedPostgres, text: str) -> None:
    message = StartupMessage(PROTOCOL_3_0, (USER, DATABASE, ("options", text)))
    (answer,) = exchange(postgres, encode_startup(message))
    name = read_startup(message).application_name
    assert parameter_status("application_name", name) in answer


@pytest.mark.parametrize("name", ["plain", "büro", "tab\there", "back\\slash"])
def test_application_name(postgres: EmbeddedPostgres, name: str) -> None:
    message = StartupMessage(PROTOCOL_3_0, (USER, DATABASE, ("application_name", name)))
    (answer,) = exchange(postgres, encode_startup(message))
    assert parameter_status("application_name", read_startup(message).application_name) in answer


@pytest.mark.parametrize(
    "name",
    ["utf8", "UTF-8", "unicode", "latin1", "ISO_8859_1", "iso-8859-15", "Win1252", "sql ascii"],
)
def test_names_of_encodings(postgres: EmbeddedPostgres, name: str) -> None:
    message = StartupMessage(PROTOCOL_3_0, (USER, DATABASE, ("client_encoding", name)))
    (answer,) = exchange(postgres, encode_startup(message))
    canonical = read_startup(message).client_encoding().name
    assert parameter_status("client_encoding", canonical) in answer


@pytest.mark.parametrize("protocol", [PROTOCOL_3_0, PROTOCOL_3_2, PROTOCOL_3_2 + 3])
@pytest.mark.parametrize("option", [(), (("_pq_.a", "1"), ("_pq_.b", "2"))])
def test_negotiation(
    postgres: EmbeddedPostgres, protocol: int, option: tuple[tuple[str, str], ...]
) -> None:
    message = StartupMessage(protocol, (USER, DATABASE, *option))
    (answer,) = exchange(postgres, encode_startup(message))
    session = ServerSession()
    session.feed(encode_startup(message))
    session.next_event()
    negotiated = session.negotiate(message)
    assert answer.startswith(negotiated + session.authentication_ok())


@pytest.mark.parametrize("version", [14, 15, 17, 18])
def test_reported_parameters(postgres_version: object, version: int) -> None:
    server = postgres_version(version)  # type: ignore[operator]
    (answer,) = exchange(server, startup(USER, DATABASE))
    reader = FrameReader()
    reader.feed(answer)
    names = []
    while (one := reader.next_frame(lambda kind: 1 << 20)) is not None:
        if one.kind == ord("S"):
            names.append(one.payload.split(b"\0")[0].decode())
    assert sorted(names) == sorted(reported_parameters(version))
