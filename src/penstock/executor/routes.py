"""Where rows that sessions write belong: to leaves of the table that they name.

In: a table, the catalog, its columns. Out: ``Route``, for batches with all of those columns by
their names in Delta, and destinations for what is written. How one row is compared with bounds is
left to ``pipeline.routing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.catalog import Catalog, LakeTable
from penstock.errors import PenstockError, ReplicationConflict
from penstock.executor.constraints import partition_error
from penstock.executor.partitions import PartitionRules
from penstock.executor.rows import altered_error
from penstock.executor.shown_rows import show_values
from penstock.executor.tables import LakeTables
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.state import TableState
from penstock.lakehouse.storage import Storage
from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.partition_tree import anywhere, routing_of
from penstock.pipeline.routing import Level
from penstock.pipeline.write import Destination
from penstock.walsender.lake_columns import LakeColumn, columns_of


@dataclass(frozen=True)
class Route:
    """Where rows of ``table`` go: to ``leaves``, by their numbers in ``routing``; None: it has no
    partitions. ``above``: how rows of the topmost table would go, of which only the leaves numbered
    ``within`` belong to ``table``; None: it is the topmost. ``keys``: columns (names in Delta) that
    any of it looks at.
    """

    table: LakeTable
    routing: Level | None
    leaves: tuple[LakeTable, ...]
    above: Level | None = None
    within: tuple[int, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """Columns (names in Delta) that decide where a row belongs."""
        levels = (level for level in (self.routing, self.above) if level is not None)
        return frozenset[str]().union(*(level.columns for level in levels))

    def check(self, rows: pa.RecordBatch) -> None:
        """ExecPartitionCheck of the named table. Raises PenstockError (23514)."""
        wrong = np.flatnonzero(~self._belong(rows))
        if len(wrong):
            row = rows.slice(int(wrong[0]), 1)
            raise partition_error(self.table, show_values(row.columns))

    def leaves_of(self, rows: pa.RecordBatch) -> Integers | None:
        """The number of each row's leaf; None: there are no partitions. Raises as ``check``, and
        ReplicationConflict for a row that belongs nowhere."""
        self.check(rows)
        return None if self.routing is None else self.routing.leaves(pa.Table.from_batches([rows]))

    def stay(self, rows: pa.RecordBatch, leaf: int) -> Mask:
        """Which rows belong to the leaf of that number."""
        found = self._belong(rows)
        if self.routing is not None:
            found &= anywhere(self.routing).leaves(pa.Table.from_batches([rows])) == leaf
        return found

    def _belong(self, rows: pa.RecordBatch) -> Mask:
        if self.above is None:
            return np.ones(rows.num_rows, bool)
        return np.isin(self.above.leaves(pa.Table.from_batches([rows])), self.within)


def route(
    catalog: Catalog, tables: LakeTables, table: LakeTable, columns: Sequence[LakeColumn]
) -> Route:
    """``columns``: the table's. Raises FeatureNotSupported for keys that values are not compared of
    here."""
    schema = schema_of(columns)
    routing: Level | None = None
    leaves: tuple[LakeTable, ...] = (table,)
    if table.partition_key is not None:
        routing, leaves = routing_of(tables.tree(table), schema)
    if table.parent is None:
        return Route(table, routing, leaves)
    with catalog.read() as t:
        tree = PartitionRules(t.tables.all(), columns).tree_of(table)
    above, all_leaves = routing_of(tree, schema)
    mine = {leaf.oid for leaf in leaves}
    within = [number for number, leaf in enumerate(all_leaves) if leaf.oid in mine]
    return Route(table, routing, leaves, anywhere(above), tuple(within))


def schema_of(columns: Sequence[LakeColumn]) -> TableSchema:
    """Columns as rows of sessions have them."""
    return TableSchema(
        tuple(Column(c.delta, c.name, c.type, c.type_oid, c.typmod) for c in columns)
    )


class OpenTable(Protocol):
    """A table that rows are written to."""

    @property
    def state(self) -> TableState: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def uri(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> TableSchema: ...


def required_columns(
    routed: Route, opened: Sequence[OpenTable], required: frozenset[str]
) -> list[frozenset[str]]:
    """Columns that hold no NULL in each leaf; ``required``: those of the named table."""
    return [
        required | {*leaf.primary_key, *(c.source for c in table.schema.columns if c.not_null)}
        for leaf, table in zip(routed.leaves, opened, strict=True)
    ]


def check_columns(
    tables: LakeTables, table: LakeTable, known: Sequence[LakeColumn], opened: Sequence[OpenTable]
) -> None:
    """Whether a table and its leaves, as they are opened, still have the columns that rows were
    made for. Raises PenstockError (40001)."""
    rows = schema_of(known).arrow()
    others = any(not _fits(leaf.schema.arrow(), rows) for leaf in opened)
    now = tables.columns(table) if table.partition_key else columns_of(opened[0].state)
    if others or now != tuple(known):
        raise altered_error(table)


def _fits(leaf: pa.Schema, rows: pa.Schema) -> bool:
    """Whether both have the same columns; partitions may have them in another order."""
    mine, theirs = ({f.name: f.type for f in schema} for schema in (leaf, rows))
    return bool(mine == theirs)


def destination(table: OpenTable, rows: pa.Schema) -> Destination:
    """Of rows whose generated columns are made already, as all others."""
    own = table.schema.arrow()
    at = tuple(rows.get_field_index(name) for name in own.names)
    made = GeneratedColumns(table.name)
    return Destination(table.storage, table.uri, own, at, made, table.state.layout)


def not_of_replication(error: ReplicationConflict) -> PenstockError:
    """What is a conflict where a subscription writes is an error of the statement here."""
    return PenstockError(error.message, detail=error.detail, sqlstate=error.sqlstate)
