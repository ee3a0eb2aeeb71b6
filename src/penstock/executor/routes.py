"""Routes of rows that sessions write: each row goes to a leaf of the table that is named.

In: a table, the catalog, its columns. Out: ``Route``, for batches that have all of those columns by
their names in Delta, and destinations for what is written. ``pipeline.routing`` compares a row with
bounds.
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
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.state import TableState
from penstock.lakehouse.storage import Storage
from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.partition_tree import anywhere, routing_of
from penstock.pipeline.routing import Level
from penstock.pipeline.write import Destination
from penstock.walsender.lake_columns import LakeColumn, columns_of, schema_of


@dataclass(frozen=True)
class Route:
    """Route rows of ``table`` to its leaves. ``routing`` returns a row's index into ``leaves``, and
    is None if the table has no partitions. ``above`` routes rows of the topmost table, and is None
    if ``table`` is the topmost; of its leaves only those numbered ``within`` belong to ``table``.
    """

    table: LakeTable
    routing: Level | None
    leaves: tuple[LakeTable, ...]
    above: Level | None = None
    within: tuple[int, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """The columns (names in Delta) that decide where a row belongs."""
        levels = (level for level in (self.routing, self.above) if level is not None)
        return frozenset[str]().union(*(level.columns for level in levels))

    def check(self, rows: pa.RecordBatch) -> None:
        """Check that rows belong to the named table (ExecPartitionCheck). Raises PenstockError
        (23514)."""
        wrong = np.flatnonzero(~self._belong(rows))
        if len(wrong):
            row = rows.slice(int(wrong[0]), 1)
            raise partition_error(self.table, show_values(row.columns))

    def leaves_of(self, rows: pa.RecordBatch) -> Integers | None:
        """Return the number of each row's leaf, or None if there are no partitions. Raises what
        ``check`` raises, and ReplicationConflict for a row that belongs nowhere."""
        self.check(rows)
        return None if self.routing is None else self.routing.leaves(pa.Table.from_batches([rows]))

    def _belong(self, rows: pa.RecordBatch) -> Mask:
        if self.above is None:
            return np.ones(rows.num_rows, bool)
        return np.isin(self.above.leaves(pa.Table.from_batches([rows])), self.within)


def route(
    catalog: Catalog, tables: LakeTables, table: LakeTable, columns: Sequence[LakeColumn]
) -> Route:
    """Return the route of a table's rows. ``columns``: the table's. Raises FeatureNotSupported for
    a key whose values cannot be compared here."""
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
    """Return for each leaf the columns that hold no NULL. ``required``: those of the named
    table."""
    return [
        required
        | {*leaf.primary_key, *(c.source for c in table.schema.columns if c.attribute.not_null)}
        for leaf, table in zip(routed.leaves, opened, strict=True)
    ]


def check_columns(
    tables: LakeTables, table: LakeTable, known: Sequence[LakeColumn], opened: Sequence[OpenTable]
) -> None:
    """Check that a table and its leaves, as they are opened, still have the columns that rows were
    made for. Raises PenstockError (40001)."""
    rows = schema_of(known).arrow()
    others = any(not _fits(leaf.schema.arrow(), rows) for leaf in opened)
    now = tables.columns(table) if table.partition_key else columns_of(opened[0].state)
    if others or now != tuple(known):
        raise altered_error(table)


def _fits(leaf: pa.Schema, rows: pa.Schema) -> bool:
    """Tell whether both have the same columns; partitions may have them in another order."""
    mine, theirs = ({f.name: f.type for f in schema} for schema in (leaf, rows))
    return bool(mine == theirs)


def destination(table: OpenTable, rows: pa.Schema) -> Destination:
    """Return the destination of rows that are complete: their generated columns are already
    computed."""
    own = table.schema.arrow()
    at = tuple(rows.get_field_index(name) for name in own.names)
    made = GeneratedColumns(table.name)
    return Destination(table.storage, table.uri, own, at, made, table.state.layout)


def not_of_replication(error: ReplicationConflict) -> PenstockError:
    """Turn a conflict, which is what a subscription would report, into the error of a statement."""
    return PenstockError(error.message, detail=error.detail, sqlstate=error.sqlstate)
