"""Changes of Delta tables for streams: one Spark job for a wave of tables, two more for a table
that is too large for a task, none for little work.

For each table of a transaction, tasks read the removed and added rows, drop those that are equal on
both sides, pair old with new rows, filter and encode them. The results are ``EncodedChanges``,
table by table, deletes before updates before inserts. They hold messages of pgoutput, or rows for
other output plugins. Large results come back through the staging area.

This file divides the works into waves, reads the rows of one table, and pairs them.

A wave is limited in size, so that the staging area holds a bounded part of the messages, and the
driver a few megabytes. A table with old and new rows is one piece of work, because its deletes are
sent first; a table that is too large for a task is divided by key.
"""

from __future__ import annotations

import logging
import uuid
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError, StorageError
from penstock.identifiers import quoted
from penstock.lakehouse.batches import read_batches, slices
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.files import open_parquet
from penstock.lakehouse.row_pairs import NEW, OLD, PairFile
from penstock.lakehouse.storage import Storage, make_folder, resolve, storage_errors
from penstock.pgoutput.columnar_encoder import (
    EncodedColumn,
    delete_messages,
    insert_messages,
    update_messages,
)
from penstock.pgoutput.messages import Delete, Insert, OldTuple, RowMessage, Update
from penstock.pgtypes.binary_output import binary_output, has_binary_output
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.change_columns import row_stream
from penstock.pipeline.change_item import (
    SENT_ORDER,
    ChangeItem,
    PublishedTable,
    StoredRows,
    needed_columns,
    read_stored,
)
from penstock.pipeline.columns import signs
from penstock.pipeline.duck import connection, out_of_memory, query_error, read_from, read_into
from penstock.pipeline.job import FOR_A_CLIENT, HERE_BYTES, pack, run_job
from penstock.pipeline.payload import Run, SummedFile, damaged
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.pipeline.tasks import Failed
from penstock.publication.members import Operation
from penstock.publication.row_filter import matches, published_as
from penstock.relation import ReplicaIdentity
from penstock.sqlstate import NotNullViolation, UniqueViolation

_COPY_AGAIN: Final = (
    "Then drop the subscriptions to the table, which drops their slots, and subscribe again: it is "
    "copied again."
)
_INLINE_BYTES: Final = 1 << 20
"""Bytes of messages that come back with an item's result; more go through the staging area."""
_INLINE_OF_A_JOB: Final = 16 << 20
"""The same limit for all items of a job; the driver's JVM holds these messages several times."""
_WAVE_BYTES: Final = 256 << 20
"""Bytes of data files that are encoded before the first message is sent; one file may be larger."""
_SHARE_BYTES: Final = 256 << 20
_JOB: Final = "penstock: publish"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodedChanges:
    """Changes of one table by one operation. ``data``: whole messages of pgoutput, which go to a
    client unchanged, or rows for another output plugin."""

    work: int
    operation: Operation
    changes: int
    data: bytes


@dataclass(frozen=True)
class _Stored:
    """A portion of messages in a file of the staging area."""

    work: int
    operation: Operation
    changes: int
    uri: str
    start: int
    size: int
    sum: int


@dataclass(frozen=True)
class _TooLarge:
    """The result for a table whose changes must be divided first."""

    work: int


_Result = EncodedChanges | _Stored | _TooLarge | Failed


def publish_changes(
    spark: Spark,
    storage: Storage,
    items: Sequence[ChangeItem],
    *,
    staging: str,
    share_bytes: int = _SHARE_BYTES,
) -> Generator[EncodedChanges | Failed, None, None]:
    """Yield the messages of ``items`` in the order of sending; ``work`` numbers their tables.

    ``share_bytes``: Arrow data of old and new rows that one task pairs. If ``encoded_changes``
    raises an error for a table, the error is the last value, after the messages of the tables
    before it. Closing the iterator early removes stored messages. Raises StorageError.
    """
    # The folder also has files of attempts whose results Spark dropped.
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
    """The publishing of one transaction's changes. ``folder``: for files in the staging area."""

    spark: Spark
    storage: Storage
    folder: str
    share_bytes: int

    def wave(self, items: Sequence[ChangeItem]) -> Iterator[EncodedChanges | Failed]:
        """Yield the messages of some items, in order."""
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

    def _divided(self, item: ChangeItem) -> Iterator[EncodedChanges | Failed]:
        """Yield the messages of one table whose changes are too many for a task."""
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

    def _read(self, results: Sequence[_Result]) -> Iterator[EncodedChanges | Failed]:
        for result in results:
            if isinstance(result, _Stored):
                yield _read(result)
            elif not isinstance(result, _TooLarge):
                yield result


