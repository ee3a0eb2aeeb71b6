"""Type names (gram.y, Typename and its kin).

In: the cursor of a statement in front of a type. Out: a ``TypeName`` with the name that pg_type
has (``int4``, ``bpchar``), its modifiers and whether it is an array.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.sql.cursor import Cursor
from penstock.sql.expressions import TypeName
from penstock.sql.keywords import COLUMN_NAME, RESERVED, words
from penstock.sql.lexer import Kind

_SIMPLE: Final = {
    "int": "int4",
    "integer": "int4",
    "smallint": "int2",
    "bigint": "int8",
    "real": "float4",
    "boolean": "bool",
    "decimal": "numeric",
    "dec": "numeric",
    "numeric": "numeric",
    "varchar": "varchar",
    "json": "json",
}
_FLOAT4_DIGITS: Final = 24
CONST_TYPES: Final = _SIMPLE.keys() | words(
    "float double bit national character char nchar timestamp time interval"
)
"""Words that begin a ConstTypename."""


def type_name(cursor: Cursor, *, literal: bool = False) -> TypeName:
    """Read a type. ``literal``: in front of a string, where char has no length of its own."""
    names, typmods = _simple_type(cursor, literal)
    array = False
    if not literal and cursor.accept("array"):
        array = True
        if cursor.accept_symbol("["):
            _integer(cursor)
            cursor.expect_symbol("]")
    while not literal and cursor.accept_symbol("["):
        array = True
        if cursor.token.kind is Kind.INTEGER:
            cursor.take()
        cursor.expect_symbol("]")
    return TypeName(names, typmods, array)


def _simple_type(cursor: Cursor, literal: bool) -> tuple[tuple[str, ...], tuple[int, ...]]:
    word = cursor.word()
    if word in _SIMPLE:
        cursor.take()
        typmods = _typmods(cursor) if word in ("varchar", "decimal", "dec", "numeric") else ()
        if word == "varchar" or word not in ("decimal", "dec", "numeric"):
            return (_SIMPLE[word],), typmods
        return ("numeric",), typmods
    match word:
        case "double":
            cursor.take()
            cursor.expect("precision")
            return ("float8",), ()
        case "float":
            cursor.take()
            digits = _typmods(cursor)
            return ("float4" if digits and digits[0] <= _FLOAT4_DIGITS else "float8",), ()
        case "character" | "char" | "nchar" | "national":
            return _character(cursor, literal)
        case "timestamp" | "time":
            return _time(cursor)
        case "interval" | "bit" | "setof":
            raise FeatureNotSupported(f"type {word} is not supported in expressions")
    return _generic(cursor)


def _character(cursor: Cursor, literal: bool) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if cursor.take().value == "national" and not (
        cursor.accept("character") or cursor.accept("char")
    ):
        raise cursor.syntax_error()
    varying = cursor.accept("varying")
    typmods = _typmods(cursor)
    if varying:
        return ("varchar",), typmods
    return ("bpchar",), typmods or (() if literal else (1,))


def _time(cursor: Cursor) -> tuple[tuple[str, ...], tuple[int, ...]]:
    name = cursor.take().value
    typmods = _typmods(cursor)
    if cursor.accept("with"):
        cursor.expect("time", "zone")
        name += "tz"
    elif cursor.accept("without"):
        cursor.expect("time", "zone")
    return (name,), typmods


def _generic(cursor: Cursor) -> tuple[tuple[str, ...], tuple[int, ...]]:
    token = cursor.token
    word = cursor.word()
    if token.kind is not Kind.QUOTED and (word is None or word in RESERVED or word in COLUMN_NAME):
        raise cursor.syntax_error()
    names = [cursor.take().value]
    while cursor.accept_symbol("."):
        if cursor.token.kind not in (Kind.WORD, Kind.QUOTED):
            raise cursor.syntax_error()
        names.append(cursor.take().value)
    if names[0] == "pg_catalog" and len(names) > 1:
        names = names[1:]
    return tuple(names), _typmods(cursor)


def _typmods(cursor: Cursor) -> tuple[int, ...]:
    if not cursor.accept_symbol("("):
        return ()
    typmods = [_integer(cursor)]
    while cursor.accept_symbol(","):
        typmods.append(_integer(cursor))
    cursor.expect_symbol(")")
    return tuple(typmods)


def _integer(cursor: Cursor) -> int:
    sign = -1 if cursor.accept_symbol("-") else 1
    if cursor.token.kind is not Kind.INTEGER:
        raise cursor.syntax_error()
    return sign * int(cursor.take().value)
