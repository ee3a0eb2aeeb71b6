"""Routing of rows that sessions write: each row goes to a leaf of the named table.

``route`` returns the ``Route`` of a table's rows. It routes batches and Spark's frames, which must
have all columns of the table, by their names in Delta. ``destination`` returns where a leaf's rows
are written. ``pipeline.routing`` compares a row with bounds, here and inside Spark jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

from penstock.catalog import Catalog, LakeTable
from penstock.errors import PenstockError
from penstock.executor.rows import altered_error, quoted
from penstock.executor.shown_rows import first_null_of_leaves, null_error, show_values
from penstock.executor.tables import LakeTables
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.state import TableState
from penstock.lakehouse.storage import Storage
from penstock.pipeline.columns import Integers
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.partition_tree import membership, routing_of
from penstock.pipeline.routed_writer import Destination
from penstock.pipeline.routing import CHECK_VIOLATION, Level
from penstock.walsender.lake_columns import LakeColumn, columns_of, schema_of

ROUTE: Final = "_penstock_partition"
"""The column that ``Route.routed`` adds to a frame."""
_DEFAULT: Final = "DEFAULT"
"""The bound of a default partition."""
_OUTSIDE: Final = -2
"""The number that stands for "not in the named table"."""


@dataclass(frozen=True, slots=True)
class RowRules:
    """The rules for new rows of a leaf that stand in the catalogs. ``keys``: the columns of each
    unique key; ``bounds``: (oid, parent, bound) of the leaf and its ancestors, and beside a default
    partition of all others. Nothing is locked, so they may change while a block is open."""

    keys: frozenset[tuple[str, ...]]
    bounds: frozenset[tuple[int, int | None, str | None]]


def row_rules(leaf: LakeTable, tables: Iterable[LakeTable]) -> RowRules:
    """Return the rules of a leaf. ``tables``: all tables, if the leaf is a partition."""
    by_oid = {table.oid: table for table in tables}
    bounds: set[tuple[int, int | None, str | None]] = set()
    above: LakeTable | None = leaf
    while above is not None and above.parent is not None:
        default = above.bound == _DEFAULT
        beside = [t for t in by_oid.values() if t.parent == above.parent] if default else [above]
        bounds |= {(table.oid, table.parent, table.bound) for table in beside}
        above = by_oid.get(above.parent)
    keys = frozenset({leaf.primary_key, *(index.columns for index in leaf.indexes)})
    return RowRules(keys - {()}, frozenset(bounds))


@dataclass(frozen=True, slots=True)
class Placed:
    """The number of each row's leaf, up to the first row with an error, and this error."""

    leaves: Integers
    error: PenstockError | None


