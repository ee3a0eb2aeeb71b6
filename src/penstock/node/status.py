"""The state of every subscription of a node, for ``penstock status`` and the library.

In: rows of the catalog and the numbers that a running node has written there. Out: frozen values,
and one JSON form of them. Nothing here asks the publisher: what a stopped node knew last is shown
as such.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_stat_subscription import SubscriptionStatistics, TableStatistics
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table. ``state``: i, d, f, s, r as in pg_subscription_rel, p: parked; ``lsn``: its
    srsublsn.

    ``error``: why it is parked, or why its copy, which is tried again and again, has failed last.
    ``update_missing``, ``delete_missing``: changes skipped because their rows are not there.
    """

    name: str
    state: str
    lsn: Lsn | None
    rows_copied: int = 0
    units_copied: int = 0
    units_total: int = 0
    rows_applied: int = 0
    version: int | None = None
    update_missing: int = 0
    delete_missing: int = 0
    error: str | None = None
    error_detail: str | None = None
    error_hint: str | None = None

    @property
    def ready(self) -> bool:
        """Whether it follows, and is part of the cuts."""
        return self.state == SubscriptionRelState.READY.value

    @property
    def parked(self) -> bool:
        """Whether an error of its own keeps it out of the cuts."""
        return self.state == SubscriptionRelState.PARKED.value


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """One subscription. ``state``: what the worker does, or disabled, stopped, not running.

    ``lag_bytes``: from the last cut to the publisher's position that was told last.
    ``lag_seconds``: how old the newest transaction in a cut is while others wait, 0 when none
    waits. ``retained_wal_bytes``: what the slot keeps on the publisher.
    """

    name: str
    enabled: bool
    state: str
    publications: tuple[str, ...]
    slot_name: str | None
    received_lsn: Lsn | None
    applied_lsn: Lsn | None
    cut_lsn: Lsn | None
    publisher_lsn: Lsn | None
    lag_bytes: int | None
    lag_seconds: float | None
    rows_applied: int
    rows_per_second: float
    retained_wal_bytes: int | None
    transactions_applied: int
    error_count: int
    error: str | None
    error_detail: str | None
    error_hint: str | None
    updated_at: float | None
    tables: tuple[TableStatus, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether an error has stopped it for good."""
        return self.state == "stopped" and self.error is not None


def as_json(subscriptions: Sequence[SubscriptionStatus]) -> list[dict[str, Any]]:
    """LSNs as text, everything else as it is."""

    def plain(value: Any) -> Any:
        if isinstance(value, Lsn):
            return str(value)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    return [plain(dataclasses.asdict(subscription)) for subscription in subscriptions]


def read_status(catalog: Catalog, *, running: bool) -> list[SubscriptionStatus]:
    """Every subscription in the order of creation. ``running``: whether a process runs the node."""
    with catalog.read() as transaction:
        subscriptions = transaction.subscriptions.all()
        rels = transaction.relations.all()
    numbers = catalog.statistics.all()
    return [
        _status(s, [r for r in rels if r.subid == s.oid], numbers.get(s.oid), running)
        for s in subscriptions
    ]


def _status(
    subscription: Subscription,
    rels: Sequence[SubscriptionRel],
    numbers: SubscriptionStatistics | None,
    running: bool,
) -> SubscriptionStatus:
    error = subscription.error
    now = numbers or SubscriptionStatistics(subscription.oid, None, "", 0.0)
    tables = {table.name: table for table in now.tables}
    return SubscriptionStatus(
        name=subscription.name,
        enabled=subscription.enabled,
        state=_state(subscription, numbers, running),
        publications=subscription.publications,
        slot_name=subscription.slot_name,
        received_lsn=now.received_lsn,
        applied_lsn=now.applied_lsn,
        cut_lsn=now.cut_lsn,
        publisher_lsn=now.publisher_lsn,
        lag_bytes=now.lag_bytes,
        lag_seconds=now.lag_seconds,
        rows_applied=now.rows_applied,
        rows_per_second=now.rows_per_second if running else 0.0,
        retained_wal_bytes=now.retained_bytes,
        transactions_applied=now.transactions_applied,
        error_count=now.error_count,
        error=error.message if error else now.error,
        error_detail=error.detail if error else now.error_detail,
        error_hint=error.hint if error else now.error_hint,
        updated_at=now.updated_at or None,
        tables=tuple(_table(rel, tables.get(rel.qualified_name)) for rel in rels),
    )


def _state(
    subscription: Subscription, numbers: SubscriptionStatistics | None, running: bool
) -> str:
    if subscription.stopped:
        return "stopped"
    if not subscription.enabled:
        return "disabled"
    if not running:
        return "not running"
    # A worker's last word outlives it: after ENABLE it is the next one's turn.
    return numbers.state if numbers is not None and numbers.state != "stopped" else "starting"


def _table(rel: SubscriptionRel, numbers: TableStatistics | None) -> TableStatus:
    now, parked = numbers or TableStatistics(rel.qualified_name), rel.error
    return TableStatus(
        name=rel.qualified_name,
        state=rel.state.value,
        lsn=rel.lsn,
        rows_copied=now.rows_copied,
        units_copied=now.units_copied,
        units_total=now.units_total,
        rows_applied=now.rows_applied,
        version=now.version,
        error=now.error if parked is None else parked.message,
        error_detail=now.error_detail if parked is None else parked.detail,
        error_hint=now.error_hint if parked is None else parked.hint,
        update_missing=now.update_missing,
        delete_missing=now.delete_missing,
    )
