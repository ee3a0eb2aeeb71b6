"""PostgreSQL's built-in types by name (pg_type.dat, parse_type.c, the typmodin functions).

In: a type's name and modifiers as a statement has them. Out: its oid and typmod, or PostgreSQL's
error. Types that have no family here are kept as text, as docs/types has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import (
    FeatureNotSupported,
    InvalidParameterValue,
    SqlSyntaxError,
    UndefinedObject,
)

_TYPES: Final[dict[str, tuple[int, int]]] = {
    "bool": (16, 1000),
    "bytea": (17, 1001),
    "char": (18, 1002),
    "name": (19, 1003),
    "int8": (20, 1016),
    "int2": (21, 1005),
    "int4": (23, 1007),
    "text": (25, 1009),
    "oid": (26, 1028),
    "json": (114, 199),
    "xml": (142, 143),
    "point": (600, 1017),
    "cidr": (650, 651),
    "float4": (700, 1021),
    "float8": (701, 1022),
    "macaddr": (829, 1040),
    "inet": (869, 1041),
    "money": (790, 791),
    "bpchar": (1042, 1014),
    "varchar": (1043, 1015),
    "date": (1082, 1182),
    "time": (1083, 1183),
    "timestamp": (1114, 1115),
    "timestamptz": (1184, 1185),
    "interval": (1186, 1187),
    "timetz": (1266, 1270),
    "bit": (1560, 1561),
    "varbit": (1562, 1563),
    "numeric": (1700, 1231),
    "uuid": (2950, 2951),
    "pg_lsn": (3220, 3221),
    "tsvector": (3614, 3643),
    "tsquery": (3615, 3645),
    "jsonb": (3802, 3807),
    "int4range": (3904, 3905),
    "numrange": (3906, 3907),
    "tsrange": (3908, 3909),
    "tstzrange": (3910, 3911),
    "daterange": (3912, 3913),
    "int8range": (3926, 3927),
}
"""name: (oid, oid of its array type)"""

_SERIAL: Final = frozenset({"serial", "serial2", "serial4", "serial8", "bigserial", "smallserial"})

_INTERVAL_FULL_RANGE: Final = 0x7FFF
_MAX_PRECISION: Final = 6
_MAX_CHARACTERS: Final = 10485760
_MAX_BITS: Final = 83886080


def resolve(
    name: str, modifiers: Sequence[int] = (), *, array: bool = False, schema: str | None = None
) -> tuple[int, int]:
    """(type oid, typmod). Raises UndefinedObject (42704), InvalidParameterValue, SqlSyntaxError."""
    if schema is None and name in _SERIAL:
        raise FeatureNotSupported(
            f"type {name} is not supported, because Delta tables have no sequences",
            hint="Use integer or bigint.",
        )
    array = array or (name.startswith("_") and name[1:] in _TYPES)
    known = _TYPES.get(name.removeprefix("_"))
    if known is None or schema is not None:
        shown = name if schema is None else f"{schema}.{name}"
        raise UndefinedObject(f'type "{shown}" does not exist')
    typmod = _typmod(name.removeprefix("_"), modifiers) if modifiers else -1
    return known[1 if array else 0], typmod


def _typmod(name: str, modifiers: Sequence[int]) -> int:
    match name:
        case "varchar" | "bpchar":
            return _length(name, modifiers, _MAX_CHARACTERS) + 4
        case "bit" | "varbit":
            return _length(name, modifiers, _MAX_BITS)
        case "numeric":
            return _numeric(modifiers)
        case "time" | "timetz" | "timestamp" | "timestamptz":
            return _precision(name, modifiers)
        case "interval":
            return (_INTERVAL_FULL_RANGE << 16) | _precision(name, modifiers)
    raise SqlSyntaxError(f'type modifier is not allowed for type "{name}"')


def _length(name: str, modifiers: Sequence[int], most: int) -> int:
    shown = "char" if name == "bpchar" else name
    (length,) = _one(modifiers)
    if length < 1:
        raise InvalidParameterValue(f"length for type {shown} must be at least 1")
    if length > most:
        raise InvalidParameterValue(f"length for type {shown} cannot exceed {most}")
    return length


def _precision(name: str, modifiers: Sequence[int]) -> int:
    (precision,) = _one(modifiers)
    shown = {"time": "TIME", "timetz": "TIME", "interval": "INTERVAL"}.get(name, "TIMESTAMP")
    zone = " WITH TIME ZONE" if name.endswith("tz") else ""
    if precision < 0:
        raise InvalidParameterValue(f"{shown}({precision}){zone} precision must not be negative")
    return min(precision, _MAX_PRECISION)


def _one(modifiers: Sequence[int]) -> Sequence[int]:
    if len(modifiers) != 1:
        raise InvalidParameterValue("invalid type modifier")
    return modifiers


def _numeric(modifiers: Sequence[int]) -> int:
    if len(modifiers) > 2:
        raise InvalidParameterValue("invalid NUMERIC type modifier")
    precision, scale = (*modifiers, 0)[:2]
    if not 1 <= precision <= 1000:
        raise InvalidParameterValue(f"NUMERIC precision {precision} must be between 1 and 1000")
    if not -1000 <= scale <= 1000:
        raise InvalidParameterValue(f"NUMERIC scale {scale} must be between -1000 and 1000")
    return ((precision << 16) | (scale & 0x7FF)) + 4
