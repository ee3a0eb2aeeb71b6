"""Parameters of a prepared catalog query, from text to what DuckDB binds.

In: bytes in text format, and a type. Out: Python values. Raises PostgreSQL's errors of input
functions.
"""

from __future__ import annotations

from typing import Any

from penstock.pgtypes.pg_type import types, types_by_name
from penstock.sql.text.array_literals import split_array
from penstock.sql.to_duckdb.catalog_lowering import NAMED_TYPES, element_type, held_as
from penstock.sql.typed.literals import canonical


def parameter_value(value: bytes | None, type_oid: int) -> Any:
    """One parameter; None for NULL."""
    if value is None:
        return None
    text = value.decode()
    element = element_type(types()[type_oid].name)
    if element is not None:
        oid = types_by_name()[element].oid
        return [None if item is None else _scalar(item, oid) for item in split_array(text)]
    return _scalar(text, type_oid)


def _scalar(text: str, type_oid: int) -> Any:
    name = types()[type_oid].name
    if name in NAMED_TYPES:
        return text  # read by its input function
    held = held_as(name)
    if held in ("BIGINT", "INTEGER", "SMALLINT"):
        return int(canonical(text, type_oid))
    return canonical(text, type_oid) == "t" if held == "BOOLEAN" else text
