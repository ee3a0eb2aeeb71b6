"""Changes of Delta tables as messages of pgoutput: one Spark job a transaction.

In: for each table of a transaction, which rows came and went, and how the table is published. Out:
encoded messages in order: table by table, deletes before updates before inserts. Executors read the
rows, cancel equal ones, pair old and new ones by key, filter and encode them; what is large comes
back through the staging area. The row work itself is ``change_rows``.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.lakehouse.storage import Storage, resolve, storage_errors
from penstock.pipeline.change_item import ChangeItem, Operation
from penstock.pipeline.change_rows import encoded_changes
from penstock.pipeline.job import FOR_A_CLIENT, run_job
from penstock.pipeline.tasks import Failed

_INLINE_BYTES: Final = 1 << 20
"""Messages of a task that come back with its result; more go through the staging area."""


@dataclass(frozen=True)
class Portion:
    """Whole messages of one table and one operation; ``data`` goes to a client as it is."""

    work: int
    operation: Operation
    changes: int
    data: bytes


@dataclass(frozen=True)
class _Stored:
    """A portion in a file of the staging area."""

    work: int
    operation: Operation
    changes: int
    uri: str
    start: int
    size: int


def publish_changes(
    spark: SparkSession,
    storage: Storage,
    items: Sequence[ChangeItem],
    *,
    staging: str,
) -> Generator[Portion | Failed, None, None]:
    """``items``: by table (``work``), in the order in which the tables are sent.

    An error that ``encoded_changes`` raises is the last value, behind what comes before the table
    that failed. Closing the iterator early removes what waits. Raises StorageError.
    """
    tasks = [(item.cost, _Task(storage, item, f"{staging}/{uuid.uuid4()}")) for item in items]
    found = run_job(spark, tasks, run_changes, "penstock: publish", cores=FOR_A_CLIENT)
    try:
        for portion in sorted(found, key=_place):
            yield _read(portion) if isinstance(portion, _Stored) else portion
            if isinstance(portion, Failed):
                return
    finally:
        for uri in {p.uri for p in found if isinstance(p, _Stored)}:
            storage.remove(uri)


def _place(result: Portion | _Stored | Failed) -> tuple[int, int]:
    """Where it is sent; an error in front of all of its table."""
    return result.work, -1 if isinstance(result, Failed) else result.operation


@dataclass(frozen=True)
class _Task:
    storage: Storage
    item: ChangeItem
    target: str


def run_changes(partitions: Iterable[tuple[_Task, ...]]) -> Iterator[Portion | _Stored | Failed]:
    """One task: its tables one after the other; an expected error comes back as a value."""
    for tasks in partitions:
        for task in tasks:
            try:
                yield from _changes(task)
            except PenstockError as error:
                yield Failed(task.item.work, error)


def _changes(task: _Task) -> Iterator[Portion | _Stored]:
    """The first megabyte comes back as it is, the rest in a file."""
    inline = 0
    encoded = encoded_changes(task.storage, task.item)
    for operation, changes, data in encoded:
        inline += len(data)
        if inline > _INLINE_BYTES:
            yield from _stored(task, operation, changes, data, encoded)
            return
        yield Portion(task.item.work, operation, changes, data)


def _stored(
    task: _Task,
    operation: Operation,
    changes: int,
    data: bytes,
    rest: Iterator[tuple[Operation, int, bytes]],
) -> Iterator[_Stored]:
    work, uri, start = task.item.work, task.target, 0
    with storage_errors("write file", uri):
        filesystem, path = resolve(uri)
        with filesystem.open_output_stream(path) as target:
            while True:
                target.write(data)
                yield _Stored(work, operation, changes, uri, start, len(data))
                start += len(data)
                following = next(rest, None)
                if following is None:
                    return
                operation, changes, data = following


def _read(stored: _Stored) -> Portion:
    with storage_errors("read file", stored.uri):
        filesystem, path = resolve(stored.uri)
        with filesystem.open_input_file(path) as source:
            source.seek(stored.start)
            data = source.read(stored.size)
    return Portion(stored.work, stored.operation, stored.changes, data)
