"""Changes of Delta tables as messages of pgoutput: one Spark job for a wave of tables, two more for
a table that is too large for a task, none where there is little.

In: for each table of a transaction, which rows came and went, and how the table is published. Out:
encoded messages in order: table by table, deletes before updates before inserts. Tasks read the
rows, cancel equal ones, pair old and new ones, filter and encode them; what is large comes back
through the staging area. The row work itself is ``change_rows``.

Memory: of many files only so many are worked on that the staging area holds a bounded part of the
messages, and the driver a few megabytes of them. A table whose rows went and came is one piece,
because its deletes go first; one that is too large for a task is divided (``change_shares``).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import duckdb

from penstock.errors import PenstockError, StorageError
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.storage import Storage, make_folder, resolve, storage_errors
from penstock.pipeline.change_item import SENT_ORDER, ChangeItem
from penstock.pipeline.change_load import TooManyChanges
from penstock.pipeline.change_rows import encoded_changes
from penstock.pipeline.change_shares import Divided, divide_items, run_divide, shares
from penstock.pipeline.duck import out_of_memory, query_error
from penstock.pipeline.job import FOR_A_CLIENT, HERE_BYTES, run_job
from penstock.pipeline.tasks import Failed
from penstock.publication.members import Operation

_INLINE_BYTES: Final = 1 << 20
"""Messages of an item that come back with its result; more go through the staging area."""
_INLINE_OF_A_JOB: Final = 16 << 20
"""Of all its items; the JVM of the driver holds them several times."""
_WAVE_BYTES: Final = 256 << 20
"""Data files whose messages are made before the first of them is sent; one file may be larger."""
_SHARE_BYTES: Final = 256 << 20
_JOB: Final = "penstock: publish"

log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class _TooLarge:
    """The changes of this table are to be divided."""

    work: int


_Result = Portion | _Stored | _TooLarge | Failed


def publish_changes(
    spark: Spark,
    storage: Storage,
    items: Sequence[ChangeItem],
    *,
    staging: str,
    share_bytes: int = _SHARE_BYTES,
) -> Generator[Portion | Failed, None, None]:
    """``items``: by table (``work``), in the order in which the tables are sent.

    ``share_bytes``: Arrow data of old and new rows that one task pairs. An error that
    ``encoded_changes`` raises is the last value, after what comes before the table that failed.
    Closing the iterator early removes what waits. Raises StorageError.
    """
    # Also of attempts whose results nobody was told.
    job = _Job(spark, storage, f"{staging}/{uuid.uuid4()}", share_bytes)
    try:
        for wave in _waves(items):
            for result in job.wave(wave):
                yield result
                if isinstance(result, Failed):
                    return
    finally:
        storage.discard_folder(job.folder)


def _waves(items: Sequence[ChangeItem]) -> Iterator[list[ChangeItem]]:
    wave: list[ChangeItem] = []
    size = 0
    for item in items:
        if wave and size + item.size > _WAVE_BYTES:
            yield wave
            wave, size = [], 0
        wave.append(item)
        size += item.size
    if wave:
        yield wave


@dataclass(frozen=True)
class _Job:
    """What is published at once; ``folder``: its own, in the staging area."""

    spark: Spark
    storage: Storage
    folder: str
    share_bytes: int

    def wave(self, items: Sequence[ChangeItem]) -> Iterator[Portion | Failed]:
        """Everything about some items, in order."""
        found: list[_Result] = [
            _TooLarge(item.work) for item in items if item.removed and item.size > self.share_bytes
        ]
        large = {result.work for result in found}
        found += self._encode([item for item in items if item.work not in large])
        by_work = {item.work: item for item in items}
        for result in sorted(found, key=_place):
            if isinstance(result, _TooLarge):
                yield from self._divided(by_work[result.work])
            else:
                yield from self._read([result])

    def _divided(self, item: ChangeItem) -> Iterator[Portion | Failed]:
        """The changes of one table that are too many for a task."""
        tasks = self.spark.sparkContext.defaultParallelism
        work = divide_items(self.storage, item, self.folder, self.share_bytes, tasks)
        parts: list[Divided] = []
        for result in run_job(self.spark, work, run_divide, _JOB, cores=FOR_A_CLIENT):
            if isinstance(result, Failed):
                yield result
                return
            parts.append(result)
        made = shares(item, parts, self.share_bytes)
        log.debug(
            "divided table=%s files=%d read=%d staged=%d shares=%d",
            item.table.name,
            len(item.removed) + len(item.added),
            item.size,
            sum(part.size for part in parts),
            len(made),
        )
        yield from self._read(sorted(self._encode(made), key=_place))

    def _encode(self, items: Sequence[ChangeItem]) -> list[_Result]:
        inline = min(_INLINE_BYTES, _INLINE_OF_A_JOB // max(1, len(items)))
        task = _Task(self.storage, self.folder, inline, self.share_bytes)
        tasks = [(1.0 + item.size, replace(task, item=item)) for item in items]
        return run_job(self.spark, tasks, run_changes, _JOB, cores=FOR_A_CLIENT, here=HERE_BYTES)

    def _read(self, results: Sequence[_Result]) -> Iterator[Portion | Failed]:
        for result in results:
            if isinstance(result, _Stored):
                yield _read(result)
            elif not isinstance(result, _TooLarge):
                yield result


def _place(result: _Result) -> tuple[int, int]:
    """Where it is sent; an error in front of all of its table."""
    if isinstance(result, Failed | _TooLarge):
        return result.work, -1
    return result.work, SENT_ORDER.index(result.operation)


@dataclass(frozen=True)
class _Task:
    """``inline``: bytes of messages that come back as they are, the rest in a file."""

    storage: Storage
    folder: str
    inline: int
    share_bytes: int
    item: ChangeItem | None = None


def run_changes(task: _Task) -> Iterator[_Result]:
    """In a task; an expected error comes back as a value."""
    assert task.item is not None
    try:
        yield from _changes(task, task.item)
    except TooManyChanges:
        yield _TooLarge(task.item.work)
    except duckdb.OutOfMemoryException as error:
        yield Failed(task.item.work, out_of_memory(error))
    except duckdb.Error as error:
        yield Failed(task.item.work, query_error(error))
    except PenstockError as error:
        yield Failed(task.item.work, error)


def _changes(task: _Task, item: ChangeItem) -> Iterator[Portion | _Stored]:
    inline = 0
    encoded = encoded_changes(task.storage, item, task.share_bytes)
    for operation, changes, data in encoded:
        inline += len(data)
        if inline > task.inline:
            yield from _stored(task, item.work, (operation, changes, data), encoded)
            return
        yield Portion(item.work, operation, changes, data)


def _stored(
    task: _Task,
    work: int,
    first: tuple[Operation, int, bytes],
    rest: Iterator[tuple[Operation, int, bytes]],
) -> Iterator[_Stored]:
    """The name is this attempt's own: Spark may run a task twice."""
    uri, start = f"{task.folder}/{uuid.uuid4()}", 0
    following: tuple[Operation, int, bytes] | None = first
    make_folder(task.folder)
    with storage_errors("write file", uri):
        filesystem, path = resolve(uri)
        with filesystem.open_output_stream(path) as target:
            while following is not None:
                operation, changes, data = following
                target.write(data)
                yield _Stored(work, operation, changes, uri, start, len(data))
                start += len(data)
                following = next(rest, None)


def _read(stored: _Stored) -> Portion:
    with storage_errors("read file", stored.uri):
        filesystem, path = resolve(stored.uri)
        with filesystem.open_input_file(path) as source:
            source.seek(stored.start)
            data = source.read(stored.size)
    if len(data) != stored.size:
        raise StorageError(
            f'file "{stored.uri}" has {stored.start + len(data)} bytes, '
            f"{stored.start + stored.size} were written",
            sqlstate="XX001",
        )
    return Portion(stored.work, stored.operation, stored.changes, data)
