"""The numbers in pg_stat_subscription: workers' reports, and publishers' answers about slots.

Every subscription has a row, even without a worker, since its publisher keeps WAL for it. Numbers
of earlier runs are kept until this run has its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_stat_subscription import (
    AT_WORK,
    NodeStatistics,
    SubscriptionStatistics,
    TableStatistics,
)
from penstock.catalog.pg_subscription import Subscription
from penstock.errors import PenstockError
from penstock.lsn import INVALID, Lsn
from penstock.subscription.worker import ApplyWorker
from penstock.wait_event import Wait, WaitEventType, longest_wait
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.slots import MISSING, RemoteSlot

log = logging.getLogger(__name__)


# Ask publishers about their WAL and the slots that keep it, for the statistics. Each question has
# its own thread, so a publisher that does not answer does not delay the others' numbers.


_INTERVAL: Final = 10.0
"""Seconds between two questions to a publisher."""

_PAUSE: Final = 60.0
"""Seconds after a failed question if the subscription is stopped: a server may count failed
logins."""

_APPLICATION_NAME: Final = "penstock status"


@dataclass(frozen=True, slots=True)
class PublisherAnswer:
    """A publisher's answer. ``at``: its time, in seconds since 1970. ``wal_status``: as in
    pg_replication_slots, or ``missing`` if the slot does not exist; None if the subscription has no
    slot. ``in_danger``: the slot, if it may be lost soon."""

    at: float
    position: Lsn
    retained_bytes: int | None
    wal_status: str | None
    in_danger: RemoteSlot | None = None


class SlotWatch:
    """Background questions to publishers; each publisher gets at most one question at a time."""

    def __init__(self) -> None:
        self._known: dict[int, PublisherAnswer] = {}
        self._due: dict[int, float] = {}
        self._asking: set[int] = set()

    def told(self, subscription: Subscription) -> PublisherAnswer | None:
        """Return the publisher's last answer, None before the first. Never waits."""
        oid, now = subscription.oid, time.monotonic()
        if now >= self._due.get(oid, 0.0) and oid not in self._asking:
            self._asking.add(oid)
            threading.Thread(target=self._ask, args=(subscription,), daemon=True).start()
        return self._known.get(oid)

    def _ask(self, subscription: Subscription) -> None:
        oid, pause = subscription.oid, _INTERVAL
        try:
            before, told = self._known.get(oid), ask(subscription)
            self._known[oid] = told
            if told.in_danger is not None and (before is None or before.in_danger is None):
                log.warning("%s", _warning(subscription, told.in_danger))
        except PenstockError as error:
            self._known.pop(oid, None)
            pause = _PAUSE if subscription.stopped else _INTERVAL
            log.debug("could not ask the publisher about its slot: %s", error.message)
        finally:
            self._due[oid] = time.monotonic() + pause
            self._asking.discard(oid)


def _warning(subscription: Subscription, slot: RemoteSlot) -> str:
    left = max(0, slot.safe_wal_size or 0)
    return (
        f'replication slot "{slot.name}" of subscription "{subscription.name}" may be lost soon: '
        f"the publisher keeps {slot.retained_bytes >> 20} MB of WAL for it and will keep "
        f"{left >> 20} MB more (wal_status {slot.wal_status}); let the subscription catch up, "
        "or raise max_slot_wal_keep_size there"
    )


def ask(subscription: Subscription) -> PublisherAnswer:
    """Ask one publisher. Raises the errors of connecting and asking."""
    conninfo = ConnInfo.parse(subscription.conninfo)
    with Publisher.connect(conninfo, _APPLICATION_NAME) as publisher:
        position = publisher.current_wal_lsn()
        if subscription.slot_name is None:
            return PublisherAnswer(time.time(), position, None, None)
        slot = publisher.slot_state(subscription.slot_name)
        if slot is None:
            return PublisherAnswer(time.time(), position, None, MISSING)
        danger = slot if slot.in_danger else None
        return PublisherAnswer(time.time(), position, slot.retained_bytes, slot.wal_status, danger)


