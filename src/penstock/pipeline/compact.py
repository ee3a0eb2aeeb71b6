"""Compaction: merge small files into large ones, and rewrite files that have many deleted rows.

The table's next version holds the same rows in other files (dataChange = false). Readers of older
versions keep the old files until VACUUM.

There are two steps, so that batches need not wait. ``rewrite`` works on one version of a table, in
any thread. ``put_in_place`` runs in the thread that commits to the table, and is quick. A rewrite
keeps the order of live rows, so rows deleted meanwhile can be found and deleted in the new files.
If half of the old files are gone, or the table was replaced or has other columns, nothing is put in
place. ``subscription.upkeep`` decides when to compact, and handles a lost race.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from penstock.errors import PenstockError, StorageError
from penstock.lakehouse.batches import BATCH_BYTES
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import bitmap_of, numbers_of
from penstock.lakehouse.file_commits import FileCommits
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_layout import TableLayout
from penstock.pipeline.job import run_job
from penstock.pipeline.rewrite import RewriteItem, RewrittenFile, run_rewrite
from penstock.pipeline.tasks import Failed, Written

log = logging.getLogger(__name__)

_OPERATION: Final = "OPTIMIZE"
_APP_ID: Final = "penstock.compaction"
"""The app id of our commits' marker if the newest commit has no marker."""
_SECONDS_PER_BYTE: Final = 3e-8
HERE_SECONDS: Final = 0.25
"""The estimated work up to which a rewrite runs in this process: a job would cost as much."""
_CORES: Final = 0.5
"""The part of the cluster's cores that compaction uses; the rest is left to the batches."""


@dataclass(frozen=True)
class TableAt:
    """A table at one version: a value that other threads than the table's may use."""

    name: str
    uri: str
    id: str
    version: int
    storage: Storage
    schema: pa.Schema
    layout: TableLayout
    metadata: Mapping[str, Any]
    files: tuple[DataFile, ...]
    commits: FileCommits

    @classmethod
    def now(cls, table: DeltaTable) -> TableAt:
        """Return the present version of ``table``, which has nothing staged."""
        return cls(
            table.name,
            table.uri,
            table.id,
            table.version,
            table.storage,
            table.schema.arrow(),
            table.layout,
            table.state.metadata,
            tuple(table.files.values()),
            table.commits,
        )


@dataclass(frozen=True)
class Rewritten:
    """The result of a rewrite. Each of ``groups`` is a pair: old files, and the new files that hold
    their live rows in the same order."""

    at: TableAt
    groups: tuple[tuple[tuple[DataFile, ...], tuple[WrittenFile, ...]], ...]

    @property
    def old(self) -> list[DataFile]:
        """The files that were rewritten."""
        return [file for files, _ in self.groups for file in files]

    @property
    def new(self) -> list[WrittenFile]:
        """The files that the Delta log does not name yet."""
        return [file for _, written in self.groups for file in written]

    def remove(self) -> None:
        """Remove the new files: they are not needed."""
        for file in self.new:
            self.at.storage.remove(f"{self.at.uri}/{file.path}")


def due_files(at: TableAt, options: CompactOptions) -> list[DataFile]:
    """Return the files that are due for ``rewrite``. The writer of a file is looked up only if the
    file would be due. Raises StorageError."""
    chosen = files_to_rewrite(at.files, options)
    own = options.own
    if own is None or not chosen:
        return chosen
    others = {f.path for f in at.files if _may_be_due(f, options) and _is_by(f, at, own)}
    return files_to_rewrite((f for f in at.files if f.path not in others), options)


def _may_be_due(file: DataFile, options: CompactOptions) -> bool:
    return live_bytes(file) < options.small_bytes or file.deleted >= options.dead_ratio * file.rows


def _is_by(file: DataFile, at: TableAt, own: str) -> bool:
    return at.commits.by_others(file, at.version, own)