def _place(result: _Result) -> tuple[int, int]:
    """Return the sort key of a result in the order of sending; an error comes before all messages
    of its table."""
    if isinstance(result, Failed | _TooLarge):
        return result.work, -1
    return result.work, SENT_ORDER.index(result.operation)


@dataclass(frozen=True)
class _Task:
    """The work of a task. ``inline``: bytes of messages that come back with the result; the rest
    goes to a file."""

    storage: Storage
    folder: str
    inline: int
    share_bytes: int
    item: ChangeItem | None = None


def run_changes(task: _Task) -> Iterator[_Result]:
    """Encode an item's changes, in a task. An expected error comes back as a value."""
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


def _changes(task: _Task, item: ChangeItem) -> Iterator[EncodedChanges | _Stored]:
    inline = 0
    encoded = encoded_changes(task.storage, item, task.share_bytes)
    for operation, changes, data in encoded:
        inline += len(data)
        if inline > task.inline:
            yield from _stored(task, item.work, (operation, changes, data), encoded)
            return
        yield EncodedChanges(item.work, operation, changes, data)


def _stored(
    task: _Task,
    work: int,
    first: tuple[Operation, int, bytes],
    rest: Iterator[tuple[Operation, int, bytes]],
) -> Iterator[_Stored]:
    """Store messages in a file with a name of its own: Spark may run a task twice."""
    uri, start = f"{task.folder}/{uuid.uuid4()}", 0
    following: tuple[Operation, int, bytes] | None = first
    make_folder(task.folder)
    with storage_errors("write file", uri):
        filesystem, path = resolve(uri)
        with filesystem.open_output_stream(path) as target:
            while following is not None:
                operation, changes, data = following
                target.write(data)
                where = (uri, start, len(data), zlib.crc32(data))
                yield _Stored(work, operation, changes, *where)
                start += len(data)
                following = next(rest, None)


def _read(stored: _Stored) -> EncodedChanges:
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
    if zlib.crc32(data) != stored.sum:
        raise damaged(stored.uri)
    return EncodedChanges(stored.work, stored.operation, stored.changes, data)


# The changes of one table divided by key, so that each share fits into a task's memory.
#
# Changes that are too many for one task become several items (shares), each with all rows of its
# keys: an old row and its new row are in the same share. Each data file is read once: a few tasks
# write its rows, by the hash of their key, into files of the staging area, and a share reads its
# runs of rows from those files. So the work grows with the bytes and not with their square. A new
# row whose key has changed is hashed by its old key, if the writer has recorded the pair and no
# other pair has the old or the new key.

_HELD_BYTES: Final = 32 << 20
"""Bytes of rows that are sorted by share and written at a time."""
_BUCKETS_PER_SHARE: Final = 8
_ARROW_BYTES: Final = 8
"""The estimated Arrow bytes of a byte of Parquet; only the number of buckets depends on it."""
_ROW: Final = "penstock: row"
"""The name of the column with the number of a row."""
_MIN_BUCKETS: Final = 1 << 6
_MAX_BUCKETS: Final = 1 << 12


class Side(IntEnum):
    """The parts of changes that are divided: removed rows, added rows, recorded pairs of both."""

    WENT = 0
    CAME = 1
    PAIRS = 2


@dataclass(frozen=True)
class DivideItem:
    """Files of one side of a table's changes. ``folder``: in the staging area."""

    storage: Storage
    item: ChangeItem
    files: tuple[ScanFile, ...]
    side: Side
    buckets: int
    folder: str


@dataclass(frozen=True)
class Divided:
    """A file of the staging area. ``runs``: (bucket, record batch, its Arrow bytes)."""

    side: Side
    uri: str
    size: int
    schema: pa.Schema
    runs: tuple[tuple[int, Run, int], ...]


