"""Built-in types by name, and modifiers of types, both ways (parse_type.c, typmodin, typmodout).

A type's name and modifiers, as a statement has them, give its oid and typmod, or PostgreSQL's
error. A typmod gives its text in parentheses, and its meaning. Types without a family here are kept
as text (docs/types).
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
from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    FLOAT4,
    FLOAT8,
    INTEGERS,
    INTERVAL,
    JSON,
    NUMERIC,
    VARCHAR,
    Type,
    types_by_name,
)

_NAMES: Final = """
bool bytea char name int8 int2 int4 text oid json xml point cidr float4 float8 macaddr inet
money bpchar varchar date time timestamp timestamptz interval timetz bit varbit numeric uuid
pg_lsn tsvector tsquery jsonb int4range numrange tsrange tstzrange daterange int8range
"""
_TYPES: Final = frozenset(_NAMES.split())
"""Types that columns of the lake have."""

_SERIAL: Final = frozenset({"serial", "serial2", "serial4", "serial8", "bigserial", "smallserial"})

_VARHDRSZ: Final = 4
"""The number that PostgreSQL adds to modifiers of lengths and of numeric."""
_MAX_NUMERIC: Final = 1000
_MAX_PRECISION: Final = 6
_MAX_CHARACTERS: Final = 10485760
_MAX_BITS: Final = 83886080
_TIMES: Final = {
    "time": ("TIME", ""),
    "timetz": ("TIME", " WITH TIME ZONE"),
    "timestamp": ("TIMESTAMP", ""),
    "timestamptz": ("TIMESTAMP", " WITH TIME ZONE"),
    "interval": ("INTERVAL", ""),
}
_FULL_RANGE: Final = 0x7FFF
_FULL_PRECISION: Final = 0xFFFF
_YEAR, _MONTH, _DAY, _HOUR, _MINUTE, _SECOND = (1 << bit for bit in (2, 1, 3, 10, 11, 12))
_INTERVAL_FIELDS: Final = {
    _YEAR: "year",
    _MONTH: "month",
    _DAY: "day",
    _HOUR: "hour",
    _MINUTE: "minute",
    _SECOND: "second",
    _YEAR | _MONTH: "year to month",
    _DAY | _HOUR: "day to hour",
    _DAY | _HOUR | _MINUTE: "day to minute",
    _DAY | _HOUR | _MINUTE | _SECOND: "day to second",
    _HOUR | _MINUTE: "hour to minute",
    _HOUR | _MINUTE | _SECOND: "hour to second",
    _MINUTE | _SECOND: "minute to second",
}
_NEVER_SHOWN: Final = INTEGERS | {BOOL, JSON, FLOAT4, FLOAT8}
"""Types whose modifier format_type.c never prints."""


def resolve(
    name: str, modifiers: Sequence[int] = (), *, array: bool = False, schema: str | None = None
) -> tuple[int, int]:
    """Return type oid and typmod.

    Raises UndefinedObject (42704), InvalidParameterValue, SqlSyntaxError.
    """
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
    known = types_by_name()[base]
    return known.array if array else known.oid, typmod_in(name, modifiers)


def typmod_in(name: str, modifiers: Sequence[int]) -> int:
    """Return the modifier of a type (pg_type.typname) or of an array's elements; -1: none.

    ``modifiers``: as the grammar has them; an interval's begin with its fields. Raises
    InvalidParameterValue, SqlSyntaxError.
    """
    if not modifiers:
        return -1
    match name.removeprefix("_"):
        case "varchar" | "bpchar":
            return _length(name, modifiers, _MAX_CHARACTERS) + _VARHDRSZ
        case "bit" | "varbit":
            return _length(name, modifiers, _MAX_BITS)
        case "numeric":
            return _numeric(modifiers)
        case "time" | "timetz" | "timestamp" | "timestamptz":
            return _precision(name, modifiers)
        case "interval":
            return _interval_in(modifiers)
    raise SqlSyntaxError(f'type modifier is not allowed for type "{name}"')


def _length(name: str, modifiers: Sequence[int], most: int) -> int:
    name = name.removeprefix("_")
    shown = "char" if name == "bpchar" else name
    (length,) = _one(modifiers)
    if length < 1:
        raise InvalidParameterValue(f"length for type {shown} must be at least 1")
    if length > most:
        raise InvalidParameterValue(f"length for type {shown} cannot exceed {most}")
    return length


def _precision(name: str, modifiers: Sequence[int]) -> int:
    (precision,) = _one(modifiers)
    shown, zone = _TIMES[name.removeprefix("_")]
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
    most = _MAX_NUMERIC
    if not 1 <= precision <= most:
        raise InvalidParameterValue(f"NUMERIC precision {precision} must be between 1 and {most}")
    if not -most <= scale <= most:
        raise InvalidParameterValue(f"NUMERIC scale {scale} must be between -{most} and {most}")
    return numeric_typmod(precision, scale)


def _interval_in(modifiers: Sequence[int]) -> int:
    """Encode an interval's fields and precision (intervaltypmodin)."""
    fields, *precision = modifiers
    if len(precision) > 1 or (fields != _FULL_RANGE and fields not in _INTERVAL_FIELDS):
        raise InvalidParameterValue("invalid INTERVAL type modifier")
    if not precision:
        return -1 if fields == _FULL_RANGE else fields << 16 | _FULL_PRECISION
    return fields << 16 | _precision("interval", precision)


def numeric_typmod(precision: int, scale: int) -> int:
    """Encode precision and scale (make_numeric_typmod)."""
    return (precision << 16 | scale & 0x7FF) + _VARHDRSZ


def numeric_modifiers(typmod: int) -> tuple[int, int] | None:
    """Return precision and scale (11 bits with sign) of numeric(p, s); None without them."""
    packed = typmod - _VARHDRSZ
    if packed < 0:
        return None
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def length_of(typmod: int) -> int:
    """Return n of character(n) and character varying(n); the type must have a modifier."""
    return typmod - _VARHDRSZ


def typmod_out(type_: Type, typmod: int) -> str:
    """Print a modifier as the typmodout function does; types without one get the number itself."""
    if type_.oid in _NEVER_SHOWN:
        return ""
    if type_.oid in (BPCHAR, VARCHAR):
        return f"({length_of(typmod)})" if typmod > _VARHDRSZ else ""
    if type_.oid == NUMERIC:
        shape = numeric_modifiers(typmod)
        return "" if shape is None else f"({shape[0]},{shape[1]})"
    if type_.oid == INTERVAL:
        return _interval(typmod)
    return f"({typmod})"


def _interval(typmod: int) -> str:
    """Print the fields and the precision of an interval (intervaltypmodout)."""
    fields, precision = typmod >> 16 & _FULL_RANGE, typmod & _FULL_PRECISION
    shown = "" if fields == _FULL_RANGE else f" {_INTERVAL_FIELDS.get(fields, '')}"
    return shown if precision == _FULL_PRECISION else f"{shown}({precision})"
