"""One client's session from its first byte to its last (postgres.c, PostgresMain).

In: an accepted connection and what the node offers. Out: a session that is authenticated, answers
queries and ends. What a statement does is left to the ``StatementRunner`` that the node makes for
the session. One thread runs it.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.backend.authentication import authenticate
from penstock.backend.client_socket import ClientLeft, ClientSocket, MessagePump
from penstock.backend.extended_query import ExtendedQuery
from penstock.backend.hba import Client, Method, Rule, method_for
from penstock.backend.query_answers import StreamEnded, send_answer
from penstock.backend.startup_report import reported
from penstock.catalog import Role
from penstock.errors import ConnectionFailure, InsufficientPrivilege, PenstockError
from penstock.protocol import frontend_messages as m
from penstock.protocol.answers import StatementRunner, Streaming
from penstock.protocol.backend_messages import (
    TransactionStatus,
    backend_key_data,
    parameter_status,
)
from penstock.protocol.phases import Limits
from penstock.protocol.replication_grammar import is_replication_command
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Event
from penstock.protocol.startup import (
    ReplicationMode,
    StartupParameters,
    read_startup,
    require_database,
)
from penstock.protocol.startup_packets import (
    PROTOCOL_3_0,
    PROTOCOL_3_2,
    CancelRequest,
    SslRequest,
    StartupMessage,
)
from penstock.sqlstate import InvalidCatalogName, TooManyConnections
from penstock.stats.backend_status import Activity, BackendType, Session, Sessions

_SYNTAX_ERROR: Final = "42601"
_PASSWORD: Final = re.compile(r"pass|connection|://", re.IGNORECASE)
_FAILED_LOGIN_PAUSE_S: Final = 0.5
"""Seconds before the refusal is sent: guessing passwords one after the other takes long."""
_PROTOCOL_3_2_SINCE: Final = 18
_EXTENDED: Final = (m.Parse, m.Bind, m.Describe, m.Execute, m.Close, m.Flush)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Who a session is for. ``pid`` stands for the process id that PostgreSQL would have."""

    pid: int
    role: Role
    parameters: StartupParameters
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What every session of a node shares.

    ``version``: major version that is reported; ``settings``: values for ParameterStatus;
    ``secret``: random bytes of this node. Times are seconds, 0 for no limit.
    """

    version: int
    settings: Mapping[str, str]
    rules: tuple[Rule, ...]
    secret: bytes = field(repr=False)
    tls: ssl.SSLContext | None = None
    authentication_timeout_s: float = 60.0
    idle_session_timeout_s: float = 0.0
    message_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Services:
    """What a session asks its node for."""

    find_role: Callable[[str], Role | None]
    has_database: Callable[[str], bool]
    open_session: Callable[[SessionContext], StatementRunner]
    cancel: Callable[[CancelRequest], None]
    sessions_of: Callable[[int], int] = lambda _: 0
    """How many sessions a role has, by its oid."""
    sessions: Sessions = field(default_factory=Sessions)
    """Where they are shown."""
    admit: Callable[[int, bool], None] = lambda pid, walsender: None
    """Takes a place for a session, by its pid. Raises PenstockError (53300)."""
    answered: Callable[[int, Callable[[], bool]], None] = lambda pid, there: None
    """Told when a statement's answer is sent, before the client is told to go on. ``there``:
    whether it has not left."""
    heard: Callable[[int], None] = lambda pid: None
    """Told when the client has spoken after that, or has left having read all of it."""


class Backend:
    """``pid`` and ``key``: what a CancelRequest names. ``options``: as they are now."""

    def __init__(
        self,
        sock: ClientSocket,
        pid: int,
        key: bytes,
        options: Callable[[], BackendOptions],
        services: Services,
    ) -> None:
        self.pid = pid
        self.key = key
        self.runner: StatementRunner | None = None
        self.role_oid: int | None = None
        self._shown: Session | None = None
        self._terminated = False
        self._socket = sock
        self._options, self._options_now = options(), options
        self._services = services
        latest = PROTOCOL_3_2 if self._options.version >= _PROTOCOL_3_2_SINCE else PROTOCOL_3_0
        self._session = ServerSession(
            Limits(large_message=self._options.message_bytes), latest_protocol=latest
        )
        self._pump = MessagePump(sock, self._session)

    def run(self) -> None:
        """Serve the client until it leaves; never raises, and closes the socket."""
        try:
            if self._begin():
                self._serve()
        except (ClientLeft, StreamEnded):
            if self._terminated:
                self._refuse(_by_an_administrator())
        except PenstockError as error:
            log.info("session of %s: %s", self._socket.address, error.message)
            self._refuse(error)
        except Exception:
            log.exception("session of %s failed", self._socket.address)
            self._refuse(PenstockError("internal error"))
        finally:
            if self.runner is not None:
                self.runner.close()
            self._socket.close()
            if self._shown is not None:
                self._services.sessions.close(self._shown)

    def cancel(self) -> None:
        """End the running statement soon, from another thread."""
        if self.runner is not None:
            self.runner.cancel()

    def terminate(self) -> None:
        """End the session soon, and tell the client; from another thread (die of postgres.c)."""
        self._terminated = True
        if self.runner is not None:
            self.runner.terminate()
        self._socket.stop_reading()

    def shut_down(self) -> None:
        """End the session from another thread."""
        if self.runner is not None:
            self.runner.cancel()
        self._socket.shut_down()

    def _refuse(self, error: PenstockError) -> None:
        try:
            self._pump.send(self._session.fail(error, fatal=True), _give_up)
        except ConnectionFailure:
            log.debug("session of %s: gone before its error", self._socket.address)

    # The start

    def _begin(self) -> bool:
        """Startup packet to ReadyForQuery; False for a connection that wanted only to cancel."""
        deadline = time.monotonic() + self._options.authentication_timeout_s
        message = self._startup_message(deadline)
        if message is None:
            return False
        parameters = read_startup(message)
        walsender = parameters.replication is not ReplicationMode.NONE
        self._services.admit(self.pid, walsender)
        self._pump.send(self._session.negotiate(message))
        self._session.client_encoding = parameters.client_encoding()
        self._session.walsender = walsender
        role, last = self._log_in(parameters, deadline)
        self._check(parameters, role)
        context = SessionContext(
            self.pid, role, parameters, self._socket.address, self._socket.port
        )
        self._shown = self._services.sessions.open(self._session_of(context))
        self.runner = self._services.open_session(context)
        out = last + self._session.authentication_ok()
        out += b"".join(
            parameter_status(name, value) for name, value in self._reported(parameters, role)
        )
        out += backend_key_data(
            self.pid, self.key[: 4 if self._session.protocol == PROTOCOL_3_0 else None]
        )
        self._shown.waits(TransactionStatus.IDLE)
        self._pump.send(out + self._session.ready_for_query())
        return True

    def _session_of(self, context: SessionContext) -> Session:
        now = time.time()
        kind = BackendType.WALSENDER if self._session.walsender else BackendType.CLIENT
        activity = Activity(
            pid=self.pid,
            role=context.role.oid,
            database=context.parameters.database,
            application_name=context.parameters.application_name,
            address=context.address,
            port=context.port,
            backend_type=kind,
            started=now,
            state_changed=now,
        )
        return Session(activity, self.cancel, self.terminate)

    def _startup_message(self, deadline: float) -> StartupMessage | None:
        while True:
            event = self._in_time(deadline)
            if isinstance(event, StartupMessage):
                return event
            if isinstance(event, CancelRequest):
                self._services.cancel(event)
                return None
            if isinstance(event, SslRequest) and self._options.tls is not None:
                self._pump.send(self._session.accept_tls())
                self._socket.start_tls(self._options.tls, max(1.0, deadline - time.monotonic()))
            else:
                self._pump.send(self._session.refuse_encryption())

    def _log_in(self, parameters: StartupParameters, deadline: float) -> tuple[Role, bytes]:
        client = Client(
            self._socket.address,
            self._socket.tls,
            parameters.user,
            parameters.database,
            parameters.replication,
        )
        method = method_for(self._options.rules, client)

        def exchange(data: bytes) -> Event:
            self._pump.send(data)
            return self._in_time(deadline)

        try:
            return authenticate(
                self._session,
                exchange,
                parameters.user,
                self._services.find_role(parameters.user),
                method,
                secret=self._options.secret,
                now=time.time(),
            )
        except PenstockError as error:
            if method is not Method.TRUST and error.sqlstate.startswith("28"):
                log.warning("%s (%s)", error.message, self._socket.address)
                time.sleep(_FAILED_LOGIN_PAUSE_S)
            raise

    def _check(self, parameters: StartupParameters, role: Role) -> None:
        require_database(parameters)
        self.role_oid = role.oid  # counts from here on
        if not role.superuser and (
            0 <= role.connection_limit < self._services.sessions_of(role.oid)
        ):
            raise TooManyConnections(f'too many connections for role "{role.name}"')
        if parameters.replication is not ReplicationMode.NONE and not (
            role.replication or role.superuser
        ):
            raise InsufficientPrivilege(
                "permission denied to start WAL sender",
                detail="Only roles with the REPLICATION attribute may start a WAL sender process.",
            )
        if not self._services.has_database(parameters.database):
            raise InvalidCatalogName(f'database "{parameters.database}" does not exist')

    def _in_time(self, deadline: float) -> Event:
        event = self._pump.next_event(max(0.0, deadline - time.monotonic()))
        if event is None:
            raise ConnectionFailure("canceling authentication due to timeout", sqlstate="57014")
        return event

    def _reported(self, parameters: StartupParameters, role: Role) -> Sequence[tuple[str, str]]:
        own = {
            "client_encoding": self._session.client_encoding.name,
            "is_superuser": "on" if role.superuser else "off",
            "session_authorization": role.name,
        }
        return reported(self._options.version, {**self._options.settings, **own}, parameters)

    # Queries

    def _serve(self) -> None:
        assert self.runner is not None
        extended = ExtendedQuery(self._session, self._pump, self.runner)
        event: Event | None = None
        while not self._session.closed:
            try:
                event = self._next_event(ready=isinstance(event, m.Query | m.Sync))
                self._tell(event)
                if isinstance(event, m.Query):
                    extended.simple_query()
                    self._simple_query(event.text)
                    extended.after_statement()
                elif not isinstance(event, m.Terminate):
                    extended.handle(event)
                    self._answered()
            except ConnectionFailure:
                raise
            except PenstockError as error:
                if self._terminated:
                    raise _by_an_administrator() from None
                self._log(error, event)
                changes = self.runner.failed()
                extended.end_transaction()
                self._session.transaction_status = self.runner.transaction_status
                if not isinstance(event, _EXTENDED):  # those wait for Sync
                    self._waits()
                failure = self._session.fail(error)
                for change in changes:  # before ReadyForQuery, which is the last of it
                    send_answer(self._session, self._pump, change)
                self._pump.send(failure)

    def _next_event(self, *, ready: bool) -> Event:
        """The client's next message. ``ready``: it was told that it may go on, so by now it has the
        answers before that. Raises ConnectionFailure: the session ends, for this or that reason."""
        event: Event | None = None
        try:
            if not self._terminated:
                timeout_s = self._options_now().idle_session_timeout_s or None
                event = self._pump.next_event(timeout_s)
        except ClientLeft:
            # A connection that is closed before all was read from it is not closed, but reset.
            self._services.heard(self.pid)
            raise
        if ready or event is None:
            self._services.heard(self.pid)
        if self._terminated:
            raise _by_an_administrator()
        if event is None:
            raise ConnectionFailure(
                "terminating connection due to idle-session timeout", sqlstate="57P05"
            )
        return event

    def _answered(self) -> None:
        """All of an answer is sent."""
        self._services.answered(self.pid, lambda: not self._socket.left)

    def _tell(self, event: Event) -> None:
        """Others see what begins here; Sync ends it."""
        assert self.runner is not None and self._shown is not None
        if isinstance(event, m.Query):
            command = self._session.walsender and is_replication_command(
                event.text, self._options.version
            )
            self._shown.runs(event.text, transaction=not command)
        elif isinstance(event, m.Parse):
            self._shown.runs(event.query)
        elif isinstance(event, m.Bind) and event.statement in self.runner.prepared:
            self._shown.runs(self.runner.prepared[event.statement].text)
        elif isinstance(event, m.Sync):
            self._waits()

    def _waits(self) -> None:
        assert self.runner is not None and self._shown is not None
        self._shown.waits(self.runner.transaction_status)

    def _log(self, error: PenstockError, event: Event | None) -> None:
        # A syntax error shows a word of the statement, which may be the password (law 9).
        harmless = isinstance(event, m.Query) and _PASSWORD.search(event.text) is None
        shown = harmless or error.sqlstate != _SYNTAX_ERROR
        report = error.report() if shown else "ERROR:  syntax error"
        log.warning("pid %d (%s): %s", self.pid, self._socket.address, report)

    def _simple_query(self, text: str) -> None:
        assert self.runner is not None
        streamed = False
        for answer in self.runner.simple(text):
            send_answer(self._session, self._pump, answer)
            self._answered()
            streamed = isinstance(answer, Streaming)
        self._waits()
        if not streamed:
            self._session.transaction_status = self.runner.transaction_status
            self._pump.send(self._session.ready_for_query())


def _by_an_administrator() -> ConnectionFailure:
    return ConnectionFailure(
        "terminating connection due to administrator command", sqlstate="57P01"
    )


def _give_up() -> None:
    """The last word is not waited for."""
    raise ConnectionFailure("the client does not read")
