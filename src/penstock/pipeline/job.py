"""The one Spark job of a batch, or none if the work is small.

Each item of work has an estimated cost. Results come in the order of the items. Items are packed
into as many partitions as the cluster runs in parallel, because a task costs more than most items.
``tasks`` does the items.

A job costs 20 to 100 ms before its first item begins. If all items together take less, this process
does them by the same functions: most transactions change a few rows. It does several items at the
same time, because small items mostly wait for the disk. If the cluster is this machine and has few
cores (``narrow_cores``), this process does large work as well: it can use all of them, since
nearly all of the work is done without the interpreter's lock, and other processes would only cost
more.

Spark may run a task twice, after an error or beside a slow one, and takes the result of one
attempt. So the task itself names the files that an item writes, and only its result lists them.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from penstock.errors import PenstockError
from penstock.lakehouse.cluster import Spark, working

Item = TypeVar("Item")
Result = TypeVar("Result")

FOR_A_CLIENT: Final = 0.5
"""The part of the cluster's cores that works for a reading client. One or two cores produce as much
as a client can take: the others are for other work, and for the client if it is on this machine."""
HERE_BYTES: Final = float(256 << 10)
"""Bytes of data files that can be read in the time that a job takes to begin."""
HERE_SECONDS: Final = 0.05
"""The same limit in seconds of estimated work."""
HERE_SECONDS_IF_NARROW: Final = 10.0
_SIDE_BY_SIDE: Final = 4
_here: Final = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="here")


def narrow_cores(master: str) -> int | None:
    """Return the cores of a Spark ``master`` if this process can use all of them itself; None
    otherwise."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:, *\d+)?\])?", master)
    if local is None:
        return None
    given = local[1] or "1"
    cores = (os.cpu_count() or 1) if given == "*" else int(given)
    return cores if cores <= _SIDE_BY_SIDE else None


def run_job(
    spark: Spark,
    items: Sequence[tuple[float, Item]],
    run: Callable[[Item], Iterable[Result]],
    name: str,
    *,
    cores: float = 1.0,
    here: float = 0.0,
) -> list[Result]:
    """Run all items, pairs of cost and work, in one job with the description ``name``.

    ``run``: an importable function that does one item. Its expected errors are results, so that one
    table's error does not stop the others. ``cores``: the part of the cluster's cores that the job
    may have; it gets at least one. ``here``: the total cost up to which the items are run in this
    process. Raises PenstockError if not every item was answered exactly once.
    """
    if sum(cost for cost, _ in items) <= here:
        return _run_here(items, run)
    context = spark.sparkContext
    with working(context):
        tasks = max(1, int(context.defaultParallelism * cores))
        numbered = [(cost, (number, item)) for number, (cost, item) in enumerate(items)]
        packed = pack(numbered, min(len(items), tasks))
        context.setJobDescription(name)
        try:
            work = context.parallelize(packed, len(packed)).mapPartitions(partial(run_task, run))
            answers: list[Answer] = work.collect()
        finally:
            context.setJobDescription(None)  # type: ignore[arg-type]
    return [
        result for answer in check_answers(answers, len(items), name) for result in answer.results
    ]


def _run_here(
    items: Sequence[tuple[float, Item]], run: Callable[[Item], Iterable[Result]]
) -> list[Result]:
    if len(items) <= 1:
        return [result for _, item in items for result in run(item)]
    numbered = [(cost, (number, item)) for number, (cost, item) in enumerate(items)]
    little = sum(cost for cost, _ in items) <= HERE_SECONDS
    # Large items hold much memory: no more of them at the same time than there are cores.
    count = len(items) if little else min(_SIDE_BY_SIDE, os.cpu_count() or 1)
    # Wait for all items before the first error is raised: no item may outlive its batch.
    futures = [_here.submit(_all, run, part) for part in pack(numbered, count)]
    wait(futures)
    found = sorted((answer for future in futures for answer in future.result()), key=_number)
    return [result for answer in found for result in answer.results]


def _all(
    run: Callable[[Item], Iterable[Result]], items: tuple[tuple[int, Item], ...]
) -> list[Answer]:
    return [Answer(number, tuple(run(item))) for number, item in items]


def _number(answer: Answer) -> int:
    return answer.item


@dataclass(frozen=True)
class Answer:
    """All results of the item with this number."""

    item: int
    results: tuple[Any, ...]


def run_task(
    run: Callable[[Any], Iterable[Any]], partitions: Iterable[tuple[tuple[int, Any], ...]]
) -> Iterator[Answer]:
    """Run one task: its items one after the other."""
    for items in partitions:
        for number, item in items:
            yield Answer(number, tuple(run(item)))


def check_answers(answers: Sequence[Answer], items: int, name: str) -> Sequence[Answer]:
    """Return the answers in the order of the items. Raises PenstockError if any is missing."""
    numbers = [answer.item for answer in answers]
    if sorted(numbers) != list(range(items)):
        raise PenstockError(
            f'Spark job "{name}" gave {len(numbers)} results for {len(set(numbers))} of '
            f"{items} pieces of work"
        )
    return sorted(answers, key=_number)


def pack(items: Sequence[tuple[float, Item]], count: int) -> list[tuple[Item, ...]]:
    """Pack items into ``count`` tuples of about equal cost: the next most expensive item goes to
    the tuple with the least cost."""
    loads: list[tuple[float, int]] = [(0.0, number) for number in range(count)]
    packed: list[list[Item]] = [[] for _ in range(count)]
    for cost, item in sorted(items, key=lambda pair: -pair[0]):
        load, number = heapq.heappop(loads)
        packed[number].append(item)
        heapq.heappush(loads, (load + cost, number))
    return [tuple(part) for part in packed if part]
