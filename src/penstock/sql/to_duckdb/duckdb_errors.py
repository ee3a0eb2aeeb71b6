"""Translate DuckDB's errors in compiled SQL into PostgreSQL's errors.

The message of DuckDB's error decides. Errors that the compiled SQL raises on purpose already have
PostgreSQL's message.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import PenstockError
from penstock.sql.text.limits import too_deep
from penstock.sql.to_duckdb.fmgr import retold
from penstock.sqlstate import (
    InvalidTextRepresentation,
    NumericValueOutOfRange,
)

_RAISED: Final = {
    "Date out of range": ("date out of range", "22008"),
    "Timestamp out of range": ("timestamp out of range", "22008"),
    "Like pattern must not end with escape character": (
        "LIKE pattern must not end with escape character",
        "22025",
    ),
    "More than one row returned by a subquery used as an expression": (
        "more than one row returned by a subquery used as an expression",
        "21000",
    ),
}
_NO_LABEL: Final = re.compile(r'invalid input value for enum .*"', re.DOTALL)
_INTEGERS: Final = {
    "INT16": "smallint",
    "SMALLINT": "smallint",
    "INT32": "integer",
    "INTEGER": "integer",
    "INT64": "bigint",
    "BIGINT": "bigint",
}
_RANGE: Final = re.compile(
    r"out of range for the destination type (\w+)|Failed to cast decimal value \S+ to type (\w+)"
)
_SMALLEST: Final = re.compile(r"Overflow (?:in division of |on abs\()(-?\d+)")
_BY_SMALLEST: Final = {
    str(-(1 << 15)): "smallint",
    str(-(1 << 31)): "integer",
    str(-(1 << 63)): "bigint",
}
_TOO_DEEP: Final = "expression depth limit"
_NUMERIC: Final = re.compile(r"(?:Could not cast value|Casting value) .* to (?:type )?DECIMAL")


def postgres_error(text: str) -> PenstockError:
    """Return PostgreSQL's error for the message of DuckDB's error."""
    told = retold(text)
    if told is not None:
        return told
    for said, (message, sqlstate) in _RAISED.items():
        if said in text:
            return PenstockError(message, sqlstate=sqlstate)
    no_label = _NO_LABEL.search(text)
    if no_label is not None:
        return InvalidTextRepresentation(no_label[0])
    out_of_range = _RANGE.search(text)
    if out_of_range is not None:
        name = _INTEGERS.get(out_of_range[1] or out_of_range[2])
        shown = "value out of range: overflow" if name is None else f"{name} out of range"
        return NumericValueOutOfRange(shown)
    smallest = _SMALLEST.search(text)
    if smallest is not None and smallest[1] in _BY_SMALLEST:
        return NumericValueOutOfRange(f"{_BY_SMALLEST[smallest[1]]} out of range")
    if _NUMERIC.search(text):
        return NumericValueOutOfRange("numeric field overflow")
    if _TOO_DEEP in text:
        return too_deep()
    first = (text.strip().splitlines() or ["no message"])[0]
    return PenstockError(f"the query failed: {first}")
