"""One client's session from its first byte to its last (postgres.c, PostgresMain).

``Backend`` authenticates the client of an accepted connection and answers its queries. The node
creates a ``StatementRunner`` for each session, which runs its statements. A session has one thread.
"""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from penstock.backend.authentication import authenticate
from penstock.backend.binary_values import CHARACTER_TYPES, in_encoding, in_formats, parameter_text
from penstock.backend.client_socket import ClientLeft, ClientSocket, MessagePump
from penstock.backend.hba import Client, Method, Rule, method_for
from penstock.backend.startup_report import reported
from penstock.catalog import Role
from penstock.errors import (
    ConnectionFailure,
    FeatureNotSupported,
    InsufficientPrivilege,
    NotInPrerequisiteState,
    PenstockError,
    ProtocolViolation,
)
from penstock.precedence import LOGIN, NODE, PRECEDENCE
from penstock.protocol import frontend_messages as m
from penstock.protocol.answers import (
    Answer,
    Cells,
    ColumnRows,
    CopyOut,
    Done,
    Empty,
    Notice,
    Notices,
    ParameterChange,
    Prepared,
    Rows,
    StatementRunner,
    Streaming,
)
from penstock.protocol.backend_messages import (
    BINARY_FORMAT,
    TEXT_FORMAT,
    FieldDescription,
    Severity,
    TransactionStatus,
    backend_key_data,
    data_row,
    data_rows,
    notice_response,
    parameter_status,
)
from penstock.protocol.encoding import ClientEncoding, find_encoding
from penstock.protocol.frontend_messages import CopyDone, CopyFail, FrontendMessage, Terminate
from penstock.protocol.replication_grammar import is_replication_command
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Event, Limits
from penstock.protocol.startup import (
    PROTOCOL_3_0,
    PROTOCOL_3_2,
    CancelRequest,
    ReplicationMode,
    SslRequest,
    StartupMessage,
    StartupParameters,
    read_startup,
)
from penstock.sql.typed.literals import canonical
from penstock.sqlstate import (
    DuplicateCursor,
    DuplicatePreparedStatement,
    InvalidCatalogName,
    InvalidCursorName,
    InvalidSqlStatementName,
    StatementCompletionUnknown,
    TooManyConnections,
)
from penstock.stats.backend_status import Activity, BackendType, Session, Sessions

_SYNTAX_ERROR: Final = "42601"
_PASSWORD: Final = re.compile(r"pass|connection|://", re.IGNORECASE)
_FAILED_LOGIN_PAUSE_S: Final = 0.5
"""Seconds before the error of a failed login is sent, which slows down guessing of passwords."""
_PROTOCOL_3_2_SINCE: Final = 18
_DIRECT_TLS_SINCE: Final = 17
_EXTENDED: Final = (m.Parse, m.Bind, m.Describe, m.Execute, m.Close, m.Flush)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The client of a session. ``pid`` is a number that stands for PostgreSQL's process ID."""

    pid: int
    role: Role
    parameters: StartupParameters
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Options that all sessions of a node share.

    ``version``: the major version that is reported; ``settings``: values for ParameterStatus;
    ``secret``: random bytes of this node. Times are in seconds; 0 means no limit.
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
    """The node's functions that a session calls."""

    find_role: Callable[[str], Role | None]
    has_database: Callable[[str], bool]
    open_session: Callable[[SessionContext], StatementRunner]
    cancel: Callable[[CancelRequest], None]
    sessions_of: Callable[[int], int] = lambda _: 0
    """Returns the number of sessions of a role, given its oid."""
    sessions: Sessions = field(default_factory=Sessions)
    """The sessions that pg_stat_activity shows."""
    admit: Callable[[int, bool], None] = lambda pid, walsender: None
    """Counts a session, given its pid and "is a walsender". Raises PenstockError (53300)."""
    admit_role: Callable[[Role, bool], None] = lambda role, walsender: None
    """Called with the role of an admitted session once it has logged in. Raises PenstockError
    (53300) if the connections that are left are not for this role."""
    answered: Callable[[int, Callable[[], bool]], None] = lambda pid, there: None
    """Called after a statement's answer is sent, before ReadyForQuery. ``there`` returns whether
    the client is still connected."""
    shown: Callable[[str, int], str] = lambda text, role: text
    """Returns a text of an error or a notice as a role may see it, given its oid."""
    heard: Callable[[int], None] = lambda pid: None
    """Called when the client has surely read that answer: it sent a message, or disconnected
    without a reset."""


