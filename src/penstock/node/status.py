"""The state of every subscription of a node, for ``penstock status`` and the library.

The state is read from the catalog, with the numbers that a running node has written there. The
caller adds publishers' answers if no running node asks the publishers. The result is frozen values
that are true now, and their JSON form; unknown values are None.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from penstock.catalog.catalog import Catalog
from penstock.catalog.metadata import RecordedError
from penstock.catalog.pg_stat_subscription import (
    AT_WORK,
    STREAMING,
    SubscriptionCounts,
    SubscriptionStatistics,
    TableStatistics,
    is_recent,
)
from penstock.catalog.pg_subscription import Subscription, being_dropped
from penstock.catalog.pg_subscription_rel import (
    SubscriptionRel,
    SubscriptionRelState,
    TableVerification,
)
from penstock.errors import NotInPrerequisiteState, PenstockError
from penstock.lakehouse.cuts import Cut
from penstock.lsn import Lsn
from penstock.node.claims import Running, process_stat
from penstock.node.reports import NO_WORKER, PublisherAnswer, nothing_known, with_told
from penstock.walreceiver.slots import LOST, MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus(TableStatistics):
    """One table with its numbers. ``state``: i, d, f, s, r as in pg_subscription_rel, p: parked;
    ``lsn``: its srsublsn.

    ``error``: the reason why the table is parked, or the last error of its copy, which is retried.
    ``verify_result``: the result of the last comparison in the background; ``verified_seconds``:
    seconds since the start of the last comparison that found the whole table equal.
    """

    state: str
    lsn: Lsn | None = None
    verify_result: str | None = None
    verified_seconds: float | None = None

    @property
    def unfilled_count(self) -> int:
        return len(self.unfilled)

    @property
    def ready(self) -> bool:
        """Tell whether the table follows its publisher and is part of the cuts."""
        return self.state == SubscriptionRelState.READY.value

    @property
    def parked(self) -> bool:
        """Tell whether an error of this table alone keeps it out of the cuts."""
        return self.state == SubscriptionRelState.PARKED.value


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatus(SubscriptionStatistics):
    """One subscription with its numbers, as true now. ``state``: the worker's activity, or
    disabled, stopped, not running.

    ``lag_bytes``: bytes from the last cut to the publisher's position. ``lag_seconds``: the most
    seconds by which readers may be behind; 0 while it streams and nothing waits, else the time
    since a cut was last known to be complete. ``cut_age_seconds``: seconds since the last cut was
    written, even if no change has come since. ``publisher_age_seconds``: seconds since the
    publisher last sent anything. ``retained_wal_bytes``: WAL that the slot keeps on the publisher;
    ``wal_status``: as in pg_replication_slots, or ``missing``. ``counts``: the counts of
    pg_stat_subscription_stats.
    """

    name: str
    enabled: bool
    publications: tuple[str, ...]
    slot_name: str | None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    cut_age_seconds: float | None = None
    publisher_age_seconds: float | None = None
    retained_wal_bytes: int | None = None
    counts: SubscriptionCounts = field(default_factory=SubscriptionCounts)
    tables: tuple[TableStatus, ...] = ()

    @property
    def stopped(self) -> bool:
        """Tell whether an error has stopped it for good."""
        return self.state == "stopped" and self.error is not None

    @property
    def table_count(self) -> int:
        return len(self.tables)

    @property
    def tables_ready(self) -> int:
        return sum(table.ready for table in self.tables)

    @property
    def tables_parked(self) -> int:
        return sum(table.parked for table in self.tables)

    @property
    def update_missing(self) -> int:
        return sum(table.update_missing for table in self.tables)

    @property
    def delete_missing(self) -> int:
        return sum(table.delete_missing for table in self.tables)

    @property
    def slot_gone(self) -> bool | None:
        """Tell whether the slot is lost or missing; None without a recent answer."""
        return None if self.wal_status is None else self.wal_status in SLOT_GONE

    @property
    def needs_a_person(self) -> bool:
        """Tell whether the subscription or one of its tables needs somebody's help to continue."""
        unfinished = self.state == _BEING_DROPPED
        return self.stopped or self.tables_parked > 0 or bool(self.slot_gone) or unfinished


