"""The work of an initial copy: one Spark task per unit, or all in this process; results as they
come.

In: copy tasks. Out: each unit's result once, as soon as its task is done, in the thread that asks.
A unit that has lost its own connection is copied again, twice at most, as long as nobody says that
the snapshot is gone; those that are done stay done.
Spark's ``collect`` gives results only when all tasks are done; an accumulator brings them earlier,
so that a table can be committed and progress shown while the others go on.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark import AccumulatorParam, SparkContext

from penstock.errors import ConnectionFailure, PenstockError
from penstock.lakehouse.cluster import Spark
from penstock.pipeline.snapshot_task import Copied, CopyFailed, CopyTask, Result, copy_units

_CHECK_INTERVAL_S: Final = 0.5
_LONGEST_UNIT_S: Final = 15.0
"""So long is a unit of this process waited for whose publisher does not answer."""
_TRIES: Final = 3
"""Of a unit whose connection breaks."""
_PAUSE_S: Final = 1.0
"""Before it is tried again: by then a server that has gone is known to have."""
_TICK_S: Final = 0.1
_ENDED: Final = object()
"""There will be no more results."""


class _Arrivals(AccumulatorParam[list[Result]]):
    """The way by which results of finished tasks reach the driver at once, out of one job of all
    tasks. In executors it only collects."""

    def __init__(self, deliver: Callable[[Result], None] | None = None) -> None:
        self._deliver = deliver

    def __reduce__(self) -> tuple[Any, ...]:
        return _Arrivals, ()

    def zero(self, value: list[Result]) -> list[Result]:
        return []

    def addInPlace(self, value1: list[Result], value2: list[Result]) -> list[Result]:
        if self._deliver is None:
            return value1 + value2
        for result in value2:
            self._deliver(result)
        return []


class CopyJob:
    """The units of a round, in a thread of its own; a context manager that cancels it.

    ``spark``: None copies in this process. ``at_once``: units, ``tables``: tables that are in work
    at the same time at most; None: all.
    """

    def __init__(
        self,
        spark: Spark | None,
        tasks: Sequence[CopyTask],
        at_once: int,
        description: str,
        tables: int | None = None,
    ) -> None:
        self._context = None if spark is None else spark.sparkContext
        self._at_once = at_once
        self._tables = tables
        self._description = description
        self._group = f"penstock-copy-{uuid.uuid4()}"
        self._arrived: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._todo = {task.number: task for task in tasks}
        """Units that somebody waits for, in order."""
        self._delivered: set[int] = set()
        """Those of them whose results are in the queue."""
        self._taken: dict[int, Result] = {}
        self._lost: set[int] = set()
        """Units of this wave that have lost their connections, and are tried again."""
        self._tries: Counter[int] = Counter()
        self._restart = False
        """The job that runs has units that nobody waits for: another is to follow it."""
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="copy", daemon=True)

    def __enter__(self) -> CopyJob:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cancelled = True
        left = time.monotonic() + _LONGEST_UNIT_S
        while self._thread.is_alive():  # the job may just be about to begin
            if self._context is not None:
                self._context.cancelJobGroup(self._group)
            elif time.monotonic() > left:
                return  # its files are left to VACUUM, as those of a killed task are
            self._thread.join(_CHECK_INTERVAL_S)

    def results(
        self, check: Callable[[], None], stray: Callable[[Copied], None] = lambda copied: None
    ) -> Iterator[Result]:
        """Each unit's result once, as it comes. Raises what Spark raises.

        ``check`` is called every half second, however fast the results come. ``stray`` is given
        what nobody waits for: units of a discarded table, and second attempts at a unit.
        """
        looked = time.monotonic()
        while self._todo:
            arrived = self._next()
            if time.monotonic() - looked >= _CHECK_INTERVAL_S:
                check()
                self._cancel_unwanted()
                looked = time.monotonic()
            if isinstance(arrived, BaseException):
                check()
                raise arrived
            if arrived is _ENDED:
                if self._todo:
                    raise PenstockError("the initial copy ended before all units were done")
            elif isinstance(arrived, Copied | CopyFailed):
                if self._take(arrived):
                    yield arrived
                elif isinstance(arrived, Copied) and arrived != self._taken.get(arrived.number):
                    stray(arrived)

    def discard(self, numbers: Collection[int]) -> None:
        """Nobody waits for these units any more. What runs of them is cancelled; other units that
        run in the same job begin again."""
        with self._lock:
            running = [n for n in numbers if n in self._todo and n not in self._delivered]
            for number in numbers:
                self._todo.pop(number, None)
            self._restart = self._restart or bool(running)
        self._cancel_unwanted()

    def late(self) -> list[Copied]:
        """Units that ended after somebody stopped asking; call it when the job is over."""
        found: list[Copied] = []
        while True:
            try:
                arrived = self._arrived.get_nowait()
            except queue.Empty:
                return found
            if isinstance(arrived, Copied) and arrived != self._taken.get(arrived.number):
                found.append(arrived)

    def _next(self) -> Result | BaseException | object | None:
        try:
            arrived = self._arrived.get(timeout=_CHECK_INTERVAL_S)
        except queue.Empty:
            return None
        return _ENDED if arrived is None else arrived

    def _take(self, result: Result) -> bool:
        """Whether somebody waits for this result."""
        with self._lock:
            if self._todo.pop(result.number, None) is None:
                return False
        self._taken[result.number] = result
        return True

    def _cancel_unwanted(self) -> None:
        # again and again, as the job may just be about to begin
        if self._restart and self._context is not None:
            self._context.cancelJobGroup(self._group)

    def _run(self) -> None:
        try:
            if self._context is None:
                self._run_here()
            else:
                self._run_job(self._context)
            self._arrived.put(None)
        except BaseException as error:
            self._arrived.put(error)

    def _run_here(self) -> None:
        while (task := next(iter(self._waiting()), None)) is not None and not self._cancelled:
            for result in copy_units([task]):
                self._deliver(result)
            self._after_wave()

    def _run_job(self, context: SparkContext) -> None:
        context.setJobGroup(self._group, self._description)
        while wave := self._wave(context):
            try:
                for result in self._run_wave(context, wave):
                    self._deliver(result)
            except Exception:
                if self._cancelled or not self._restart:
                    raise
            self._after_wave()

    def _after_wave(self) -> None:
        with self._lock:
            self._tries.update(self._lost)
            again = bool(self._lost)
            self._lost.clear()
        until = time.monotonic() + _PAUSE_S
        while again and not self._cancelled and time.monotonic() < until:
            time.sleep(_TICK_S)

    def _run_wave(self, context: SparkContext, tasks: Sequence[CopyTask]) -> list[Result]:
        none: list[Result] = []
        arrivals = context.accumulator(none, _Arrivals(self._deliver))

        def run(partition: Iterable[CopyTask]) -> Iterator[Result]:
            for result in copy_units(partition):
                arrivals.add([result])
                yield result

        job = context.parallelize(tasks, len(tasks)).mapPartitions(run)
        return list(job.collect())

    def _deliver(self, result: Result) -> None:
        """A wave's results come twice, by the accumulator and at its end."""
        with self._lock:
            if self._tries_again(result):
                self._lost.add(result.number)
                return
            self._delivered.add(result.number)
        self._arrived.put(result)

    def _tries_again(self, result: Result) -> bool:
        lost = isinstance(result, CopyFailed) and type(result.error) is ConnectionFailure
        return lost and self._tries[result.number] < _TRIES - 1

    def _waiting(self) -> list[CopyTask]:
        with self._lock:
            self._restart = False
            return [t for number, t in self._todo.items() if number not in self._delivered]

    def _wave(self, context: SparkContext) -> list[CopyTask]:
        """What comes next: all in one job where the cluster cannot do more than ``at_once`` units
        at the same time anyway."""
        waiting = self._waiting()
        if self._tables is not None:
            begun = list(dict.fromkeys(task.table for task in waiting))[: self._tables]
            waiting = [task for task in waiting if task.table in begun]
        narrow = context.defaultParallelism <= self._at_once
        return [] if self._cancelled else waiting if narrow else waiting[: self._at_once]
