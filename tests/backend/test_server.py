"""Real clients log in, ask, copy, cancel and leave; the statements' runner is a small one."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq

from faults.heavy import part_of_make_faults
from penstock.attribute import Attribute
from penstock.backend.backend import BackendOptions, Services, SessionContext
from penstock.backend.hba import DEFAULT, parse_rules
from penstock.backend.server import ListenOptions, Server
from penstock.catalog import Role
from penstock.embedded import wait_until
from penstock.errors import ConfigurationError, ConnectionFailure, PenstockError
from penstock.lsn import Lsn
from penstock.node.guc import Parameters
from penstock.node.serving import server_tls
from penstock.protocol.answers import (
    Answer,
    CopyOut,
    Description,
    Done,
    Duplex,
    Empty,
    Notice,
    Prepared,
    Rows,
    Streaming,
)
from penstock.protocol.backend_messages import FieldDescription, TransactionStatus, copy_data
from penstock.protocol.copy_both import keepalive, xlog_data
from penstock.protocol.frontend_messages import CopyDone
from penstock.protocol.scram import SALT_SIZE, ScramVerifier
from penstock.wait_event import WaitEventType
from penstock.wait_event import waiting as waiting_for
from protocol.client_messages import text_messages
from statement_runner import PlainRunner

INT4, TEXT = 23, 25
PASSWORD = "tops3cret ü"
MANY = 200_000
_OPENSSL = tuple(
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()  # noqa: SIM905
)


class Runner(PlainRunner):
    """Understands the few statements of these tests."""

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.cancelled = threading.Event()
        self.closed = threading.Event()
        self.waiting = threading.Event()
        self.freed = threading.Event()
        self.drawn = 0
        self.failures = 0
        self.prepared: dict[str, Prepared] = {}

    def simple(self, text: str) -> Generator[Answer, None, None]:
        for statement in text.split(";"):
            yield self.answer(statement.strip(), ())

    def prepare(self, text: str, types: Sequence[int]) -> Prepared:
        if not text.startswith("SELECT"):
            return Prepared(text, Description((), None))
        fields = (FieldDescription(Attribute("n", INT4), 4),)
        return Prepared(text, Description((TEXT,) if "$1" in text else (), fields))

    @property
    def transaction_status(self) -> TransactionStatus:
        return TransactionStatus.IDLE

    def failed(self) -> tuple[()]:
        self.failures += 1
        return ()

    def execute(self, statement: Prepared, parameters: Sequence[bytes | None]) -> Iterable[Answer]:
        return [self.answer(statement.text, parameters)]

    def answer(self, text: str, parameters: Sequence[bytes | None]) -> Answer:
        match text.split():
            case []:
                return Empty()
            case ["SELECT", "$1"]:
                return Rows((FieldDescription(Attribute("n", INT4), 4),), [[parameters[0]]])
            case ["SELECT", number]:
                rows = ([str(i).encode()] for i in range(int(number)))
                return Rows((FieldDescription(Attribute("n", INT4), 4),), rows)
            case ["WAIT"]:
                self.waiting.set()
                if self.cancelled.wait(20):
                    raise PenstockError("canceling statement due to user request", sqlstate="57014")
            case ["STUCK" | "STUCK_COMMIT" as how]:
                self.may_last = how == "STUCK_COMMIT"
                self.waiting.set()
                self.freed.wait(20)
            case ["COPY", "cut", *_]:
                return CopyOut(1, False, self.cut())
            case ["WARN"]:
                warned = self.warning()
                fields = (FieldDescription(Attribute("n", INT4), 4),)
                return Rows(fields, warned, notices=self.telling)
            case ["COPY", *_]:
                return CopyOut(2, False, self.chunks())
            case ["START_REPLICATION"]:
                return Streaming(self.stream)
            case ["LOST"]:
                raise ConnectionFailure("could not read /lake/t", detail="/lake/t is gone")
            case ["BROKEN"]:
                raise ValueError("a defect")
            case ["SET", *_]:
                return Done("SET")
        raise PenstockError(f'syntax error at or near "{text.split()[0]}"', sqlstate="42601")

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        for number in range(MANY // 100):
            self.drawn += 1
            yield 100, text_messages([(str(number).encode(), b"x" * 100)] * 100)

    def cut(self) -> Iterator[tuple[int, bytes]]:
        """Begin a message in one chunk and end it in the next; then comes an error."""
        message = copy_data(b"x" * 100_000)
        yield 1, message[:90_000]
        yield 0, message[90_000:]
        raise PenstockError("no more", sqlstate="58030")

    @contextlib.contextmanager
    def telling(self, tell: Callable[[Notice], None]) -> Iterator[None]:
        self.tell = tell
        yield

    def warning(self) -> Iterator[list[bytes]]:
        """Wait until the client has the warning, which comes before the first row."""
        self.tell(Notice("WARNING", "/lake/t is slow"))
        yield [b"1" if self.waiting.wait(10) else b"0"]

    def stream(self, wire: Duplex) -> None:
        wire.send(xlog_data(Lsn(16), 0, b"one") + copy_data(keepalive(Lsn(32), 0)))
        while not isinstance(wire.next_message(1.0), CopyDone):
            pass

    def cancel(self) -> None:
        self.cancelled.set()

    def terminate(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed.set()


class Node:
    """A server, its roles, and the runners it has made."""

    def __init__(self) -> None:
        self.runners: list[Runner] = []
        salt = bytes(range(SALT_SIZE))
        verifier = str(ScramVerifier.of_password(PASSWORD, salt))
        self.roles = {
            name: Role(i, name, login=login, replication=replication, verifier=verifier)
            for i, (name, login, replication) in enumerate(
                [("reader", True, False), ("repl", True, True), ("group", False, False)]
            )
        }
        self.roles["boss"] = replace(self.roles["reader"], name="boss", superuser=True)
        self.roles["late"] = replace(self.roles["reader"], name="late", valid_until=1.0)
        self.roles["blank"] = replace(self.roles["reader"], name="blank", verifier=None)
        self.server: Server | None = None

    def open(self, context: SessionContext) -> Runner:
        self.runners.append(Runner(context))
        return self.runners[-1]

    def start(self, listen: ListenOptions | None = None, **options: Any) -> None:
        default: dict[str, Any] = {
            "version": 18,
            "rules": parse_rules(DEFAULT),
            "secret": b"s" * 32,
        }
        settings = {"server_version": "18.0", "server_encoding": "UTF8"}
        self.server = Server(
            replace(listen or ListenOptions(), port=0),
            BackendOptions(settings=settings, **{**default, **options}),
            Services(
                self.roles.get,
                lambda name: name == "lake",
                self.open,
                lambda _: None,
                shown=lambda text, role: text if role else text.replace("/lake/", ""),
            ),
        )
        self.server.start()

    @property
    def port(self) -> int:
        assert self.server is not None
        return self.server.port

    def conninfo(self, user: str = "reader", **options: Any) -> str:
        values = {
            "host": "127.0.0.1",
            "port": self.port,
            "dbname": "lake",
            "user": user,
            "password": PASSWORD,
            "connect_timeout": 20,
            **options,
        }
        return psycopg.conninfo.make_conninfo(**values)

    def refused(self, user: str = "reader", **options: Any) -> str:
        with pytest.raises(psycopg.OperationalError) as error:
            psycopg.connect(self.conninfo(user, **options))
        return str(error.value)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    node.start()
    yield node
    assert node.server is not None
    node.server.stop()
    assert node.server.sessions == 0


@contextlib.contextmanager
def connected(node: Node, user: str = "reader", **options: Any) -> Iterator[psycopg.Connection]:
    with psycopg.connect(node.conninfo(user, **options), autocommit=True) as connection:
        yield connection


def waiting(connection: psycopg.Connection[Any]) -> tuple[threading.Thread, list[psycopg.Error]]:
    """A thread that runs WAIT, and the errors that it will have had."""
    failures: list[psycopg.Error] = []

    def wait() -> None:
        try:
            connection.execute("WAIT")
        except psycopg.Error as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, failures


def test_a_client_logs_in_and_asks(node: Node) -> None:
    with connected(node, application_name="test", options="-c a.b=c") as connection:
        assert connection.info.server_version == 180000
        assert connection.execute("SELECT 3").fetchall() == [(0,), (1,), (2,)]
        assert connection.pgconn.parameter_status(b"session_authorization") == b"reader"
        (runner,) = node.runners
        assert runner.context.role.name == "reader"
        assert runner.context.parameters.application_name == "test"
        assert runner.context.address == "127.0.0.1"
    wait_until(runner.closed.is_set, "the end of the session")


def test_parameters_of_the_extended_protocol(node: Node) -> None:
    with connected(node) as connection:
        assert connection.execute("SELECT %s", ("12",)).fetchone() == (12,)
        assert connection.execute("SELECT %s", ("12",), prepare=True).fetchone() == (12,)
        with pytest.raises(psycopg.errors.SyntaxError, match="near"):
            connection.execute("NONSENSE", prepare=True)
        assert connection.execute("SELECT 1").fetchall() == [(0,)]


def test_several_statements_and_errors_leave_the_session_usable(node: Node) -> None:
    with connected(node) as connection:
        result = connection.pgconn.exec_(b"SET x; SELECT 2; ")
        assert result.status == pq.ExecStatus.EMPTY_QUERY
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("NONSENSE")
        assert connection.execute("SELECT 1").fetchall() == [(0,)]


def test_a_defect_ends_one_session_and_no_other(node: Node) -> None:
    with connected(node) as other, connected(node) as connection:
        with pytest.raises(psycopg.errors.InternalError_, match="internal error"):
            connection.execute("BROKEN")
        assert other.execute("SELECT 1").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("user", "options", "message"),
    [
        ("reader", {"password": "wrong"}, 'password authentication failed for user "reader"'),
        ("nobody", {}, 'password authentication failed for user "nobody"'),
        ("blank", {}, 'password authentication failed for user "blank"'),
        ("late", {}, 'password authentication failed for user "late"'),
        ("group", {}, 'role "group" is not permitted to log in'),
        ("reader", {"dbname": "sea"}, 'database "sea" does not exist'),
        ("reader", {"replication": "database"}, "permission denied to start WAL sender"),
        ("reader", {"sslmode": "require"}, "server does not support SSL"),
    ],
)
def test_who_is_refused_learns_no_more_than_from_postgresql(
    node: Node, user: str, options: dict[str, Any], message: str
) -> None:
    assert message in node.refused(user, **options)


def test_a_failed_login_costs_a_pause_and_is_logged_without_the_secret(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    node.refused(password="wr0ng-secret")
    assert time.monotonic() - began >= 0.5
    assert 'password authentication failed for user "reader" (127.0.0.1)' in caplog.messages
    assert "wr0ng-secret" not in caplog.text


def test_rules_reject_before_any_password(node: Node) -> None:
    other = Node()
    other.start(rules=parse_rules(["host lake repl 127.0.0.0/8 scram-sha-256"]))
    try:
        message = other.refused("reader")
        assert (
            'no pg_hba.conf entry for host "127.0.0.1", user "reader", database "lake"' in message
        )
        with connected(other, "repl"):
            pass
    finally:
        assert other.server is not None
        other.server.stop()


def test_too_many_clients(node: Node) -> None:
    other = Node()
    other.start(ListenOptions(max_connections=1, superuser_reserved_connections=0))
    try:
        with connected(other):
            assert "sorry, too many clients already" in other.refused()
        assert other.server is not None
        wait_until(
            lambda: other.server is not None and other.server.sessions == 0,
            "the end of the sessions",
            20,
        )
        with connected(other):
            pass
    finally:
        assert other.server is not None
        other.server.stop()


def test_a_role_has_so_many_sessions(node: Node) -> None:
    node.roles["reader"] = replace(node.roles["reader"], connection_limit=1)
    with connected(node):
        assert 'too many connections for role "reader"' in node.refused()
        with connected(node, "repl"):
            pass
    assert node.server is not None
    wait_until(
        lambda: node.server is not None and node.server.sessions == 0, "the end of the sessions", 20
    )
    with connected(node):
        pass
    node.roles["reader"] = replace(node.roles["reader"], connection_limit=0)
    assert "too many connections" in node.refused()


def test_a_cancel_request_ends_the_statement_and_not_the_session(node: Node) -> None:
    with connected(node) as connection:
        thread, failed = waiting(connection)
        wait_until(lambda: bool(node.runners), "a session")
        wait_until(
            lambda: connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE,
            "a running statement",
            20,
        )
        connection.cancel_safe()
        thread.join(20)
        assert isinstance(failed[0], psycopg.errors.QueryCanceled)
        assert connection.execute("SELECT 1").fetchall() == [(0,)]


def test_a_wrong_key_cancels_nothing(node: Node) -> None:
    with connected(node) as connection:
        pid = connection.info.backend_pid
        packet = (1234 << 16 | 5678).to_bytes(4, "big") + pid.to_bytes(4, "big") + b"\0\0\0\0"
        with socket.create_connection(("127.0.0.1", node.port)) as raw:
            raw.sendall((len(packet) + 4).to_bytes(4, "big") + packet)
            assert raw.recv(1) == b""
        assert not node.runners[0].cancelled.is_set()


def test_a_copy_arrives_and_waits_for_a_slow_client(node: Node) -> None:
    with connected(node) as connection:
        runner = node.runners[0]
        with connection.cursor() as cursor, cursor.copy("COPY t TO STDOUT") as copy:
            iterator = iter(copy)
            next(iterator)
            drawn = -1
            while drawn != runner.drawn:  # until the buffers on the way are full
                drawn = runner.drawn
                time.sleep(0.2)
            assert drawn < MANY // 200, "it has not run ahead of the client"
            rows = 1 + sum(bytes(part).count(b"\n") for part in iterator)
        assert rows == MANY


def test_an_error_comes_after_whole_messages(node: Node) -> None:
    with connected(node) as connection:
        got: list[bytes] = []
        with (
            pytest.raises(psycopg.Error, match="no more"),
            connection.cursor() as cursor,
            cursor.copy("COPY cut TO STDOUT") as copy,
        ):
            got += map(bytes, copy)
        assert got == [b"x" * 100_000]
        assert connection.execute("SELECT 1").fetchall() == [(0,)]


def test_a_warning_is_sent_at_once(node: Node) -> None:
    """Many warnings must not wait in memory for the last row."""
    with connected(node) as connection:
        told: list[str | None] = []
        connection.add_notice_handler(lambda notice: told.append(notice.message_primary))
        connection.add_notice_handler(lambda _: node.runners[0].waiting.set())
        assert connection.execute("WARN").fetchall() == [(1,)]
        assert told == ["t is slow"]
        with pytest.raises(psycopg.OperationalError, match="could not read t\nDETAIL:  t is gone"):
            connection.execute("LOST")


def test_a_client_that_does_not_read_is_let_go() -> None:
    node = Node()
    node.start(ListenOptions(write_timeout_s=0.5))
    assert node.server is not None
    try:
        with contextlib.closing(psycopg.connect(node.conninfo(), autocommit=True)) as connection:
            connection.pgconn.send_query(b"COPY t TO STDOUT")
            connection.pgconn.flush()
            wait_until(node.runners[0].closed.is_set, "the end of the session")
            wait_until(
                lambda: node.server is not None and node.server.sessions == 0,
                "the end of the sessions",
                20,
            )
    finally:
        node.server.stop()


def test_streaming_both_ways_until_the_client_is_done(node: Node) -> None:
    with connected(node, "repl", replication="database") as session:
        connection = session.pgconn
        assert result_of(connection, b"START_REPLICATION") == pq.ExecStatus.COPY_BOTH
        assert frame_of(connection)[25:] == b"one"
        assert frame_of(connection)[:1] == b"k"
        connection.put_copy_end()
        assert frame_of(connection) == b""
        assert result_of(connection) == pq.ExecStatus.COMMAND_OK
        assert result_of(connection) == pq.ExecStatus.COMMAND_OK
        assert result_of(connection) is None
        assert session.execute("SELECT 1").fetchall() == [(0,)]


def result_of(connection: pq.abc.PGconn, query: bytes | None = None) -> pq.ExecStatus | None:
    """The next result, waited for outside libpq: a wait inside keeps the server's threads still."""
    if query is not None:
        connection.send_query(query)
    while connection.is_busy():
        select.select([connection.socket], [], [], 20)
        connection.consume_input()
    result = connection.get_result()
    return None if result is None else pq.ExecStatus(result.status)


