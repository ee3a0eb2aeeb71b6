"""Where a subscription's workers are seen while they work (pg_stat_activity).

In: nothing. Out: the Protocol that ``node`` fulfils.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from penstock.relation import TableName
from penstock.subscription.worker_status import WorkerStatus


class Shown(Protocol):
    """One subscription's. Each context is a worker of PostgreSQL, from its start to its end, and
    yields the pid that stands for it; ``end`` makes it end, from any thread."""

    def apply(
        self, status: WorkerStatus, end: Callable[[], None]
    ) -> AbstractContextManager[int]: ...

    def copies(
        self, tables: Sequence[TableName], end: Callable[[], None]
    ) -> AbstractContextManager[int]:
        """Tables that are copied together."""
