"""INSERT into tables of the lake by their files, without a job of Spark's.

In: new rows and the table that is named. Out: one Delta commit of each table that gets rows, and
the number of rows; None where only Delta itself knows what a table asks of its writers, and nothing
was read then. A row that belongs elsewhere, or nowhere, is refused before anything is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.catalog import Catalog, LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported, PenstockError, ReplicationConflict
from penstock.lakehouse.append import Append
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.partition_tree import anywhere, routing_of
from penstock.pipeline.routed_writer import RoutedWriter
from penstock.pipeline.routing import Level
from penstock.pipeline.write import Destination
from penstock.walsender.lake_checks import elsewhere, shown
from penstock.walsender.lake_columns import LakeColumn
from penstock.walsender.lake_partitions import Partitions
from penstock.walsender.lake_rows import NewRows, altered
from penstock.walsender.lake_tables import LakeTables


class LakeAppends:
    """For every session."""

    def __init__(self, warehouse: Warehouse, catalog: Catalog, tables: LakeTables) -> None:
        self._warehouse = warehouse
        self._catalog = catalog
        self._tables = tables

    def insert(self, table: LakeTable, rows: NewRows) -> int | None:
        """Raises PenstockError (23514; 40001: a table was altered meanwhile)."""
        try:
            routed = self._routed(table, rows.known)
            appends = [self._open(leaf) for leaf in routed.leaves]
        except FeatureNotSupported:
            return None
        schema = _schema_of(rows.known).arrow()
        others = any(_fields(append.schema.arrow()) != _fields(schema) for append in appends)
        if others or self._tables.columns(table) != rows.known:
            raise altered(table)
        destinations = [_destination(append, schema) for append in appends]
        writer = RoutedWriter(destinations, routed.routing, TARGET_FILE_BYTES)
        try:
            with writer:
                for batch in _whole(rows, schema):
                    routed.check(batch)
                    writer.add(batch)
        except ReplicationConflict as error:  # what is a conflict to replication is none here
            raise PenstockError(
                error.message, detail=error.detail, sqlstate=error.sqlstate
            ) from None
        self._commit(table, appends, writer)
        return sum(file.rows for _, file in writer.files)

    def _routed(self, table: LakeTable, columns: Sequence[LakeColumn]) -> _Routed:
        """Raises FeatureNotSupported for columns that values are not compared of here."""
        schema = _schema_of(columns)
        routing: Level | None = None
        leaves: tuple[LakeTable, ...] = (table,)
        if table.partition_key is not None:
            routing, leaves = routing_of(self._tables.tree(table), schema)
        if table.parent is None:
            return _Routed(table, routing, leaves)
        with self._catalog.read() as t:
            tree = Partitions(t.tables.all(), columns).tree_of(table)
        above, all_leaves = routing_of(tree, schema)
        mine = {leaf.oid for leaf in leaves}
        within = [number for number, leaf in enumerate(all_leaves) if leaf.oid in mine]
        return _Routed(table, routing, leaves, anywhere(above), tuple(within))

    def _open(self, leaf: LakeTable) -> Append:
        warehouse = self._warehouse
        return Append(warehouse.storage, warehouse.store, leaf.uri or "", leaf.qualified_name)

    def _commit(self, table: LakeTable, appends: Sequence[Append], writer: RoutedWriter) -> None:
        waiting: dict[int, list[WrittenFile]] = {}
        for at, file in writer.files:
            waiting.setdefault(at, []).append(file)
        for at in list(waiting):
            try:
                appends[at].commit(waiting[at])
            except (CommitConflict, FeatureNotSupported):
                for number, files in waiting.items():
                    appends[number].remove(files)
                raise altered(table) from None
            del waiting[at]


@dataclass(frozen=True)
class _Routed:
    """Where rows of ``table`` go. ``above``: how rows of the topmost table would go, of which only
    the leaves numbered ``within`` belong to ``table``; None: it is the topmost."""

    table: LakeTable
    routing: Level | None
    leaves: tuple[LakeTable, ...]
    above: Level | None = None
    within: tuple[int, ...] = ()

    def check(self, rows: pa.RecordBatch) -> None:
        """ExecPartitionCheck of the named table. Raises PenstockError (23514)."""
        if self.above is None:
            return
        numbers = self.above.leaves(pa.Table.from_batches([rows]))
        wrong = np.flatnonzero(~np.isin(numbers, self.within))
        if len(wrong):
            row = rows.slice(int(wrong[0]), 1)
            raise elsewhere(self.table, shown(row.columns))


def _schema_of(columns: Sequence[LakeColumn]) -> TableSchema:
    return TableSchema(
        tuple(Column(c.delta, c.name, c.type, c.type_oid, c.typmod) for c in columns)
    )


def _fields(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Partitions may have them in another order."""
    return {field.name: field.type for field in schema}


def _destination(append: Append, schema: pa.Schema) -> Destination:
    """Of rows whose generated columns are made already, as all others."""
    own = append.schema.arrow()
    at = tuple(schema.get_field_index(name) for name in own.names)
    return Destination(append.storage, append.uri, own, at, GeneratedColumns(append.name))


def _whole(rows: NewRows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """With every column of the table: NULL in those that the rows have not."""
    at = {column.delta: number for number, column in enumerate(rows.columns)}
    for batch in rows.batches:
        columns = [
            batch.column(at[field.name])
            if field.name in at
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
