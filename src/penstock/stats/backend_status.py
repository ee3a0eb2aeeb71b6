"""The sessions of a node and what each does now (backend_status.c, procarray.c).

In: sessions, and workers of subscriptions, as they begin, work and end. Out: their pids, their
states, for pg_stat_activity, and a way to cancel or end one from another. Who may see or end what
is left to ``session_views`` and ``signal_functions``.
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
"""Bytes of a query that are kept (track_activity_query_size, without its zero)."""
_STATES: Final = {
    TransactionStatus.IDLE: IDLE,
    TransactionStatus.IN_TRANSACTION: "idle in transaction",
    TransactionStatus.FAILED: "idle in transaction (aborted)",
}
_WITH_SECRETS: Final = re.compile(r"\b(create|alter)\s+(role|user|group|subscription)\b", re.I)
_SECRET: Final = re.compile(r"pass|connection|://|['$]", re.I)
_HIDDEN: Final = "..."


class BackendType(Enum):
    """What a pid stands for, in the words of PostgreSQL 17."""

    CLIENT = "client backend"
    WALSENDER = "walsender"
    APPLY = "logical replication apply worker"
    TABLESYNC = "logical replication tablesync worker"


@dataclass(frozen=True, slots=True)
class Activity:
    """A session now. Times are seconds since 1970; ``query``: the running one, or the last.

    ``role``: its oid. ``database``: "" for a physical walsender. ``address``, ``port``: None for a
    worker, as ``state`` is before it has a stream; ``subscription``: its oid, and ``tables`` those
    that it copies.
    """

    pid: int
    role: int
    database: str
    application_name: str
    address: str | None
    port: int | None
    backend_type: BackendType
    started: float
    state: str | None = ACTIVE
    state_changed: float = 0.0
    query: str = ""
    query_started: float | None = None
    transaction_started: float | None = None
    subscription: int | None = None
    tables: tuple[TableName, ...] = ()


@dataclass(slots=True)
class Session:
    """What others know of a session. ``cancel``, ``terminate``, ``look``: from any thread; the last
    brings what is known up to date."""

    activity: Activity
    cancel: Callable[[], None]
    terminate: Callable[[], None]
    look: Callable[[Activity], Activity] = lambda activity: activity
    ended: threading.Event = field(default_factory=threading.Event)

    def runs(self, query: str, *, transaction: bool = True) -> None:
        """A statement begins; replication commands do so without a ``transaction``."""
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
        """It is the client's turn."""
        began = self.activity.transaction_started
        self.activity = replace(
            self.activity,
            state=_STATES[status],
            state_changed=time.time(),
            transaction_started=began if status is TransactionStatus.IN_TRANSACTION else None,
        )


class Sessions:
    """All that have logged in, and the workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids = itertools.count(1)
        self._open: dict[int, Session] = {}

    def next_pid(self) -> int:
        """One that no other has had since the node started."""
        return next(self._pids)

    def open(self, session: Session) -> Session:
        """One more."""
        with self._lock:
            self._open[session.activity.pid] = session
        return session

    def close(self, session: Session) -> None:
        """It is over."""
        with self._lock:
            self._open.pop(session.activity.pid, None)
        session.ended.set()

    def find(self, pid: int) -> Session | None:
        """The session of a pid."""
        with self._lock:
            return self._open.get(pid)

    def transaction_started(self, pid: int) -> datetime:
        """When a session's transaction began (GetCurrentTransactionStartTimestamp), in UTC."""
        session = self.find(pid)
        return _moment(None if session is None else session.activity.transaction_started)

    def statement_started(self, pid: int) -> datetime:
        """When its statement came (GetCurrentStatementStartTimestamp), in UTC."""
        session = self.find(pid)
        return _moment(None if session is None else session.activity.query_started)

    def name(self, pid: int, application_name: str) -> None:
        """A session has another application_name now."""
        session = self.find(pid)
        if session is not None:
            session.activity = replace(session.activity, application_name=application_name)

    def all(self) -> tuple[Activity, ...]:
        """Every session, by pid."""
        with self._lock:
            found = [self._open[pid] for pid in sorted(self._open)]
        return tuple(session.look(session.activity) for session in found)


def shown_query(text: str) -> str:
    """As much of a query as is kept; one with a password ends before it (law 9)."""
    command = _WITH_SECRETS.search(text)
    if command is not None:
        secret = _SECRET.search(text, command.end())
        if secret is not None:
            text = text[: secret.start()] + _HIDDEN
    return text.encode(errors="replace")[:_QUERY_SIZE].decode(errors="ignore")


def _moment(began: float | None) -> datetime:
    return datetime.fromtimestamp(time.time() if began is None else began, UTC)
