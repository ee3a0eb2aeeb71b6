"""The status that a worker reports while it runs (pg_stat_subscription, backend_status.c).

The worker's threads report to it, and the node stores a frozen snapshot of it about once a second.
The status is only reported, except that ``retry``'s count of failures in a row and the launcher's
patience with a connecting worker depend on it. ``WorkerActivity``, a Protocol that ``node``
implements, shows a worker as a session of pg_stat_activity.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Protocol

from penstock.catalog.pg_stat_subscription import (
    STREAMING,
    SubscriptionCounts,
    SubscriptionStatistics,
    TableStatistics,
)
from penstock.errors import InsertExists, PenstockError, UpdateExists
from penstock.lsn import Lsn
from penstock.pipeline.table_copy import CopyProgress
from penstock.relation import TableName
from penstock.subscription.apply import BatchOutcome
from penstock.subscription.held_snapshot import SnapshotHorizon
from penstock.subscription.target import Target

_NO_ERROR: Final[dict[str, Any]] = {
    "error": None,
    "error_detail": None,
    "error_hint": None,
}
_NO_TABLES: Final[Mapping[str, TableStatistics]] = MappingProxyType({})


class Heard(Protocol):
    """A source of changes, with the publisher's last known LSN and times. Times are microseconds
    since 1970, 0 while unknown."""

    @property
    def latest_end_lsn(self) -> Lsn: ...

    last_send_time_us: int
    last_receipt_time_us: int


class WorkerStatus:
    """A worker's status. The worker writes it, and anyone may read it."""

    def __init__(
        self, subid: int, count: Callable[[SubscriptionCounts], object] = lambda _: None
    ) -> None:
        """``count``: counts errors and conflicts when they occur; never raises."""
        self._count = count
        self._lock = threading.RLock()
        self._now = SubscriptionStatistics(subid, None, "starting", None)
        self._tables: dict[str, TableStatistics] = {}
        self._behind = False
        """True if a transaction waits to be applied, or has arrived only in part."""
        self.changed_at = time.time()
        """The time at which ``state`` or ``waiting`` changed last."""
        self._progressed = False

    def snapshot(self) -> SubscriptionStatistics:
        """Return all numbers of one moment; unknown numbers are None."""
        with self._lock:
            return replace(self._now, tables=tuple(self._tables.values()))

    def go_on_from(self, before: WorkerStatus) -> None:
        """Continue from the last status of another worker."""
        self._now = replace(before._now, state=self._now.state, waiting=True)
        self._tables, self._behind = before._tables, before._behind

    @property
    def state(self) -> str:
        """The worker's state, in words."""
        return self._now.state

    @state.setter
    def state(self, state: str) -> None:
        self._set(state=state)

    @property
    def waiting(self) -> bool:
        """True if changes wait to be applied."""
        return self._now.waiting

    def streaming(self, targets: Iterable[Target], cut: Lsn | None) -> None:
        """Note that the stream has begun: the publisher has answered."""
        self._set(self._changed(targets), state=STREAMING, cut_lsn=cut, publisher_at=time.time())

    def received(self, position: Lsn, source: Heard, behind: bool) -> None:
        """Note the publisher's LSNs and times. ``behind``: transactions wait to be applied."""
        changes: dict[str, Any] = {
            "received_lsn": position or None,
            "publisher_lsn": source.latest_end_lsn or None,
            "last_msg_receipt_time": _seconds(source.last_receipt_time_us),
            "last_msg_send_time": _seconds(source.last_send_time_us),
        }
        if behind != self._behind or any(
            getattr(self._now, name) != value for name, value in changes.items()
        ):
            self._behind = behind
            self._set(**changes)

    def applied(
        self,
        end_lsn: Lsn,
        commit_time: float,
        transactions: int,
        applied: BatchOutcome,
        targets: Iterable[Target],
    ) -> None:
        """Note that a batch is committed. ``commit_time``: its last transaction's, in seconds since
        1970."""
        self._progressed = True
        tables = {**self._tables, **self._changed(targets)}
        self._count_conflicts(applied)
        for outcome in applied.outcomes:
            if outcome.skipped is not None and (table := tables.get(outcome.table)):
                tables[outcome.table] = replace(
                    table,
                    update_missing=table.update_missing + outcome.skipped.update_missing,
                    delete_missing=table.delete_missing + outcome.skipped.delete_missing,
                )
        self._set(
            tables,
            applied_lsn=end_lsn,
            commit_time=commit_time,
            rows_applied=self._now.rows_applied + applied.rows,
            transactions_applied=self._now.transactions_applied + transactions,
            **self._lasting_error(),
        )
        if applied.cut is not None:
            self._set(cut_lsn=applied.cut, cut_time=time.time())

    def _count_conflicts(self, applied: BatchOutcome) -> None:
        """Count the conflicts that are not errors, and replaced out-of-range values."""
        differs = [each.differs for each in applied.outcomes if each.differs is not None]
        skipped = [outcome.skipped for outcome in applied.outcomes if outcome.skipped is not None]
        resolved = [out.resolved for out in applied.outcomes if out.resolved is not None]
        if skipped or resolved or differs or applied.replaced:
            self._count(
                SubscriptionCounts(
                    confl_update_missing=sum(each.update_missing for each in skipped),
                    confl_delete_missing=sum(each.delete_missing for each in skipped),
                    confl_insert_exists=sum(each.insert_exists for each in resolved),
                    confl_update_exists=sum(each.update_exists for each in resolved),
                    confl_update_origin_differs=sum(each.updates for each in differs),
                    confl_delete_origin_differs=sum(each.deletes for each in differs),
                    values_out_of_range=applied.replaced,
                )
            )

    def cut(self, lsn: Lsn, targets: Iterable[Target]) -> None:
        """Note a cut without changes."""
        self._progressed = True
        now = time.time()
        self._set(self._changed(targets), cut_lsn=lsn, cut_time=now, **self._lasting_error())

    def healed(self) -> None:
        """Note that the stream goes on and there is nothing to apply or to cut."""
        if self._now.error is not None:
            self._set(**self._lasting_error())

    def copying(self, copy: CopyProgress) -> None:
        """Note the progress of a table's copy."""
        with self._lock:
            after = replace(
                self._tables.get(copy.table) or TableStatistics(copy.table),
                rows_copied=copy.rows,
                bytes_copied=copy.bytes,
                bytes_total=copy.bytes_total,
                units_copied=copy.units,
                units_total=copy.units_total,
            )
            self._set({copy.table: after})

    def holding(self, held: SnapshotHorizon | None) -> None:
        """Note the xmin horizon that a copy holds back at the publisher; None if none does."""
        self._set(
            copy_snapshot_at=held and held.since,
            copy_snapshot_xmin=held and held.xmin,
            copy_retained_bytes=held and held.retained_bytes,
        )

    def copy_failed(self, table: str, error: BaseException) -> None:
        """Note that a table's copy has failed. The error stays with the table and the subscription
        until ``only_failed`` leaves the table out."""
        self._count(SubscriptionCounts(sync_error_count=1))
        with self._lock:
            before = self._tables.get(table) or TableStatistics(table)
            self._set(
                {table: replace(before, **_fields(error))},
                error_count=self._now.error_count + 1,
                **_fields(error),
            )

    def only_failed(self, tables: Collection[str]) -> None:
        """Clear the errors of all other tables: they are copied or gone."""
        with self._lock:
            healed = {
                name: table
                for name, table in self._tables.items()
                if table.error is not None and name not in tables
            }
            shown = {table.error for table in healed.values()}
            self._set({name: replace(table, **_NO_ERROR) for name, table in healed.items()})
            if self._now.error in shown:
                self._set(**self._lasting_error())

    def failed(self, error: BaseException) -> None:
        """Note that the session has ended with an error."""
        self._set(error_count=self._now.error_count + 1, **_fields(error))
        self._count(
            SubscriptionCounts(
                apply_error_count=1,
                confl_insert_exists=int(isinstance(error, InsertExists)),
                confl_update_exists=int(isinstance(error, UpdateExists)),
            )
        )

    def _lasting_error(self) -> dict[str, Any]:
        """Return a failed copy's error, which stays while the stream goes on."""
        for table in self._tables.values():
            if table.error is not None:
                return {name: getattr(table, name) for name in _NO_ERROR}
        return _NO_ERROR

    def progressed_since_failure(self) -> bool:
        """Return whether anything was applied or cut since the last call."""
        progressed, self._progressed = self._progressed, False
        return progressed

    def _changed(self, targets: Iterable[Target]) -> dict[str, TableStatistics]:
        """Return the numbers of the tables that have changed."""
        found: dict[str, TableStatistics] = {}
        for t in targets:
            name = t.rel.qualified_name
            known = self._tables.get(name)
            now = t.rows_applied, t.table.version
            if known is None or (known.rows_applied, known.version) != now:
                found[name] = replace(
                    known or TableStatistics(name),
                    rows_applied=t.rows_applied,
                    version=t.table.version,
                    unfilled=t.table.unfilled,
                )
        return found

    def _set(
        self, tables: Mapping[str, TableStatistics] = MappingProxyType({}), **changes: Any
    ) -> None:
        with self._lock:
            before = self._now
            waiting = changes.get("state", before.state) != STREAMING or self._behind
            self._now = now = replace(before, waiting=waiting, **changes)
            if tables:
                self._tables = {**self._tables, **tables}
            if (now.state, now.waiting) != (before.state, before.waiting):
                self.changed_at = time.time()


def _seconds(microseconds: int) -> float | None:
    return microseconds / 1e6 if microseconds else None


def _fields(error: BaseException) -> dict[str, Any]:
    if isinstance(error, PenstockError):
        return {"error": error.message, "error_detail": error.detail, "error_hint": error.hint}
    return {**_NO_ERROR, "error": str(error)}


class WorkerActivity(Protocol):
    """The workers of one subscription as sessions of pg_stat_activity.

    Each context stands for a worker of PostgreSQL from its start to its end, and yields the
    worker's pid. ``end``: makes the worker end; may be called from any thread.
    """

    def apply(
        self, status: WorkerStatus, end: Callable[[], None]
    ) -> AbstractContextManager[int]: ...

    def copies(
        self, tables: Sequence[TableName], end: Callable[[], None]
    ) -> AbstractContextManager[int]:
        """Show the worker that copies these tables together."""
