"""The rows that went and came as tables of DuckDB, without those that only moved, and checked.

In: parts of files, how the table is published. Out: tables ``went`` and ``came``, and what pairs
them. Rows that are equal in all columns were copied, not changed, and cancel; they are compared by
value, with -0 told from 0. What PostgreSQL's indexes and commands make sure of, and writers of a
Delta table do not, is an error with the remedy: the slot stops, the subscriber gets nothing wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from penstock.identifiers import quoted
from penstock.lakehouse.row_pairs import NEW, OLD
from penstock.lakehouse.storage import Storage
from penstock.pipeline.change_item import (
    ChangeItem,
    PublishedTable,
    StoredRows,
    needed_columns,
    read_stored,
)
from penstock.pipeline.change_pairs import (
    PAIR,
    Pairing,
    load_pairs,
    pair_by_key,
    paired_rows,
    take_whole_rows,
)
from penstock.pipeline.columns import signs
from penstock.pipeline.duck import read_into
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.publication.members import Operation
from penstock.publication.row_filter import matches
from penstock.sqlstate import NotNullViolation, UniqueViolation

MATCHES: Final = '"penstock: row matches"'
"""Column: whether a row matches the row filter for updates."""


class TooManyChanges(Exception):
    """The rows do not fit into the memory that a task may take: they are to be divided first."""


@dataclass(frozen=True)
class Loaded:
    """Tables ``went`` and ``came``. ``row_bytes``: Arrow bytes of a row, about."""

    row_bytes: int
    pairing: Pairing


def load(
    storage: Storage, item: ChangeItem, duck: duckdb.DuckDBPyConnection, share_bytes: int
) -> Loaded:
    """Tables ``went`` and ``came``, without rows that are equal.

    Raises TooManyChanges where the rows of an item that is not divided are more than
    ``share_bytes``, and UniqueViolation.
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
    """What is compared of a row."""
    names = [of + quoted(column.name) for column in columns]
    types = (column.type for column in columns)
    return [*names, *signs(zip(names, types, strict=True))]


def rows_without(of: str, other: str, columns: Sequence[ScanColumn]) -> str:
    """Rows of one table that the other does not have: a quarter of the work of EXCEPT ALL, which
    counts rows that are there more than once."""
    pairs = zip(compared_columns(columns, "o."), compared_columns(columns, "n."), strict=True)
    same = " AND ".join(f"{old} IS NOT DISTINCT FROM {new}" for old, new in pairs)
    return f"SELECT o.* FROM {of} o ANTI JOIN {other} n ON {same}"


@dataclass
class _Count:
    """What has been read, which is no more than ``most``."""

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
    """Rows of a data file, or of the staging area. Raises VersionGone, StorageError."""
    if isinstance(file, StoredRows):
        return read_stored(file, [column.name for column in columns])
    return scan(storage, item.table_uri, file, columns)


_SHOWN_KEYS: Final = 10


def _check_unique(item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> None:
    """Raises UniqueViolation. Rows that no operation is sent of do not count, and are dropped where
    they have keys of others: a row filter may leave out those that are deleted and stay."""
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
            "USING KEY (...), or FULL; then drop the slot and copy the table again.",
        )


def _twice(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, *sides: str
) -> list[tuple[object, ...]]:
    """Some keys of several rows of the first side that has such."""
    key = ", ".join(quoted(name) for name in item.table.key)
    for rows in sides:
        found = duck.execute(
            f"SELECT {key} FROM {rows} GROUP BY ALL HAVING count(*) > 1 LIMIT {_SHOWN_KEYS}"
        ).fetchall()
        if found:
            return found
    return []


def _one_filter(table: PublishedTable) -> bool:
    """Whether all operations are published by one filter: an update of a row that it leaves out
    before is an insert then, and a delete of one that it leaves out after."""
    operations = (Operation.INSERT, Operation.UPDATE, Operation.DELETE)
    filters = {table.filters.get(operation) for operation in operations}
    return len(filters) == 1 and None not in filters and table.published.issuperset(operations)


def check_identity(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, gone: str, pairs: str | None
) -> None:
    """CheckCmdReplicaIdentity, which no writer of the table has gone through."""
    having = {
        Operation.DELETE: gone,
        Operation.UPDATE: f"SELECT 1 {pairs}" if pairs else gone,
    }
    for operation, rows in having.items():
        error = item.table.refused.get(operation)
        if error is not None and duck.execute(f"SELECT 1 FROM ({rows}) LIMIT 1").fetchall():
            raise error


def check_not_null(table: PublishedTable, rows: pa.Table) -> None:
    """A key without a value identifies nothing; PostgreSQL has no such keys."""
    if not table.published & {Operation.UPDATE, Operation.DELETE}:
        return
    for name in table.identity or ():
        if rows.column(name).null_count:
            raise NotNullViolation(
                f'null value in column "{name}" of relation "{table.name.rpartition(".")[2]}" '
                "violates not-null constraint",
                detail="The column belongs to the replica identity of the table.",
                hint="Give the rows a key, or choose another identity: ALTER TABLE ... REPLICA "
                "IDENTITY USING KEY (...), or FULL; then drop the slot and copy the table again.",
            )
