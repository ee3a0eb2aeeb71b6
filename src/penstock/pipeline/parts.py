"""The Delta tables that hold a relation's rows: one, or the leaves of a partitioned table.

In: a net change in the terms of the relation, the tables. Out: which of its rows go to which table,
in that table's columns, names and order. Where old rows are is not asked of the bounds: they are
looked for in every table whose files may hold them, since others may have put them anywhere.
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
from penstock.pipeline.routing import Level, by_leaf
from penstock.pipeline.write import Destination


@dataclass(frozen=True)
class Leaves:
    """A partitioned table's: those that ``routing`` numbers."""

    tables: tuple[DeltaTable, ...]
    routing: Level

    def touched(self, net: NetChange) -> frozenset[int]:
        """Which of them a net change is about, whether or not it changes them in the end.

        Raises ReplicationConflict (23514) for a row, old or new, that belongs nowhere.
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
        """Whether the keys hold all columns that routing looks at."""
        return self.routing.columns <= set(keys.column_names)


@dataclass(frozen=True)
class Part:
    """One of the tables. ``columns``: for each of its columns the position among the relation's."""

    number: int
    table: DeltaTable
    relation: TableSchema

    @cached_property
    def columns(self) -> tuple[int, ...]:
        at = {column.source: i for i, column in enumerate(self.relation.columns)}
        return tuple(at[column.source] for column in self.table.schema.columns)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The relation's columns -> what they are called here."""
        here = self.table.schema.by_source
        return {c.name: here[c.source].name for c in self.relation.columns}

    @property
    def uri(self) -> str:
        """Where it lies."""
        return self.table.uri

    @property
    def deleted_at(self) -> str | None:
        """What the column that is NULL in live rows is called here, if there is one."""
        name = self.relation.deleted_at
        return None if name is None else self.names[name]

    @cached_property
    def shown(self) -> pa.Schema:
        """The columns in which its rows are told of."""
        stamps = {column.name for column in self.table.schema.stamps}
        return pa.schema([f for f in self.table.schema.arrow() if f.name not in stamps])

    def keys(self, keys: pa.Table) -> pa.Table:
        """Keys, or whole rows that are looked for, by the names of here."""
        return keys.rename_columns([self.names[name] for name in keys.column_names])

    def destination(self) -> Destination:
        """For tasks. Raises RelationChanged where a generated column cannot be made."""
        table = self.table
        generated = generated_columns(table.schema, table.name)
        schema = table.schema.arrow()
        return Destination(table.storage, table.uri, schema, self.columns, generated, table.layout)


def parts(table: DeltaTable, leaves: Leaves | None, relation: TableSchema) -> tuple[Part, ...]:
    """All tables that may hold rows."""
    tables = (table,) if leaves is None else leaves.tables
    return tuple(Part(number, each, relation) for number, each in enumerate(tables))


def shares(rows: pa.Table, leaves: Leaves | None) -> Mapping[int, pa.Table]:
    """The rows of each part that gets any. Raises as ``Leaves.touched``."""
    if leaves is None:
        return {0: rows} if rows.num_rows else {}
    found = by_leaf(leaves.routing.leaves(rows))
    return {number: rows.take(pa.array(at)) for number, at in found.items()}


def destinations(rows: pa.Table, leaves: Leaves | None) -> Integers:
    """The part of each row."""
    if leaves is None:
        return np.zeros(rows.num_rows, np.int64)
    return leaves.routing.leaves(rows)