def compact(spark: Spark, table: DeltaTable, options: CompactOptions) -> int:
    """Rewrite the files that are due and commit; return the number of files rewritten.

    Raises StorageError; CommitConflict if another writer was first. The table is unharmed then,
    nothing is staged and the new files are removed.
    """
    if table.has_staged:
        return 0
    at = TableAt.now(table)
    chosen = due_files(at, options)
    if not chosen:
        return 0
    put_in_place(table, rewrite(spark, at, chosen, options))
    return len(chosen)


def rewrite(
    spark: Spark, at: TableAt, chosen: Sequence[DataFile], options: CompactOptions
) -> Rewritten:
    """Write the live rows of files to new files, in a Spark job, or without a job if it is little
    work. Raises Spark's errors; StorageError, after which no new files are left."""
    groups = _groups(chosen, options)
    items = [
        (sum(file.size for file in group) * _SECONDS_PER_BYTE, _item(at, group, options))
        for group in groups
    ]
    name = f"penstock: compact {at.name}"
    results = run_job(spark, items, run_rewrite, name, cores=_CORES, here=HERE_SECONDS)
    return _check(at, groups, results)


def put_in_place(table: DeltaTable, done: Rewritten) -> bool:
    """Commit the new files without the rows deleted since. If the files no longer fit, remove them
    and return False. The commit repeats the newest commit's marker, because the table's rows and
    LSN stay the same.

    Raises StorageError; CommitConflict if another writer was first. Nothing is staged then, and the
    new files are removed unless the commit may have taken place.
    """
    if not _fits(table, done):
        done.remove()
        return False
    lost = _deleted_since(table, done)
    there = [table.files[file.path] for file in done.old if file.path in table.files]
    kept = sum(file.rows for file in done.new) - sum(map(len, lost.values()))
    if kept != sum(file.live_rows for file in there):
        done.remove()
        raise _damaged(done.at, kept, sum(file.live_rows for file in there))
    try:
        table.stage(written=done.new, removed=[file.path for file in there])
        table.stage(deleted=lost)
        commit_again(table, _OPERATION)
    except PenstockError:
        table.discard()
        raise
    log.debug("compacted %d files of %s to %d", len(there), table.name, len(done.new))
    return True


def _fits(table: DeltaTable, done: Rewritten) -> bool:
    """Return whether the table is the same and has enough of the old files. A rewrite does not fit
    if rows have come back in an old file (RESTORE), since no new file has them."""
    at, gone = done.at, 0
    if table.has_staged or table.state.metadata != at.metadata or table.layout != at.layout:
        return False
    for old in done.old:
        now = table.files.get(old.path)
        if now is None:
            gone += 1
        elif now.deletion_vector != old.deletion_vector and not (
            old.positions_deleted() <= now.positions_deleted()
        ):
            return False
    return 2 * gone < len(done.old)


def _deleted_since(table: DeltaTable, done: Rewritten) -> dict[str, BitMap]:
    """Return, by path of new file, the positions of rows that have been deleted from the old files
    since. If an old file is gone, these are all of its rows: they were deleted, or another writer
    has moved them to other files."""
    found: dict[str, BitMap] = {}
    for sources, written in done.groups:
        deleted = []
        for old in sources:
            deleted.append((old, old.gone_in(table.files.get(old.path))))
        found.update(moved_positions(deleted, written))
    return found


def moved_positions(
    sources: Sequence[tuple[DataFile, BitMap]], written: Sequence[WrittenFile]
) -> dict[str, BitMap]:
    """Return the positions in new files, by path, of rows deleted since the rewrite. ``sources``:
    the rewritten files, each with all positions that are deleted in it now; ``written``: the files
    that hold, one after the other, the rows that were alive."""
    found: list[np.ndarray] = []
    first = 0
    for old, deleted in sources:
        before = old.positions_deleted()
        lost = numbers_of(deleted - before)
        found.append(first + lost - np.searchsorted(numbers_of(before), lost))
        first += old.live_rows
    moved = np.concatenate([np.zeros(0, np.int64), *found])
    ends = np.cumsum([file.rows for file in written])
    parts = zip(written, np.split(moved, np.searchsorted(moved, ends)), strict=False)
    return {
        file.path: bitmap_of(part - (end - file.rows))
        for (file, part), end in zip(parts, ends, strict=True)
        if len(part)
    }