def divide_items(
    storage: Storage, item: ChangeItem, folder: str, share_bytes: int, tasks: int
) -> list[tuple[float, DivideItem]]:
    """Return the work, with costs, by which about ``tasks`` tasks divide ``item``.

    Each share opens all files that these tasks write, so there must not be more for more data.
    """
    size = sum(file.size for file in (*item.removed, *item.added))
    shares = 1 + size * _ARROW_BYTES // max(1, share_bytes)
    buckets = int(min(max(_MIN_BUCKETS, shares * _BUCKETS_PER_SHARE), _MAX_BUCKETS))
    pairs = item.pairs if item.table.key else ()  # without a key, whole rows would be the keys
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
    """Divide the rows of some files, in a task. An expected error comes back as a value."""
    try:
        yield _divide(work)
    except PenstockError as error:
        yield Failed(work.item.work, error)
    finally:
        connection().execute("DROP TABLE IF EXISTS moved")


def shares(item: ChangeItem, divided: Sequence[Divided], share_bytes: int) -> list[ChangeItem]:
    """Return items of neighbouring buckets, of at most ``share_bytes`` each unless one bucket is
    larger."""
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
        runs: dict[int, list[Run]] = {}
        for bucket, run, _ in part.runs:
            runs.setdefault(share_of[bucket], []).append(run)
        for number, mine in runs.items():
            rows = StoredRows(part.uri, part.schema, tuple(mine))
            found[number].setdefault(part.side, []).append(rows)
    # All shares need the same columns, though some may have no added rows.
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
    runs: list[tuple[int, Run, int]] = []
    make_folder(work.folder)
    with storage_errors("write file", uri):
        filesystem, path = resolve(uri)
        with filesystem.open_output_stream(path) as target:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            file = SummedFile(target)
            with pa.ipc.new_stream(file, schema, options=options) as writer:
                for held in _tables_of(_batches(work, told=told)):
                    for bucket, rows in _by_bucket(held, work, told=told):
                        writer.write_batch(rows)
                        runs.append((bucket, file.take(), rows.nbytes))
            size = target.tell()
    return Divided(work.side, uri, size, schema, tuple(runs))


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
    """Return the columns whose hash determines the share of a row."""
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


# The rows that a transaction changed in one table: paired, filtered and encoded. This runs in
# tasks.
#
# Removed and added rows, given as parts of files, become pgoutput messages. DuckDB pairs old and
# new rows and applies row filters. ``pgoutput.messages`` decides which message sends an update
# (``TRANSFORMATIONS``).

_ROWS_AT_A_TIME: Final = 1 << 14
_MESSAGES_BYTES: Final = 8 << 20
"""Arrow bytes of rows that are encoded at a time; a single row may have more."""
_OLD: Final = "old row: "
"""The prefix of the names of an old row's columns."""


