"""Which workers should run, and starting and stopping them (launcher.c).

In: the catalog's subscriptions, looked at when its change counter has moved. Out: one ApplyWorker
per enabled subscription that has not stopped with an error, up to max_logical_replication_workers;
who comes too late gets one when another ends. What a worker does is left to ``worker``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import report
from penstock.subscription.worker import ApplyWorker

log = logging.getLogger(__name__)

_OUT_OF_WORKERS: Final = report(
    "WARNING",
    "out of logical replication worker slots",
    None,
    'You might need to increase "max_logical_replication_workers".',
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A subscription that should run, with the membership of its tables (their sync ids)."""

    subscription: Subscription
    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes that make what runs what is wanted. A restart is a stop now and a start later."""

    stop: tuple[int, ...]
    start: tuple[int, ...]
    tables_changed: tuple[int, ...]


def plan(running: Mapping[int, Wanted], wanted: Mapping[int, Wanted]) -> Plan:
    """Pure: compare what runs with what should, by subscription oid."""
    return Plan(
        stop=tuple(
            oid
            for oid, now in running.items()
            if oid not in wanted or wanted[oid].subscription != now.subscription
        ),
        start=tuple(oid for oid in wanted if oid not in running),
        tables_changed=tuple(
            oid
            for oid, now in running.items()
            if oid in wanted
            and wanted[oid].subscription == now.subscription
            and wanted[oid].tables != now.tables
        ),
    )


class Launcher:
    """Keeps workers in step with the catalog; ``step`` is called again and again by the node.

    A worker that cannot be started keeps no other from it; it is tried again at a later step.
    """

    def __init__(
        self,
        wanted: Callable[[], Iterable[Wanted]],
        make_worker: Callable[[Subscription], ApplyWorker],
        most: Callable[[], int],
    ) -> None:
        """``most``: max_logical_replication_workers."""
        self._wanted = wanted
        self._most = most
        self._make_worker = make_worker
        self._running: dict[int, Wanted] = {}
        self.workers: dict[int, ApplyWorker] = {}
        self._waiting: frozenset[int] = frozenset()
        """Subscriptions for which there was no worker, as the log has it."""

    def step(self) -> None:
        """Start, stop and notify workers until what runs is what is wanted."""
        self._bury()
        wanted = {w.subscription.oid: w for w in self._wanted()}
        todo = plan(self._running, wanted)
        for oid in todo.stop:
            log.info('subscription "%s": worker will stop', self.workers[oid].subscription.name)
            self.workers[oid].stop()
        for oid in todo.tables_changed:
            self._running[oid] = wanted[oid]
            self.workers[oid].tables_changed()
        waiting = [oid for oid in todo.start if not self._starts(wanted[oid])]
        if not self._waiting.issuperset(waiting):
            log.warning("%s", _OUT_OF_WORKERS)
        self._waiting = frozenset(waiting)

    def _starts(self, wanted: Wanted) -> bool:
        """False: there is no worker for it now."""
        if len(self.workers) >= self._most():
            return False
        try:
            self._start(wanted)
        except Exception:
            log.exception(
                'could not start a worker for subscription "%s"', wanted.subscription.name
            )
        return True

    def _start(self, wanted: Wanted) -> None:
        oid = wanted.subscription.oid
        worker = self._make_worker(wanted.subscription)
        worker.start()
        self._running[oid] = wanted
        self.workers[oid] = worker

    @property
    def has_dead_workers(self) -> bool:
        """Whether a worker has ended since the last step."""
        return any(not worker.alive for worker in self.workers.values())

    def stop(self) -> None:
        """Ask every worker for the end after its current cut."""
        for worker in self.workers.values():
            worker.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for every worker's end, at most ``timeout`` seconds for one that connects and gets
        no answer; whether all have come."""
        ended = [worker.join_unless_hanging(timeout) for worker in self.workers.values()]
        return all(ended)

    def _bury(self) -> None:
        for oid in [oid for oid, worker in self.workers.items() if not worker.alive]:
            del self.workers[oid]
            del self._running[oid]
