"""Metadata columns, which record the change that wrote or deleted a row (``metadata_columns``,
``soft_delete``).

This module adds the columns that a subscription's options ask for and a table lacks. The node owns
them, so a publication need not have them, and they do not identify a row. Their values come from
the transactions of a batch (``pipeline.changes``) and from the LSN of a copy
(``pipeline.table_copy_task``). They have the same names as in a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported
from penstock.lakehouse.history_table import COMMIT_LSN, COMMIT_TIMESTAMP
from penstock.lakehouse.schema import DELETED_AT, TIMESTAMP, Column
from penstock.lakehouse.table import DeltaTable
from penstock.pgtypes.pg_type import INT8, TIMESTAMPTZ

_METADATA: Final = (
    Column(COMMIT_LSN, Attribute(COMMIT_LSN, INT8), pa.int64(), local=True, stamp=True),
    Column(
        COMMIT_TIMESTAMP,
        Attribute(COMMIT_TIMESTAMP, TIMESTAMPTZ),
        TIMESTAMP,
        local=True,
        stamp=True,
    ),
)
DELETED: Final = Column(
    DELETED_AT, Attribute(DELETED_AT, TIMESTAMPTZ), TIMESTAMP, local=True, stamp=True
)


def add_metadata_columns(
    table: DeltaTable,
    leaves: Sequence[DeltaTable] = (),
    *,
    metadata_columns: bool,
    soft_delete: bool,
) -> None:
    """Stage the metadata columns that a table and its partitions, ``leaves``, lack; existing rows
    hold NULL there. A partition that was created from the table has them already.

    Raises FeatureNotSupported if another column of the table has the name of a metadata column.
    """
    if metadata_columns:
        table.add_columns(_lacking(table, _METADATA, "metadata columns", "metadata_columns"))
    if soft_delete:
        table.add_columns(_lacking(table, (DELETED,), "deleted rows", "soft_delete"))
    for leaf in leaves:
        leaf.add_columns(leaf.schema.lacking(table.schema.stamps))


def _lacking(table: DeltaTable, wanted: Sequence[Column], what: str, option: str) -> list[Column]:
    there = {column.name.lower(): column for column in table.schema.columns}
    for column in wanted:
        other = there.get(column.name)
        if other is not None and not other.stamp:
            raise FeatureNotSupported(
                f'table "{table.name}" cannot have {what}: it has a column "{other.name}"',
                hint="Leave the column out of the publication by a column list, or set "
                f"{option} = false.",
            )
    return [column for column in wanted if column.name not in there]
