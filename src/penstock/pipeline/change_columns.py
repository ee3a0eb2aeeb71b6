"""Changed rows for output plugins: Arrow columns instead of pgoutput's messages.

The rows of one operation on one table come from ``publish_changes``. They are written to an Arrow
IPC stream and read from it as columns of new and old rows, by the attribute's place in the
relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.relation import Relation

_NEW: Final = "n"
_OLD: Final = "o"


@dataclass(frozen=True, slots=True)
class ChangedColumns:
    """Changed rows as columns. ``new``, ``old``: place of the attribute -> its values; None without
    such rows. Old rows have only the columns that identify them."""

    count: int
    new: Mapping[int, pa.Array] | None
    old: Mapping[int, pa.Array] | None


def row_stream(
    relation: Relation,
    rows: pa.Table,
    *,
    new: bool,
    old_prefix: str | None,
    identity: frozenset[str] | None,
) -> bytes:
    """Return ``rows`` as an IPC stream. ``old_prefix``: begins the names of the old rows' columns,
    None without old rows; ``identity``: the columns of old rows that are sent, None for all."""
    columns: dict[str, pa.ChunkedArray] = {}
    for place, attribute in enumerate(relation.attributes):
        if new:
            columns[f"{_NEW}{place}"] = rows.column(attribute.name)
        if old_prefix is not None and (identity is None or attribute.name in identity):
            columns[f"{_OLD}{place}"] = rows.column(old_prefix + attribute.name)
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_row_stream(data: bytes, count: int) -> ChangedColumns:
    """Read the columns from the stream of ``row_stream``. ``count``: the number of rows."""
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all().combine_chunks()
    sides: dict[str, dict[int, pa.Array]] = {_NEW: {}, _OLD: {}}
    for name, column in zip(table.column_names, table.columns, strict=True):
        sides[name[0]][int(name[1:])] = _one(column)
    return ChangedColumns(count, sides[_NEW] or None, sides[_OLD] or None)


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