class Health(IntEnum):
    """The health of a node, for scripts: the exit status of ``penstock status``."""

    FOLLOWS = 0
    NOT_RUNNING = 3
    NEEDS_A_PERSON = 4
    TRIES_AGAIN = 5
    NOT_RESPONDING = 6


_NOT_RESPONDING: Final = "not responding"
_BEING_DROPPED: Final = "being dropped"
"""For seconds, unless DROP SUBSCRIPTION was interrupted."""
SLOT_GONE: Final = (LOST, MISSING)


def health(
    subscriptions: Iterable[SubscriptionStatus], *, running: bool, responds: bool = True
) -> Health:
    """Return the worst health of all subscriptions that are enabled, or that an error has disabled.
    Errors that no retry heals are the worst. ``responds``: the node's process reports."""
    enabled = [s for s in subscriptions if s.enabled or s.stopped or s.state == _BEING_DROPPED]
    if any(s.needs_a_person for s in enabled):
        return Health.NEEDS_A_PERSON
    if not running:
        return Health.NOT_RUNNING
    if not responds or any(s.state == _NOT_RESPONDING for s in enabled):
        return Health.NOT_RESPONDING
    follows = all(s.state in AT_WORK and s.error is None for s in enabled)
    return Health.FOLLOWS if follows else Health.TRIES_AGAIN


_NOT_IN_JSON: Final = frozenset(
    (
        "subid",
        "pid",
        "last_msg_send_time",
        "last_msg_receipt_time",
        "commit_time",
        "cut_time",
        "publisher_at",
        "caught_up_at",
        "waiting",
        "retained_bytes",
        "slot_at",
        "copy_snapshot_at",
        "copy_snapshot_xmin",
        "copy_retained_bytes",
        "wait_event",
        "wait_since",
        "counts",
    )
)
"""Fields that only other fields are computed from, or that only catalogs and metrics show."""


def json_fields(kind: type[SubscriptionStatus | TableStatus]) -> list[str]:
    """Return the names of the fields in JSON: name, status, numbers, tables."""
    numbers = (each.name for each in dataclasses.fields(kind))
    names = dict.fromkeys([*kind.__annotations__, *numbers])
    shown = [name for name in names if name not in _NOT_IN_JSON]
    return sorted(shown, key=lambda name: (name != "name", name == "tables"))


def as_json(subscriptions: Sequence[SubscriptionStatus]) -> list[dict[str, Any]]:
    """Return the subscriptions as JSON: LSNs as text, everything else as it is."""

    def plain(value: Any) -> Any:
        if isinstance(value, Lsn):
            return str(value)
        if isinstance(value, SubscriptionStatus | TableStatus):
            return {name: plain(getattr(value, name)) for name in json_fields(type(value))}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    return [plain(subscription) for subscription in subscriptions]


def read_status(
    catalog: Catalog,
    *,
    process: Running | None,
    told: Mapping[int, PublisherAnswer] = MappingProxyType({}),
) -> list[SubscriptionStatus]:
    """Return every subscription in the order of creation. ``process``: the process that runs
    the node. ``told``: recent answers of publishers, by the subscription's oid."""
    with catalog.read() as transaction:
        subscriptions = transaction.subscriptions.all()
        rels = transaction.relations.all()
        verified = transaction.verifications.all()
    numbers, counts = catalog.statistics.all(), catalog.statistics.counts()
    return [
        _status(
            s,
            [r for r in rels if r.subid == s.oid],
            _numbers(numbers.get(s.oid) or nothing_known(s.oid), told.get(s.oid)),
            counts.get(s.oid) or SubscriptionCounts(),
            process,
            catalog.statistics.folder,
            verified,
        )
        for s in subscriptions
    ]


def _numbers(known: SubscriptionStatistics, told: PublisherAnswer | None) -> SubscriptionStatistics:
    return known if told is None else with_told(known, told)


