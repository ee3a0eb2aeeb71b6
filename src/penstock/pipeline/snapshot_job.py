"""The Spark job of an initial copy: one task per unit, results as they come.

In: copy tasks. Out: each unit's result once, as soon as its task is done, in the thread that asks.
Spark's ``collect`` gives results only when all tasks are done; an accumulator brings them earlier,
so that a table can be committed and progress shown while the others go on.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.pipeline.snapshot_task import Copied, CopyTask, Result, copy_units

_CHECK_INTERVAL_S: Final = 1.0


class _Arrivals:
    """AccumulatorParam. An accumulator is the way by which results of finished tasks reach
    the driver at once, out of one job of all tasks. In executors it only collects."""

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
    """The Spark job of a round, in a thread of its own; a context manager that cancels it."""

    def __init__(
        self, spark: SparkSession, tasks: Sequence[CopyTask], at_once: int, description: str
    ) -> None:
        self._context = spark.sparkContext
        self._tasks = tasks
        self._at_once = at_once
        self._description = description
        self._group = f"penstock-copy-{uuid.uuid4()}"
        self._arrived: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()
        self._seen: set[int] = set()
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="copy", daemon=True)

    def __enter__(self) -> CopyJob:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cancelled = True
        while self._thread.is_alive():  # the job may just be about to begin
            self._context.cancelJobGroup(self._group)
            self._thread.join(_CHECK_INTERVAL_S)

    def results(self, check: Callable[[], None]) -> Iterator[Result]:
        """Each unit's result once, as it comes. Raises what Spark raises."""
        seen = self._seen
        while len(seen) < len(self._tasks):
            try:
                arrived = self._arrived.get(timeout=_CHECK_INTERVAL_S)
            except queue.Empty:
                check()
                continue
            if isinstance(arrived, BaseException):
                check()
                raise arrived
            if arrived is None:
                raise PenstockError("the initial copy ended before all units were done")
            if arrived.number not in seen:
                seen.add(arrived.number)
                yield arrived

    def late(self) -> list[Copied]:
        """Units that ended after somebody stopped asking; call it when the job is over."""
        found: dict[int, Copied] = {}
        while True:
            try:
                arrived = self._arrived.get_nowait()
            except queue.Empty:
                return list(found.values())
            if isinstance(arrived, Copied) and arrived.number not in self._seen:
                found[arrived.number] = arrived

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, self._description)
            for wave in self._waves():
                if self._cancelled:
                    return
                for result in self._run_wave(wave):
                    self._arrived.put(result)
            self._arrived.put(None)
        except BaseException as error:
            self._arrived.put(error)

    def _run_wave(self, tasks: Sequence[CopyTask]) -> list[Result]:
        arrivals = self._context.accumulator([], _Arrivals(self._arrived.put))

        def run(partition: Iterator[CopyTask]) -> Iterator[Result]:
            for result in copy_units(partition):
                arrivals.add([result])
                yield result

        job = self._context.parallelize(tasks, len(tasks)).mapPartitions(run)
        return list(job.collect())

    def _waves(self) -> Iterator[Sequence[CopyTask]]:
        """One job where the cluster cannot do more than ``at_once`` units anyway."""
        narrow = self._context.defaultParallelism <= self._at_once
        step = len(self._tasks) if narrow else self._at_once
        for start in range(0, len(self._tasks), step or 1):
            yield self._tasks[start : start + step]