def frame_of(connection: pq.abc.PGconn) -> bytes:
    while (got := connection.get_copy_data(1))[0] == 0:
        select.select([connection.socket], [], [], 20)
        connection.consume_input()
    return bytes(got[1] or b"")


def test_idle_sessions_end() -> None:
    node = Node()
    node.start(idle_session_timeout_s=0.2)
    assert node.server is not None
    try:
        with connected(node) as connection:
            wait_until(
                lambda: node.server is not None and node.server.sessions == 0,
                "the end of the sessions",
                20,
            )
            with pytest.raises(psycopg.errors.IdleSessionTimeout):
                connection.execute("SELECT 1")
    finally:
        node.server.stop()


def test_one_who_says_nothing_is_let_go() -> None:
    node = Node()
    node.start(authentication_timeout_s=0.3)
    assert node.server is not None
    try:
        with socket.create_connection(("127.0.0.1", node.port)) as raw:
            raw.settimeout(20)
            assert b"authentication due to timeout" in raw.recv(1000)
    finally:
        node.server.stop()


def test_stopping_ends_running_statements(node: Node) -> None:
    with connected(node) as connection:
        thread = threading.Thread(target=lambda: _ignore(lambda: connection.execute("WAIT")))
        thread.start()
        wait_until(lambda: bool(node.runners), "a session")
        assert node.server is not None
        began = time.monotonic()
        node.server.stop()
        thread.join(20)
        assert time.monotonic() - began < 10
        assert node.server.sessions == 0


