"""The rows that went and came as tables of DuckDB, without those that only moved.

In: parts of files. Out: tables ``went`` and ``came``. Rows that are equal in all columns were
copied, not changed, and cancel; they are compared by value, with -0 told from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import duckdb
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.lakehouse.storage import Storage
from penstock.pipeline.change_item import ChangeItem, Operation, quoted
from penstock.pipeline.identity import signs
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.relation import ReplicaIdentity

MATCHES: Final = '"penstock: row matches"'
"""Column: whether a row matches the row filter for updates."""


def load(storage: Storage, item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> None:
    """Tables ``went`` and ``came``: this share's rows, without those that are equal."""
    table, columns = item.table, _needed(item)
    names = [column.name for column in columns]
    mine = ""
    if item.shares > 1:
        by = ", ".join(quoted(name) for name in table.key or names)
        mine = f" WHERE hash({by}) % {item.shares} = {item.share}"
    for name, files in (("all_went", item.removed), ("all_came", item.added)):
        schema = pa.schema([(column.name, column.type) for column in columns])
        _read_into(duck, name, mine, schema, _scanned(storage, item, files, columns))
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


def _needed(item: ChangeItem) -> tuple[ScanColumn, ...]:
    """Of rows that are only deleted, what identifies them and what filters read is enough."""
    table = item.table
    identity = frozenset((*table.key, *(table.identity or ())))
    whole = table.relation.replica_identity is ReplicaIdentity.FULL
    if item.added or whole or not identity:
        return table.columns
    filters = " ".join(text for text in table.filters.values() if text is not None)
    return tuple(c for c in table.columns if c.name in identity or quoted(c.name) in filters)


def _scanned(
    storage: Storage,
    item: ChangeItem,
    files: Sequence[ScanFile],
    columns: Sequence[ScanColumn],
) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from scan(storage, item.table_uri, file, columns)


def _read_into(
    duck: duckdb.DuckDBPyConnection,
    name: str,
    where: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> None:
    """Make a table of what is scanned. Raises what the scan raises, which DuckDB would wrap."""
    errors: list[PenstockError] = []

    def guarded() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except PenstockError as error:
            errors.append(error)

    duck.register("scanned", pa.RecordBatchReader.from_batches(schema, guarded()))
    try:
        duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM scanned{where}")
    finally:
        duck.unregister("scanned")
    if errors:
        raise errors[0]
