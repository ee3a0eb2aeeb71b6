"""Compaction: small files become large ones, files with many dead rows lose them.

In: a table with nothing staged. Out: the decision whether it is due, and the table's next version,
which holds the same rows in other files (dataChange = false). Readers of older versions keep the
old files until VACUUM. When to look, and what a lost race means, is ``subscription.upkeep``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from penstock.errors import CommitConflict, StorageError
from penstock.lakehouse.batches import BATCH_BYTES
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.job import HERE_SECONDS, run_job
from penstock.pipeline.rewrite import RewriteItem, RewrittenFile, run_rewrite
from penstock.pipeline.tasks import Failed, Written

log = logging.getLogger(__name__)

_OPERATION: Final = "OPTIMIZE"
_APP_ID: Final = "penstock.compaction"
"""The marker of our commits where the newest one has none of its own."""
_SECONDS_PER_BYTE: Final = 3e-8

_Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class CompactOptions:
    """When a table is compacted, and how much of it at once.

    ``small_files``: so many files of less than ``small_bytes`` of live rows are merged, each with
    others of its partition.
    ``dead_ratio``: files of any larger size are rewritten when this part of their rows is dead.
    ``max_bytes``: of files in one run, so that the next batch does not wait for long.
    ``batch_bytes``: Arrow data that a task reads at a time. ``own``: an app id; files of which it
    is known that another one wrote them stay as they are. None: nobody looks.
    """

    small_files: int = 32
    small_bytes: int = 16 << 20
    dead_ratio: float = 0.3
    target_file_bytes: int = TARGET_FILE_BYTES
    max_bytes: int = 512 << 20
    batch_bytes: int = BATCH_BYTES
    own: str | None = None


def needs_compaction(table: DeltaTable, options: CompactOptions) -> bool:
    """Whether ``compact`` would rewrite anything now; False while something is staged."""
    return not table.has_staged and bool(files_to_rewrite(_files(table, options), options))


def _files(table: DeltaTable, options: CompactOptions) -> Iterable[DataFile]:
    """Those that may be rewritten. Of others it is not asked who wrote them."""
    for file in table.files.values():
        if _is_small(file, options) or _is_dying(file, options):
            own = options.own
            if own is None or not table.commits.by_others(file, table.version, own):
                yield file


def _is_small(file: DataFile, options: CompactOptions) -> bool:
    return _live_bytes(file) < options.small_bytes


def _is_dying(file: DataFile, options: CompactOptions) -> bool:
    return file.deleted >= options.dead_ratio * file.rows


def files_to_rewrite(files: Iterable[DataFile], options: CompactOptions) -> list[DataFile]:
    """The files that are due, in the order of the table, up to ``max_bytes`` but at least one.

    Dead rows do not make a small file due: it would be rewritten with every batch that touches it.
    Nor is one that is alone in its partition: it would stay what it is.
    """
    small: dict[_Partition, list[DataFile]] = {}
    dying: list[DataFile] = []
    for file in files:
        if _is_small(file, options):
            small.setdefault(_partition(file), []).append(file)
        elif _is_dying(file, options):
            dying.append(file)
    less = sum(len(mates) - 1 for mates in small.values())
    due = sorted(dying, key=_by_partition)
    if less >= max(options.small_files, 2) - 1:
        due += [file for mates in small.values() if len(mates) > 1 for file in mates]
    chosen: list[DataFile] = []
    size = 0
    for file in due:
        if chosen and size + file.size > options.max_bytes:
            break
        chosen.append(file)
        size += file.size
    return chosen


def compact(spark: Spark, table: DeltaTable, options: CompactOptions) -> int:
    """Rewrite what is due in one Spark job and commit it; returns the number of files rewritten.

    The newest commit's marker is repeated, because the rows and their position stay what they are.
    Raises CommitConflict when another writer was first and StorageError; the table is unharmed
    then, nothing is staged and the new files are removed.
    """
    chosen = files_to_rewrite(_files(table, options), options)
    if not chosen or table.has_staged:
        return 0
    items = [
        (sum(file.size for file in group) * _SECONDS_PER_BYTE, _item(table, group, options))
        for group in _groups(chosen, options)
    ]
    results = run_job(
        spark, items, run_rewrite, f"penstock: compact {table.name}", here=HERE_SECONDS
    )
    written = _check(table, chosen, results)
    deleted = {file.path: BitMap(range(file.rows)) for file in chosen}
    table.stage(written=written, deleted=deleted)
    try:
        commit_again(table, _OPERATION)
    except (CommitConflict, StorageError):
        table.discard()
        raise
    log.debug("compacted %d files of %s to %d", len(chosen), table.name, len(written))
    return len(chosen)


def commit_again(table: DeltaTable, operation: str) -> None:
    """Commit what is staged and changes no row, with the newest commit's marker once more."""
    app_id = table.last_app_id
    marker = None if app_id is None else table.transaction_version(app_id)
    if app_id is None or marker is None:
        app_id, marker = _APP_ID, table.version + 1
    table.commit(app_id=app_id, version_marker=marker, operation=operation, data_change=False)


def _partition(file: DataFile) -> _Partition:
    """Which files may become one."""
    return tuple((file.partition_values or {}).items())


def _by_partition(file: DataFile) -> list[tuple[str, str]]:
    return [(name, value or "") for name, value in _partition(file)]


def _live_bytes(file: DataFile) -> float:
    return file.size * file.live_rows / max(file.rows, 1)


def _groups(files: Sequence[DataFile], options: CompactOptions) -> list[list[DataFile]]:
    """Runs of files of one partition that make up about one new file each."""
    groups: list[list[DataFile]] = []
    size = float(options.target_file_bytes)
    for file in files:
        full = size >= options.target_file_bytes
        if full or _partition(groups[-1][-1]) != _partition(file):
            groups.append([])
            size = 0.0
        groups[-1].append(file)
        size += _live_bytes(file)
    return groups


def _item(table: DeltaTable, group: Sequence[DataFile], options: CompactOptions) -> RewriteItem:
    return RewriteItem(
        table.storage,
        table.uri,
        table.schema.arrow(),
        tuple(map(RewrittenFile.of, group)),
        options.target_file_bytes,
        options.batch_bytes,
        layout=table.layout,
    )


def _check(
    table: DeltaTable, chosen: Sequence[DataFile], results: Sequence[Written | Failed]
) -> list[WrittenFile]:
    """The new files, which must hold as many rows as the old ones had alive."""
    written = [file for result in results if isinstance(result, Written) for file in result.files]
    failed = [result.error for result in results if isinstance(result, Failed)]
    expected = sum(file.live_rows for file in chosen)
    found = sum(file.rows for file in written)
    if not failed and found == expected:
        return written
    for file in written:
        table.storage.remove(f"{table.uri}/{file.path}")
    raise (
        failed[0]
        if failed
        else StorageError(
            f'compaction of table "{table.name}" read {found} rows where there are {expected}',
            hint="Data files are damaged: put them back from a copy.",
            sqlstate="XX001",
        )
    )