def test_clients_are_told_that_the_node_stops(node: Node) -> None:
    with (
        connected(node) as idle,
        connected(node) as busy,
        socket.create_connection(("127.0.0.1", node.port)) as silent,
    ):
        thread, failures = waiting(busy)
        wait_until(lambda: any(r.waiting.is_set() for r in node.runners), "a waiting session")
        assert node.server is not None
        server = node.server
        wait_until(
            lambda: server.sessions == 3, "three sessions", 20
        )  # also the one that has said nothing
        node.server.stop()
        thread.join(20)
        with pytest.raises(psycopg.OperationalError) as told:
            idle.execute("SELECT 1")
        failures.append(told.value)
        assert [error.sqlstate for error in failures] == ["57P01", "57P01"]
        silent.settimeout(20)
        assert b"57P01" in silent.recv(1000)


def test_clients_whose_sessions_do_not_end_are_told_what_is_known() -> None:
    node = Node()
    node.start()
    raised: dict[str, psycopg.Error] = {}

    def run(statement: str) -> None:
        with pytest.raises(psycopg.Error) as error, connected(node) as client:
            client.execute(statement)
        raised[statement] = error.value

    threads = [threading.Thread(target=run, args=(s,)) for s in ("STUCK", "STUCK_COMMIT")]
    for thread in threads:
        thread.start()
    wait_until(
        lambda: [r.waiting.is_set() for r in node.runners] == [True, True], "both statements"
    )
    assert node.server is not None
    with waiting_for(WaitEventType.STATE_STORE, "test"):
        node.server.stop()
    for thread in threads:
        thread.join(20)
    for runner in node.runners:
        runner.freed.set()
    assert raised["STUCK"].sqlstate == "57P01"
    assert raised["STUCK_COMMIT"].sqlstate == "40003"
    assert "not known" in (raised["STUCK_COMMIT"].diag.message_detail or "")
    server = node.server
    wait_until(lambda: server.sessions == 0, "the end of both")


