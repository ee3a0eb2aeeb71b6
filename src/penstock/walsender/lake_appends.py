"""INSERT into one table of the lake by its files, without a job of Spark's.

In: new rows and their table. Out: one Delta commit, and the number of rows; None where only Delta
itself knows what the table asks of its writers, and nothing was read then.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.catalog import LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported
from penstock.lakehouse.append import Append
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.warehouse import Warehouse
from penstock.walsender.lake_columns import columns_of
from penstock.walsender.lake_rows import NewRows, altered
from penstock.walsender.lake_tables import is_partitioned


class LakeAppends:
    """For every session."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def insert(self, table: LakeTable, rows: NewRows) -> int | None:
        """Raises PenstockError (40001: the table was altered meanwhile)."""
        if is_partitioned(table):
            return None
        storage, uri = self._warehouse.storage, table.uri or ""
        try:
            append = Append(storage, self._warehouse.store, uri, table.qualified_name)
        except FeatureNotSupported:
            return None
        if columns_of(append.state) != rows.known:
            raise altered(table)
        writer = FileWriter(storage, uri, append.schema.arrow())
        files = writer.write(_whole(batch, rows, append) for batch in rows.batches)
        if files:
            try:
                append.commit(files)
            except (CommitConflict, FeatureNotSupported):
                for file in files:
                    storage.remove(f"{uri}/{file.path}")
                raise altered(table) from None
        return sum(file.rows for file in files)


def _whole(batch: pa.RecordBatch, rows: NewRows, append: Append) -> pa.RecordBatch:
    """With every column of the table: NULL in those that the rows have not."""
    at = {column.delta: number for number, column in enumerate(rows.columns)}
    schema = append.schema.arrow()
    columns = [
        batch.column(at[field.name]) if field.name in at else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
