"""Arrow types <-> type names of Delta's schema JSON (protocol: "Schema Serialization Format").

In and out: pa.DataType and the JSON value of a field's "type". PostgreSQL's types are left to
``penstock.pgtypes``.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported
from penstock.pgtypes.variant import VARIANT

TIMESTAMP: Final = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")

_NAMES: Final[dict[pa.DataType, str]] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
    VARIANT: "variant",
}
_TYPES: Final = {name: arrow for arrow, name in _NAMES.items()}
_DECIMAL: Final = re.compile(r"^decimal\((\d+),\s*(\d+)\)$")


def delta_type(arrow: pa.DataType) -> Any:
    """Delta's type of an Arrow type: a string, an object for arrays; or FeatureNotSupported."""
    name = _NAMES.get(arrow)
    if name is not None:
        return name
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_list(arrow) and arrow.value_type != VARIANT:
        element = delta_type(arrow.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    raise FeatureNotSupported(f"Delta tables have no type for Arrow's {arrow}")


def arrow_type(delta: Any) -> pa.DataType:
    """The Arrow type of Delta's type. Raises FeatureNotSupported for structs, maps, arrays of
    variants."""
    if isinstance(delta, dict) and delta.get("type") == "array":
        element = arrow_type(delta["elementType"])
        if element != VARIANT:
            return pa.list_(element)
    if isinstance(delta, str):
        if delta in _TYPES:
            return _TYPES[delta]
        match = _DECIMAL.match(delta)
        if match is not None:
            return pa.decimal128(int(match[1]), int(match[2]))
    raise FeatureNotSupported(f"columns of Delta's type {type_text(delta)} cannot be written")


def type_text(delta: Any) -> str:
    """A type as Spark SQL prints it, for messages: ``array<integer>``."""
    if isinstance(delta, dict):
        if delta.get("type") == "array":
            return f"array<{type_text(delta['elementType'])}>"
        return str(delta.get("type"))
    return str(delta)


def has_timestamp_ntz(arrow: pa.DataType) -> bool:
    """True when the table feature timestampNtz is needed for a column of this type."""
    if pa.types.is_list(arrow):
        return has_timestamp_ntz(arrow.value_type)
    return bool(arrow == TIMESTAMP_NTZ)