@part_of_make_faults
def test_clients_that_arrive_while_it_stops() -> None:
    for _ in range(40):
        node = Node()
        node.start()
        assert node.server is not None
        port, over = node.port, threading.Event()

        def knock(port: int = port, over: threading.Event = over) -> None:
            while not over.is_set():
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    pass

        guests = [threading.Thread(target=knock) for _ in range(3)]
        for guest in guests:
            guest.start()
        try:
            node.server.stop()
        finally:
            over.set()
            for guest in guests:
                guest.join()
        server = node.server
        wait_until(lambda: server.sessions == 0, "the end of the sessions")  # noqa: B023


def _server(node: Node, *addresses: str, port: int = 0) -> Server:
    return Server(
        ListenOptions(addresses, port=port),
        BackendOptions(18, {}, (), b""),
        Services(lambda _: None, lambda _: True, node.open, lambda _: None),
    )


def test_a_port_in_use_is_a_clear_error(node: Node) -> None:
    with pytest.raises(ConfigurationError, match="could not create any TCP/IP sockets") as error:
        _server(node, "127.0.0.1", port=node.port).start()
    assert "Address already in use" in (error.value.detail or "")
    assert "Choose another port" in (error.value.hint or "")


@pytest.mark.parametrize("address", ["203.0.113.1", "no-such-host.invalid", "a..b", "a" * 70])
def test_what_is_no_address_of_this_host_is_named(node: Node, address: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        _server(node, address).start()
    assert f'could not listen on "{address}"' in (error.value.detail or "")
    assert "while attempting" not in (error.value.detail or "")
    assert "of this host" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("addresses", "reached"),
    [
        (("*",), ("127.0.0.1", "::1")),
        (("127.0.0.1", "::1"), ("127.0.0.1", "::1")),
        (("203.0.113.1", "localhost"), ("127.0.0.1",)),
        (("a..b", "127.0.0.1"), ("127.0.0.1",)),
    ],
)
def test_all_addresses_that_can_be_had_are_listened_on(
    node: Node, addresses: tuple[str, ...], reached: tuple[str, ...]
) -> None:
    server = _server(node, *addresses)
    server.start()
    try:
        for address in reached:
            socket.create_connection((address, server.port), timeout=10).close()
    finally:
        server.stop()


