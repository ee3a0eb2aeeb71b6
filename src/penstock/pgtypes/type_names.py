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
from penstock.pgtypes.pg_type import types_by_name

_NAMES: Final = """
bool bytea char name int8 int2 int4 text oid json xml point cidr float4 float8 macaddr inet
money bpchar varchar date time timestamp timestamptz interval timetz bit varbit numeric uuid
pg_lsn tsvector tsquery jsonb int4range numrange tsrange tstzrange daterange int8range
"""
_TYPES: Final = frozenset(_NAMES.split())
"""Types that columns of the lake have."""

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
    base = name.removeprefix("_")
    if base not in _TYPES or schema is not None:
        shown = name if schema is None else f"{schema}.{name}"
        raise UndefinedObject(f'type "{shown}" does not exist')
    typmod = _typmod(base, modifiers) if modifiers else -1
    known = types_by_name()[base]
    return known.array if array else known.oid, typmod


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
