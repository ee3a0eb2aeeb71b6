"""The rows that went and came as tables of DuckDB, without those that only moved.

In: parts of files. Out: tables ``went`` and ``came``. Rows that are equal in all columns were
copied, not changed, and cancel; they are compared by value, with -0 told from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.lakehouse.storage import Storage
from penstock.pipeline.change_item import (
    ChangeItem,
    Operation,
    StoredRows,
    needed_columns,
    quoted,
)
from penstock.pipeline.change_shares import read_stored
from penstock.pipeline.identity import signs
from penstock.pipeline.scan import ScanColumn, ScanFile, scan

MATCHES: Final = '"penstock: row matches"'
"""Column: whether a row matches the row filter for updates."""


class TooManyChanges(Exception):
    """The rows do not fit into the memory that a task may take: they are to be divided first."""


def load(
    storage: Storage, item: ChangeItem, duck: duckdb.DuckDBPyConnection, share_bytes: int
) -> int:
    """Tables ``went`` and ``came``, without rows that are equal; Arrow bytes of a row, about.

    Raises TooManyChanges where the rows of an item that is not divided are more than
    ``share_bytes``.
    """
    table, columns = item.table, needed_columns(item)
    names = [column.name for column in columns]
    count = _Count(None if item.divided else share_bytes)
    for name, files in (("all_went", item.removed), ("all_came", item.added)):
        schema = pa.schema([(column.name, column.type) for column in columns])
        _read_into(duck, name, schema, count.of(_scanned(storage, item, files, columns)))
    predicate = table.filters.get(Operation.UPDATE)
    matches = f"coalesce(({predicate}), false)" if predicate is not None else "true"
    row = ", ".join(map(quoted, names))
    extra = "".join(f", {sign}" for sign in signs((quoted(c.name), c.type) for c in columns))
    for name, of, other in (("went", "all_went", "all_came"), ("came", "all_came", "all_went")):
        source = of
        if item.added:  # else nothing can be equal
            source = f"(SELECT *{extra} FROM {of} EXCEPT ALL SELECT *{extra} FROM {other})"
        duck.execute(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {row}, {matches} AS {MATCHES} "
            f"FROM {source}"
        )
    duck.execute("DROP TABLE all_went; DROP TABLE all_came")
    return count.size // max(1, count.rows)


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


def _scanned(
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
        return read_stored(storage, file, [column.name for column in columns])
    return scan(storage, item.table_uri, file, columns)


def _read_into(
    duck: duckdb.DuckDBPyConnection,
    name: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> None:
    """Make a table of what is scanned. Raises what the scan raises, which DuckDB would wrap."""
    errors: list[PenstockError | TooManyChanges] = []

    def guarded() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except (PenstockError, TooManyChanges) as error:
            errors.append(error)

    duck.register("scanned", pa.RecordBatchReader.from_batches(schema, guarded()))
    try:
        duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM scanned")
    finally:
        duck.unregister("scanned")
    if errors:
        raise errors[0]
