"""A table's history: a Delta table beside it with a row for every change (``history = true``).

``open_history`` creates a history table if there is none, and adds columns that the table has got
since. The first columns describe the change, such as its kind and its transaction's end LSN. The
table's columns follow, except generated and metadata columns. ``pipeline.history`` decides which
rows are written, ``subscription.history`` when.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.errors import HistoryMismatch
from penstock.lakehouse.schema import ROW, TIMESTAMP, Column, TableSchema, delta_type, type_text
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgtypes.pg_type import INT8, TEXT, TIMESTAMPTZ
from penstock.relation import TableName, qualified
from penstock.sqlstate import DuplicateTable

SUFFIX: Final = "__history"

CHANGE_TYPE: Final = "_change_type"
COMMIT_LSN: Final = "_commit_lsn"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
XID: Final = "_xid"
POSITION: Final = "_position"

CHANGE_TYPES: Final = (
    *("insert", "update_preimage", "update_postimage", "delete", "truncate", "copy"),
)
"""The types of Delta's change data feed, and two more: a TRUNCATE, and a row of a copy."""
INSERT, PREIMAGE, POSTIMAGE, DELETE, TRUNCATE, COPY = range(len(CHANGE_TYPES))

_ABOUT: Final = (
    Column(CHANGE_TYPE, Attribute(CHANGE_TYPE, TEXT), pa.string()),
    Column(COMMIT_LSN, Attribute(COMMIT_LSN, INT8), pa.int64()),
    Column(COMMIT_TIMESTAMP, Attribute(COMMIT_TIMESTAMP, TIMESTAMPTZ), TIMESTAMP),
    Column(XID, Attribute(XID, INT8), pa.int64()),
    Column(POSITION, Attribute(POSITION, INT8), pa.int64()),
)
ABOUT: Final = tuple(column.name for column in _ABOUT)
"""The columns that describe the change."""
_WITHOUT: Final = (
    'SET (history = ...) without "{table}", or false: the subscription goes on, and the table has '
    "no history."
)


def history_of(table: TableName) -> TableName:
    """Return the name of a table's history."""
    schema, name = table
    return schema, f"{name}{SUFFIX}"


def history_schema(table: str, schema: TableSchema) -> TableSchema:
    """Return the columns of a table's history. Raises HistoryMismatch if a column of the table is
    named like a column that describes the change."""
    kept = tuple(
        Column(c.name, Attribute(c.source, c.attribute.type_oid, c.attribute.typmod), c.type)
        for c in schema.columns
        if c.attribute.generation is None and not c.stamp and c != ROW
    )
    taken = sorted({c.name.lower() for c in kept} & set(ABOUT))
    if taken:
        raise HistoryMismatch(
            f'table "{table}" cannot have a history: it has a column "{taken[0]}"',
            detail="The history has a column of that name that tells of the change.",
            hint=_WITHOUT.format(table=table),
        )
    return TableSchema((*_ABOUT, *kept))


def open_history(warehouse: Warehouse, table: TableName, schema: TableSchema) -> DeltaTable:
    """Return the history of a table with ``schema``; columns that it lacks are staged.

    Raises as ``fit``; HistoryMismatch if a table of another kind has the history's name.
    """
    name = history_of(table)
    wanted = history_schema(qualified(*table), schema)
    found = warehouse.open(*name)
    if found is None:
        return warehouse.create(*name, wanted)
    if not set(ABOUT) <= {column.name for column in found.schema.columns}:
        raise HistoryMismatch(
            f'table "{qualified(*name)}" is in the way of the history of "{qualified(*table)}"',
            detail=f'It lies at "{found.uri}".',
            hint=_WITHOUT.format(table=qualified(*table)),
            sqlstate=DuplicateTable.default_sqlstate,
        )
    fit(found, qualified(*table), schema)
    return found


def fit(history: DeltaTable, table: str, schema: TableSchema) -> None:
    """Stage the table's columns that its history lacks.

    Raises HistoryMismatch if the history has a column with another type, or in other letter case.
    """
    wanted = history_schema(table, schema)
    there = {column.name.lower(): column for column in history.schema.columns}
    for column in wanted.columns:
        old = there.get(column.name.lower())
        if old is not None and (old.name, old.type) != (column.name, column.type):
            raise HistoryMismatch(
                f'the history of table "{table}" cannot hold its column "{column.name}"',
                detail=f'It is {_shown(column)}, and "{old.name}" in the history is {_shown(old)}.',
                hint=f'Move "{history.uri}" to another place: the next history begins then.',
            )
    history.add_columns([c for c in wanted.columns if c.name.lower() not in there])


def _shown(column: Column) -> str:
    return type_text(delta_type(column.type))
