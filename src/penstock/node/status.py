"""The state of every subscription of a node, for ``penstock status`` and the library.

In: rows of the catalog, the numbers that a running node has written there, and answers of
publishers if no node asks them. Out: frozen values that are true now, and one JSON form of them;
unknown values are None.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_stat_subscription import (
    STREAMING,
    SubscriptionStatistics,
    TableStatistics,
)
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.verifications import TableVerification
from penstock.lsn import Lsn
from penstock.node.reports import NO_WORKER, nothing_known, with_told
from penstock.node.slot_watch import Told
from penstock.walreceiver.slots import LOST, MISSING


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table. ``state``: i, d, f, s, r as in pg_subscription_rel, p: parked; ``lsn``: its
    srsublsn. ``bytes_copied``, ``bytes_total``: bytes of the publisher's heap, in whole units.

    ``error``: why it is parked, or why its copy, which is retried, has failed last.
    ``update_missing``, ``delete_missing``: changes that were skipped because their rows are
    missing. ``unfilled``: columns in which rows from before they were added lack the publisher's
    values. ``verify_result``: the result of the last comparison in the background;
    ``verified_seconds``: seconds since the start of the last one that found the whole table equal.
    """

    name: str
    state: str
    lsn: Lsn | None
    rows_copied: int = 0
    bytes_copied: int = 0
    bytes_total: int = 0
    units_copied: int = 0
    units_total: int = 0
    rows_applied: int = 0
    version: int | None = None
    update_missing: int = 0
    delete_missing: int = 0
    unfilled: tuple[str, ...] = ()
    error: str | None = None
    error_detail: str | None = None
    error_hint: str | None = None
    verify_result: str | None = None
    verified_seconds: float | None = None

    @property
    def ready(self) -> bool:
        """Tell whether it follows, and is part of the cuts."""
        return self.state == SubscriptionRelState.READY.value

    @property
    def parked(self) -> bool:
        """Tell whether an error of its own keeps it out of the cuts."""
        return self.state == SubscriptionRelState.PARKED.value


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """One subscription. ``state``: the worker's activity, or disabled, stopped, not running.

    ``lag_bytes``: bytes from the last cut to the publisher's position. ``lag_seconds``: seconds by
    which readers are behind at most; 0 while it streams and nothing waits, else the time since a
    cut last was known to have everything. ``cut_age_seconds``: seconds since the last cut was
    written, even if there was nothing to write since. ``publisher_age_seconds``: seconds since the
    publisher was last heard. ``retained_wal_bytes``: WAL that the slot keeps on the publisher;
    ``wal_status``: whether it still has all of it, as in pg_replication_slots, or ``missing``.
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
    cut_age_seconds: float | None
    publisher_age_seconds: float | None
    retained_wal_bytes: int | None
    wal_status: str | None
    transactions_applied: int
    error_count: int
    error: str | None
    error_detail: str | None
    error_hint: str | None
    updated_at: float | None
    tables: tuple[TableStatus, ...] = ()

    @property
    def stopped(self) -> bool:
        """Tell whether an error has stopped it for good."""
        return self.state == "stopped" and self.error is not None

    @property
    def needs_a_person(self) -> bool:
        """Tell whether it, or one of its tables, does not go on by itself."""
        parked = any(table.parked for table in self.tables)
        return self.stopped or parked or self.wal_status in SLOT_GONE


class Health(IntEnum):
    """The health of a node, for scripts: the exit status of ``penstock status``."""

    FOLLOWS = 0
    NOT_RUNNING = 3
    NEEDS_A_PERSON = 4
    TRIES_AGAIN = 5


_AT_WORK: Final = (STREAMING, "copying")
SLOT_GONE: Final = (LOST, MISSING)


def health(subscriptions: Iterable[SubscriptionStatus], *, running: bool) -> Health:
    """Return the worst health of all subscriptions that are enabled, or were until an error. Errors
    that no retry heals come first."""
    enabled = [s for s in subscriptions if s.enabled or s.stopped]
    if any(s.needs_a_person for s in enabled):
        return Health.NEEDS_A_PERSON
    if not running:
        return Health.NOT_RUNNING
    follows = all(s.state in _AT_WORK and s.error is None for s in enabled)
    return Health.FOLLOWS if follows else Health.TRIES_AGAIN


def as_json(subscriptions: Sequence[SubscriptionStatus]) -> list[dict[str, Any]]:
    """Return the subscriptions as JSON: LSNs as text, everything else as it is."""

    def plain(value: Any) -> Any:
        if isinstance(value, Lsn):
            return str(value)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    return [plain(dataclasses.asdict(subscription)) for subscription in subscriptions]


def read_status(
    catalog: Catalog, *, running: bool, told: Mapping[int, Told] = MappingProxyType({})
) -> list[SubscriptionStatus]:
    """Return every subscription in the order of creation. ``running``: a process runs the node.
    ``told``: recent answers of publishers, by the subscription's oid."""
    with catalog.read() as transaction:
        subscriptions = transaction.subscriptions.all()
        rels = transaction.relations.all()
        verified = transaction.verifications.all()
    numbers = catalog.statistics.all()
    return [
        _status(
            s,
            [r for r in rels if r.subid == s.oid],
            with_told(numbers.get(s.oid) or nothing_known(s.oid), told[s.oid])
            if s.oid in told
            else numbers.get(s.oid),
            running,
            verified,
        )
        for s in subscriptions
    ]


