"""Texts that types read: parameters of a prepared catalog query, and casts from text.

In: a text and the type. Out: what DuckDB holds. Raises what PostgreSQL's input functions raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.pg_catalog.functions import PythonFunction
from penstock.pgtypes.pg_type import BYTEA, DATE, FLOATS, NUMERIC, TIMESTAMP, TIMESTAMPTZ, types
from penstock.sql.text.array_literals import split_array
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction
from penstock.sql.to_duckdb.catalog_lowering import (
    NAMED_TYPES,
    READ_FROM_TEXT,
    element_type,
    held_as,
)
from penstock.sql.to_duckdb.duckdb_values import (
    duckdb_date,
)
from penstock.sql.typed.literals import canonical
from penstock.sqlstate import NumericValueOutOfRange

_CALENDAR: Final = frozenset({DATE, TIMESTAMP, TIMESTAMPTZ})
_AS_TEXT: Final = _CALENDAR | FLOATS | {NUMERIC}
"""What DuckDB does not take from Python as it is, NaN among it."""
_HEX: Final = r"\x"
_OID_LIMIT: Final = 1 << 32
_INT4_LIMIT: Final = 1 << 31


def parameter_value(value: bytes | None, oid: int) -> Any:
    """One parameter; None for NULL."""
    if value is None:
        return None
    text = value.decode()
    kind = types()[oid]
    if kind.element and element_type(kind.name) is not None and not kind.is_vector:
        return [
            None if item is None else _parameter(item, kind.element) for item in split_array(text)
        ]
    if kind.is_vector:
        return [int(item) for item in canonical(text, oid).split()]
    return _parameter(text, oid)


def _parameter(text: str, oid: int) -> Any:
    """What names an object is read by its input function, when the query runs."""
    return text if types()[oid].name in NAMED_TYPES else read_value(text, oid)


def read_value(text: str, oid: int) -> Any:
    """What the input function reads, as DuckDB holds it."""
    if oid == BYTEA:
        return bytes.fromhex(canonical(text, oid).removeprefix(_HEX))
    if oid not in READ_FROM_TEXT:
        return text
    read = canonical(text, oid)
    if oid in _CALENDAR:
        return duckdb_date(read, oid)
    match held_as(types()[oid].name):
        case "BOOLEAN":
            return read == "t"
        case "BIGINT" | "INTEGER" | "SMALLINT":
            return int(read)
        case "DOUBLE" | "FLOAT":
            return float(read)
    return read


def conversions() -> Mapping[str, PythonFunction]:
    """Input functions, and what numbers become where a type has no sign."""
    found = {name: _input(name, oid) for oid, name in READ_FROM_TEXT.items()}
    for name, call in _OIDS.items():
        found[name] = PythonFunction(CatalogFunction(name, ("int8",), "int8"), call)
    return found


def _input(name: str, oid: int) -> PythonFunction:
    if oid not in _AS_TEXT:
        signature = CatalogFunction(name, ("text",), types()[oid].name)
        return PythonFunction(signature, lambda text: read_value(text, oid))
    return PythonFunction(
        CatalogFunction(name, ("text",), "text"), lambda text: str(read_value(text, oid))
    )


def _oid_of_int8(number: int) -> int:
    if not 0 <= number < _OID_LIMIT:
        raise _out_of_range()
    return number


def _out_of_range() -> PenstockError:
    return NumericValueOutOfRange("OID out of range")


_OIDS: Final[Mapping[str, Callable[[int], int]]] = {
    "oid_of_int4": lambda number: number % _OID_LIMIT,
    "oid_of_int8": _oid_of_int8,
    "signed_oid": lambda oid: oid - _OID_LIMIT if oid >= _INT4_LIMIT else oid,
}
