"""One connection to the publisher on libpq (libpqwalreceiver.c).

Every wait is in ``poll`` with the interpreter lock released, so a slow publisher never stops other
threads, and ``cancel()`` from another thread ends the wait. ``slots``, ``publisher`` and
``table_info`` contain the commands and queries.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from penstock.errors import ConnectionFailure, PenstockError
from penstock.identifiers import quote_literal
from penstock.walreceiver.conninfo import SESSION_SETTINGS, ConnInfo
from penstock.walreceiver.libpq_errors import connect_failure, result_failure

Row = tuple[str | None, ...]

_DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.EMPTY_QUERY)
_INTERRUPT_S: Final = 0.2
"""Seconds between two calls of ``interrupt`` while a command runs."""
_CANCEL_S: Final = 5.0
"""Seconds that ``cancel`` waits for the server's answer."""
_CANCEL_SENT_S: Final = 0.5
"""Seconds after which an interrupted command's session is closed, whatever the server answers."""

_ENCRYPTED_BY_GSSAPI: Final = (
    "SELECT encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_catalog.pg_backend_pid()"
)
_COPY: Final = (ExecStatus.COPY_BOTH, ExecStatus.COPY_OUT, ExecStatus.COPY_IN)

logger = logging.getLogger(__name__)


class Connection:
    """A session on the publisher. Only one thread may use it at a time, except for ``cancel``."""

    def __init__(self, session: psycopg.Connection[tuple[object, ...]], conninfo: ConnInfo) -> None:
        self._session = session
        self._conninfo = conninfo
        self.pgconn: Final[PGconn] = session.pgconn
        self.pgconn.nonblocking = 1
        self.interrupt: Callable[[], None] | None = None
        """A function that is called repeatedly while a command runs. If it raises, the command is
        cancelled on the publisher, the session is closed, and the error goes to the command's
        caller."""

    @classmethod
    def connect(
        cls,
        conninfo: ConnInfo,
        application_name: str,
        *,
        replication: bool = True,
        interrupt: Callable[[], None] | None = None,
    ) -> Connection:
        """Open a walsender of the named database, or an ordinary session.

        Both accept simple queries. The first command sets everything that affects the answers, as
        PostgreSQL's own logical connections first clear ``search_path``. ``interrupt``: as the
        field, also called while the server does not answer the attempt. Raises
        AuthenticationFailure, ConnectionFailure.
        """
        make = conninfo.for_replication if replication else conninfo.for_sql
        try:
            session = _open(make(application_name), interrupt)
        except psycopg.Error as error:
            raise connect_failure(str(error)) from None
        connection = cls(session, conninfo)
        connection.interrupt = interrupt
        try:
            connection.query(SESSION_SETTINGS, prefix="could not clear search path: ")
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def server_version(self) -> int:
        """The server's version as PQserverVersion has it: 150018 for 15.18."""
        return self.pgconn.server_version

    @property
    def backend_pid(self) -> int:
        return self.pgconn.backend_pid

    @property
    def is_open(self) -> bool:
        return self.pgconn.status == ConnStatus.OK

    def is_encrypted(self) -> bool:
        """Return whether only libpq can read the socket's data. Call it outside of a transaction:
        it reads a system view, and without that view the server would abort the transaction.
        Raises ConnectionFailure."""
        if self.pgconn.ssl_in_use:
            return True
        try:
            # psycopg reports TLS, but not GSSAPI
            return self.query(_ENCRYPTED_BY_GSSAPI) != [("f",)]
        except ConnectionFailure:
            raise
        except PenstockError:
            return True

    def hear_warnings(self, told: Callable[[str], object]) -> None:
        """Pass the server's warnings, which our sessions otherwise suppress, to ``told``. Raises
        ConnectionFailure."""
        self.query("SELECT pg_catalog.set_config('client_min_messages', 'warning', false)")

        def hear(notice: psycopg.errors.Diagnostic) -> None:
            lines = [notice.message_primary, notice.message_detail, notice.message_hint]
            told(" ".join(line for line in lines if line))

        self._session.add_notice_handler(hear)

    def query(self, sql: str, *, prefix: str = "", timeout_s: float | None = None) -> list[Row]:
        """Run one command and return its rows of text values, with None for NULL; [] for a command
        without rows.

        ``prefix``: PostgreSQL's words before the server's message. Raises PublisherError with the
        server's SQLSTATE, UndefinedObject (42704), DuplicateObject (42710), ObjectInUse (55006), or
        ConnectionFailure; after ``timeout_s`` the command is cancelled and the connection closed.
        """
        result = self._finish(self.execute(sql, prefix=prefix, timeout_s=timeout_s))
        return [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def _finish(self, result: PGresult) -> PGresult:
        if result.status in _COPY:
            self.close()
            raise ConnectionFailure("unexpected copy in reply to a query")
        return result

    def execute(self, sql: str, *, prefix: str = "", timeout_s: float | None = None) -> PGresult:
        """Run one command to its last result, or to the beginning of a copy; return that result."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self.pgconn.send_query(sql.encode())
            self.flush()
            last = self.next_result(deadline)
            while last is not None and last.status not in _COPY and last.status in _DONE:
                following = self.next_result(deadline)
                if following is None:
                    return last
                last = following
        except psycopg.Error as error:
            raise self.broken(str(error), prefix) from None
        if last is None:
            raise self.broken("no result", prefix)
        if last.status in _COPY:
            return last
        failure = result_failure(last, prefix)
        self._drain(deadline)
        raise failure

    def _drain(self, deadline: float | None) -> None:
        with contextlib.suppress(psycopg.Error, PenstockError):
            while self.next_result(deadline) is not None:
                pass

    def next_result(self, deadline: float | None = None) -> PGresult | None:
        """Return the command's next result, None after the last; wait until ``deadline``
        (monotonic)."""
        while self.pgconn.is_busy():
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                self.cancel()
                self.close()
                raise ConnectionFailure(
                    "canceling statement due to timeout",
                    hint="The publisher did not answer in time; look for locks and load there.",
                    sqlstate="57014",
                )
            if self.wait_readable(self._slice(remaining)):
                self.pgconn.consume_input()
            elif self.interrupt is not None:
                self._ask(self.interrupt)
        return self.pgconn.get_result()

    def _slice(self, remaining: float | None) -> float | None:
        if self.interrupt is None:
            return remaining
        return _INTERRUPT_S if remaining is None else min(remaining, _INTERRUPT_S)

    def _ask(self, interrupt: Callable[[], None]) -> None:
        try:
            interrupt()
        except BaseException:
            # Whoever interrupts does not wait for a server that is silent.
            cancel = threading.Thread(target=self.cancel, name="cancel", daemon=True)
            cancel.start()
            cancel.join(_CANCEL_SENT_S)
            self.close()
            raise

    def check(self) -> None:
        """Check that an idle session is still there, sending nothing. Raises ConnectionFailure."""
        if not self.is_open:
            raise ConnectionFailure("connection to the publisher was lost")
        try:
            while self.wait_readable(0):
                self.pgconn.consume_input()
        except psycopg.Error as error:
            self.close()
            raise self.broken(str(error)) from None

    @property
    def socket(self) -> int:
        """The socket's descriptor. Raises ConnectionFailure if libpq knows that it is lost."""
        try:
            return self.pgconn.socket
        except psycopg.Error as error:
            raise self.broken(str(error)) from None

    def wait_readable(self, timeout_s: float | None) -> bool:
        """Wait for bytes from the publisher; return False after ``timeout_s``. Raises
        ConnectionFailure if the connection is already lost."""
        return bool(wait(self.socket, select.POLLIN, timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Send libpq's buffered data, and read meanwhile so that neither side waits for ever."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.pgconn.flush():
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise ConnectionFailure("could not send data to the publisher: timeout expired")
            ready = wait(self.pgconn.socket, select.POLLIN | select.POLLOUT, remaining)
            if ready & select.POLLIN:
                self.pgconn.consume_input()

    def broken(self, text: str, prefix: str = "") -> ConnectionFailure:
        """Return the error for libpq's own report of a lost connection."""
        logger.debug("connection to %s lost: %s", self._conninfo, text)
        reason = re.sub(r"^[a-z ]+ failed: ", "", " ".join(text.split()))
        return ConnectionFailure(prefix + (reason or "connection to the publisher was lost"))

    def cancel(self) -> None:
        """Ask the server to end the running command; from any thread, errors ignored.

        This is libpq's non-blocking cancel. The older cancel would hold the interpreter lock until
        the server answers, and a server that hangs, or runs in this process, never does.
        """
        with contextlib.suppress(psycopg.Error):
            self._session.cancel_safe(timeout=_CANCEL_S)

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"Connection({str(self._conninfo)!r}, {state})"


_Session = psycopg.Connection[tuple[object, ...]]


def _open(conninfo: str, interrupt: Callable[[], None] | None) -> _Session:
    """Open a session. ``interrupt`` is called repeatedly meanwhile; if it raises, the attempt is
    left to itself. Raises psycopg.Error."""
    if interrupt is None:
        return psycopg.Connection.connect(conninfo, autocommit=True)
    attempt: Future[_Session] = Future()

    def run() -> None:
        try:
            session = psycopg.Connection.connect(conninfo, autocommit=True)
        except BaseException as error:
            if attempt.set_running_or_notify_cancel():
                attempt.set_exception(error)
        else:
            if attempt.set_running_or_notify_cancel():
                attempt.set_result(session)
            else:
                session.close()

    threading.Thread(target=run, name="connect", daemon=True).start()
    while True:
        try:
            return attempt.result(_INTERRUPT_S)
        except TimeoutError:
            pass
        try:
            interrupt()
        except BaseException:
            if not attempt.cancel():  # it has just ended
                attempt.add_done_callback(_close_session)
            raise


def _close_session(attempt: Future[_Session]) -> None:
    if attempt.exception() is None:
        attempt.result().close()


def wait(descriptor: int, events: int, timeout_s: float | None) -> int:
    """Return which of ``events`` (select.POLLIN, POLLOUT) the socket is ready for; 0 after the
    timeout.

    An error or a hang-up counts as both: the next read or write reports it.
    """
    poll = select.poll()
    poll.register(descriptor, events)
    ready = poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
    return (ready[0][1] & events) or events if ready else 0


def wait_any(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    """Return those of the descriptors that can be read, after ``timeout_s`` at the latest."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(timeout_s * 1000))}


def literal_list(names: Sequence[str]) -> str:
    return ", ".join(quote_literal(name) for name in names)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