def ask_all(
    subscriptions: Iterable[Subscription], patience: float
) -> Mapping[int, PublisherAnswer]:
    """Ask all publishers in parallel. Return the answers that come within ``patience`` seconds, by
    subscription oid."""
    found: dict[int, PublisherAnswer] = {}

    def one(subscription: Subscription) -> None:
        try:
            found[subscription.oid] = ask(subscription)
        except PenstockError as error:
            log.debug("could not ask the publisher about its slot: %s", error.message)

    threads = [threading.Thread(target=one, args=(s,), daemon=True) for s in subscriptions]
    deadline = time.monotonic() + patience
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)


NO_WORKER: Final = "stopped"


_LONG_WAIT: Final = 6.0
"""Seconds after which a wait for something outside the node counts as an obstacle."""

_ANSWERS: Final = 3.0
"""Seconds within which a JVM that runs answers."""
_STARVED: Final = "Spark has no executor that runs its tasks"
_SILENT: Final = "Spark's JVM does not answer"


class _SparkWatch:
    """Questions to Spark, each in a thread of its own, since a suspended JVM does not answer."""

    def __init__(self, starved: Callable[[], bool]) -> None:
        self._starved = starved
        self._asked: float | None = None
        self._cause: str | None = None
        self._since: float | None = None

    def obstacle(self, waits: bool) -> Wait | None:
        """Return what keeps Spark from its work. ``waits``: work for Spark has been waiting."""
        cause = self._find_cause() if waits else None
        if cause is None:
            self._since = None
            return None
        self._since = self._since or time.time()
        return Wait(WaitEventType.SPARK, cause, self._since)

    def _find_cause(self) -> str | None:
        asked = self._asked
        if asked is None:
            self._asked = time.monotonic()
            threading.Thread(target=self._ask, name="spark watch", daemon=True).start()
        elif time.monotonic() - asked > _ANSWERS:
            return _SILENT
        return self._cause

    def _ask(self) -> None:
        try:
            self._cause = _STARVED if self._starved() else None
        finally:
            self._asked = None


class Reports:
    """The writer of reports, one round after the other."""

    def __init__(self, catalog: Catalog, starved: Callable[[], bool]) -> None:
        """``starved``: no task of Spark's jobs runs; it may wait for the JVM."""
        self._catalog = catalog
        self._spark = _SparkWatch(starved)
        self._before: dict[int, SubscriptionStatistics] = {}
        self._rows: dict[int, tuple[float, int]] = {}
        self._slots = SlotWatch()
        self._known = False

    def write(self, workers: Mapping[int, ApplyWorker]) -> None:
        """Write one round. A failure is only logged: the next round writes the numbers again."""
        try:
            if not self._known:
                self._before = self._catalog.statistics.all()
                self._known = True
            subscriptions = self._catalog.subscriptions()
            obstacle = self._find_obstacle()
            reports = {
                s.oid: self._statistics(s, workers.get(s.oid), obstacle) for s in subscriptions
            }
            node = NodeStatistics(os.getpid(), time.time())
            self._catalog.statistics.report(reports.values(), node)
            if self._before.keys() - reports.keys():
                self._catalog.statistics.keep_only(reports)
            self._before = reports
        except Exception as error:
            log.warning("could not write statistics: %s", error)

    def _find_obstacle(self) -> Wait | None:
        """Return what this process has been waiting for for long, if anything."""
        now = time.time()
        spark = longest_wait(WaitEventType.SPARK)
        waits = spark is not None and now - spark.since > 1.0
        found = [longest_wait(WaitEventType.STORAGE), self._spark.obstacle(waits)]
        long = [wait for wait in found if wait is not None and now - wait.since > _LONG_WAIT]
        return min(long, key=lambda wait: wait.since, default=None)

    def _statistics(
        self, subscription: Subscription, worker: ApplyWorker | None, obstacle: Wait | None
    ) -> SubscriptionStatistics:
        oid, now = subscription.oid, time.time()
        before = self._before.get(oid) or nothing_known(oid)
        told = self._slots.told(subscription)
        if worker is None:
            self._rows.pop(oid, None)
            idle = replace(before, pid=None, state=NO_WORKER, updated_at=now, rows_per_second=0.0)
            idle = replace(
                idle, copy_snapshot_at=None, copy_snapshot_xmin=None, copy_retained_bytes=None
            )
            return with_told(idle, told)
        numbers = carried_on(before, worker.status.snapshot())
        rate = self._rate(oid, numbers.rows_applied)
        numbers = replace(numbers, pid=worker.pid, updated_at=now, rows_per_second=rate)
        if obstacle is not None and _stands(numbers, worker.status.changed_at, now):
            numbers = replace(numbers, wait_event=obstacle.event, wait_since=obstacle.since)
        return with_told(numbers, told)

    def _rate(self, oid: int, rows: int) -> float:
        at = time.monotonic()
        before, rows_before = self._rows.get(oid, (at, rows))
        self._rows[oid] = (at, rows)
        return max(0.0, (rows - rows_before) / max(0.001, at - before))