def _status(
    subscription: Subscription,
    rels: Sequence[SubscriptionRel],
    numbers: SubscriptionStatistics | None,
    running: bool,
    verified: Mapping[str, TableVerification],
) -> SubscriptionStatus:
    error, at = subscription.error, time.time()
    now = numbers or nothing_known(subscription.oid)
    tables = {table.name: table for table in now.tables}
    retained, wal_status = now.slot(at)
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
        lag_bytes=now.lag_bytes(at),
        lag_seconds=now.lag_seconds(at),
        rows_applied=now.rows_applied,
        rows_per_second=now.rows_per_second if running and now.reported(at) else 0.0,
        cut_age_seconds=_age(now.cut_time, at),
        publisher_age_seconds=_age(now.publisher_at, at),
        retained_wal_bytes=retained,
        wal_status=wal_status,
        transactions_applied=now.transactions_applied,
        error_count=now.error_count,
        error=error.message if error else now.error,
        error_detail=error.detail if error else now.error_detail,
        error_hint=error.hint if error else now.error_hint,
        updated_at=now.updated_at or None,
        tables=tuple(
            _table(rel, tables.get(rel.qualified_name), verified.get(rel.sync_id), at)
            for rel in rels
        ),
    )


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)


def _state(
    subscription: Subscription, numbers: SubscriptionStatistics | None, running: bool
) -> str:
    if subscription.stopped:
        return "stopped"
    if not subscription.enabled:
        return "disabled"
    if not running:
        return "not running"
    # A worker's last report outlives it: NO_WORKER means that the next one has not reported yet.
    return numbers.state if numbers is not None and numbers.state != NO_WORKER else "starting"


def _table(
    rel: SubscriptionRel,
    numbers: TableStatistics | None,
    verified: TableVerification | None,
    at: float,
) -> TableStatus:
    now, parked = numbers or TableStatistics(rel.qualified_name), rel.error
    return TableStatus(
        name=rel.qualified_name,
        state=rel.state.value,
        lsn=rel.lsn,
        rows_copied=now.rows_copied,
        bytes_copied=now.bytes_copied,
        bytes_total=now.bytes_total,
        units_copied=now.units_copied,
        units_total=now.units_total,
        rows_applied=now.rows_applied,
        version=now.version,
        unfilled=now.unfilled,
        error=now.error if parked is None else parked.message,
        error_detail=now.error_detail if parked is None else parked.detail,
        error_hint=now.error_hint if parked is None else parked.hint,
        update_missing=now.update_missing,
        delete_missing=now.delete_missing,
        verify_result=None if verified is None else verified.result,
        verified_seconds=None if verified is None else _age(verified.verified, at),
    )
