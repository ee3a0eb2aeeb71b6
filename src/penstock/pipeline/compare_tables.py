"""Compare published tables at an exported snapshot with the node's tables at their versions.

Another session holds the snapshot open. The result has, for each table, the number of rows on both
sides, the number of differences, and some differing rows. Both sides are read in parts, in threads
of this process or, if they are large, in Spark. Only digests of rows are compared, so memory and
the data sent to the driver do not grow with the tables. Where digests differ, the rows of those
buckets are read once more.
"""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.attribute import Attribute
from penstock.errors import NotInPrerequisiteState, PenstockError
from penstock.lakehouse.cluster import Spark, cancel_jobs, working
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.schema import DELETED_AT, Column
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table import DeltaTable
from penstock.pgtypes.text_output import text_output
from penstock.pgtypes.variant import VARIANT, compared_text
from penstock.pipeline.columns import Integers, signs
from penstock.pipeline.duck import connection, out_of_memory
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.job import run_job
from penstock.pipeline.key_range import KeyRange
from penstock.pipeline.prune import integer_bounds
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.pipeline.table_copy import CopyOptions, CopySource, Unit, published_columns, units_of
from penstock.pipeline.table_copy_task import CopyTask, read_unit
from penstock.pipeline.tasks import Failed
from penstock.walreceiver.conninfo import ConnInfo

HERE_BYTES: Final = 1 << 30
"""The most bytes of both sides to compare in this process; they take half a minute. A Spark session
takes ten seconds to start, and more memory than the node itself."""
_TOLD_ROWS: Final = 100_000
"""The approximate number of rows to read one by one, on both sides of a table, to find the
differences."""
_DESCRIPTION: Final = "penstock: verify"
_CHECK_INTERVAL_S: Final = 0.5
_ITEMS_PER_CORE: Final = 4
"""The items per core in one wave of Spark tasks. Progress is reported between waves."""
_ITEM_COST: Final = 128 << 10
"""The overhead of an item, as the bytes that could be read in that time."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A differing row. ``kind``: ``missing`` or ``extra`` at the node, ``different``, or
    ``doubled``: the node has it more often. ``key``: (column, text) of the columns that identify
    the row. ``columns``: names of differing columns, if known. ``count``: number of equal rows."""

    kind: str
    key: tuple[tuple[str, str | None], ...]
    columns: tuple[str, ...] = ()
    count: int = 1


