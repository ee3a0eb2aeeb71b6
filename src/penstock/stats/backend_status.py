"""The sessions of a node and their present activities (backend_status.c, procarray.c).

Sessions, and workers of subscriptions, report here when they begin, work and end. pg_stat_activity
shows their pids and states, and one session can cancel or end another. ``pg_catalog.node_catalogs``
decides which sessions a role may see or end.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from penstock.protocol.backend_messages import TransactionStatus
from penstock.relation import TableName

ACTIVE: Final = "active"
IDLE: Final = "idle"
_QUERY_SIZE: Final = 1023
"""Bytes kept of a query (track_activity_query_size without the terminating zero)."""
_STATES: Final = {
    TransactionStatus.IDLE: IDLE,
    TransactionStatus.IN_TRANSACTION: "idle in transaction",
    TransactionStatus.FAILED: "idle in transaction (aborted)",
}
_WITH_SECRETS: Final = re.compile(r"\b(create|alter)\s+(role|user|group|subscription)\b", re.I)
_SECRET: Final = re.compile(r"pass|connection|://|['$]", re.I)
_HIDDEN: Final = "..."


class BackendType(Enum):
    """The kind of a session or worker, in the words of PostgreSQL 17."""

    CLIENT = "client backend"
    WALSENDER = "walsender"
    APPLY = "logical replication apply worker"
    TABLESYNC = "logical replication tablesync worker"


@dataclass(frozen=True, slots=True)
class Encryption:
    """The TLS of a connection, as pg_stat_ssl shows it. ``alpn``: the client has named the protocol
    that it speaks."""

    version: str
    cipher: str
    bits: int
    alpn: bool


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of a session now. Times are seconds since 1970.

    ``query`` is the running query, or the last query. ``role`` and ``subscription`` are oids;
    ``tables`` are the tables that a worker copies. ``database`` is "" for a physical walsender.
    ``address`` and ``port`` are None for a worker, ``state`` is None until a worker has a stream.
    ``waits_for_turn``: the statement waits because others of its role run.
    """

    pid: int
    role: int
    database: str
    application_name: str
    address: str | None
    port: int | None
    backend_type: BackendType
    started: float
    encryption: Encryption | None = None
    state: str | None = ACTIVE
    state_changed: float = 0.0
    query: str = ""
    query_started: float | None = None
    transaction_started: float | None = None
    subscription: int | None = None
    tables: tuple[TableName, ...] = ()
    waits_for_turn: bool = False


@dataclass(slots=True)
class Session:
    """The part of a session that other sessions know. ``cancel``, ``terminate`` and ``look`` may be
    called from any thread; ``look`` returns the activity brought up to date."""

    activity: Activity
    cancel: Callable[[], None]
    terminate: Callable[[], None]
    look: Callable[[Activity], Activity] = lambda activity: activity
    ended: threading.Event = field(default_factory=threading.Event)

    def runs(self, query: str, *, transaction: bool = True) -> None:
        """Record that a statement begins; ``transaction`` is False for replication commands."""
        now = time.time()
        began = self.activity.transaction_started or (now if transaction else None)
        self.activity = replace(
            self.activity,
            state=ACTIVE,
            state_changed=now,
            query=shown_query(query),
            query_started=now,
            transaction_started=began,
        )

    def waits(self, status: TransactionStatus) -> None:
        """Record that the session waits for its client."""
        began = self.activity.transaction_started
        self.activity = replace(
            self.activity,
            state=_STATES[status],
            state_changed=time.time(),
            transaction_started=began if status is TransactionStatus.IN_TRANSACTION else None,
        )


class Sessions:
    """All sessions that have logged in, and the workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids = itertools.count(1)
        self._open: dict[int, Session] = {}

    def next_pid(self) -> int:
        """Return a pid that no session has had since the node started."""
        return next(self._pids)

    def open(self, session: Session) -> Session:
        """Add a session."""
        with self._lock:
            self._open[session.activity.pid] = session
        return session

    def close(self, session: Session) -> None:
        """Remove a session that is over."""
        with self._lock:
            self._open.pop(session.activity.pid, None)
        session.ended.set()

    def find(self, pid: int) -> Session | None:
        """Return the session with a pid, or None."""
        with self._lock:
            return self._open.get(pid)

    def transaction_started(self, pid: int) -> datetime:
        """Return when a session's transaction began, in UTC; now if no transaction is open
        (GetCurrentTransactionStartTimestamp)."""
        session = self.find(pid)
        return _moment(None if session is None else session.activity.transaction_started)

    def statement_started(self, pid: int) -> datetime:
        """Return when a session's statement arrived, in UTC; now if there was no statement
        (GetCurrentStatementStartTimestamp)."""
        session = self.find(pid)
        return _moment(None if session is None else session.activity.query_started)

    def name(self, pid: int, application_name: str) -> None:
        """Change a session's application_name."""
        session = self.find(pid)
        if session is not None:
            session.activity = replace(session.activity, application_name=application_name)

    def all(self) -> tuple[Activity, ...]:
        """Return the activity of every session, in the order of pids."""
        with self._lock:
            found = [self._open[pid] for pid in sorted(self._open)]
        return tuple(session.look(session.activity) for session in found)


def shown_query(text: str) -> str:
    """Return as much of a query as is shown, cut off before a password (law 9)."""
    command = _WITH_SECRETS.search(text)
    if command is not None:
        secret = _SECRET.search(text, command.end())
        if secret is not None:
            text = text[: secret.start()] + _HIDDEN
    return text.encode(errors="replace")[:_QUERY_SIZE].decode(errors="ignore")


def _moment(began: float | None) -> datetime:
    return datetime.fromtimestamp(time.time() if began is None else began, UTC)