@pytest.fixture
def tls_node(tmp_path: Path) -> Iterator[Node]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [*_OPENSSL, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    files = Parameters(ssl_cert_file=str(certificate), ssl_key_file=str(key))
    node = Node()
    node.start(
        tls=server_tls(tmp_path, files),
        rules=parse_rules(["hostssl all all 127.0.0.1/32 scram-sha-256"]),
    )
    assert node.server is not None
    yield node
    node.server.stop()


def test_tls(tls_node: Node) -> None:
    with connected(tls_node, sslmode="require") as connection:
        assert connection.pgconn.ssl_in_use
        assert len(connection.execute("SELECT 50000").fetchall()) == 50_000
    assert "no encryption" in tls_node.refused(sslmode="disable")


def test_tls_from_the_first_byte(tls_node: Node, node: Node) -> None:
    with connected(tls_node, sslmode="require", sslnegotiation="direct") as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("SELECT 2").fetchall() == [(0,), (1,)]
        assert tls_node.server is not None
        (shown,) = tls_node.server._services.sessions.all()
        assert shown.encryption is not None and shown.encryption.version == "TLSv1.3"
    began = time.monotonic()
    assert "server closed" in node.refused(sslmode="require", sslnegotiation="direct")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", tls_node.port)) as raw,
        context.wrap_socket(raw) as silent_about_its_protocol,
    ):
        assert silent_about_its_protocol.recv(1) == b""
    assert time.monotonic() - began < 10


