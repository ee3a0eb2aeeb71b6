"""Parameters of a prepared catalog query, from text to what DuckDB binds.

In: bytes in text format, and a type. Out: Python values. Raises PostgreSQL's 22P02.
"""

from __future__ import annotations

from typing import Any

from penstock.sql.text.array_literals import split_array
from penstock.sql.to_duckdb.catalog_types import NAMED_TYPES, catalog_type, element_type
from penstock.sqlstate import InvalidTextRepresentation


def parameter_value(value: bytes | None, kind: str) -> Any:
    """One parameter; None for NULL."""
    if value is None:
        return None
    text = value.decode()
    element = element_type(kind)
    if element is not None:
        return [None if item is None else _scalar(item, element) for item in split_array(text)]
    return _scalar(text, kind)


def _scalar(text: str, kind: str) -> Any:
    if kind in NAMED_TYPES:
        return text  # read by its input function
    held = catalog_type(kind).held
    try:
        if held in ("BIGINT", "INTEGER", "SMALLINT"):
            return int(text)
    except ValueError:
        raise InvalidTextRepresentation(f'invalid input syntax for type {kind}: "{text}"') from None
    return text in ("t", "true", "on", "1") if held == "BOOLEAN" else text