class Backend:
    """Serves one client. ``pid`` and ``key`` identify the session in a CancelRequest. ``options``
    returns the present options."""

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
        self._owner, self._superuser = LOGIN, False
        self.dismissed = False
        self._shown: Session | None = None
        self._terminated = False
        self._socket = sock
        self._options, self._options_now = options(), options
        self._services = services
        latest = PROTOCOL_3_2 if self._options.version >= _PROTOCOL_3_2_SINCE else PROTOCOL_3_0
        self._session = ServerSession(
            Limits(large_message=self._options.message_bytes), latest_protocol=latest
        )
        self._session.shown = lambda text: services.shown(text, self.role_oid or 0)
        self._pump = MessagePump(sock, self._session)

    def run(self) -> None:
        """Serve the client until it disconnects, then close the socket. Never raises."""
        try:
            with PRECEDENCE.work(LOGIN):
                begun = self._begin()
            if begun:
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
            self._pump.forget()
            self._socket.close()
            if self._shown is not None:
                self._services.sessions.close(self._shown)

    def cancel(self) -> None:
        """Cancel the running statement; called from another thread."""
        if self.runner is not None:
            self.runner.cancel()

    def terminate(self) -> None:
        """End the session with an error to its client; called from another thread (die)."""
        self._terminated = True
        if self.runner is not None:
            self.runner.terminate()
        self._socket.stop_reading()

    def end_if_left(self) -> None:
        """Cancel a statement that changes nothing, or waits for its turn, once its client has left;
        called from another thread. Others are carried out, as on a server."""
        runner = self.runner
        if runner is None or not (runner.changes_nothing or runner.waits_for_turn):
            return
        if self._socket.left:
            runner.terminate()

    def give_up(self) -> None:
        """End the session with an error to its client, as its own thread waits for something;
        called from another thread."""
        error: PenstockError = _by_an_administrator()
        if self.runner is not None and self.runner.may_last:
            error = _may_last()
        with suppress(PenstockError, ValueError):
            self._socket.send_last(self._session.fail(error, fatal=True))
        self.shut_down()

    def shut_down(self) -> None:
        """End the session without an error to its client; called from another thread."""
        if self.runner is not None:
            self.runner.cancel()
        self._socket.shut_down()

    def dismiss(self) -> None:
        """End a connection that has not sent a startup packet; called from another thread."""
        self.dismissed = True
        self._socket.shut_down()

    def _refuse(self, error: PenstockError) -> None:
        try:
            self._pump.send(self._session.fail(error, fatal=True), _give_up)
        except ConnectionFailure:
            log.debug("session of %s: gone before its error", self._socket.address)

    # The start

    def _begin(self) -> bool:
        """Handle the start, from the startup packet to ReadyForQuery. Return False if the
        connection only brought a CancelRequest."""
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
        self._socket.blocked = self.runner.leave_turn
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
            encryption=self._socket.tls,
            backend_type=kind,
            started=now,
            state_changed=now,
        )
        return Session(activity, self.cancel, self.terminate, self._look)

    def _look(self, activity: Activity) -> Activity:
        waits = self.runner is not None and self.runner.waits_for_turn
        return replace(activity, waits_for_turn=waits)

    def _startup_message(self, deadline: float) -> StartupMessage | None:
        if self._options.version >= _DIRECT_TLS_SINCE and not self._direct_tls(deadline):
            return None
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

    def _direct_tls(self, deadline: float) -> bool:
        """Do the handshake if the client begins with it (ProcessSSLStartup). Return False if the
        connection is rejected; then it gets no answer."""
        if not self._socket.begins_with_tls(max(0.0, deadline - time.monotonic())):
            return True
        if self._options.tls is None:
            return False
        self._socket.start_tls(self._options.tls, max(1.0, deadline - time.monotonic()))
        self._session.encrypted()
        if self._socket.tls is not None and self._socket.tls.alpn:
            return True
        log.info(
            "received direct SSL connection request without ALPN protocol negotiation extension"
        )
        return False

    def _log_in(self, parameters: StartupParameters, deadline: float) -> tuple[Role, bytes]:
        client = Client(
            self._socket.address,
            self._socket.tls is not None,
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
        self.role_oid = role.oid  # from now on the session counts for the role's limit
        if not role.superuser and (
            0 <= role.connection_limit < self._services.sessions_of(role.oid)
        ):
            raise TooManyConnections(f'too many connections for role "{role.name}"')
        self._services.admit_role(role, parameters.replication is not ReplicationMode.NONE)
        self._owner = NODE if self._session.walsender else role.oid
        self._superuser = role.superuser
        if parameters.replication is not ReplicationMode.NONE and not (
            role.replication or role.superuser
        ):
            raise InsufficientPrivilege(
                "permission denied to start WAL sender",
                detail="Only roles with the REPLICATION attribute may start a WAL sender process.",
            )
        # A walsender of physical replication has no database; each command says what it needs.
        physical = parameters.replication is ReplicationMode.PHYSICAL
        if not physical and not self._services.has_database(parameters.database):
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
                with PRECEDENCE.work(self._owner, superuser=self._superuser):
                    self._handle(event, extended)
            except ConnectionFailure:
                raise
            except PenstockError as error:
                if self._terminated and not isinstance(error, StatementCompletionUnknown):
                    raise _by_an_administrator() from None
                if self._terminated:
                    raise
                self._log(error, event)
                changes = self.runner.failed()
                extended.end_transaction()
                self._session.transaction_status = self.runner.transaction_status
                if not isinstance(event, _EXTENDED):  # these are followed by Sync
                    self._waits()
                failure = self._session.fail(error)
                for change in changes:  # ParameterStatus must come before ReadyForQuery
                    send_answer(self._session, self._pump, change)
                self._pump.send(failure)

    def _handle(self, event: Event, extended: ExtendedQuery) -> None:
        assert self.runner is not None
        self._tell(event)
        if isinstance(event, m.Query):
            extended.simple_query()
            with self.runner.turn():
                self._simple_query(event.text)
            extended.after_statement()
        elif not isinstance(event, m.Terminate):
            self._extended_query(extended, event)

    def _extended_query(self, extended: ExtendedQuery, event: Event) -> None:
        """Answer a message. The time of a statement counts from Parse or Bind to the end of its
        portal, or to Sync."""
        assert self.runner is not None
        if isinstance(event, m.Parse | m.Bind | m.Describe | m.Execute):
            self.runner.begin_statement()
        with self.runner.turn() if isinstance(event, m.Parse | m.Execute) else nullcontext():
            extended.handle(event)
        self._answered()

    def _next_event(self, *, ready: bool) -> Event:
        """Return the client's next message. ``ready``: ReadyForQuery was sent, so a new message
        shows that the client has read the answers. Raises ConnectionFailure if the session must
        end."""
        event: Event | None = None
        try:
            if not self._terminated:
                event = self._pump.next_event(self._longest_idle_s())
        except ClientLeft:
            # The client has read everything: otherwise its kernel would reset the connection.
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

    def _longest_idle_s(self) -> float | None:
        """Return the longest wait for the next message; a transaction may be idle for ever."""
        assert self.runner is not None
        if self.runner.transaction_status is not TransactionStatus.IDLE:
            return None
        return self._options_now().idle_session_timeout_s or None

    def _answered(self) -> None:
        """Report that an answer was sent completely."""
        self._services.answered(self.pid, lambda: not self._socket.left)

    def _tell(self, event: Event) -> None:
        """Show in pg_stat_activity the statement that this message begins; Sync ends it."""
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
        # A syntax error quotes a word of the statement, which may be a password.
        harmless = isinstance(event, m.Query) and _PASSWORD.search(event.text) is None
        shown = harmless or error.sqlstate != _SYNTAX_ERROR
        report = error.report() if shown else "ERROR:  syntax error"
        log.warning("pid %d (%s): %s", self.pid, self._socket.address, report)

    def _simple_query(self, text: str) -> None:
        assert self.runner is not None
        streamed = False
        # Closed at once if an answer cannot be sent: it holds what its statement has acquired.
        with contextlib.closing(self.runner.simple(text)) as answers:
            for answer in answers:
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


def _may_last() -> PenstockError:
    return StatementCompletionUnknown(
        "terminating connection due to administrator command",
        detail="It is not known whether what the statement has changed is committed.",
        hint="Look at what is there before you run the statement again.",
    )


def _give_up() -> None:
    """Raise at once: the session does not wait until the client reads the last message."""
    raise ConnectionFailure("the client does not read")


# The extended query protocol: prepared statements and portals (Message Flow; postgres.c).
#
# ``ExtendedQuery`` answers Parse, Bind, Describe, Execute, Close, Flush and Sync of one session.
# Parameters in text or binary format are converted to text; each result column is sent in the
# requested format. A portal that was suspended can be continued until its transaction ends. The
# ``StatementRunner`` describes statements and runs them.


@dataclass(slots=True)
class _Portal:
    """A portal. ``fields`` have the requested formats. ``rows``: the rows that are not sent yet,
    once the portal has run."""

    prepared: Prepared
    parameters: tuple[bytes | None, ...] = field(repr=False)
    fields: tuple[FieldDescription, ...] | None
    answer: Rows | None = None
    rows: Iterable[Cells] | None = None
    ran: bool = False


class ExtendedQuery:
    """The portals of one session. The runner keeps the prepared statements (DEALLOCATE)."""

    def __init__(self, session: ServerSession, pump: MessagePump, runner: StatementRunner) -> None:
        self._session = session
        self._pump = pump
        self._runner = runner
        self._portals: dict[str, _Portal] = {}
        self._status = TransactionStatus.IDLE

    def handle(self, event: Event) -> None:
        """Answer one message. Raises PenstockError, which the session sends to the client."""
        match event:
            case m.Parse():
                self._parse(event)
            case m.Bind():
                self._bind(event)
            case m.Describe():
                self._describe(event)
            case m.Execute():
                self._execute(event)
            case m.Close():
                named: dict[str, Prepared] | dict[str, _Portal] = self._portals
                if event.kind == m.STATEMENT:
                    named = self._runner.prepared
                named.pop(event.name, None)
                self._pump.send(self._session.close_complete())
            case m.Flush():
                return  # all answers are sent at once anyway
            case m.Sync():
                self._sync()
            case _:
                raise PenstockError(f"unexpected message {type(event).__name__}")

    def simple_query(self) -> None:
        """Drop the unnamed statement and portal, as a simple query does (exec_simple_query)."""
        self._runner.prepared.pop("", None)
        self._portals.pop("", None)

    def end_transaction(self) -> None:
        """Close all portals: their transaction has ended."""
        self._portals.clear()

    def after_statement(self) -> None:
        """Close the block's portals if the statement was its COMMIT or ROLLBACK."""
        before, self._status = self._status, self._runner.transaction_status
        if before is not TransactionStatus.IDLE and self._status is TransactionStatus.IDLE:
            self.end_transaction()

    def _sync(self) -> None:
        self._runner.end_statement()
        status = self._runner.transaction_status
        if status is TransactionStatus.IDLE:
            self.end_transaction()
        self._session.transaction_status = status
        self._pump.send(self._session.ready_for_query())

    def _parse(self, message: m.Parse) -> None:
        prepared = self._runner.prepare(message.query, message.parameter_types)
        if message.statement and message.statement in self._runner.prepared:
            raise DuplicatePreparedStatement(
                f'prepared statement "{message.statement}" already exists'
            )
        self._runner.prepared[message.statement] = prepared
        self._pump.send(self._session.parse_complete())

    def _bind(self, message: m.Bind) -> None:
        prepared = self._statement(message.statement)
        types = prepared.description.parameters
        if len(message.values) != len(types):
            raise ProtocolViolation(
                f"bind message supplies {len(message.values)} parameters, but prepared statement "
                f'"{message.statement}" requires {len(types)}'
            )
        if message.portal and message.portal in self._portals:
            raise DuplicateCursor(f'cursor "{message.portal}" already exists')
        formats = _each(message.parameter_formats, len(types))
        encoding = self._session.client_encoding
        values = tuple(
            None if value is None else _text(value, type_oid, code, number, encoding)
            for number, (value, type_oid, code) in enumerate(
                zip(message.values, types, formats, strict=True), 1
            )
        )
        fields = _with_formats(prepared.description.fields, message.result_formats)
        self._portals[message.portal] = _Portal(prepared, values, fields)
        self._pump.send(self._session.bind_complete())

    def _describe(self, message: m.Describe) -> None:
        if message.kind == m.STATEMENT:
            description = self._statement(message.name).description
            self._pump.send(self._session.parameter_description(description.parameters))
            fields = description.fields
        else:
            fields = self._portal(message.name).fields
        if fields is None:
            self._pump.send(self._session.no_data())
        else:
            self._pump.send(self._session.row_description(fields))

    def _execute(self, message: m.Execute) -> None:
        portal = self._portal(message.portal)
        if portal.ran and portal.answer is None:
            raise NotInPrerequisiteState(f'portal "{message.portal}" cannot be run')
        if portal.answer is None:
            self._run(portal)
            self.after_statement()
        if portal.answer is None:
            self._runner.end_statement()
            return
        assert portal.rows is not None
        if message.max_rows > 0:
            portal.rows = iter(portal.rows)
        answer = replace(portal.answer, rows=portal.rows)
        if send_rows(self._session, self._pump, answer, described=True, limit=message.max_rows):
            self._runner.end_statement()

    def _run(self, portal: _Portal) -> None:
        """Run a portal until it returns rows, or to its end if it returns none."""
        portal.ran = True
        for answer in self._runner.execute(portal.prepared, portal.parameters):
            if not isinstance(answer, Rows):
                send_answer(self._session, self._pump, answer, described=True)
                continue
            if portal.fields is None or not _same_row_type(answer.fields, portal.fields):
                raise FeatureNotSupported("cached plan must not change result type")
            portal.rows = in_formats(answer.rows, portal.fields)
            portal.answer = replace(answer, fields=portal.fields)

    def _statement(self, name: str) -> Prepared:
        prepared = self._runner.prepared.get(name)
        if prepared is None:
            what = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise InvalidSqlStatementName(f"{what} does not exist")
        return prepared

    def _portal(self, name: str) -> _Portal:
        portal = self._portals.get(name)
        if portal is None:
            raise InvalidCursorName(f'portal "{name}" does not exist')
        return portal


def _each(codes: Sequence[int], count: int) -> Sequence[int]:
    """Return a format code for each value: no code means text, a single code is for all values."""
    if len(codes) > 1:
        return codes
    return [codes[0] if codes else TEXT_FORMAT] * count


def _with_formats(
    fields: tuple[FieldDescription, ...] | None, codes: Sequence[int]
) -> tuple[FieldDescription, ...] | None:
    if fields is None:
        return None
    if len(codes) > 1 and len(codes) != len(fields):
        raise ProtocolViolation(
            f"bind message has {len(codes)} result formats but query has {len(fields)} columns"
        )
    formats = _each(codes, len(fields))
    return tuple(replace(f, format=code) for f, code in zip(fields, formats, strict=True))


def _same_row_type(
    found: Sequence[FieldDescription], described: Sequence[FieldDescription]
) -> bool:
    """Tell whether columns have the same names, types and modifiers (equalRowTypes)."""
    return list(map(_of_column, found)) == list(map(_of_column, described))


def _of_column(field: FieldDescription) -> tuple[str, int, int]:
    column = field.attribute
    return column.name, column.type_oid, column.typmod


def _text(value: bytes, type_oid: int, code: int, number: int, encoding: ClientEncoding) -> bytes:
    """Return a parameter in text format and UTF-8. Raises the errors of PostgreSQL's input
    functions."""
    if code == BINARY_FORMAT:
        value = parameter_text(value, type_oid, number)
        return value if type_oid not in CHARACTER_TYPES else encoding.decode(value).encode()
    text = encoding.decode(value)
    with suppress(FeatureNotSupported):  # values of other types are read when the statement runs
        text = canonical(text, type_oid)
    return text.encode()


# Send answers to the client (printtup.c, copyto.c): rows, copies and streams, portion by portion.
#
# An ``Answer`` is sent through the session's state machine and its socket. Even for a slow client,
# only one portion of bytes is in memory.

_PORTION: Final = 1 << 16
"""Bytes of rows that are sent at once."""
_HELD: Final = 4 << 20
"""Bytes of rows that wait for notices (work_mem of a server, which keeps more in files)."""
_CLIENT_ENCODING: Final = "client_encoding"


class StreamEnded(Exception):
    """The client has ended a stream without CopyDone."""


def send_answer(
    session: ServerSession, pump: MessagePump, answer: Answer, *, described: bool = False
) -> None:
    """Send one statement's answer. ``described``: RowDescription was already sent.

    Raises ConnectionFailure, and the errors from reading the rows.
    """
    match answer:
        case Rows():
            send_rows(session, pump, answer, described=described)
        case Done(tag):
            pump.send(session.command_complete(tag))
        case Notice():
            pump.send(_notice(session, answer))
        case ParameterChange(name, value):
            if name == _CLIENT_ENCODING:
                session.client_encoding = find_encoding(value)
            pump.send(parameter_status(name, value, session.client_encoding))
        case Empty():
            pump.send(session.empty_query_response())
        case CopyOut():
            _send_copy(session, pump, answer)
        case Streaming(run):
            pump.send(session.copy_both_response())
            run(_Stream(session, pump))
            pump.send(session.finish_streaming())


def send_rows(
    session: ServerSession,
    pump: MessagePump,
    answer: Rows,
    *,
    described: bool = False,
    limit: int = 0,
) -> bool:
    """Send rows in the formats of their fields: at most ``limit`` rows, or all if it is 0. Return
    False if the portal is suspended. Raises as ``send_answer``."""
    head = b"" if described else session.row_description(answer.fields)
    rows = in_encoding(answer.rows, answer.fields, session.client_encoding)

    def end(count: int) -> bytes:
        if 0 < limit == count:
            return session.portal_suspended()
        return session.command_complete(f"{answer.tag} {count}" if answer.counted else answer.tag)

    portions = _messages(islice(rows, limit) if limit > 0 else rows)
    count = _send_portions(session, pump, head, portions, end, answer.notices)
    return not 0 < limit == count


def _messages(rows: Iterable[Cells]) -> Iterator[tuple[int, bytes]]:
    """Yield numbers of rows, and their messages."""
    if isinstance(rows, ColumnRows):
        for columns in rows.portions():
            yield len(columns[0]), data_rows(columns)
        return
    out, count = bytearray(), 0
    for row in rows:
        out += data_row(row)
        count += 1
        if len(out) >= _PORTION:
            yield count, bytes(out)
            out.clear()
            count = 0
    yield count, bytes(out)


def _send_copy(session: ServerSession, pump: MessagePump, answer: CopyOut) -> None:
    code = BINARY_FORMAT if answer.binary else TEXT_FORMAT
    pump.send(session.copy_out_response(answer.columns, code))

    def end(count: int) -> bytes:
        return session.copy_done() + session.command_complete(f"COPY {count}")

    _send_portions(session, pump, b"", answer.chunks, end, answer.notices)


def _send_portions(
    session: ServerSession,
    pump: MessagePump,
    head: bytes,
    portions: Iterable[tuple[int, bytes]],
    end: Callable[[int], bytes],
    notices: Notices | None,
) -> int:
    """Send the messages of rows after ``head`` and the notices, then the ``end`` of so many rows.
    Return their number.

    A server computes the rows of a function before it sends one. So rows wait here for notices, up
    to a limit, and are not sent after an error.
    """
    waiting, size, count = [head], 0, 0
    most = _PORTION if notices is None else _HELD
    lock = threading.Lock()

    def notify(notice: Notice) -> None:
        with lock:
            pump.send(waiting[0] + _notice(session, notice))
            waiting[0] = b""

    def send(last: bytes = b"") -> None:
        nonlocal size, most
        with lock:
            pump.send(b"".join((*waiting, last)))
            waiting[:], size, most = [b""], 0, _PORTION

    rows = iter(portions)
    with nullcontext() if notices is None else notices(notify):
        while True:
            try:
                more, messages = next(rows, (None, b""))
            except PenstockError:
                if most == _HELD:
                    del waiting[1:]
                send()
                raise
            if more is None:
                break
            waiting.append(messages)
            count, size = count + more, size + len(messages)
            if size >= most:
                send()
        send(end(count))
    return count


def _notice(session: ServerSession, notice: Notice) -> bytes:
    return notice_response(
        session.shown(notice.message),
        Severity(notice.severity),
        sqlstate=notice.sqlstate,
        detail=notice.detail and session.shown(notice.detail),
        hint=notice.hint and session.shown(notice.hint),
        context=notice.context and session.shown(notice.context),
        encoding=session.client_encoding,
    )


class _Stream:
    """The client's connection while a walsender streams (COPY BOTH)."""

    def __init__(self, session: ServerSession, pump: MessagePump) -> None:
        self._session = session
        self._pump = pump

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        self._pump.send(data, waiting)

    def notice(self, notice: Notice) -> bytes:
        return _notice(self._session, notice)

    def next_message(self, timeout_s: float) -> FrontendMessage | None:
        event = self._pump.next_event(timeout_s)
        if event is None or isinstance(event, CopyDone):
            return event
        if isinstance(event, Terminate | CopyFail):
            raise StreamEnded
        return event  # type: ignore[return-value]