@dataclass(frozen=True, slots=True)
class TableDifference:
    """The number of rows on both sides, and of differences by kind. ``whole``: all differing
    buckets were read; otherwise there may be more differences. ``examples``: some of each kind."""

    publisher_rows: int
    node_rows: int
    kinds: dict[str, int] = field(default_factory=dict)
    whole: bool = True
    examples: tuple[RowDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class CompareProgress:
    """The estimated bytes read, and to be read, on both sides of all tables. ``again``: tables are
    read a second time to find the differing rows."""

    bytes: int
    bytes_total: int
    again: bool


# Digests of a table's rows, by which two copies of it are compared. This runs inside tasks.
#
# An item is a unit of the publisher's table at an exported snapshot, or a data file of the node's
# table at a version. The functions that read them return the same Arrow columns. The result is
# the number of rows and the sum of their hashes for each of ``BUCKETS``, or each row of some
# buckets.
#
# A row belongs to a bucket by its key, a row without a key by all its values. Sums do not depend on
# the order of rows, nor on how a table is divided. Different tables have the same digests with a
# probability of 2^-64. Differing rows are searched in the differing buckets only.

BUCKETS: Final = 4096
"""The number of buckets of a table. It bounds the result of a task."""
_SHOWN: Final = 200
"""The number of characters of a value that are shown."""

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class DigestColumn:
    """A compared column; batches have it under the publisher's name. ``attribute.key``: it is one
    of the columns that identify a row."""

    attribute: Attribute
    type: pa.DataType


@dataclass(frozen=True)
class NodeRows:
    """A file of the node's table, with the table's columns by their names at the publisher.
    ``live``: the column that is NULL in live rows, if the file may have dead rows; these are not
    compared. ``range``: only rows in this key range are compared."""

    storage: Storage
    table_uri: str
    file: ScanFile
    columns: tuple[ScanColumn, ...]
    live: ScanColumn | None = None
    range: KeyRange | None = None


@dataclass(frozen=True)
class DigestItem:
    """Rows to be read by a task. ``table``: its number in the comparison. ``listed``: buckets whose
    rows are returned one by one; None: digests of all buckets."""

    table: int
    rows: CopyTask | NodeRows
    columns: tuple[DigestColumn, ...]
    listed: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Digests:
    """The digests of an item's rows; ``here``: the rows are the node's. The arrays are aligned."""

    table: int
    here: bool
    bucket: Integers
    count: Integers
    total: Hashes


@dataclass(frozen=True)
class ToldRow:
    """A row. ``key``: the texts of the key's columns, or of all columns if there is no key;
    ``hashes``: one for each column; ``key_hash``: equal for rows with the same key."""

    key_hash: int
    hashes: tuple[int, ...]
    key: tuple[str | None, ...]
    count: int


@dataclass(frozen=True)
class ToldRows:
    """The rows of an item that are in the listed buckets."""

    table: int
    here: bool
    rows: tuple[ToldRow, ...]


Digested = Digests | ToldRows | Failed
_Interrupt = Callable[[], None] | None


def run_digest(item: DigestItem, interrupt: _Interrupt = None) -> Iterator[Digested]:
    """Read an item, in a task. Errors are returned as values: they concern only the table.
    ``interrupt``: called while waiting for the publisher; its errors are returned as well."""
    here = isinstance(item.rows, NodeRows)
    try:
        if item.listed is None:
            yield Digests(item.table, here, *_digest(item, interrupt))
        else:
            yield ToldRows(item.table, here, tuple(_told(item, interrupt)))
    except duckdb.OutOfMemoryException as error:
        yield Failed(item.table, out_of_memory(error))
    except PenstockError as error:
        yield Failed(item.table, error)
    except Exception as error:
        told = PenstockError(f"could not compare rows: {type(error).__name__}: {error}")
        yield Failed(item.table, told)


def _batches(item: DigestItem, interrupt: _Interrupt) -> Generator[pa.RecordBatch]:
    if isinstance(item.rows, CopyTask):
        yield from map(_comparable, read_unit(item.rows, interrupt))
    else:
        rows = item.rows
        columns = (*rows.columns, *(() if rows.live is None else (rows.live,)))
        for batch in scan(rows.storage, rows.table_uri, rows.file, columns):
            live = batch if rows.live is None else _only_live(batch)
            yield _comparable(live if rows.range is None else rows.range.rows(live))


def _comparable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace variants by text: writers may encode equal variants as different bytes."""
    for at, column in enumerate(batch.schema):
        if column.type == VARIANT:
            batch = batch.set_column(at, column.name, compared_text(batch.column(at)))
    return batch


def _only_live(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the live rows, without the last column, which is ``NodeRows.live``."""
    last = batch.num_columns - 1
    return batch.filter(pc.is_null(batch.column(last))).remove_column(last)


def _digest(item: DigestItem, interrupt: _Interrupt) -> tuple[Integers, Integers, Hashes]:
    """Return buckets, counts and sums, added up over the item's batches."""
    count = np.zeros(BUCKETS, np.int64)
    total = np.zeros(BUCKETS, np.uint64)
    query = (
        f"SELECT (k % {BUCKETS})::BIGINT, count(*)::BIGINT,"
        " (sum(r) % 18446744073709551616)::UBIGINT"
        f" FROM (SELECT {_key_hash(item.columns)} AS k, {_row_hash(item.columns)} AS r"
        " FROM digested) GROUP BY 1"
    )
    with closing(_batches(item, interrupt)) as batches:
        for rows in _gathered(batches):
            found = _ask(query, rows, item.columns).columns
            bucket, counts, sums = (column.to_numpy() for column in found)
            count[bucket] += counts
            total[bucket] += sums  # modulo 2^64
    (bucket,) = np.nonzero(count)
    return bucket, count[bucket], total[bucket]


_GATHERED_ROWS: Final = 65536
_GATHERED_BYTES: Final = 8 << 20


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join small batches into larger tables: each query costs a millisecond."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GATHERED_ROWS or size >= _GATHERED_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _told(item: DigestItem, interrupt: _Interrupt) -> Iterator[ToldRow]:
    columns = item.columns
    found: dict[tuple[int, tuple[int, ...]], tuple[tuple[str | None, ...], int]] = {}
    keys = f"SELECT {_key_hash(columns)} AS k FROM digested"
    hashes = ", ".join(f"{_hash([n], [c])} AS h{n}" for n, c in enumerate(columns))
    shown = [n for n, column in enumerate(columns) if column.attribute.key]
    shown = shown or list(range(len(columns)))
    with closing(_batches(item, interrupt)) as batches:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            key = _ask(keys, rows, columns)["k"].to_numpy()
            wanted = np.isin(key % np.uint64(BUCKETS), np.array(item.listed, np.uint64))
            if not wanted.any():
                continue
            kept = rows.filter(pa.array(wanted))
            told = _ask(f"SELECT {hashes} FROM digested", kept, columns).columns
            texts = [_texts(kept, n, columns[n]) for n in shown]
            numbers = zip(*(column.to_pylist() for column in told), strict=True)
            for at, (key_hash, row) in enumerate(zip(key[wanted].tolist(), numbers, strict=True)):
                before = found.get((key_hash, row))
                text = before[0] if before else tuple(column[at] for column in texts)
                found[key_hash, row] = text, 1 + (before[1] if before else 0)
    for (key_hash, row), (text, count) in found.items():
        yield ToldRow(key_hash, row, text, count)


def _texts(rows: pa.Table, number: int, column: DigestColumn) -> list[str | None]:
    array = rows.column(number).combine_chunks()
    printed = text_output(array, column.attribute.type_oid, column.attribute.typmod).to_pylist()
    return [None if value is None else _shortened(value.decode()) for value in printed]


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _ask(query: str, rows: pa.Table, columns: Sequence[DigestColumn]) -> pa.Table:
    """Query the rows, whose columns are c0, c1, ... in the query."""
    duck = connection()
    duck.register("digested", rows.rename_columns([f"c{n}" for n in range(len(columns))]))
    try:
        return duck.sql(query).to_arrow_table()
    finally:
        duck.unregister("digested")


def _key_hash(columns: Sequence[DigestColumn]) -> str:
    keys = [n for n, column in enumerate(columns) if column.attribute.key] or range(len(columns))
    return _hash(keys, [columns[n] for n in keys])


def _row_hash(columns: Sequence[DigestColumn]) -> str:
    """Hash twice: the hash of a single number is too simple to be added up."""
    return f"hash({_hash(range(len(columns)), columns)})"


def _hash(numbers: Sequence[int], columns: Sequence[DigestColumn]) -> str:
    """Hash by value, but distinguish -0 from 0. DuckDB hashes only a list's elements, so that NULL,
    {} and {NULL} have one hash: therefore hash also whether it is NULL, and its length."""
    named = [(f"c{n}", column.type) for n, column in zip(numbers, columns, strict=True)]
    lists = [name for name, kind in named if pa.types.is_list(kind)]
    told = [each for name in lists for each in (f"{name} IS NULL", f"len({name})")]
    return f"hash({', '.join([*(name for name, _ in named), *signs(named), *told])})"


@dataclass(slots=True)
class _Side:
    count: np.ndarray = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    total: np.ndarray = field(default_factory=lambda: np.zeros(BUCKETS, np.uint64))


@dataclass(slots=True)
class _Compared:
    """The state of a table's comparison. ``items``: (bytes, item) of both sides."""

    columns: tuple[DigestColumn, ...]
    items: list[tuple[int, DigestItem]]
    publisher: _Side = field(default_factory=_Side)
    node: _Side = field(default_factory=_Side)
    error: PenstockError | None = None
    published: Counter[ToldRow] = field(default_factory=Counter)
    held: Counter[ToldRow] = field(default_factory=Counter)

    def differing(self) -> list[int]:
        """Return the buckets that differ, those with the fewest rows first."""
        ours, theirs = self.node, self.publisher
        (found,) = np.nonzero((ours.count != theirs.count) | (ours.total != theirs.total))
        rows = ours.count + theirs.count
        return sorted((int(bucket) for bucket in found), key=lambda bucket: int(rows[bucket]))

    def told_buckets(self) -> tuple[int, ...]:
        """Return the buckets whose rows are read one by one: up to _TOLD_ROWS, at least one."""
        rows, chosen = 0, list[int]()
        for bucket in self.differing():
            rows += int(self.node.count[bucket] + self.publisher.count[bucket])
            if chosen and rows > _TOLD_ROWS:
                break
            chosen.append(bucket)
        return tuple(chosen)


_Sized = tuple[int, DigestItem]
_Running = Future[list[Digested]]


class Comparison:
    """One comparison of tables. ``check``: called about twice a second; raises to end it."""

    def __init__(
        self,
        spark: Spark,
        *,
        conninfo: ConnInfo,
        snapshot_name: str,
        options: CopyOptions,
        progress: Callable[[CompareProgress], None],
        check: Callable[[], None],
    ) -> None:
        self._spark = spark
        self._conninfo = conninfo
        self._snapshot_name = snapshot_name
        self._options = options
        self._progress = progress
        self._check = check
        self._checked_at = time.monotonic()

    def run(
        self, sources: Sequence[CopySource], *, examples: int
    ) -> list[TableDifference | PenstockError]:
        """Return each table's differences, with at most ``examples`` rows of each kind, or its
        error. Raises the errors of ``check``."""
        tables = [self._table(number, source) for number, source in enumerate(sources)]
        self._read(tables, [item for table in tables for item in table.items], again=False)
        again = [
            (size, replace(item, listed=listed))
            for table in tables
            if table.error is None and (listed := table.told_buckets())
            for size, item in table.items
        ]
        self._read(tables, again, again=True)
        return [table.error or _difference(table, examples) for table in tables]

    def _table(self, number: int, source: CopySource) -> _Compared:
        """Return both sides of a table in parts, with the columns that they share."""
        columns = [
            DigestColumn(replace(c.attribute, key=c.source in _key(source)), c.type)
            for c in compared_columns(source)
        ]
        items = [*self._published(source, number), *_stored(source, number)]
        return _Compared(
            tuple(columns),
            [(size, replace(item, columns=tuple(columns))) for size, item in items],
        )

    def _published(self, source: CopySource, number: int) -> Iterator[tuple[int, DigestItem]]:
        columns, info = compared_columns(source), source.info
        attributes = published_columns(source)
        units = self._units(source, attributes)
        schema = pa.schema([pa.field(c.source, c.type) for c in columns])
        for unit in units:
            task = CopyTask(
                number=number,
                table=info.relation.qualified_name,
                conninfo=self._conninfo,
                application_name="penstock verify",
                snapshot_name=self._snapshot_name,
                queries=unit.queries,
                columns=attributes,
                schema=schema,
                targets=columns,
                generated=GeneratedColumns(source.table.name),
                storage=source.table.storage,
                table_uri=source.table.uri,
                batch_bytes=self._options.batch_bytes,
                target_file_bytes=self._options.target_file_bytes,
                doing="read",
                out_of_range=source.out_of_range,
                key=frozenset(source.table.schema.source_key),
                enums=source.enums,
            )
            yield unit.size, DigestItem(number, task, ())

    def _units(self, source: CopySource, attributes: Sequence[Attribute]) -> list[Unit]:
        """Return the publisher's units. A range of keys is one unit, because the place of its rows
        in the heap is unknown."""
        info, rows = source.info, source.rows
        if rows is None:
            return units_of(info, attributes, self._options.unit_bytes)
        condition = rows.condition
        if info.row_filter is not None:
            condition = f"{condition} AND ({info.row_filter})"
        ranged = replace(info, row_filter=condition)
        return [
            replace(unit, size=rows.bytes)
            for unit in units_of(ranged, attributes, max(1, info.size))
        ]

    def _read(self, tables: Sequence[_Compared], items: list[_Sized], *, again: bool) -> None:
        items.sort(key=lambda pair: -pair[0])
        total, done = sum(size for size, _ in items), 0
        if items:
            self._progress(CompareProgress(0, total, again))
        here = total + len(items) * _ITEM_COST <= HERE_BYTES
        with closing(self._here(items) if here else self._by_spark(items)) as results:
            for size, found in results:
                for result in found:
                    _take(tables, result)
                done += size
                self._progress(CompareProgress(done, total, again))

    def _here(self, items: Sequence[_Sized]) -> Generator[tuple[int, Sequence[Digested]]]:
        """Yield (bytes, results) of each item as it is done."""
        threads = min(self._options.connections, os.cpu_count() or 1)
        ended = threading.Event()

        def interrupt() -> None:
            if ended.is_set():
                raise NotInPrerequisiteState("the comparison has ended")

        with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
            running = {
                pool.submit(lambda one: list(run_digest(one, interrupt)), item): size
                for size, item in items
            }
            try:
                while running:
                    for future in self._wait(running):
                        yield running.pop(future), future.result()
            finally:
                ended.set()  # or the pool would wait for a publisher that hangs
                for future in running:
                    future.cancel()

    def _by_spark(self, items: Sequence[_Sized]) -> Generator[tuple[int, Sequence[Digested]]]:
        """Yield (bytes, results) of each wave of Spark tasks. Another thread runs the waves, while
        this one calls ``check``."""
        context = self._spark.sparkContext
        count = context.defaultParallelism * _ITEMS_PER_CORE
        group = f"penstock-verify-{uuid.uuid4()}"
        with ThreadPoolExecutor(1, thread_name_prefix="verify") as pool:
            for start in range(0, len(items), count):
                wave = items[start : start + count]
                running = pool.submit(self._run_wave, wave, group)
                try:
                    while not self._wait([running]):
                        pass
                except BaseException:
                    cancel_jobs(context, group)
                    raise
                yield sum(size for size, _ in wave), running.result()

    def _run_wave(self, wave: Sequence[_Sized], group: str) -> list[Digested]:
        context = self._spark.sparkContext
        with working(context):
            context.setJobGroup(group, _DESCRIPTION)
        work = [(float(size + _ITEM_COST), item) for size, item in wave]
        cores = min(1.0, self._options.connections / context.defaultParallelism)
        return run_job(self._spark, work, run_digest, _DESCRIPTION, cores=cores)

    def _wait(self, running: Collection[_Running]) -> set[_Running]:
        """Return the futures that are done; call ``check`` now and then."""
        done, _ = wait(running, timeout=_CHECK_INTERVAL_S, return_when=FIRST_COMPLETED)
        if time.monotonic() - self._checked_at >= _CHECK_INTERVAL_S:
            self._check()
            self._checked_at = time.monotonic()
        return done


def compared_columns(source: CopySource) -> tuple[Column, ...]:
    """Return the columns of the node's table that are published, in its order."""
    published = {attribute.name for attribute in published_columns(source)}
    return tuple(c for c in source.table.schema.columns if c.source in published)


def _key(source: CopySource) -> frozenset[str]:
    """Return the columns that identify a row: the primary key, or else the key by which the
    subscription finds rows."""
    compared = {column.source for column in compared_columns(source)}
    for key in (source.info.primary_key, source.table.schema.source_key):
        if key and compared.issuperset(key):
            return frozenset(key)
    return frozenset()


def _stored(source: CopySource, number: int) -> Iterator[tuple[int, DigestItem]]:
    compared = compared_columns(source)
    for part in source.parts:
        columns, live = _scanned(part.table, compared), _null_in_live_rows(source, part.table)
        for file in part.table.files.values():
            if source.rows is not None and not source.rows.may_hold(
                _integer_bounds(file, source.rows, columns)
            ):
                continue
            table = part.table
            scanned = ScanFile.of(file)
            rows = NodeRows(table.storage, table.uri, scanned, columns, live, source.rows)
            yield file.size, DigestItem(number, rows, ())


def _integer_bounds(
    file: DataFile, rows: KeyRange, columns: Sequence[ScanColumn]
) -> tuple[int, int] | None:
    (column,) = (column for column in columns if column.name == rows.column)
    return integer_bounds(file, column.stored, pa.schema([(column.stored, column.type)]))


def _scanned(table: DeltaTable, compared: Sequence[Column]) -> tuple[ScanColumn, ...]:
    here = table.schema.by_source
    return tuple(ScanColumn(c.source, here[c.source].name, c.type) for c in compared)


def _null_in_live_rows(source: CopySource, table: DeltaTable) -> ScanColumn | None:
    """Return the column that is NULL in live rows, if any: the publisher has no dead rows, so the
    node's dead rows are not compared."""
    if source.table.schema.deleted_at is None:
        return None
    column = table.schema.by_source[DELETED_AT]
    return ScanColumn(column.source, column.name, column.type)


def _take(tables: Sequence[_Compared], result: Digested) -> None:
    if isinstance(result, Failed):
        table = tables[result.work]
        table.error = table.error or result.error
    elif isinstance(result, Digests):
        table = tables[result.table]
        side = table.node if result.here else table.publisher
        side.count[result.bucket] += result.count
        side.total[result.bucket] += result.total  # modulo 2^64
    else:
        assert isinstance(result, ToldRows)
        told = tables[result.table].held if result.here else tables[result.table].published
        for row in result.rows:
            told[replace(row, count=1)] += row.count


def _difference(table: _Compared, examples: int) -> TableDifference:
    kinds: Counter[str] = Counter()
    shown: dict[str, list[RowDifference]] = {}
    for each in _row_differences(table):
        kinds[each.kind] += each.count
        some = shown.setdefault(each.kind, [])
        if len(some) < examples:
            some.append(each)
    return TableDifference(
        int(table.publisher.count.sum()),
        int(table.node.count.sum()),
        dict(sorted(kinds.items())),
        len(table.told_buckets()) == len(table.differing()),
        tuple(each for kind in sorted(shown) for each in shown[kind]),
    )


def _row_differences(table: _Compared) -> Iterator[RowDifference]:
    """Pair rows with the same key; rows without a partner are missing, extra or doubled."""
    compared = [column.attribute for column in table.columns]
    keys = [a.name for a in compared if a.key] or [a.name for a in compared]
    known = {row.key_hash for row in table.published}
    by_key: dict[int, tuple[Counter[ToldRow], Counter[ToldRow]]] = {}
    sides = (table.published - table.held, table.held - table.published)
    for number, rows in enumerate(sides):
        for row, count in rows.items():
            by_key.setdefault(row.key_hash, (Counter(), Counter()))[number][row] += count
    for key_hash, (theirs, ours) in sorted(by_key.items(), key=lambda pair: _order(pair[1])):
        if theirs and ours:
            for one, other in zip(list(theirs.elements()), list(ours.elements()), strict=False):
                named = tuple(zip(keys, one.key, strict=True))
                yield RowDifference("different", named, _unequal(table.columns, one, other))
                theirs[one] -= 1
                ours[other] -= 1
        surplus = "doubled" if key_hash in known else "extra"
        for kind, rows in (("missing", theirs), (surplus, ours)):
            for row, count in (+rows).items():
                yield RowDifference(kind, tuple(zip(keys, row.key, strict=True)), count=count)


def _unequal(columns: Sequence[DigestColumn], one: ToldRow, other: ToldRow) -> tuple[str, ...]:
    pairs = zip(columns, one.hashes, other.hashes, strict=True)
    return tuple(column.attribute.name for column, theirs, ours in pairs if theirs != ours)


def _order(rows: tuple[Counter[ToldRow], Counter[ToldRow]]) -> tuple[tuple[float, str], ...]:
    """Return the sort key of rows: their key, with numbers in numeric order."""
    (first, *_) = [*rows[0], *rows[1]]
    return tuple((_number(text), text or "") for text in first.key)


def _number(text: str | None) -> float:
    try:
        found = math.inf if text is None else float(text)
    except ValueError:
        return math.inf
    return math.inf if math.isnan(found) else found
