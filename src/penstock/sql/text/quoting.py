"""Names, literals and types as PostgreSQL prints them (ruleutils.c, format_type.c).

In: names, texts, type oids. Out: SQL text that PostgreSQL's own functions would print:
quote_identifier, simple_quote_literal, format_type_with_typemod.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.identifiers import quoted
from penstock.pgtypes.pg_type import (
    BIT,
    BOOL,
    BPCHAR,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSON,
    NUMERIC,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    VARCHAR,
    Type,
)
from penstock.sql.builtin.type_cache import types
from penstock.sql.text.keywords import COLUMN_NAME, RESERVED, TYPE_OR_FUNCTION_NAME

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_KEY_WORDS: Final = RESERVED | TYPE_OR_FUNCTION_NAME | COLUMN_NAME
_VARHDRSZ: Final = 4
_WITHOUT_MODIFIER: Final = frozenset(
    (
        BOOL,
        INT8,
        INT2,
        INT4,
        JSON,
        FLOAT4,
        FLOAT8,
    )
)
"""as format_type.c knows them"""
_WITH_LENGTH: Final = frozenset((BPCHAR, VARCHAR))
_WITHOUT_LENGTH: Final = {BPCHAR: "bpchar", BIT: '"bit"'}
"""The names that mean any length; SQL's mean the length 1."""
_TIMES: Final = frozenset((TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ))
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


def quote_identifier(name: str) -> str:
    """A name, in quotes where it needs them."""
    if _PLAIN.fullmatch(name) and name not in _KEY_WORDS:
        return name
    return quoted(name)


def quote_literal(text: str) -> str:
    """A string constant (standard_conforming_strings on)."""
    return "'" + text.replace("'", "''") + "'"


def format_type(type_: Type, typmod: int | None = -1) -> str:
    """format_type_extended: ``numeric(10,2)``, ``character varying(20)[]``. ``typmod``: None where
    none is given, which is not the same as -1 for two types.
    """
    if type_.element and not type_.is_vector:
        element = types().get(type_.element)
        # An array of an enum that the thread does not know has its name all the same.
        name = (
            type_.sql_name.removesuffix("[]") if element is None else format_type(element, typmod)
        )
        return f"{name}[]"
    if typmod is None:
        return type_.sql_name
    if typmod < 0:
        return _WITHOUT_LENGTH.get(type_.oid, type_.sql_name)
    name, modifier = type_.sql_name, _modifier(type_, typmod)
    if type_.oid in _TIMES and modifier:
        word, _, rest = name.partition(" ")
        return f"{word}{modifier} {rest}"
    return name + modifier


def type_text(oid: int, typmod: int | None = -1) -> str:
    """The same of an oid, ``???`` for one that is no type's."""
    type_ = types().get(oid)
    return "???" if type_ is None else format_type(type_, typmod)


def type_name(oid: int) -> str:
    """format_type_be: the name in messages, without a modifier."""
    type_ = types().get(oid)
    return type_.sql_name if type_ else "???"


def _modifier(type_: Type, typmod: int) -> str:
    """What the typmodout function prints; types without one get the number itself."""
    match type_.oid:
        case oid if oid in _WITHOUT_MODIFIER:
            return ""
        case oid if oid in _WITH_LENGTH:
            return f"({typmod - _VARHDRSZ})" if typmod > _VARHDRSZ else ""
        case oid if oid == NUMERIC:
            packed = typmod - _VARHDRSZ
            scale = ((packed & 0x7FF) ^ 0x400) - 0x400
            return f"({packed >> 16 & 0xFFFF},{scale})" if packed >= 0 else ""
        case oid if oid == INTERVAL:
            return _interval(typmod)
    return f"({typmod})"


def _interval(typmod: int) -> str:
    """intervaltypmodout"""
    fields, precision = typmod >> 16 & _FULL_RANGE, typmod & _FULL_PRECISION
    shown = "" if fields == _FULL_RANGE else f" {_INTERVAL_FIELDS.get(fields, '')}"
    return shown if precision == _FULL_PRECISION else f"{shown}({precision})"