def _fields(numbers: SubscriptionStatistics | TableStatistics) -> dict[str, Any]:
    return {each.name: getattr(numbers, each.name) for each in dataclasses.fields(numbers)}


def _status(
    subscription: Subscription,
    rels: Sequence[SubscriptionRel],
    now: SubscriptionStatistics,
    counts: SubscriptionCounts,
    process: Running | None,
    folder: Path | None,
    verified: Mapping[str, TableVerification],
) -> SubscriptionStatus:
    at = time.time()
    state = _state(subscription, now, process, at)
    tables = {table.name: table for table in now.tables}
    retained, wal_status = now.slot(at)
    values = _fields(now) | _recorded(subscription.error)
    values["state"] = state
    values["rows_per_second"] = now.rows_per_second if process and now.reported(at) else 0.0
    if process is not None and state == _NOT_RESPONDING:
        values |= _cause(now, process, folder, at)
    elif state == _BEING_DROPPED:
        error = being_dropped(subscription)
        values |= _as_error(error.message, error.hint)
    elif state == STREAMING and now.publisher_at is not None and not now.heard(at):
        values |= _silence(at - now.publisher_at)
    values["wal_status"] = wal_status
    values["tables"] = tuple(
        _table(
            rel,
            tables.get(rel.qualified_name) or TableStatistics(rel.qualified_name),
            verified.get(rel.sync_id),
            at,
        )
        for rel in rels
    )
    return SubscriptionStatus(
        **values,
        name=subscription.name,
        enabled=subscription.enabled,
        publications=subscription.publications,
        slot_name=subscription.slot_name,
        lag_bytes=None if process and not now.reported(at) else now.lag_bytes_at(at),
        lag_seconds=now.lag_seconds_at(at),
        cut_age_seconds=_age(now.cut_time, at),
        publisher_age_seconds=_age(now.publisher_at, at),
        retained_wal_bytes=retained,
        counts=counts,
    )


def _recorded(error: RecordedError | None) -> dict[str, str | None]:
    """Return the catalog's error as fields that replace the worker's."""
    if error is None:
        return {}
    return _as_error(error.message, error.hint, error.detail)


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)


def _state(
    subscription: Subscription, numbers: SubscriptionStatistics, process: Running | None, at: float
) -> str:
    if subscription.dropping:
        return _BEING_DROPPED
    if subscription.stopped:
        return "stopped"
    if not subscription.enabled:
        return "disabled"
    if process is None:
        return "not running"
    if _is_silent(numbers.updated_at, process, at):
        return _NOT_RESPONDING
    # Reports of an earlier process or worker stay until the next one has reported.
    if (numbers.updated_at or 0.0) < process.since or numbers.state == NO_WORKER:
        return "starting"
    return numbers.state if numbers.wait_event is None else _NOT_RESPONDING


_STARTS_IN: Final = 60.0
"""Seconds that a process has until its first report: it may have to fetch Spark's packages."""
_FULL: Final = 1 << 20
"""A disk with fewer free bytes counts as full, if the node's reports do not come."""


def _cause(
    numbers: SubscriptionStatistics, process: Running, folder: Path | None, at: float
) -> dict[str, str | None]:
    """Return why a running process does not respond, as fields that replace the last error."""
    if numbers.reported(at):
        message = f"waiting for {at - (numbers.wait_since or at):.0f} s: {numbers.wait_event}"
        hint = "Look at what it waits for; the subscription goes on by itself when that answers."
        return _as_error(message, hint)
    return _as_error(*_cause_of_silence(numbers.updated_at, process, folder, at))


def _cause_of_silence(
    updated_at: float | None, process: Running, folder: Path | None, at: float
) -> tuple[str, str]:
    """Return why a running process does not report, and a hint."""
    if process_stat(process.pid)[:1] in (["T"], ["t"]):
        message = f"the process {process.pid} is suspended"
        hint = f"Let it go on: kill -CONT {process.pid}"
    elif folder is not None and shutil.disk_usage(folder).free < _FULL:
        message = f'could not write to "{folder}": No space left on device'
        hint = "Free disk space; the node goes on by itself."
    else:
        silent = at - max(updated_at or 0.0, process.since)
        message = f"the process {process.pid} has not reported for {silent:.0f} s"
        hint = "Look at its log and at the state store. If it hangs, end it and start it again."
    return message, hint


