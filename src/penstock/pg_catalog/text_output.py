"""Values of a result in PostgreSQL's text format (the types' output functions).

In: what DuckDB gives, and the PostgreSQL type. Out: bytes, None for NULL.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from penstock.civil import print_timestamp
from penstock.pgtypes.floating import float_out
from penstock.sql.text.array_literals import join_array
from penstock.sql.to_duckdb.catalog_lowering import INT2_FROM_0, NAMED_TYPES, element_type

_VECTORS: Final = frozenset(("int2vector", "oidvector"))
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)

Names = Callable[[str, int], str]
"""(reg type, oid) -> how an oid of it is shown."""


def text_output(value: Any, kind: str, names: Names) -> bytes | None:
    """One cell."""
    return None if value is None else _text(value, kind, names).encode()


def _text(value: Any, kind: str, names: Names) -> str:
    element = element_type(kind)
    if element is not None:
        return _array(value, kind, element, names)
    if kind == "timestamptz" and isinstance(value, int):
        return print_timestamp(value, zone=True)
    if kind in NAMED_TYPES:
        return names(kind, int(value))
    match value:
        case bool():
            return "t" if value else "f"
        case float():
            return float_out(value, pa.float32() if kind == "float4" else pa.float64())
        case datetime.datetime():
            return print_timestamp((value - _EPOCH) // _MICROSECOND, kind == "timestamptz")
        case dict():
            return "(" + ",".join(str(field) for field in value.values()) + ")"
        case bytes():
            return "\\x" + value.hex()
    if kind == "void":
        return ""
    return str(value)


def _array(values: list[Any], kind: str, element: str, names: Names) -> str:
    if kind in _VECTORS:
        return " ".join(str(value) for value in values)
    body = join_array(None if v is None else _text(v, element, names) for v in values)
    return f"[0:{len(values) - 1}]={body}" if kind == INT2_FROM_0 and values else body
