"""Digests of a table's rows, by which two copies of it are compared. Runs inside tasks.

In: a unit of the publisher's table at an exported snapshot, or a data file of the node's at a
version; both as the same Arrow columns, by the functions that copy and read them. Out: for each of
``BUCKETS`` how many rows there are and the sum of their hashes; or, of some buckets, each row.

A row belongs to a bucket by its key, a row without a key by all its values. Sums do not depend on
the order of rows, nor on how a table is divided; two tables with the same digests are equal but for
an accident of one in 2^64. What differs is then looked for in the buckets that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.lakehouse.storage import Storage
from penstock.pgtypes.text_output import text_output
from penstock.pgtypes.variant import VARIANT
from penstock.pgtypes.variant_text import compared_text
from penstock.pipeline.columns import Integers, signs
from penstock.pipeline.duck import connection, out_of_memory
from penstock.pipeline.key_range import KeyRange
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.pipeline.snapshot_task import CopyTask, read_unit
from penstock.pipeline.tasks import Failed

BUCKETS: Final = 4096
"""Of a table. What comes back of a task is bounded by it."""
_SHOWN: Final = 200
"""Characters of a value that is shown."""

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class DigestColumn:
    """``name``: at the publisher, and of the batches' columns. ``key``: tells rows apart."""

    name: str
    type: pa.DataType
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True)
class HeldRows:
    """A file of the node's table, with the table's columns by their names at the publisher.
    ``live``: the column that is NULL in live rows, where there are others, which do not count.
    ``range``: only rows of it count."""

    storage: Storage
    table_uri: str
    file: ScanFile
    columns: tuple[ScanColumn, ...]
    live: ScanColumn | None = None
    range: KeyRange | None = None


@dataclass(frozen=True)
class DigestItem:
    """``table``: its number in the comparison. ``wanted``: buckets whose rows are told one by one;
    None: digests of all."""

    table: int
    rows: CopyTask | HeldRows
    columns: tuple[DigestColumn, ...]
    wanted: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Digests:
    """Of the rows of an item; ``here``: they are the node's. The arrays are side by side."""

    table: int
    here: bool
    bucket: Integers
    count: Integers
    total: Hashes


@dataclass(frozen=True)
class ToldRow:
    """Equal rows. ``key``: the texts of the key's columns, of all where there is no key;
    ``hashes``: one for each column; ``key_hash``: rows with the same key have the same."""

    key_hash: int
    hashes: tuple[int, ...]
    key: tuple[str | None, ...]
    count: int


@dataclass(frozen=True)
class ToldRows:
    """The rows of an item that are in wanted buckets."""

    table: int
    here: bool
    rows: tuple[ToldRow, ...]


Digested = Digests | ToldRows | Failed
_Interrupt = Callable[[], None] | None


def run_digest(item: DigestItem, interrupt: _Interrupt = None) -> Iterator[Digested]:
    """In a task; an error comes back as a value, and is the table's. ``interrupt``: asked while the
    publisher is waited for; what it raises comes back likewise."""
    here = isinstance(item.rows, HeldRows)
    try:
        if item.wanted is None:
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
    """With texts in place of variants, whose bytes are the writer's choice."""
    for at, column in enumerate(batch.schema):
        if column.type == VARIANT:
            batch = batch.set_column(at, column.name, compared_text(batch.column(at)))
    return batch


def _only_live(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``live`` is the last column."""
    last = batch.num_columns - 1
    return batch.filter(pc.is_null(batch.column(last))).remove_column(last)


def _digest(item: DigestItem, interrupt: _Interrupt) -> tuple[Integers, Integers, Hashes]:
    """Of batches one after the other; they are added up."""
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
    """A question costs a millisecond: batches of few rows are asked about together."""
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
    shown = [n for n, column in enumerate(columns) if column.key] or list(range(len(columns)))
    with closing(_batches(item, interrupt)) as batches:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            key = _ask(keys, rows, columns)["k"].to_numpy()
            wanted = np.isin(key % np.uint64(BUCKETS), np.array(item.wanted, np.uint64))
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
    printed = text_output(array, column.type_oid, column.typmod).to_pylist()
    return [None if value is None else _shortened(value.decode()) for value in printed]


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _ask(query: str, rows: pa.Table, columns: Sequence[DigestColumn]) -> pa.Table:
    """The columns are c0, c1, ... there."""
    duck = connection()
    duck.register("digested", rows.rename_columns([f"c{n}" for n in range(len(columns))]))
    try:
        return duck.sql(query).to_arrow_table()
    finally:
        duck.unregister("digested")


def _key_hash(columns: Sequence[DigestColumn]) -> str:
    keys = [n for n, column in enumerate(columns) if column.key] or range(len(columns))
    return _hash(keys, [columns[n] for n in keys])


def _row_hash(columns: Sequence[DigestColumn]) -> str:
    """Hashed twice: a single number's own hash is simple, and a sum of such would be, too."""
    return f"hash({_hash(range(len(columns)), columns)})"


def _hash(numbers: Sequence[int], columns: Sequence[DigestColumn]) -> str:
    """By value, with -0 told from 0. DuckDB's hash of a list is that of its elements, so that NULL,
    {} and {NULL} have the same: they are told apart beside it."""
    named = [(f"c{n}", column.type) for n, column in zip(numbers, columns, strict=True)]
    lists = [name for name, kind in named if pa.types.is_list(kind)]
    told = [each for name in lists for each in (f"{name} IS NULL", f"len({name})")]
    return f"hash({', '.join([*(name for name, _ in named), *signs(named), *told])})"