def encoded_changes(
    storage: Storage, item: ChangeItem, share_bytes: int
) -> Iterator[tuple[Operation, int, bytes]]:
    """Yield (operation, changes, messages) in order; with ``as_rows`` streams of ``change_columns``
    instead of messages.

    Raises PenstockError (55000), VersionGone; TooManyChanges, before it yields anything, if the
    rows to be paired are more than ``share_bytes``.
    """
    duck = connection()
    table = item.table
    if not item.removed and not item.divided:
        if Operation.INSERT in table.published:
            yield from _appended(storage, item, duck)
        return
    try:
        loaded = load(storage, item, duck, share_bytes)
        step = max(1, min(_ROWS_AT_A_TIME, _MESSAGES_BYTES // max(1, loaded.row_bytes)))
        yield from _changed(_Loaded(item, duck, step, loaded.pairing))
    finally:
        for name in ("went", "came", "all_went", "all_came", "pairs", "moved"):
            duck.execute(f"DROP TABLE IF EXISTS {name}")


@dataclass(frozen=True)
class _Loaded:
    """The tables ``went`` and ``came`` of an item. ``step``: rows that are encoded at a time."""

    item: ChangeItem
    duck: duckdb.DuckDBPyConnection
    step: int
    pairing: Pairing


def _appended(
    storage: Storage, item: ChangeItem, duck: duckdb.DuckDBPyConnection
) -> Iterator[tuple[Operation, int, bytes]]:
    """Encode changes that only add rows, a batch at a time: there is nothing to pair."""
    predicate = item.table.filters.get(Operation.INSERT)
    for file in item.added:
        for batch in read_rows(storage, item, file, item.table.columns):
            rows = pa.Table.from_batches([batch])
            if predicate is not None:
                duck.register("came_batch", rows)
                rows = duck.sql(f"SELECT * FROM came_batch WHERE {predicate}").to_arrow_table()
                duck.unregister("came_batch")
            yield from _encode(item, Operation.INSERT, rows)


def _changed(loaded: _Loaded) -> Iterator[tuple[Operation, int, bytes]]:
    item, duck = loaded.item, loaded.duck
    same = loaded.pairing.same
    if same is not None:
        gone = f"SELECT o.* FROM went o ANTI JOIN came n ON {same}"
        new = f"SELECT n.* FROM came n ANTI JOIN went o ON {same}"
        pairs = f"FROM went o JOIN came n ON {same}"
    else:
        gone, new, pairs = "SELECT * FROM went", "SELECT * FROM came", None
    check_identity(item, duck, gone, pairs)
    yield from _deletes(loaded, gone, pairs)
    if pairs is not None:
        yield from _updates(loaded, pairs)
    yield from _inserts(loaded, new, pairs)


def _deletes(
    loaded: _Loaded, gone: str, pairs: str | None
) -> Iterator[tuple[Operation, int, bytes]]:
    table = loaded.item.table
    if Operation.DELETE in table.published:
        yield from _run(loaded, Operation.DELETE, _where(gone, table, Operation.DELETE))
    if pairs is not None and _filtered(table):
        query = f"SELECT o.* {pairs} WHERE {_updates_as(Delete)}"
        yield from _run(loaded, Operation.DELETE, query)


def _updates(loaded: _Loaded, pairs: str) -> Iterator[tuple[Operation, int, bytes]]:
    """Encode updates, with the old row if the identity is FULL, else with the old key if it
    differs."""
    table, moved = loaded.item.table, loaded.pairing.moved
    if Operation.UPDATE not in table.published:
        return
    where = _updates_as(Update) if _filtered(table) else "true"
    if table.relation.replica_identity is ReplicaIdentity.FULL:
        old = _old_columns(a.name for a in table.relation.attributes)
        yield from _run(loaded, Operation.UPDATE, f"SELECT n.*{old} {pairs} WHERE {where}")
        return
    stays = "true" if moved is None else f"NOT ({moved})"
    yield from _run(loaded, Operation.UPDATE, f"SELECT n.* {pairs} WHERE {where} AND {stays}")
    if moved is not None:
        old = _old_columns(table.identity or ())
        query = f"SELECT n.*{old} {pairs} WHERE {where} AND {moved}"
        yield from _run(loaded, Operation.UPDATE, query)


def _old_columns(names: Iterable[str]) -> str:
    return "".join(f", o.{quoted(name)} AS {quoted(_OLD + name)}" for name in names)


def _inserts(
    loaded: _Loaded, new: str, pairs: str | None
) -> Iterator[tuple[Operation, int, bytes]]:
    table = loaded.item.table
    if pairs is not None and _filtered(table):
        query = f"SELECT n.* {pairs} WHERE {_updates_as(Insert)}"
        yield from _run(loaded, Operation.INSERT, query)
    if Operation.INSERT in table.published:
        yield from _run(loaded, Operation.INSERT, _where(new, table, Operation.INSERT))


def _filtered(table: PublishedTable) -> bool:
    has_filter = table.filters.get(Operation.UPDATE) is not None
    return has_filter and Operation.UPDATE in table.published


def _updates_as(message: type[RowMessage]) -> str:
    return published_as(message, f"o.{MATCHES}", f"n.{MATCHES}")


def _where(query: str, table: PublishedTable, operation: Operation) -> str:
    predicate = table.filters.get(operation)
    return query if predicate is None else f"SELECT * FROM ({query}) WHERE {predicate}"


def _run(
    loaded: _Loaded, operation: Operation, query: str
) -> Iterator[tuple[Operation, int, bytes]]:
    for batch in read_from(loaded.duck, query, loaded.step):
        yield from _encode(loaded.item, operation, pa.Table.from_batches([batch]))


def _encode(
    item: ChangeItem, operation: Operation, rows: pa.Table
) -> Iterator[tuple[Operation, int, bytes]]:
    check_not_null(item.table, rows)
    for batch in rows.combine_chunks().to_batches():
        for part in slices(batch, _MESSAGES_BYTES):
            yield _encoded(item, operation, pa.Table.from_batches([part]))


def _encoded(
    item: ChangeItem, operation: Operation, rows: pa.Table
) -> tuple[Operation, int, bytes]:
    relation, table, count = item.table.relation, item.table, rows.num_rows
    full = relation.replica_identity is ReplicaIdentity.FULL
    kind = OldTuple.of(relation.replica_identity)
    identity = None if full else frozenset(table.identity or ())
    told = any(name.startswith(_OLD) for name in rows.column_names)
    if item.as_rows:
        deleted = operation is Operation.DELETE
        prefix = "" if deleted else _OLD if told else None
        stream = row_stream(relation, rows, new=not deleted, old_prefix=prefix, identity=identity)
        return operation, count, stream
    if operation is Operation.INSERT:
        messages = insert_messages(relation.oid, _tuple(item, rows), count, item.header)
    elif operation is Operation.UPDATE:
        old = _tuple(item, rows, _OLD, identity) if told else None
        messages = update_messages(
            relation.oid, _tuple(item, rows), count, item.header, old=old, kind=kind
        )
    else:
        old = _tuple(item, rows, only=identity)
        messages = delete_messages(relation.oid, old, kind, count, item.header)
    return operation, count, messages


def _tuple(
    item: ChangeItem, rows: pa.Table, prefix: str = "", only: frozenset[str] | None = None
) -> Sequence[EncodedColumn]:
    columns = []
    for attribute in item.table.relation.attributes:
        if only is not None and attribute.name not in only:
            columns.append(EncodedColumn(pa.nulls(rows.num_rows, pa.binary())))
            continue
        array = rows.column(prefix + attribute.name).combine_chunks()
        if item.binary and has_binary_output(attribute.type_oid, array.type):
            cells = binary_output(array, attribute.type_oid, attribute.typmod)
            columns.append(EncodedColumn(cells, binary=True))
        else:
            cells = text_output(array, attribute.type_oid, attribute.typmod)
            columns.append(EncodedColumn(cells))
    return columns


# The removed and added rows as DuckDB's tables ``went`` and ``came``, checked.
#
# A condition pairs the rows of the two tables. Rows that are equal in all columns were only copied
# to another file, and are dropped from both; they are compared by value, except that -0 differs
# from 0. PostgreSQL's indexes and commands ensure conditions that writers of a Delta table may
# violate. A violation is an error with a hint: the slot stops, so the subscriber gets no wrong
# changes.

MATCHES: Final = '"penstock: row matches"'
"""The column that tells whether a row matches the row filter for updates."""


class TooManyChanges(Exception):
    """The rows do not fit into the memory that a task may take, and must be divided first."""


@dataclass(frozen=True)
class Loaded:
    """The tables ``went`` and ``came``. ``row_bytes``: the approximate Arrow bytes of a row."""

    row_bytes: int
    pairing: Pairing


def load(
    storage: Storage, item: ChangeItem, duck: duckdb.DuckDBPyConnection, share_bytes: int
) -> Loaded:
    """Make the tables ``went`` and ``came``, without rows that are equal.

    Raises UniqueViolation; TooManyChanges if the item is not divided and its rows take more than
    ``share_bytes``.
    """
    table, columns = item.table, needed_columns(item)
    count = _Count(None if item.divided else share_bytes)
    schema = pa.schema([(column.name, column.type) for column in columns])
    for name, files in (("all_went", item.removed), ("all_came", item.added)):
        read_into(duck, name, schema, count.of(_scan(storage, item, files, columns)))
    row = ", ".join(quoted(column.name) for column in columns)
    compared = ", ".join(compared_columns(columns))
    unique = bool(table.key) and not _twice(item, duck, "all_went", "all_came")
    told = load_pairs(item, duck, count.of)
    whole = told and not table.key and take_whole_rows(item, duck, row, compared)
    match = matches(table.filters.get(Operation.UPDATE))
    sides = (("went", "all_went", "all_came", OLD), ("came", "all_came", "all_went", NEW))
    for name, of, other, side in sides:
        source = of
        if unique and item.added:
            source = f"({rows_without(of, other, columns)})"
        elif item.added:  # else nothing can be equal
            source = f"(SELECT {compared} FROM {of} EXCEPT ALL SELECT {compared} FROM {other})"
        rows = f"SELECT {row} FROM {source}"
        if whole:
            paired = paired_rows(item, side)
            rows = f"SELECT *, NULL AS {PAIR} FROM ({rows}) UNION ALL SELECT * FROM ({paired})"
        duck.execute(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT *, {match} AS {MATCHES} FROM ({rows})"
        )
    duck.execute("DROP TABLE all_went; DROP TABLE all_came")
    row_bytes = count.size // max(1, count.rows)
    if not table.key:
        return Loaded(row_bytes, Pairing(f"o.{PAIR} = n.{PAIR}" if whole else None))
    pairing = pair_by_key(item, duck, told=told)
    if not unique:
        _check_unique(item, duck)
    return Loaded(row_bytes, pairing)


def compared_columns(columns: Sequence[ScanColumn], of: str = "") -> list[str]:
    """Return the SQL expressions by which rows are compared."""
    names = [of + quoted(column.name) for column in columns]
    types = (column.type for column in columns)
    return [*names, *signs(zip(names, types, strict=True))]


def rows_without(of: str, other: str, columns: Sequence[ScanColumn]) -> str:
    """Return SQL for the rows of one table that the other does not have. This takes a quarter of
    the work of EXCEPT ALL, which also counts repeated rows."""
    pairs = zip(compared_columns(columns, "o."), compared_columns(columns, "n."), strict=True)
    same = " AND ".join(f"{old} IS NOT DISTINCT FROM {new}" for old, new in pairs)
    return f"SELECT o.* FROM {of} o ANTI JOIN {other} n ON {same}"


@dataclass
class _Count:
    """A counter of the rows and bytes read. Raises TooManyChanges beyond ``most`` bytes."""

    most: int | None
    rows: int = 0
    size: int = 0

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows += batch.num_rows
            self.size += batch.nbytes
            if self.most is not None and self.size > self.most:
                raise TooManyChanges
            yield batch


def _scan(
    storage: Storage,
    item: ChangeItem,
    files: Sequence[ScanFile | StoredRows],
    columns: Sequence[ScanColumn],
) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from read_rows(storage, item, file, columns)


def read_rows(
    storage: Storage,
    item: ChangeItem,
    file: ScanFile | StoredRows,
    columns: Sequence[ScanColumn],
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a data file, or of a file of the staging area. Raises VersionGone,
    StorageError."""
    if isinstance(file, StoredRows):
        return read_stored(file, [column.name for column in columns])
    return scan(storage, item.table_uri, file, columns)


_SHOWN_KEYS: Final = 10


def _check_unique(item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> None:
    """Raise UniqueViolation if a key is not unique. If keys are repeated, first drop the rows that
    are never sent, and check again: dead rows, which a row filter may omit, repeat keys."""
    sides = ("went", "came")
    twice = _twice(item, duck, *sides)
    if twice and _one_filter(item.table):
        for rows in sides:
            duck.execute(f"DELETE FROM {rows} WHERE {MATCHES} IS NOT TRUE")
        twice = _twice(item, duck, *sides)
    if twice:
        names = ", ".join(item.table.key)
        keys = ", ".join(str(k[0] if len(k) == 1 else k) for k in twice)
        raise UniqueViolation(
            f'key of table "{item.table.name}" is not unique',
            detail=f"There are several rows with the same ({names}): {keys}.",
            hint="Remove the duplicates, or choose another key: ALTER TABLE ... REPLICA IDENTITY "
            f"USING KEY (...), or FULL. {_COPY_AGAIN}",
        )


def _twice(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, *sides: str
) -> list[tuple[object, ...]]:
    """Return some repeated keys of the first side that has any."""
    key = ", ".join(quoted(name) for name in item.table.key)
    for rows in sides:
        found = duck.execute(
            f"SELECT {key} FROM {rows} GROUP BY ALL HAVING count(*) > 1 LIMIT {_SHOWN_KEYS}"
        ).fetchall()
        if found:
            return found
    return []


def _one_filter(table: PublishedTable) -> bool:
    """Return whether all operations are published with one filter. Then rows that it excludes are
    never sent: an update is sent as an insert if the filter excludes the old row, and as a delete
    if it excludes the new one."""
    operations = (Operation.INSERT, Operation.UPDATE, Operation.DELETE)
    filters = {table.filters.get(operation) for operation in operations}
    return len(filters) == 1 and None not in filters and table.published.issuperset(operations)


def check_identity(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, gone: str, pairs: str | None
) -> None:
    """Check the identity as CheckCmdReplicaIdentity does: no writer of the table has done so."""
    having = {
        Operation.DELETE: gone,
        Operation.UPDATE: f"SELECT 1 {pairs}" if pairs else gone,
    }
    for operation, rows in having.items():
        error = item.table.refused.get(operation)
        if error is not None and duck.execute(f"SELECT 1 FROM ({rows}) LIMIT 1").fetchall():
            raise error


def check_not_null(table: PublishedTable, rows: pa.Table) -> None:
    """Raise NotNullViolation for a NULL in the identity: it identifies no row, and PostgreSQL has
    no such keys."""
    if not table.published & {Operation.UPDATE, Operation.DELETE}:
        return
    for name in table.identity or ():
        if rows.column(name).null_count:
            raise NotNullViolation(
                f'null value in column "{name}" of relation "{table.name.rpartition(".")[2]}" '
                "violates not-null constraint",
                detail="The column belongs to the replica identity of the table.",
                hint="Give the rows a key, or choose another identity: ALTER TABLE ... REPLICA "
                f"IDENTITY USING KEY (...), or FULL. {_COPY_AGAIN}",
            )


# Pairs of the old and new row of a change: paired by key, or as the writer has recorded.
#
# A condition joins DuckDB's tables ``went`` and ``came``. A pair that the writer has recorded
# (``lakehouse.row_pairs``) is used if both rows exist, and if it can be applied in any order: no
# row had the new key before, and none has the old one now. Rows that took over the key of another
# row are paired by key.

PAIR: Final = '"penstock: pair"'
"""The column with the number of the pair to which a row without a key belongs."""
_NO_FILE: Final = "58P01"

Counted = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Pairing:
    """SQL conditions on pairs. ``same``: ``o`` of ``went`` and ``n`` of ``came`` are one row; None:
    no rows are paired. ``moved``: the key of the row has changed; None: no key has changed."""

    same: str | None
    moved: str | None = None


def pair_schema(item: ChangeItem) -> pa.Schema:
    """Return the columns of the table ``pairs``: keys, or whole rows if there is no key."""
    columns = _identifying(item)
    return pa.schema([(side + c.name, c.type) for side in (OLD, NEW) for c in columns])


def load_pairs(item: ChangeItem, duck: duckdb.DuckDBPyConnection, counted: Counted) -> bool:
    """Make the table ``pairs``. Return False, without it, if no pairs were recorded, or if their
    files are gone or have other columns.

    ``counted``: passes on the batches read. Raises StorageError and the errors of ``counted``.
    """
    if not item.pairs:
        return False
    schema = pair_schema(item)
    try:
        read_into(duck, "pairs", schema, counted(_rows(item.pairs, schema)))
    except _NotThere as error:
        log.debug("changes of %s are not paired: %s", item.table.name, error)
        return False
    return True


def load_lone_pairs(item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> bool:
    """Make the table ``moved`` of the pairs whose keys are in no other pair. Each can be sent
    independently of the others. Returns and raises as ``load_pairs`` does."""
    if not load_pairs(item, duck, iter):
        return False
    olds, news = _names(item, OLD), _names(item, NEW)
    chained = (
        f"EXISTS (SELECT 1 FROM pairs q WHERE {_same('q', one, 'p', other)})"
        for one, other in ((olds, news), (news, olds))
    )
    duck.execute(
        f"CREATE OR REPLACE TEMP TABLE moved AS SELECT * FROM pairs p "
        f"WHERE NOT {' AND NOT '.join(chained)} "
        f"{_one_to_one(olds, news)}"
    )
    duck.execute("DROP TABLE pairs")
    return True


def lone_pairs(item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``moved``, a batch of a file at a time."""
    olds = _names(item, OLD)
    for batch in _rows(item.pairs, pair_schema(item)):
        duck.register("batch_of_pairs", batch)
        try:
            found = duck.sql(
                "SELECT p.* FROM batch_of_pairs p "
                f"WHERE EXISTS (SELECT 1 FROM moved m WHERE {_same('m', olds, 'p', olds)})"
            ).to_arrow_table()
        finally:
            duck.unregister("batch_of_pairs")
        yield from found.to_batches()


class _NotThere(Exception):
    """Recorded pairs cannot be read."""


def _rows(files: Sequence[PairFile | StoredRows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        if isinstance(file, StoredRows):
            yield from read_stored(file, schema.names)
        else:
            yield from _read_pairs(file, schema)


def _read_pairs(file: PairFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    folder, _, name = file.uri.rpartition("/")
    try:
        with open_parquet(folder, name) as parquet:
            missing = [n for n in schema.names if n not in parquet.schema_arrow.names]
            if missing:
                raise _NotThere(f'no column "{missing[0]}"')
            for _, batch in read_batches(parquet, schema.names):
                try:
                    yield batch.select(schema.names).cast(schema)
                except pa.ArrowException as error:
                    raise _NotThere(str(error)) from None
    except StorageError as error:
        if error.sqlstate != _NO_FILE:
            raise
        raise _NotThere(error.message) from None


def take_whole_rows(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, row: str, compared: str
) -> bool:
    """Remove the rows of ``pairs`` from ``all_went`` and ``all_came``. Return False, and remove
    none, if some are missing there. ``compared``: SQL of ``compared_columns``."""
    sides = (("all_went", OLD), ("all_came", NEW))
    for name, side in sides:
        lacking = f"SELECT {compared} FROM ({paired_rows(item, side)})"
        lacking += f" EXCEPT ALL SELECT {compared} FROM {name}"
        if duck.execute(f"SELECT 1 FROM ({lacking}) LIMIT 1").fetchall():
            return False
    for name, side in sides:
        rest = f"SELECT {compared} FROM {name} EXCEPT ALL "
        rest += f"SELECT {compared} FROM ({paired_rows(item, side)})"
        duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {row} FROM ({rest})")
    return True


def paired_rows(item: ChangeItem, side: str) -> str:
    """Return SQL for the old or new rows of ``pairs``, with the number of their pair. The published
    table has no key."""
    columns = ", ".join(f"{quoted(side + c.name)} AS {quoted(c.name)}" for c in _identifying(item))
    return f"SELECT {columns}, rowid AS {PAIR} FROM pairs"


def pair_by_key(item: ChangeItem, duck: duckdb.DuckDBPyConnection, *, told: bool) -> Pairing:
    """Return the pairing of a table with a key. ``told``: there is a table ``pairs``; if so, its
    new keys are added to the old rows in ``went``."""
    key, olds, news = _names(item), _names(item, OLD), _names(item, NEW)
    same = _same("o", key, "n", key)
    if not told or not _load_moved(item, duck):
        return Pairing(same)
    new = (f"coalesce(p.{new}, o.{name}) AS {new}" for name, new in zip(key, news, strict=True))
    duck.execute(
        f"CREATE OR REPLACE TEMP TABLE went AS SELECT o.*, {', '.join(new)} FROM went o "
        f"LEFT JOIN moved p ON {_same('o', key, 'p', olds)}"
    )
    return Pairing(_same("o", news, "n", key), f"NOT ({same})")


def _load_moved(item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> bool:
    """Make the table ``moved`` of the pairs that can be sent as updates, in any order; return
    whether there are any."""
    key, olds, news = _names(item), _names(item, OLD), _names(item, NEW)

    def there(rows: str, names: Sequence[str]) -> str:
        return f"EXISTS (SELECT 1 FROM {rows} r WHERE {_same('r', key, 'p', names)})"

    columns = ", ".join((*olds, *news))
    duck.execute(
        f"CREATE OR REPLACE TEMP TABLE moved AS SELECT {columns} FROM pairs p "
        f"WHERE {there('went', olds)} AND {there('came', news)} "
        f"AND NOT {there('came', olds)} AND NOT {there('went', news)} {_one_to_one(olds, news)}"
    )
    return bool(duck.execute("SELECT 1 FROM moved LIMIT 1").fetchall())


def _one_to_one(olds: Sequence[str], news: Sequence[str]) -> str:
    """Return SQL that keeps pairs whose old key and new key are in no other pair: a writer that
    records two pairs for a key may be wrong."""
    once = (f"count(*) OVER (PARTITION BY {', '.join(names)}) = 1" for names in (olds, news))
    return f"QUALIFY {' AND '.join(once)}"


def _same(one: str, names: Sequence[str], other: str, others: Sequence[str]) -> str:
    """Return the SQL condition that the columns of two relations are equal."""
    pairs = zip(names, others, strict=True)
    return " AND ".join(f"{one}.{left} = {other}.{right}" for left, right in pairs)


def _names(item: ChangeItem, side: str = "") -> list[str]:
    """Return the quoted names of the key's columns in DuckDB's tables."""
    return [quoted(side + name) for name in item.table.key]


def _identifying(item: ChangeItem) -> list[ScanColumn]:
    return [c for c in needed_columns(item) if not item.table.key or c.name in item.table.key]
