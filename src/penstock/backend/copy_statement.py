"""COPY as a subscriber sends it (tablesync.c, copy_table).

In: a parsed COPY. Out: what to read and how to write it, or PostgreSQL's error for an option. Which
table and columns that is, and who may read them, is left to the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.backend.binary_results import in_formats
from penstock.errors import FeatureNotSupported, InvalidParameterValue
from penstock.executor.lake import CopyRequest
from penstock.protocol.answers import Cells, CopyOut, Rows
from penstock.protocol.backend_messages import BINARY_FORMAT, TEXT_FORMAT
from penstock.protocol.copy_columns import binary_copy, binary_rows, text_rows
from penstock.sql import Copy
from penstock.sql.grammar.copy_query import CopyTarget, parse_copy_query

_FORMATS: Final = {"text": False, "binary": True}
_PORTION_BYTES: Final = 1 << 18
"""Of rows that are sent at once."""
_ROW_BYTES: Final = 16
"""A row without columns takes room, too."""


def copy_request(statement: Copy) -> CopyRequest:
    """Raises FeatureNotSupported, InvalidParameterValue (22023)."""
    binary = _binary(statement)
    if statement.relation is not None:
        columns = None if statement.columns is None else tuple(map(CopyTarget, statement.columns))
        return CopyRequest(statement.relation, columns, None, binary)
    query = parse_copy_query(statement.query or "")
    if query is None:
        raise FeatureNotSupported(
            "COPY of this query is not supported",
            hint="COPY (SELECT columns FROM table [WHERE condition]) TO STDOUT is.",
        )
    relation = query.relation
    return CopyRequest(relation, query.columns, query.where, binary, relation.only, query=True)


def copy_of_rows(rows: Rows, statement: Copy) -> CopyOut:
    """COPY of a query on the catalogs: rows are drawn while the client takes them."""
    binary = _binary(statement)
    code = BINARY_FORMAT if binary else TEXT_FORMAT
    fields = [replace(field, format=code) for field in rows.fields]
    portions = _portions(in_formats(rows.rows, fields), binary=binary)
    return CopyOut(len(rows.fields), binary, binary_copy(portions) if binary else portions)


def _portions(rows: Iterable[Cells], *, binary: bool) -> Iterator[tuple[int, bytes]]:
    encoded = binary_rows if binary else text_rows
    cells: list[Cells] = []
    size = 0
    for row in rows:
        cells.append(row)
        size += _ROW_BYTES + sum(len(cell) for cell in row if cell is not None)
        if size >= _PORTION_BYTES:
            yield len(cells), encoded(_columns(cells), len(cells))
            cells, size = [], 0
    yield len(cells), encoded(_columns(cells), len(cells))


def _columns(cells: list[Cells]) -> list[pa.Array]:
    return [pa.array(column, pa.binary()) for column in zip(*cells, strict=True)]


def _binary(statement: Copy) -> bool:
    binary = False
    for option in statement.options:
        if option.name != "format":
            raise FeatureNotSupported(f'COPY option "{option.name}" is not supported')
        name = str(option.arg)
        if name == "csv":
            raise FeatureNotSupported("COPY format csv is not supported")
        if name not in _FORMATS:
            raise InvalidParameterValue(f'COPY format "{name}" not recognized')
        binary = _FORMATS[name]
    return binary
