"""Columns that tell of each row which change wrote it (``metadata_columns = true``).

In: a table's columns. Out: those that it needs beside them. They are the node's own, so that a
publication need not have them, and tell no two rows apart. Their values come from the transactions
of a batch (``pipeline.changes``) and from the LSN of a copy (``pipeline.snapshot_task``); the names
are those of a history.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported
from penstock.lakehouse.delta_types import TIMESTAMP
from penstock.lakehouse.history_table import COMMIT_LSN, COMMIT_TIMESTAMP
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.pgtypes.pg_type import INT8, TIMESTAMPTZ

_COLUMNS: Final = (
    Column(COMMIT_LSN, COMMIT_LSN, pa.int64(), INT8, local=True, stamp=True),
    Column(COMMIT_TIMESTAMP, COMMIT_TIMESTAMP, TIMESTAMP, TIMESTAMPTZ, local=True, stamp=True),
)


def add_metadata_columns(table: DeltaTable) -> None:
    """Stage those that a table lacks; rows that it has hold NULL there.

    Raises FeatureNotSupported where it has another column of such a name.
    """
    table.add_columns(_lacking(table.schema, table.name))


def _lacking(schema: TableSchema, table: str) -> list[Column]:
    there = {column.name.lower(): column for column in schema.columns}
    for wanted in _COLUMNS:
        column = there.get(wanted.name)
        if column is not None and not column.stamp:
            raise FeatureNotSupported(
                f'table "{table}" cannot have metadata columns: it has a column "{column.name}"',
                hint="Leave the column out of the publication by a column list, or set "
                "metadata_columns = false.",
            )
    return [wanted for wanted in _COLUMNS if wanted.name not in there]