@dataclass(frozen=True, slots=True)
class ProcessSilence:
    """Why the process that runs a node does not report, and a hint."""

    message: str
    hint: str


def process_silence(catalog: Catalog, process: Running | None) -> ProcessSilence | None:
    """Return why the process does not respond, whether the node has subscriptions or not; None if
    it does, has just started, or there is none."""
    if process is None:
        return None
    at, node = time.time(), catalog.statistics.node()
    updated_at = None if node is None else node.updated_at
    if not _is_silent(updated_at, process, at):
        return None
    return ProcessSilence(*_cause_of_silence(updated_at, process, catalog.statistics.folder, at))


def _is_silent(updated_at: float | None, process: Running, at: float) -> bool:
    """Tell whether a process should have reported. The last report may be an earlier process's."""
    if is_recent(updated_at, at):
        return False
    return (updated_at or 0.0) >= process.since or at - process.since > _STARTS_IN


def _silence(seconds: float) -> dict[str, str | None]:
    """Return fields that tell of a stream without messages in place of the last error."""
    return _as_error(
        f"the publisher has not been heard of for {seconds:.0f} s",
        "Look at the publisher and at the network between. After wal_receiver_timeout the "
        "subscription connects again by itself.",
    )


def _as_error(message: str, hint: str | None, detail: str | None = None) -> dict[str, str | None]:
    """Return fields that replace the last error."""
    return {"error": message, "error_detail": detail, "error_hint": hint}


def _table(
    rel: SubscriptionRel, now: TableStatistics, verified: TableVerification | None, at: float
) -> TableStatus:
    return TableStatus(
        **_fields(now) | _recorded(rel.error),
        state=rel.state.value,
        lsn=rel.lsn,
        verify_result=None if verified is None else verified.result,
        verified_seconds=_age(None if verified is None else verified.verified, at),
    )


# Waiting until a subscription has reached a position (``Node.wait_for``, ``penstock run
# --until-caught-up``).

_POLL: Final = 0.05
_TOLD: Final = 3
"""Tables that an error names."""
_STEP: Final = 1.0
"""Seconds between two checks whether to stop waiting."""


@dataclass(frozen=True, slots=True)
class CatchupState:
    """The progress of a subscription. ``position``: the publisher's LSN at the start; ``cut``: the
    last cut's LSN, or None.

    ``waiting``: tables that are in no cut yet; ``parked``: tables that an error keeps out of cuts.
    """

    subscription: str
    position: Lsn
    cut: Lsn | None
    waiting: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        """Tell whether a cut at or after the position holds every table that is not parked."""
        return self.cut is not None and self.cut >= self.position and not self.waiting

    def text(self) -> str:
        """Return a line that people read."""
        at = "has no cut yet" if self.cut is None else f"has a cut at {self.cut}"
        if self.reached:
            parked = f", without parked tables: {', '.join(self.parked)}" if self.parked else ""
            return f"{self.subscription}: {at}{parked}"
        waiting = f", without tables: {', '.join(self.waiting)}" if self.waiting else ""
        return f"{self.subscription}: not caught up, {at} of {self.position}{waiting}"


def catchup_state(status: SubscriptionStatus, position: Lsn, cut: Cut | None) -> CatchupState:
    """Return the progress of a subscription. ``cut``: its last cut."""
    return CatchupState(
        status.name,
        position,
        None if cut is None else cut.lsn,
        waiting=tuple(table.name for table in status.tables if not (table.ready or table.parked)),
        parked=tuple(table.name for table in status.tables if table.parked),
    )


