"""Workers of subscriptions among the sessions of the port (pg_stat_activity).

In: workers as they begin and end, and what they tell of themselves. Out: sessions of their own,
with pids, which ``pg_terminate_backend`` ends: the next worker begins at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from penstock.catalog.pg_stat_subscription import STREAMING
from penstock.pg_catalog.snapshot import NODE_OWNER
from penstock.relation import TableName
from penstock.stats.backend_status import ACTIVE, IDLE, Activity, BackendType, Session, Sessions
from penstock.subscription.worker_status import WorkerSnapshot, WorkerStatus

_NO_NAME: Final = ""
"""A worker's application_name; it has one at its publisher."""


@dataclass(frozen=True, slots=True)
class ShownWorkers:
    """``subscription.worker_status.Shown``. ``subid``: the subscription's oid; ``owner``: its
    owner's when a worker begins, None for the node itself."""

    sessions: Sessions
    database: str
    subid: int
    owner: Callable[[], int | None] = lambda: None

    @contextmanager
    def apply(self, status: WorkerStatus, end: Callable[[], None]) -> Iterator[int]:
        """The apply worker."""
        session = self._session(BackendType.APPLY, end)
        session.look = lambda activity: _now(activity, status.snapshot())
        with self._open(session) as pid:
            yield pid

    @contextmanager
    def copies(self, tables: Sequence[TableName], end: Callable[[], None]) -> Iterator[int]:
        """The worker that copies tables."""
        session = self._session(BackendType.TABLESYNC, end)
        session.activity = replace(session.activity, tables=tuple(tables))
        with self._open(session) as pid:
            yield pid

    def _session(self, backend_type: BackendType, end: Callable[[], None]) -> Session:
        owner = self.owner()
        activity = Activity(
            pid=self.sessions.next_pid(),
            role=NODE_OWNER if owner is None else owner,
            database=self.database,
            application_name=_NO_NAME,
            address=None,
            port=None,
            backend_type=backend_type,
            started=time.time(),
            state=None,
            subscription=self.subid,
        )
        # A server's worker that is cancelled ends, too, with an error.
        return Session(activity, cancel=end, terminate=end)

    @contextmanager
    def _open(self, session: Session) -> Iterator[int]:
        self.sessions.open(session)
        try:
            yield session.activity.pid
        finally:
            self.sessions.close(session)


def _now(activity: Activity, worker: WorkerSnapshot) -> Activity:
    """Without a state before it streams, as on a server."""
    if worker.state != STREAMING:
        return replace(activity, state=None)
    state = ACTIVE if worker.transactions_behind else IDLE
    return replace(activity, state=state, state_changed=worker.changed_at)
