"""The Delta tables that hold a relation's rows: one, or the leaves of a partitioned table.

New rows of a net change are divided among the tables, each with its own columns, names and order.
Bounds do not determine where old rows are, since other writers may have put them anywhere. So old
rows are searched in every table whose files may hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.columns import Integers
from penstock.pipeline.generated import generated_columns
from penstock.pipeline.net_change import NetChange
from penstock.pipeline.routed_writer import Destination
from penstock.pipeline.routing import Level, by_leaf


@dataclass(frozen=True)
class Leaves:
    """The leaves of a partitioned table, as ``routing`` numbers them."""

    tables: tuple[DeltaTable, ...]
    routing: Level

    def touched(self, net: NetChange) -> frozenset[int]:
        """Return the leaves of a net change's rows, even of rows that stay unchanged.

        Raises ReplicationConflict (23514) for a row, old or new, that belongs to no leaf.
        """
        if net.truncate or net.all_ended is not None:
            return frozenset(range(len(self.tables)))
        rows = [net.rows, *([net.incomplete.rows] if net.incomplete else [])]
        keys = [keys for keys in (net.removed, net.absent) if self.can_route(keys)]
        found: set[int] = set()
        for each in (*keys, *rows):
            found.update(np.unique(self.routing.leaves(each)).tolist())
        return frozenset(found)

    def can_route(self, keys: pa.Table) -> bool:
        """Return whether the keys contain all columns by which rows are routed."""
        return self.routing.columns <= set(keys.column_names)


@dataclass(frozen=True)
class Part:
    """One of the relation's tables. ``columns``: its columns' numbers in the relation."""

    number: int
    table: DeltaTable
    relation: TableSchema

    @cached_property
    def columns(self) -> tuple[int, ...]:
        at = {column.source: i for i, column in enumerate(self.relation.columns)}
        return tuple(at[column.source] for column in self.table.schema.columns)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Map the names of the relation's columns to their names in this table."""
        here = self.table.schema.by_source
        return {c.name: here[c.source].name for c in self.relation.columns}

    @property
    def uri(self) -> str:
        """The URI of the table."""
        return self.table.uri

    @property
    def deleted_at(self) -> str | None:
        """The name here of the column that is NULL in live rows, if there is one."""
        name = self.relation.deleted_at
        return None if name is None else self.names[name]

    @cached_property
    def shown(self) -> pa.Schema:
        """The columns of its rows that reports show."""
        stamps = {column.name for column in self.table.schema.stamps}
        return pa.schema([f for f in self.table.schema.arrow() if f.name not in stamps])

    def keys(self, keys: pa.Table) -> pa.Table:
        """Return keys, or whole rows to search for, with this table's column names."""
        return keys.rename_columns([self.names[name] for name in keys.column_names])

    def destination(self) -> Destination:
        """Return the table as tasks write to it. Raises RelationChanged if a generated column
        cannot be computed."""
        table = self.table
        generated = generated_columns(table.schema, table.name)
        schema = table.schema.arrow()
        return Destination(table.storage, table.uri, schema, self.columns, generated, table.layout)


def parts(table: DeltaTable, leaves: Leaves | None, relation: TableSchema) -> tuple[Part, ...]:
    """Return all tables that may hold rows of the relation."""
    tables = (table,) if leaves is None else leaves.tables
    return tuple(Part(number, each, relation) for number, each in enumerate(tables))


def shares(rows: pa.Table, leaves: Leaves | None) -> Mapping[int, pa.Table]:
    """Return the rows of each part, without parts that get none. Raises as ``Leaves.touched``."""
    if leaves is None:
        return {0: rows} if rows.num_rows else {}
    found = by_leaf(leaves.routing.leaves(rows))
    return {number: rows.take(pa.array(at)) for number, at in found.items()}


def destinations(rows: pa.Table, leaves: Leaves | None) -> Integers:
    """Return the number of the part that each row goes to."""
    if leaves is None:
        return np.zeros(rows.num_rows, np.int64)
    return leaves.routing.leaves(rows)
