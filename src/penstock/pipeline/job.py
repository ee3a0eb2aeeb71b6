"""The one Spark job of a batch.

In: items of work, each with its estimated cost. Out: their results, in no order. Items are packed
into as many partitions as the cluster works on side by side, because a task costs more than most
items do. What an item does is ``tasks``'.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

FOR_A_CLIENT: Final = 0.5
"""Part of the cluster that works for a client that reads. It takes what a core or two make: the
others are for who else has work, and for the client itself where it is on the same machine."""


def run_job(
    spark: SparkSession,
    items: Sequence[tuple[float, Item]],
    run: Callable[[Iterable[tuple[Item, ...]]], Iterator[Result]],
    name: str,
    *,
    cores: float = 1.0,
) -> list[Result]:
    """Run all items, pairs of cost (seconds) and work, in one job of the description ``name``.

    ``run``: an importable function that does the tuples of items which one task is given.
    ``cores``: which part of the cluster's it may have; one at least.
    """
    if not items:
        return []
    context = spark.sparkContext
    tasks = max(1, int(context.defaultParallelism * cores))
    packed = pack(items, min(len(items), tasks))
    context.setJobDescription(name)
    try:
        results = context.parallelize(packed, len(packed)).mapPartitions(run).collect()
    finally:
        context.setJobDescription(None)
    return list(results)


def pack(items: Sequence[tuple[float, Item]], count: int) -> list[tuple[Item, ...]]:
    """Items in ``count`` tuples of about equal cost: the dearest first, to the idlest."""
    loads: list[tuple[float, int]] = [(0.0, number) for number in range(count)]
    packed: list[list[Item]] = [[] for _ in range(count)]
    for cost, item in sorted(items, key=lambda pair: -pair[0]):
        load, number = heapq.heappop(loads)
        packed[number].append(item)
        heapq.heappush(loads, (load + cost, number))
    return [tuple(part) for part in packed if part]
