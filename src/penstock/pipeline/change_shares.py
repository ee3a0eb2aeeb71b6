"""The changes of one table divided by key, so that each share fits into a task's memory.

In: a table's changes that are too many for one task. Out: the same as several items, each with
whole keys: an old row and its new one are in the same share. Each file is read once: a few tasks
write the rows by the hash of their key into a file each of the staging area, and a share reads its
runs of rows from those files, so that the work grows with the bytes and not with their square. A
new row whose key has changed goes by its old key, where that was told and nobody else has either.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.identifiers import quoted
from penstock.lakehouse.row_pairs import NEW, OLD
from penstock.lakehouse.storage import Storage, make_folder, resolve, storage_errors
from penstock.pipeline.change_item import ChangeItem, StoredRows, needed_columns
from penstock.pipeline.change_pairs import load_lone_pairs, lone_pairs, pair_schema
from penstock.pipeline.duck import connection
from penstock.pipeline.job import pack
from penstock.pipeline.scan import ScanFile, scan
from penstock.pipeline.tasks import Failed

_HELD_BYTES: Final = 32 << 20
"""Rows that are sorted by share and written at a time."""
_BUCKETS_PER_SHARE: Final = 8
_ARROW_BYTES: Final = 8
"""Of a byte of Parquet, about; only the number of buckets hangs on it."""
_ROW: Final = "penstock: row"
"""Column: the number of a row."""
_MIN_BUCKETS: Final = 1 << 6
_MAX_BUCKETS: Final = 1 << 12


class Side(IntEnum):
    """What is divided: rows that went, rows that came, which of them are one row."""

    WENT = 0
    CAME = 1
    PAIRS = 2


@dataclass(frozen=True)
class DivideItem:
    """Files of a table's changes, of one side. ``folder``: in the staging area."""

    storage: Storage
    item: ChangeItem
    files: tuple[ScanFile, ...]
    side: Side
    buckets: int
    folder: str


@dataclass(frozen=True)
class Divided:
    """A file of the staging area. ``runs``: (bucket, number of the record batch, Arrow bytes)."""

    side: Side
    uri: str
    size: int
    runs: tuple[tuple[int, int, int], ...]


def divide_items(
    storage: Storage, item: ChangeItem, folder: str, share_bytes: int, tasks: int
) -> list[tuple[float, DivideItem]]:
    """What is to be run by about so many tasks to divide ``item``, with costs.

    Each share opens all files that they write: those must not become more with the data.
    """
    size = sum(file.size for file in (*item.removed, *item.added))
    shares = 1 + size * _ARROW_BYTES // max(1, share_bytes)
    buckets = int(min(max(_MIN_BUCKETS, shares * _BUCKETS_PER_SHARE), _MAX_BUCKETS))
    pairs = item.pairs if item.table.key else ()  # of rows without a key both keys are the row
    table = replace(item.table, columns=needed_columns(item))
    without = replace(item, table=table, removed=(), added=(), pairs=pairs)
    work = [
        (
            float(sum(file.size for file in part)),
            DivideItem(storage, without, part, side, buckets, folder),
        )
        for files, side in ((item.removed, Side.WENT), (item.added, Side.CAME))
        for part in pack([(f.size, f) for f in files if isinstance(f, ScanFile)], tasks)
    ]
    if pairs:
        size = sum(file.size for file in pairs)
        work.append((float(size), DivideItem(storage, without, (), Side.PAIRS, buckets, folder)))
    return work


def run_divide(work: DivideItem) -> Iterator[Divided | Failed]:
    """In a task; an expected error comes back as a value."""
    try:
        yield _divide(work)
    except PenstockError as error:
        yield Failed(work.item.work, error)
    finally:
        connection().execute("DROP TABLE IF EXISTS moved")