def commit_again(table: DeltaTable, operation: str) -> None:
    """Commit staged files that change no row, with the marker of the newest commit."""
    app_id = table.last_app_id
    marker = None if app_id is None else table.transaction_version(app_id)
    if app_id is None or marker is None:
        app_id, marker = _APP_ID, table.version + 1
    table.commit(app_id=app_id, version_marker=marker, operation=operation, data_change=False)


def _groups(files: Sequence[DataFile], options: CompactOptions) -> list[tuple[DataFile, ...]]:
    """Return runs of files of one partition that make up about one new file each."""
    groups: list[list[DataFile]] = []
    size = float(options.target_file_bytes)
    for file in files:
        full = size >= options.target_file_bytes
        if full or partition(groups[-1][-1]) != partition(file):
            groups.append([])
            size = 0.0
        groups[-1].append(file)
        size += live_bytes(file)
    return [tuple(group) for group in groups]


def _item(at: TableAt, group: Sequence[DataFile], options: CompactOptions) -> RewriteItem:
    return RewriteItem(
        at.storage,
        at.uri,
        at.schema,
        tuple(map(RewrittenFile.of, group)),
        options.target_file_bytes,
        options.batch_bytes,
        layout=at.layout,
    )


def _check(
    at: TableAt, groups: Sequence[tuple[DataFile, ...]], results: Sequence[Written | Failed]
) -> Rewritten:
    """Return the rewrite. Raises an item's error, or StorageError if the new files do not hold as
    many rows as the old ones had alive; the new files are removed then."""
    files = [tuple(each.files) if isinstance(each, Written) else () for each in results]
    done = Rewritten(at, tuple(zip(groups, files, strict=True)))
    failed = [each.error for each in results if isinstance(each, Failed)]
    for sources, written in () if failed else done.groups:
        expected = sum(file.live_rows for file in sources)
        found = sum(file.rows for file in written)
        if found != expected:
            failed.append(_damaged(at, found, expected))
    if failed:
        done.remove()
        raise failed[0]
    return done


def _damaged(at: TableAt, found: int, expected: int) -> PenstockError:
    return StorageError(
        f'compaction of table "{at.name}" read {found} rows where there are {expected}',
        hint="Data files are damaged: put them back from a copy.",
        sqlstate="XX001",
    )


# The choice of files to compact: small ones by their sizes, large ones by their dead rows.
#
# Each call chooses some due files of a version. Small files have size classes, each eight times the
# one before. A full class is merged together with all smaller files, so the result is of a higher
# class: a row is rewritten once per class, however many commits there are, and a table keeps fewer
# than ``small_files`` small files. Merging all small files whenever there are many would rewrite
# the largest of them repeatedly.

_CLASSES: Final = 4
_WIDTH: Final = 8
"""The size of a class relative to the class below. The lowest class has no lower limit: the cost of
such files is that of opening them."""

_Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class CompactOptions:
    """Thresholds for compacting a table, and limits for one run.

    ``small_files``: the most small files (less than ``small_bytes`` of live rows) that a table
    keeps, not counting files that are alone in their partition. ``dead_ratio``: larger files are
    rewritten when this part of their rows is deleted. ``max_bytes``: bytes of files in one run.
    ``batch_bytes``: Arrow data that a task reads at a time. ``own``: an app id; files known to be
    written by another app stay as they are. None: no check.
    """

    small_files: int = 32
    small_bytes: int = 16 << 20
    dead_ratio: float = 0.3
    target_file_bytes: int = TARGET_FILE_BYTES
    max_bytes: int = 128 << 20
    batch_bytes: int = BATCH_BYTES
    own: str | None = None

    @property
    def full(self) -> int:
        """The number of files that makes a class full."""
        return max(2, self.small_files // _CLASSES)


def files_to_rewrite(files: Iterable[DataFile], options: CompactOptions) -> list[DataFile]:
    """Return the files that are due, in the order of the table, up to ``max_bytes`` but at least
    one, or two if they are small.

    Dead rows do not make a small file due: it would be rewritten with every batch that touches it.
    A small file that is alone in its partition is never due: merging would not change it.
    """
    small: list[tuple[int, DataFile]] = []
    dying: list[DataFile] = []
    for file in files:
        if (size := live_bytes(file)) < options.small_bytes:
            small.append((_class(size, options), file))
        elif file.deleted >= options.dead_ratio * file.rows:
            dying.append(file)
    merged = _merged(_full_class(small, options), options)
    return merged or _dying(dying, options)


def gain(chosen: Sequence[DataFile]) -> float:
    """Return the gain of a rewrite, in files saved and bytes of dead rows, relative to the bytes
    that it reads and writes."""
    size = sum(file.size for file in chosen)
    dead = size - sum(map(live_bytes, chosen))
    fewer = len(chosen) - len({partition(file) for file in chosen})
    return (fewer + dead / TARGET_FILE_BYTES) / (size + (1 << 20))


def partition(file: DataFile) -> _Partition:
    """Return the partition of a file. Only files of one partition may become one file."""
    return tuple((file.partition_values or {}).items())


def live_bytes(file: DataFile) -> float:
    """Estimate the bytes that live rows take in a file."""
    return file.size * file.live_rows / max(file.rows, 1)


def _class(size: float, options: CompactOptions) -> int:
    number, limit = _CLASSES - 1, options.small_bytes / _WIDTH
    while number and size < limit:
        number, limit = number - 1, limit / _WIDTH
    return number


def _full_class(
    small: Sequence[tuple[int, DataFile]], options: CompactOptions
) -> list[list[DataFile]]:
    """Return, by partition, the files of the lowest class that is full, with all smaller ones.

    A class counts the files that merging would save: all but one of each partition.
    """
    beside: dict[tuple[int, _Partition], int] = {}
    for number, file in small:
        key = number, partition(file)
        beside[key] = beside.get(key, -1) + 1
    less = [0] * _CLASSES
    for (number, _), count in beside.items():
        less[number] += count
    full = next((n for n in range(_CLASSES) if less[n] >= options.full - 1), None)
    mates: dict[_Partition, list[DataFile]] = {}
    for number, file in small:
        if full is not None and number <= full and beside.get((full, partition(file)), 0):
            mates.setdefault(partition(file), []).append(file)
    return list(mates.values())


def _merged(groups: Iterable[Sequence[DataFile]], options: CompactOptions) -> list[DataFile]:
    """Choose files up to ``max_bytes``, at least two of each partition that is chosen."""
    chosen: list[DataFile] = []
    size = 0
    for mates in groups:
        taken: list[DataFile] = []
        for file in mates:
            if len(chosen) + len(taken) > 1 and size + file.size > options.max_bytes:
                break
            taken.append(file)
            size += file.size
        chosen += taken if len(taken) > 1 else []
    return chosen


def _dying(files: Iterable[DataFile], options: CompactOptions) -> list[DataFile]:
    chosen: list[DataFile] = []
    size = 0
    for file in sorted(files, key=_by_partition):
        if chosen and size + file.size > options.max_bytes:
            break
        chosen.append(file)
        size += file.size
    return chosen


def _by_partition(file: DataFile) -> list[tuple[str, str]]:
    return [(name, value or "") for name, value in partition(file)]