class FollowingNode(Protocol):
    """The part of ``Node`` that this file uses."""

    def wait_for(
        self, lsn: Lsn | str, *, subscription: str | None = None, timeout: float = 60.0
    ) -> Cut: ...

    def status(self) -> Sequence[SubscriptionStatus]: ...

    def cut(self, subscription: str | None = None) -> Cut | None: ...


def wait_for_cut(
    node: FollowingNode, name: str, position: Lsn, timeout: float, check: Callable[[str], None]
) -> Cut:
    """Wait until a subscription has a cut at or after ``position``. ``check`` raises the error that
    has stopped it. Raises NotInPrerequisiteState after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        cut = node.cut(name)
        if cut is not None and cut.lsn >= position and all_ready(node.status(), name):
            return cut
        check(name)
        if time.monotonic() >= deadline:
            raise _not_reached(node.status(), name, position, cut, timeout)
        time.sleep(_POLL)


def wait_for_all(
    node: FollowingNode, positions: Mapping[str, Lsn], timeout: float, stop: threading.Event | None
) -> Sequence[CatchupState]:
    """Wait until each subscription follows, with a cut at or after its position, or until ``stop``.
    Raises as ``wait_for_cut``."""
    deadline = time.monotonic() + timeout
    for name, lsn in positions.items():
        while not (stop is not None and stop.is_set()):
            step = min(_STEP, max(0.0, deadline - time.monotonic()))
            try:
                node.wait_for(lsn, subscription=name, timeout=step)
                _check_follows(node, name)
                break
            except NotInPrerequisiteState:
                if time.monotonic() >= deadline:
                    found = (node.status(), name, lsn, node.cut(name))
                    raise _not_reached(*found, timeout) from None
    status = {s.name: s for s in node.status()}
    return [
        catchup_state(status[n], lsn, node.cut(n)) for n, lsn in positions.items() if n in status
    ]


def _not_reached(
    statuses: Sequence[SubscriptionStatus],
    name: str,
    position: Lsn,
    cut: Cut | None,
    timeout: float,
) -> NotInPrerequisiteState:
    """Return the error of a wait that has taken too long, with what it has waited for."""
    reasons = [f"The last cut is at {cut.lsn if cut else 'no LSN yet'}."]
    for status in statuses:
        if status.name != name:
            continue
        waiting = [table for table in status.tables if not (table.ready or table.parked)]
        reasons += [
            f"Table {each.name} is not copied yet{f': {each.error}' if each.error else ''}."
            for each in waiting[:_TOLD]
        ]
        reasons += [f"{len(waiting) - _TOLD} more tables are not."] * (len(waiting) > _TOLD)
        if status.state not in AT_WORK or status.error:
            told = f": {status.error}" if status.error else ""
            reasons.append(f"The subscription is {status.state}{told}.")
    return NotInPrerequisiteState(
        f'subscription "{name}" has not reached {position} within {timeout:g} s',
        detail=" ".join(reasons),
        hint="Look at: penstock status",
    )


def _check_follows(node: FollowingNode, name: str) -> None:
    """Check that a worker has found the publisher as it was: a cut of before may be later than the
    position of one that was restored from a backup. Raises NotInPrerequisiteState, and the error
    that has stopped the subscription."""
    statuses = [status for status in node.status() if status.name == name]
    check_not_stopped(statuses, name)
    if not all(status.state in AT_WORK for status in statuses):
        time.sleep(_POLL)
        raise NotInPrerequisiteState(
            f'subscription "{name}" does not follow its publisher yet',
            hint="Look at: penstock status",
        )


def all_ready(statuses: Iterable[SubscriptionStatus], name: str) -> bool:
    """Tell whether the cuts of a subscription hold every table that is not parked."""
    return all(t.ready or t.parked for s in statuses if s.name == name for t in s.tables)


def check_not_stopped(statuses: Iterable[SubscriptionStatus], name: str) -> None:
    """Raise the error that has stopped a subscription, if any: it will make no progress."""
    for status in statuses:
        if status.name == name and status.stopped:
            raise PenstockError(
                f'subscription "{name}" has stopped: {status.error}',
                detail=status.error_detail,
                hint=status.error_hint,
            )
