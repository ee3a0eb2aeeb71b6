"""The status that a worker reports while it runs (pg_stat_subscription, backend_status.c).

In: calls from the worker's threads. Out: a frozen snapshot at any time, which the node writes down
about once a second. It is for reports: only ``retry``'s count of failures in a row and the
launcher's patience with a worker that connects depend on it. ``Shown``, a Protocol that ``node``
fulfils, shows a worker as a session of pg_stat_activity.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from penstock.catalog.pg_stat_subscription import STREAMING
from penstock.catalog.pg_stat_subscription_stats import SubscriptionCounts
from penstock.errors import InsertExists, PenstockError, UpdateExists
from penstock.lsn import INVALID, Lsn
from penstock.pipeline.snapshot import CopyProgress
from penstock.relation import TableName
from penstock.subscription.apply import Applied
from penstock.subscription.held_snapshot import Held
from penstock.subscription.target import Target

_NO_ERROR: Final[dict[str, Any]] = {
    "error": None,
    "error_detail": None,
    "error_hint": None,
}


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Hold the numbers of one table.

    ``bytes_copied`` of ``bytes_total`` of the publisher's heap are copied, and ``units_copied`` of
    ``units_total``. ``error``: the error of its last copy. ``update_missing``, ``delete_missing``:
    changes that were skipped because their rows are not there.
    """

    name: str
    rows_copied: int = 0
    bytes_copied: int = 0
    bytes_total: int = 0
    units_copied: int = 0
    units_total: int = 0
    rows_applied: int = 0
    version: int | None = None
    error: str | None = None
    error_detail: str | None = None
    error_hint: str | None = None
    update_missing: int = 0
    delete_missing: int = 0
    unfilled: tuple[str, ...] = ()
    """Columns in which rows from before they were added lack the publisher's values."""


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """Hold a worker's status. LSNs are 0/0 while unknown; times are seconds since 1970."""

    subscription: str
    state: str
    received_lsn: Lsn
    applied_lsn: Lsn
    cut_lsn: Lsn
    publisher_lsn: Lsn
    commit_time: float | None
    """Commit time of the newest transaction in a cut."""
    cut_time: float | None
    rows_applied: int
    transactions_behind: bool
    """True if a transaction waits to be applied, or has arrived only in part."""
    changed_at: float = field(default_factory=time.time)
    """Time at which ``state`` or ``transactions_behind`` changed last."""
    heard_at: float | None = None
    """Time at which the publisher's last message came."""
    sent_at: float | None = None
    """Time at which that message was sent, by the publisher's clock."""
    transactions_applied: int = 0
    error_count: int = 0
    error: str | None = None
    error_detail: str | None = None
    error_hint: str | None = None
    tables: dict[str, TableCounts] = field(default_factory=dict)
    held: Held | None = None
    """The WAL and dead rows that the snapshot of a running copy holds back at the publisher."""


class Heard(Protocol):
    """A source of changes, with what it knows of the publisher. Times are microseconds since 1970,
    0 while unknown."""

    @property
    def latest_end_lsn(self) -> Lsn: ...

    last_send_time_us: int
    last_receipt_time_us: int