def _stands(numbers: SubscriptionStatistics, changed_at: float, now: float) -> bool:
    """Tell whether changes have been waiting for long, and no cut has come meanwhile."""
    if numbers.state not in AT_WORK:
        return False
    return numbers.waiting and now - max(numbers.cut_time or 0.0, changed_at) > _LONG_WAIT


def nothing_known(oid: int) -> SubscriptionStatistics:
    """Return the numbers of a subscription about which no worker has reported."""
    return SubscriptionStatistics(oid, None, NO_WORKER, None)


def carried_on(
    before: SubscriptionStatistics, now: SubscriptionStatistics
) -> SubscriptionStatistics:
    """Return a worker's numbers. Positions and times that it does not know yet are taken from
    ``before``, and so is the publisher's answer about its slot."""
    earlier = {table.name: table for table in before.tables}
    unknown = [name for name in _CARRIED if getattr(now, name) is None]
    tables = [_table(table, earlier.pop(table.name, None)) for table in now.tables]
    # The worker has not opened the other tables; their counts restart.
    tables += [_table(TableStatistics(t.name, unfilled=t.unfilled), t) for t in earlier.values()]
    return replace(
        now,
        **{name: getattr(before, name) for name in unknown},
        publisher_lsn=_later(now.publisher_lsn, before.publisher_lsn),
        publisher_at=_newest(now.last_msg_receipt_time, now.publisher_at, before.publisher_at),
        tables=tuple(tables),
    )


def with_told(
    numbers: SubscriptionStatistics, told: PublisherAnswer | None
) -> SubscriptionStatistics:
    """Return the numbers with the publisher's answer, and with the time at which a cut was last
    known to be complete."""
    if told is None:
        numbers = replace(numbers, retained_bytes=None, wal_status=None, slot_at=None)
    else:
        numbers = replace(
            numbers,
            publisher_lsn=_later(told.position, numbers.publisher_lsn),
            publisher_at=_newest(told.at, numbers.publisher_at),
            retained_bytes=told.retained_bytes,
            wal_status=told.wal_status,
            slot_at=told.at,
            # A walsender reports its own position, which may be far behind the server's WAL.
            waiting=numbers.waiting or (numbers.received_lsn or INVALID) < told.position,
        )
    known = [numbers.caught_up_at, numbers.commit_time if numbers.cut_lsn else None]
    if not numbers.waiting:
        known.append(numbers.last_msg_receipt_time)
    if told is not None and (numbers.cut_lsn or INVALID) >= told.position:
        known.append(told.at)
    return replace(numbers, caught_up_at=_newest(*known))


def _later(one: Lsn | None, other: Lsn | None) -> Lsn | None:
    return max(one or INVALID, other or INVALID) or None


def _newest(*times: float | None) -> float | None:
    return max((at for at in times if at is not None), default=None)


def _table(now: TableStatistics, before: TableStatistics | None) -> TableStatistics:
    """Return a table's numbers. Numbers of a copy are kept after the copy, also in later runs."""
    if before is None:
        return now
    kept = {} if now.units_total else {name: getattr(before, name) for name in _COPY_FIELDS}
    return replace(now, **kept, version=before.version if now.version is None else now.version)


_CARRIED: Final = (
    "received_lsn",
    "applied_lsn",
    "cut_lsn",
    "commit_time",
    "cut_time",
    "caught_up_at",
    "retained_bytes",
    "wal_status",
    "slot_at",
)
_COPY_FIELDS: Final = (
    "rows_copied",
    "bytes_copied",
    "bytes_total",
    "units_copied",
    "units_total",
)
