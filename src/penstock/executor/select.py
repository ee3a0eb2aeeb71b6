"""SELECT on tables of the lake.

A query reads the tables at a consistent point, and returns rows as they are computed. ``tables``
checks names and privileges, ``pipeline.query`` computes the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.catalog import Role
from penstock.executor.skipping import wanted_keys
from penstock.executor.tables import LakeTables
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.schema import ROW
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.copy_to import CopyColumn, CopyTable
from penstock.pipeline.query import Interrupts, LakeQuery, QueryInput
from penstock.pipeline.scan import ScanColumn
from penstock.protocol.answers import ColumnRows, Rows
from penstock.protocol.backend_messages import FieldDescription
from penstock.sql import RangeVar
from penstock.sql.builtin.type_cache import field_descriptions
from penstock.sql.grammar.parsenodes import SelectStmt
from penstock.sql.to_duckdb.duckdb_query import CompiledQuery, TableInput, compile_query
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.sql.typed.scope import FindTable
from penstock.sql.typed.select_analysis import analyze_select
from penstock.walsender.lake_columns import table_column
from penstock.walsender.sequencer import Position


class LakeSelect:
    """Runs the queries of all sessions."""

    def __init__(self, spark: Spark, warehouse: Warehouse, tables: LakeTables) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._tables = tables

    def describe(self, query: SelectStmt, at: Position, role: Role) -> tuple[FieldDescription, ...]:
        """Return the columns of a query at ``at``. Raises PenstockError."""
        return field_descriptions(analyze_select(query, self.find_table(at, role)).columns)

    def query(
        self,
        query: SelectStmt,
        at: Position,
        role: Role,
        interrupts: Interrupts,
        session: SessionValues,
    ) -> Rows:
        """Return the rows of a query at ``at``. Raises PenstockError."""
        analyzed = analyze_select(query, self.find_table(at, role))
        batches = self.batches(compile_query(analyzed, session), at, role, interrupts)
        fields = field_descriptions(analyzed.columns)
        if not fields:  # a SELECT without columns still has rows
            return Rows(fields, ([] for batch in batches for _ in range(batch.num_rows)))
        return Rows(fields, ColumnRows(map(_texts, batches)))

    def batches(
        self, compiled: CompiledQuery, at: Position, role: Role, interrupts: Interrupts
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches with columns c1 and so on."""
        inputs = [self._input(item, at, role) for item in compiled.inputs]
        warehouse = self._warehouse
        work = LakeQuery(self._spark, warehouse.storage, warehouse.staging, interrupts)
        return work.run(compiled.sql, inputs, once=compiled.once)

    def find_table(self, at: Position, role: Role) -> FindTable:
        """Return a function that looks up the columns that a table has at ``at``."""

        def columns(name: RangeVar) -> tuple[Attribute, ...]:
            table = self._tables.find(name, role)
            return tuple(map(table_column, self._tables.columns_at(table, at)))

        return columns

    def _input(self, item: TableInput, at: Position, role: Role) -> QueryInput:
        table = self._tables.find(item.scan.table, role)
        only = item.scan.table.only and table.partition_key
        leaves = () if only else self._tables.leaves(table)
        tables: list[CopyTable] = []
        types: dict[str, pa.DataType] = {}
        for leaf in leaves:
            version = self._tables.version(leaf, at)
            columns = {column.name: column for column in self._tables.columns(leaf, version)}
            wanted = [(name, columns[column.name]) for name, column in item.columns]
            types = types or {name: column.type for name, column in wanted}
            tables.append(
                CopyTable(
                    leaf.uri or "",
                    version,
                    tuple(CopyColumn(ScanColumn(name, c.stored, c.type)) for name, c in wanted)
                    or (CopyColumn(ScanColumn(ROW.name, ROW.name, ROW.type)),),
                    self._tables.staged(leaf, at),
                    wanted_keys(columns.values(), item.equal),
                )
            )
        schema = pa.schema(types) if types else self.schema(item, at, role)
        return QueryInput(item.scan.name, schema, tuple(tables), item.predicate)

    def schema(self, item: TableInput, at: Position, role: Role) -> pa.Schema:
        """Return the schema of the columns that the query reads from a table."""
        table = self._tables.find(item.scan.table, role)
        types = {column.name: column.type for column in self._tables.columns_at(table, at)}
        columns = [(name, types[column.name]) for name, column in item.columns]
        return pa.schema(columns or [(ROW.name, ROW.type)])


def _texts(batch: pa.RecordBatch) -> list[pa.Array]:
    return [text_output(column) for column in batch.columns]
