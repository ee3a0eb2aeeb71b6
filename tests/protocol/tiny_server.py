"""A server of a few statements, so that real clients can talk to the session machine.

It answers by what the statement begins with; a connection is one thread, and bytes may be fed in
pieces of any size.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.attribute import Attribute
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.protocol import authentication as auth
from penstock.protocol import backend_messages as backend
from penstock.protocol import frontend_messages as m
from penstock.protocol.backend_messages import FieldDescription, TransactionStatus, notice_response
from penstock.protocol.copy_both import decode_standby_message, keepalive, xlog_data
from penstock.protocol.copy_columns import BINARY_END, with_binary_header
from penstock.protocol.replication_grammar import (
    IdentifySystem,
    Show,
    StartReplication,
    is_replication_command,
    parse_replication_command,
)
from penstock.protocol.scram import ScramExchange, ScramVerifier, mechanisms, mock_verifier
from penstock.protocol.session import ServerSession
from penstock.protocol.startup import (
    PROTOCOL_3_2,
    GssEncRequest,
    ReplicationMode,
    SslRequest,
    StartupMessage,
    read_startup,
    reported_parameters,
)
from protocol.client_messages import binary_messages, text_messages

TEXT_OID = 25
INT4_OID = 23
ROWS = [(b"1", b"a\tb"), (None, b"c\\d\n"), (b"3", b"")]
COLUMNS = [
    FieldDescription(Attribute("id", INT4_OID), 4),
    FieldDescription(Attribute("note", TEXT_OID)),
]
SEND_TIME = 1_700_000_000_000_000
STREAM = [(Lsn(100), b"B"), (Lsn(0), b"R"), (Lsn(140), b"C")]


@dataclass
class Settings:
    """``users``: passwords; ``chunk``: bytes fed at once."""

    users: dict[str, str] = field(default_factory=lambda: {"ada": "secret"})
    chunk: int = 1 << 16
    latest_protocol: int = PROTOCOL_3_2


class Connection:
    """One client; what it said is kept for the test to look at."""

    def __init__(self, peer: socket.socket, settings: Settings) -> None:
        self.session = ServerSession(latest_protocol=settings.latest_protocol)
        self.heard: list[object] = []
        self.received = b""
        self._peer = peer
        self._settings = settings
        self._statements: dict[str, m.Parse] = {}
        self._portals: dict[str, m.Bind] = {}
        self._user = ""
        self._exchange: ScramExchange | None = None

    def run(self) -> None:
        with self._peer:
            while not self.session.closed:
                data = self._peer.recv(1 << 16)
                if not data:
                    self.session.end_of_input()
                    return
                for at in range(0, len(data), self._settings.chunk):
                    self.session.feed(data[at : at + self._settings.chunk])
                    self._answer_all()

    def _answer_all(self) -> None:
        while not self.session.closed:
            try:
                event = self.session.next_event()
                if event is None:
                    return
                self.heard.append(event)
                self._answer(event)
            except PenstockError as error:
                self._send(self.session.fail(error))

    def _send(self, *messages: bytes) -> None:
        self._peer.sendall(b"".join(messages))

    def _answer(self, event: object) -> None:
        s = self.session
        match event:
            case SslRequest() | GssEncRequest():
                self._send(s.refuse_encryption())
            case StartupMessage():
                self._start(event)
            case auth.SaslInitialResponse(mechanism, data):
                self._exchange = self._new_exchange(mechanism)
                self._send(s.continue_sasl(self._exchange.respond(data)))
            case auth.SaslResponse(data):
                assert self._exchange is not None
                answer = self._exchange.respond(data)
                self._send(s.finish_sasl(answer))
                self._begin()
            case m.Query(text):
                self._query(text)
            case m.CopyData(data) if s.phase.name == "COPY_BOTH":
                self._standby(data)
            case m.CopyData(data):
                self.received += data
            case m.CopyDone() if self._streaming:
                self._streaming = False
                self._send(s.finish_streaming())
            case m.CopyDone():
                self._send(s.command_complete("COPY 1"), s.ready_for_query())
            case m.CopyFail(message):
                raise PenstockError(f"COPY from stdin failed: {message}", sqlstate="57014")
            case _:
                self._extended(event)

    _streaming = False

    def _start(self, message: StartupMessage) -> None:
        self._send(self.session.negotiate(message))
        wanted = read_startup(message)
        self._user = wanted.user
        self.session.walsender = wanted.replication is not ReplicationMode.NONE
        self.session.client_encoding = wanted.client_encoding()
        self._send(self.session.request_sasl(mechanisms(None)))

    def _new_exchange(self, mechanism: str) -> ScramExchange:
        password = self._settings.users.get(self._user)
        if password is None:
            verifier = mock_verifier(self._user, b"node")
        else:
            verifier = ScramVerifier.of_password(password, hashlib.sha256(b"s").digest()[:16])
        return ScramExchange(self._user, verifier, b"0123456789abcdefgh", mechanism=mechanism)

    def _begin(self) -> None:
        known = {
            "server_version": "18.0",
            "client_encoding": self.session.client_encoding.name,
            "standard_conforming_strings": "on",
            "integer_datetimes": "on",
        }
        statuses = [
            backend.parameter_status(name, known.get(name, "")) for name in reported_parameters(18)
        ]
        key = b"key!" if self.session.protocol < PROTOCOL_3_2 else b"k" * 32
        self._send(
            self.session.authentication_ok(),
            *statuses,
            backend.backend_key_data(4711, key),
            self.session.ready_for_query(),
        )

    def _query(self, text: str) -> None:
        s = self.session
        if s.walsender and is_replication_command(text):
            self._replication(text)
            return
        match text.split():
            case []:
                self._send(s.empty_query_response())
            case ["BEGIN"]:
                s.transaction_status = TransactionStatus.IN_TRANSACTION
                self._send(s.command_complete("BEGIN"))
            case ["SELECT", *_]:
                rows = [backend.data_row(row) for row in ROWS]
                self._send(s.row_description(COLUMNS), *rows, s.command_complete("SELECT 3"))
            case ["ECHO", *words]:
                self._send(notice_response(" ".join(words), encoding=s.client_encoding))
                self._send(s.command_complete("ECHO"))
            case ["COPY", "OUT", kind]:
                self._copy_out(kind == "binary")
            case ["COPY", "IN"]:
                self._send(s.copy_in_response(2))
                return
            case _:
                raise PenstockError("no", detail="d", hint="h", sqlstate="0A000")
        self._send(s.ready_for_query())

    def _copy_out(self, binary: bool) -> None:
        s = self.session
        rows = text_messages(ROWS)
        if binary:
            rows = with_binary_header(binary_messages(ROWS)) + BINARY_END
        self._send(s.copy_out_response(2, int(binary)), rows)
        self._send(s.copy_done(), s.command_complete("COPY 3"))

    def _replication(self, text: str) -> None:
        s = self.session
        command = parse_replication_command(text)
        self.heard.append(command)
        if isinstance(command, IdentifySystem):
            names = ("systemid", "timeline", "xlogpos", "dbname")
            fields = [FieldDescription(Attribute(name, TEXT_OID)) for name in names]
            self._send(s.row_description(fields))
            self._send(backend.data_row((b"7", b"1", b"0/64", b"lake")))
            self._send(s.command_complete("IDENTIFY_SYSTEM"), s.ready_for_query())
        elif isinstance(command, Show):
            self._send(s.row_description([FieldDescription(Attribute(command.name, TEXT_OID))]))
            self._send(backend.data_row((b"0700",)), s.command_complete("SHOW"))
            self._send(s.ready_for_query())
        elif isinstance(command, StartReplication):
            self._streaming = True
            self._send(s.copy_both_response())
            self._send(*(xlog_data(lsn, SEND_TIME, body) for lsn, body in STREAM))
            last = keepalive(Lsn(200), SEND_TIME, reply_requested=True)
            self._send(backend.copy_data(last))
        else:
            raise PenstockError("not here", sqlstate="0A000")

    def _standby(self, data: bytes) -> None:
        self.heard.append(decode_standby_message(data))

    def _extended(self, event: object) -> None:
        s = self.session
        match event:
            case m.Parse(name, query):
                if query.startswith("BAD"):
                    raise PenstockError("cannot parse", sqlstate="42601")
                self._statements[name] = event
                self._send(s.parse_complete())
            case m.Bind(portal):
                self._portals[portal] = event
                self._send(s.bind_complete())
            case m.Describe(kind):
                if kind == m.STATEMENT:
                    self._send(s.parameter_description([INT4_OID]))
                self._send(s.row_description(COLUMNS))
            case m.Execute(portal, limit):
                rows = [backend.data_row(row) for row in ROWS]
                if 0 < limit < len(rows):
                    self._send(*rows[:limit], s.portal_suspended())
                else:
                    self._send(*rows, s.command_complete("SELECT 3"))
            case m.Close():
                self._send(s.close_complete())
            case m.Sync():
                self._send(s.ready_for_query())


@dataclass
class TinyServer:
    """Where it listens, and the connections it has had."""

    port: int
    connections: list[Connection]

    def conninfo(self, **more: str) -> str:
        parameters = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "user": "ada",
            "password": "secret",
            "dbname": "lake",
            "gssencmode": "disable",
            "connect_timeout": "10",
        } | more
        return " ".join(f"{name}='{value}'" for name, value in parameters.items())


@contextmanager
def tiny_server(settings: Settings) -> Iterator[TinyServer]:
    """Serves until the block ends; a connection's failure is raised there."""
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = TinyServer(listener.getsockname()[1], [])

        def serve(connection: Connection) -> None:
            try:
                connection.run()
            except (ConnectionResetError, BrokenPipeError):
                pass
            except BaseException as error:
                failures.append(error)

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                connection = Connection(peer, settings)
                server.connections.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for thread in threads:
                thread.join(10)
    assert not failures, failures