class WorkerStatus:
    """Collect a worker's status. The worker writes it, and anyone may read it."""

    def __init__(
        self, subscription: str, count: Callable[[SubscriptionCounts], object] = lambda _: None
    ) -> None:
        """``count``: counts errors and conflicts as they come up; never raises."""
        self._count = count
        self._lock = threading.Lock()
        self._now = WorkerSnapshot(
            subscription=subscription,
            state="starting",
            received_lsn=INVALID,
            applied_lsn=INVALID,
            cut_lsn=INVALID,
            publisher_lsn=INVALID,
            commit_time=None,
            cut_time=None,
            rows_applied=0,
            transactions_behind=False,
        )
        self._progressed = False

    def snapshot(self) -> WorkerSnapshot:
        """Return all numbers at one moment."""
        with self._lock:
            return self._now

    def go_on_from(self, before: WorkerSnapshot) -> None:
        """Continue from the last status of another worker."""
        self._now = replace(before, state=self._now.state, changed_at=self._now.changed_at)

    @property
    def state(self) -> str:
        """The worker's state, in words."""
        return self.snapshot().state

    @state.setter
    def state(self, state: str) -> None:
        self._set(state=state)

    def streaming(self, targets: Iterable[Target], cut: Lsn | None) -> None:
        """Note that the stream has begun."""
        tables = {**self.snapshot().tables, **self._tables(targets)}
        self._set(state=STREAMING, tables=tables, cut_lsn=cut or INVALID)

    def received(self, position: Lsn, source: Heard, behind: bool) -> None:
        """Note positions and times of the publisher. ``behind``: transactions wait to be
        applied."""
        changes = {
            "received_lsn": position,
            "publisher_lsn": source.latest_end_lsn,
            "transactions_behind": behind,
            "heard_at": _seconds(source.last_receipt_time_us),
            "sent_at": _seconds(source.last_send_time_us),
        }
        if any(getattr(self._now, name) != value for name, value in changes.items()):
            self._set(**changes)

    def applied(
        self,
        end_lsn: Lsn,
        commit_time: float,
        transactions: int,
        applied: Applied,
        targets: Iterable[Target],
    ) -> None:
        """Note that a batch is committed. ``commit_time``: that of its last transaction, in seconds
        since 1970."""
        self._progressed = True
        tables = {**self.snapshot().tables, **self._tables(targets)}
        self._count_conflicts(applied)
        for outcome in applied.outcomes:
            if outcome.skipped is not None and (table := tables.get(outcome.table)):
                tables[outcome.table] = replace(
                    table,
                    update_missing=table.update_missing + outcome.skipped.update_missing,
                    delete_missing=table.delete_missing + outcome.skipped.delete_missing,
                )
        self._set(
            applied_lsn=end_lsn,
            commit_time=commit_time,
            rows_applied=self._now.rows_applied + applied.rows,
            transactions_applied=self._now.transactions_applied + transactions,
            tables=tables,
            **self._lasting_error(),
        )
        if applied.cut is not None:
            self._set(cut_lsn=applied.cut, cut_time=time.time())

    def _count_conflicts(self, applied: Applied) -> None:
        """Count the conflicts that are no errors, and the values that were replaced because they
        were out of range."""
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
        tables = {**self.snapshot().tables, **self._tables(targets)}
        self._set(cut_lsn=lsn, cut_time=time.time(), tables=tables, **self._lasting_error())

    def copying(self, copy: CopyProgress) -> None:
        """Note the progress of a table's copy."""
        with self._lock:
            before = self._now.tables.get(copy.table) or TableCounts(copy.table)
            after = replace(
                before,
                rows_copied=copy.rows,
                bytes_copied=copy.bytes,
                bytes_total=copy.bytes_total,
                units_copied=copy.units,
                units_total=copy.units_total,
            )
            self._now = replace(self._now, tables={**self._now.tables, copy.table: after})

    def holding(self, held: Held | None) -> None:
        """Note what a copy holds back at the publisher; None: nothing."""
        self._set(held=held)

    def copy_failed(self, table: str, error: BaseException) -> None:
        """Note that a table's copy has failed. The error stays with the table and the subscription
        until ``only_failed`` leaves the table out."""
        self._count(SubscriptionCounts(sync_error_count=1))
        with self._lock:
            before = self._now.tables.get(table) or TableCounts(table)
            self._now = replace(
                self._now,
                tables={**self._now.tables, table: replace(before, **_fields(error))},
                error_count=self._now.error_count + 1,
                **_fields(error),
            )

    def only_failed(self, tables: Collection[str]) -> None:
        """Clear the errors of all tables but these: the others are copied, or gone."""
        with self._lock:
            healed = {
                name: replace(table, **_NO_ERROR)
                for name, table in self._now.tables.items()
                if table.error is not None and name not in tables
            }
            shown = {self._now.tables[name].error for name in healed}
            self._now = replace(self._now, tables={**self._now.tables, **healed})
            if self._now.error in shown:
                self._now = replace(self._now, **self._lasting_error())

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
        """Return the error that stays when the stream goes on: that of a table that is not
        copied."""
        for table in self._now.tables.values():
            if table.error is not None:
                return {name: getattr(table, name) for name in _NO_ERROR}
        return _NO_ERROR

    def progressed_since_failure(self) -> bool:
        """Tell whether anything was applied or cut since the last call."""
        progressed, self._progressed = self._progressed, False
        return progressed

    def _tables(self, targets: Iterable[Target]) -> dict[str, TableCounts]:
        """Return the numbers of the tables that have changed."""
        tables = self.snapshot().tables
        found: dict[str, TableCounts] = {}
        for t in targets:
            name = t.rel.qualified_name
            known = tables.get(name)
            now = t.rows_applied, t.table.version
            if known is None or (known.rows_applied, known.version) != now:
                found[name] = replace(
                    known or TableCounts(name),
                    rows_applied=t.rows_applied,
                    version=t.table.version,
                    unfilled=t.table.unfilled,
                )
        return found

    def _set(self, **changes: object) -> None:
        with self._lock:
            before = self._now
            self._now = replace(before, **changes)  # type: ignore[arg-type]
            if _doing(self._now) != _doing(before):
                self._now = replace(self._now, changed_at=time.time())


def _doing(snapshot: WorkerSnapshot) -> tuple[str, bool]:
    return snapshot.state, snapshot.transactions_behind


def _seconds(microseconds: int) -> float | None:
    return microseconds / 1e6 if microseconds else None


def _fields(error: BaseException) -> dict[str, Any]:
    if isinstance(error, PenstockError):
        return {"error": error.message, "error_detail": error.detail, "error_hint": error.hint}
    return {**_NO_ERROR, "error": str(error)}


class Shown(Protocol):
    """Show the workers of one subscription in pg_stat_activity.

    Each context stands for a worker of PostgreSQL from its start to its end, and yields its pid.
    ``end`` makes the worker end; it is called from any thread.
    """

    def apply(
        self, status: WorkerStatus, end: Callable[[], None]
    ) -> AbstractContextManager[int]: ...

    def copies(
        self, tables: Sequence[TableName], end: Callable[[], None]
    ) -> AbstractContextManager[int]:
        """Show the worker that copies these tables together."""