def shares(item: ChangeItem, divided: Sequence[Divided], share_bytes: int) -> list[ChangeItem]:
    """Items of neighbouring buckets, of so many bytes each where one bucket is not more."""
    sizes: dict[int, int] = {}
    for part in divided:
        for bucket, _, size in part.runs:
            sizes[bucket] = sizes.get(bucket, 0) + size
    share_of: dict[int, int] = {}
    share, room = 0, share_bytes
    for bucket in sorted(sizes):
        if sizes[bucket] > room and room < share_bytes:
            share, room = share + 1, share_bytes
        share_of[bucket] = share
        room -= sizes[bucket]
    found: list[dict[Side, list[StoredRows]]] = [{} for _ in range(share + 1)]
    for part in divided:
        runs: dict[int, list[int]] = {}
        for bucket, run, _ in part.runs:
            runs.setdefault(share_of[bucket], []).append(run)
        for number, mine in runs.items():
            rows = StoredRows(part.uri, part.size, tuple(mine))
            found[number].setdefault(part.side, []).append(rows)
    # The same columns for all, though a share may have nothing that came.
    table = replace(item.table, columns=needed_columns(item))
    return [
        replace(
            item,
            table=table,
            removed=tuple(mine.get(Side.WENT, ())),
            added=tuple(mine.get(Side.CAME, ())),
            pairs=tuple(mine.get(Side.PAIRS, ())),
            divided=True,
        )
        for mine in found
    ]


def _divide(work: DivideItem) -> Divided:
    told = work.side is not Side.WENT and load_lone_pairs(work.item, connection())
    schema = pa.schema([(column.name, column.type) for column in work.item.table.columns])
    if work.side is Side.PAIRS:
        schema = pair_schema(work.item)
    uri = f"{work.folder}/{uuid.uuid4()}.arrow"
    runs: list[tuple[int, int, int]] = []
    make_folder(work.folder)
    with storage_errors("write file", uri):
        filesystem, path = resolve(uri)
        with filesystem.open_output_stream(path) as target:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_file(target, schema, options=options) as writer:
                for held in _tables_of(_batches(work, told=told)):
                    for bucket, rows in _by_bucket(held, work, told=told):
                        runs.append((bucket, len(runs), rows.nbytes))
                        writer.write_batch(rows)
            size = target.tell()
    return Divided(work.side, uri, size, tuple(runs))


def _batches(work: DivideItem, *, told: bool) -> Iterator[pa.RecordBatch]:
    if work.side is not Side.PAIRS:
        for file in work.files:
            yield from scan(work.storage, work.item.table_uri, file, work.item.table.columns)
    elif told:
        yield from lone_pairs(work.item, connection())


def _tables_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _HELD_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _by_bucket(
    rows: pa.Table, work: DivideItem, *, told: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    duck = connection()
    duck.register("rows_to_divide", rows.append_column(_ROW, pa.array(np.arange(rows.num_rows))))
    try:
        found = duck.execute(
            f"SELECT (hash({_share_key(rows, work, told=told)}) % {work.buckets})::INTEGER "
            "AS bucket "
            f'{_from(work, told=told)} ORDER BY r."{_ROW}"'
        ).fetchnumpy()
    finally:
        duck.unregister("rows_to_divide")
    bucket = np.asarray(found["bucket"])
    order = np.argsort(bucket, kind="stable")
    bucket = bucket[order]
    (ordered,) = rows.combine_chunks().take(pa.array(order)).combine_chunks().to_batches()
    starts = np.flatnonzero(np.diff(bucket, prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(bucket)], strict=True):
        yield int(bucket[start]), ordered.slice(start, stop - start)


def _share_key(rows: pa.Table, work: DivideItem, *, told: bool) -> str:
    """What decides on the share of a row."""
    names = work.item.table.key or rows.column_names
    if work.side is Side.PAIRS:
        return ", ".join(f"r.{quoted(OLD + name)}" for name in names)
    if told:
        return ", ".join(f"coalesce(p.{quoted(OLD + n)}, r.{quoted(n)})" for n in names)
    return ", ".join(f"r.{quoted(name)}" for name in names)


def _from(work: DivideItem, *, told: bool) -> str:
    if work.side is Side.PAIRS or not told:
        return "FROM rows_to_divide r"
    key = work.item.table.key
    on = " AND ".join(f"r.{quoted(name)} = p.{quoted(NEW + name)}" for name in key)
    return f"FROM rows_to_divide r LEFT JOIN moved p ON {on}"