@dataclass(frozen=True)
class Route:
    """Route rows of ``table`` to its leaves. ``routing`` returns a row's index into ``leaves``, and
    is None if the table has no partitions. ``above`` returns 0 for rows that belong to the table,
    and is None if the table is no partition. ``rules`` has the rules of each leaf."""

    table: LakeTable
    leaves: tuple[LakeTable, ...]
    routing: Level | None
    above: Level | None
    rules: tuple[RowRules, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """The columns that decide to which leaf a row belongs, by their names in Delta."""
        levels = (level for level in (self.routing, self.above) if level is not None)
        return frozenset[str]().union(*(level.columns for level in levels))

    def find(self, rows: pa.Table) -> Integers:
        """Return the index of each row's leaf. A row without a leaf gets a negative number, from
        which ``error`` makes its error."""
        found: Integers = np.zeros(rows.num_rows, np.int64)
        if self.routing is not None:
            found = self.routing.find(rows)
        if self.above is not None:
            found[self.above.find(rows) != 0] = _OUTSIDE
        return found

    def place(
        self,
        rows: pa.RecordBatch,
        known: Sequence[LakeColumn],
        required: Sequence[frozenset[str]],
    ) -> Placed:
        """Return where the rows go, up to the first one that has no leaf, or a forbidden NULL.
        ``known``: the rows' columns; ``required``: the NOT NULL columns of each leaf."""
        found = self.find(pa.Table.from_batches([rows]))
        end = int(np.append(np.flatnonzero(found < 0), len(found))[0])
        # A plain partition checks NOT NULL before its bound (ExecInsert).
        checked = rows.slice(0, end + 1 if self.routing is None else end)
        leaves = np.maximum(found[: checked.num_rows], 0)
        at = first_null_of_leaves(known, required, checked, leaves)
        if at is not None:
            number = int(leaves[at])
            leaf, row = self.leaves[number], rows.slice(at, 1)
            return Placed(found[:at], null_error(leaf, known, required[number], row))
        if end < len(found):
            return Placed(found[:end], self.error(rows.slice(end, 1), int(found[end])))
        return Placed(found, None)

    def error(self, row: pa.RecordBatch, number: int) -> PenstockError:
        """Return the error (23514) for a row for which ``find`` returned a negative ``number``:
        either it does not belong to the named table (ExecPartitionCheckEmitError), or the table has
        no partition for it (ExecFindPartition)."""
        if number == _OUTSIDE or self.routing is None:
            return PenstockError(
                f'new row for relation "{self.table.name}" violates partition constraint',
                detail=f"Failing row contains ({', '.join(show_values(row.columns))}).",
                sqlstate=CHECK_VIOLATION,
            )
        error = self.routing.nowhere(pa.Table.from_batches([row]))
        return PenstockError(error.message, detail=error.detail, sqlstate=error.sqlstate)

    def function(self) -> tuple[Callable[..., pa.Array], tuple[str, ...]]:
        """Return ``find`` as a function for ``arrow_udf``, and the names of its arguments."""
        keys, find = tuple(sorted(self.keys)), replace(self, leaves=()).find

        def route(*arguments: pa.Array) -> pa.Array:
            return pa.array(find(pa.table(list(arguments), names=list(keys))), pa.int64())

        return route, keys

    def routed(self, rows: DataFrame) -> DataFrame:
        """Return the frame with one more column, ``ROUTE``: the numbers that ``find`` returns."""
        function, keys = self.function()
        call = arrow_udf(function, "bigint")(*(quoted(name) for name in keys))
        return rows.withColumn(ROUTE, call)

    def check(self, rows: DataFrame, numbers: Iterable[int], columns: Sequence[LakeColumn]) -> None:
        """Check that every row of a frame has a leaf. ``numbers``: all values of its column
        ``ROUTE``; ``columns``: the table's columns. Raises PenstockError (23514)."""
        if any(number < 0 for number in numbers):
            names = [quoted(column.delta) for column in columns]
            first = rows.where(f"{ROUTE} < 0").select(*names, ROUTE).limit(1).toArrow()
            number = first.column(ROUTE)[0].as_py()
            raise self.error(first.drop_columns([ROUTE]).combine_chunks().to_batches()[0], number)


def route(
    catalog: Catalog, tables: LakeTables, table: LakeTable, columns: Sequence[LakeColumn]
) -> Route:
    """Return the route of a table's rows. ``columns``: the table's columns. Raises
    FeatureNotSupported for a partition key whose values cannot be compared here."""
    schema = schema_of(columns)
    routing: Level | None = None
    leaves: tuple[LakeTable, ...] = (table,)
    above: Level | None = None
    known: Sequence[LakeTable] = ()
    if table.partition_key is not None or table.parent is not None:
        with catalog.read() as t:
            known = t.tables.all()
    if table.partition_key is not None:
        routing, leaves = routing_of(tables.tree(table), schema)
    if table.parent is not None:
        above = membership(table, known, schema)
    return Route(table, leaves, routing, above, tuple(row_rules(leaf, known) for leaf in leaves))


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A leaf that a statement reads and writes. ``state`` includes the changes of the statement's
    block."""

    storage: Storage
    uri: str
    name: str
    state: TableState
    schema: TableSchema


def required_columns(
    routed: Route, opened: Sequence[OpenTable], required: frozenset[str]
) -> list[frozenset[str]]:
    """Return the NOT NULL columns of each leaf. ``required``: the NOT NULL columns of the named
    table."""
    return [
        required
        | {*leaf.primary_key, *(c.source for c in table.schema.columns if c.attribute.not_null)}
        for leaf, table in zip(routed.leaves, opened, strict=True)
    ]


def check_columns(
    tables: LakeTables, table: LakeTable, known: Sequence[LakeColumn], opened: Sequence[OpenTable]
) -> None:
    """Check that a table and its opened leaves still have the columns that were ``known`` when the
    rows were computed. Raises PenstockError (40001)."""
    rows = schema_of(known).arrow()
    others = any(not _fits(leaf.schema.arrow(), rows) for leaf in opened)
    now = tables.columns(table) if table.partition_key else columns_of(opened[0].state)
    if others or now != tuple(known):
        raise altered_error(table)


def _fits(leaf: pa.Schema, rows: pa.Schema) -> bool:
    """Tell whether both schemas have the same columns, in any order."""
    mine, theirs = ({f.name: f.type for f in schema} for schema in (leaf, rows))
    return bool(mine == theirs)


def destination(table: OpenTable, rows: pa.Schema) -> Destination:
    """Return the destination of rows whose generated columns are already computed."""
    own = table.schema.arrow()
    at = tuple(rows.get_field_index(name) for name in own.names)
    made = GeneratedColumns(table.name)
    return Destination(table.storage, table.uri, own, at, made, table.state.layout)
