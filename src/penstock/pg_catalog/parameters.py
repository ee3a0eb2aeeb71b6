"""Parameters of a prepared catalog query, from text to what DuckDB binds.

In: bytes in text format, as the type's output function prints, and the type. Out: Python values.
"""

from __future__ import annotations

from typing import Any

from penstock.sql.text.array_literals import split_array
from penstock.sql.to_duckdb.catalog_lowering import NAMED_TYPES, element_type, held_as


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
    held = held_as(kind)
    if held in ("BIGINT", "INTEGER", "SMALLINT"):
        return int(text)
    return text == "t" if held == "BOOLEAN" else text
