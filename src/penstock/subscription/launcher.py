"""The launcher: decide which workers should run, and start and stop them (launcher.c).

The launcher reads the catalog's subscriptions when the change counter has moved. It starts one
ApplyWorker for each enabled subscription that has not stopped with an error, up to
max_logical_replication_workers. A subscription beyond that limit gets a worker when another worker
ends. A worker that waits for its next try ends if other subscriptions need a worker; on a server
every failed worker ends. ``worker`` does the work itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import report
from penstock.subscription.worker import CONNECTING, ApplyWorker
from penstock.wait_event import Patience, leave_behind

log = logging.getLogger(__name__)

_POLL: Final = 0.1
"""Seconds between two checks whether a worker has ended."""

_OUT_OF_WORKERS: Final = report(
    "WARNING",
    "out of logical replication worker slots",
    None,
    'You might need to increase "max_logical_replication_workers".',
)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A subscription that should run, and the sync ids of its tables."""

    subscription: Subscription
    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps from the running workers to the wanted ones, by subscription oid.

    A restart is a stop now and a start later.
    """

    stop: tuple[int, ...]
    start: tuple[int, ...]
    tables_changed: tuple[int, ...]


def plan(running: Mapping[int, WorkerSpec], wanted: Mapping[int, WorkerSpec]) -> Plan:
    """Compare the running workers with the wanted ones, by subscription oid. Pure."""
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
    """The workers, kept in step with the catalog; the node calls ``step`` again and again.

    A worker that cannot be started does not keep others from starting. A later step tries again.
    """

    def __init__(
        self,
        specs: Callable[[], Iterable[WorkerSpec]],
        make_worker: Callable[[Subscription], ApplyWorker],
        most: Callable[[], int],
    ) -> None:
        """``most``: max_logical_replication_workers."""
        self._specs = specs
        self._most = most
        self._make_worker = make_worker
        self._running: dict[int, WorkerSpec] = {}
        self.workers: dict[int, ApplyWorker] = {}
        self._told: frozenset[int] = frozenset()
        """Subscriptions for which a missing worker was logged. They are remembered while any of
        them waits, so that subscriptions that take turns are logged once."""
        self._started: dict[int, float] = {}
        """The time at which each subscription last got a worker."""
        self._gave_way: dict[int, ApplyWorker] = {}
        """Workers that ended to make room for others, until their subscription gets a new one."""

    @property
    def told_of(self) -> Mapping[int, ApplyWorker]:
        """The workers to report on: running workers, and workers that ended to make room for
        others, whose last error is still valid for the subscription."""
        return {**self._gave_way, **self.workers}

    def step(self) -> None:
        """Start, stop and notify workers so that the wanted ones run."""
        self._bury()
        wanted = {w.subscription.oid: w for w in self._specs()}
        todo = plan(self._running, wanted)
        for oid in todo.stop:
            log.info('subscription "%s": worker will stop', self.workers[oid].subscription.name)
            self.workers[oid].stop()
        for oid in todo.tables_changed:
            self._running[oid] = wanted[oid]
            self.workers[oid].tables_changed()
        self._forget_others(wanted)
        due = [oid for oid in todo.start if self._is_due(oid)]
        due.sort(key=lambda oid: self._started.get(oid, -inf))  # each gets its turn
        # A worker ends early only for a subscription whose missing worker is already logged.
        told = self._told.union(self._gave_way)
        waiting = [oid for oid in due if not self._starts(wanted[oid])]
        if not told.issuperset(waiting):
            log.warning("%s", _OUT_OF_WORKERS)
        told = told.union(waiting) & wanted.keys()
        self._told = told if waiting or self._gave_way else frozenset()
        for worker in self.workers.values():
            worker.others_wait = bool(waiting)

    def _forget_others(self, wanted: Mapping[int, WorkerSpec]) -> None:
        """Forget the pauses of subscriptions that are gone or altered; an altered subscription is
        retried at once."""
        self._started = {oid: at for oid, at in self._started.items() if oid in wanted}
        self._gave_way = {
            oid: past
            for oid, past in self._gave_way.items()
            if oid in wanted and wanted[oid].subscription == past.subscription
        }

    def _is_due(self, oid: int) -> bool:
        past = self._gave_way.get(oid)
        return past is None or (past.gave_way_until or 0.0) <= time.monotonic()

    def _starts(self, wanted: WorkerSpec) -> bool:
        """Start a worker; return False if none is free now."""
        if len(self.workers) >= self._most():
            return False
        try:
            self._start(wanted)
        except Exception:
            log.exception(
                'could not start a worker for subscription "%s"', wanted.subscription.name
            )
        return True

    def _start(self, wanted: WorkerSpec) -> None:
        oid = wanted.subscription.oid
        # Remove it first: if the start fails, ``has_work`` must not ask for the next try at once.
        earlier = self._gave_way.pop(oid, None)
        worker = self._make_worker(wanted.subscription)
        if earlier is not None:
            worker.go_on_for(earlier)
        worker.start()
        self._started[oid] = time.monotonic()
        self._running[oid] = wanted
        self.workers[oid] = worker

    @property
    def has_work(self) -> bool:
        """True if a worker has ended since the last step, or if a worker that made room is due
        again and there is room for it."""
        if any(not worker.alive for worker in self.workers.values()):
            return True
        return len(self.workers) < self._most() and any(map(self._is_due, self._gave_way))

    def stop(self) -> None:
        """Ask every worker to end after its current cut. Any thread may call this."""
        for worker in list(self.workers.values()):
            worker.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every worker has ended; return whether all have.

        With a ``timeout`` it waits at most so many seconds for a worker that is connecting without
        an answer, and does not wait for an object store or a state store that does not answer.
        """
        patience = None if timeout is None else Patience()
        ended = [_joined(worker, timeout, patience) for worker in self.workers.values()]
        return all(ended)

    def _bury(self) -> None:
        for oid in [oid for oid, worker in self.workers.items() if not worker.alive]:
            worker = self.workers.pop(oid)
            if worker.gave_way_until is not None:
                self._gave_way[oid] = worker
            del self._running[oid]


def _joined(worker: ApplyWorker, timeout: float | None, patience: Patience | None) -> bool:
    """Wait for one worker; return whether it has ended.

    The wait for a worker that is connecting to a publisher ends after ``timeout`` seconds.
    """
    name = worker.subscription.name
    until = None if timeout is None else time.monotonic() + timeout
    while not worker.join(_POLL):
        if worker.status.state == CONNECTING and until is not None and time.monotonic() > until:
            log.warning(
                'subscription "%s": the publisher does not answer, its worker is left behind', name
            )
            return False
        if patience is not None and (wait := patience.over()) is not None and worker.alive:
            leave_behind(f'worker of subscription "{name}"', wait)
            return False
    return True