def test_silent_connections_lock_nobody_out() -> None:
    node = Node()
    node.start(ListenOptions(max_connections=10, max_wal_senders=2), authentication_timeout_s=3.0)
    assert node.server is not None
    with contextlib.ExitStack() as stack:
        stack.callback(node.server.stop)
        session = stack.enter_context(connected(node))
        address = ("127.0.0.1", node.port)
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]
        with connected(node) as connection:
            assert connection.execute("SELECT 1").fetchall() == [(0,)]
        assert node.server.sessions < 40
        assert session.execute("SELECT 1").fetchall() == [(0,)]
        silent[0].settimeout(10)
        assert silent[0].recv(1) == b"", "the first has made room"
        wait_until(lambda: node.server is not None and node.server.sessions == 1, "the timeout")


def test_stalled_handshakes_lock_nobody_out(tls_node: Node) -> None:
    assert tls_node.server is not None
    with contextlib.ExitStack() as stack:
        stalled = []
        for number in range(200):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", tls_node.port)))
            if number % 2:  # the others begin with the handshake
                raw.sendall(struct.pack("!ii", 8, 80877103))
                raw.settimeout(10)
                assert raw.recv(1) == b"S"
            else:
                raw.sendall(b"\x16\x03\x01")
            stalled.append(raw)
        with connected(tls_node, sslmode="require") as connection:
            assert connection.execute("SELECT 1").fetchall() == [(0,)]
        assert tls_node.server.sessions < 160
        for raw in stalled[:10]:
            raw.settimeout(10)
            assert raw.recv(1) == b"", "they have made room"


def test_garbage_is_no_harm(node: Node) -> None:
    for size in (1, 8, 100, 100_000):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", node.port)) as raw,
        ):
            raw.settimeout(20)
            raw.sendall(os.urandom(size))
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass
    with connected(node) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(0,)]


def _ignore(call: Callable[[], object]) -> None:
    with contextlib.suppress(psycopg.Error):
        call()
