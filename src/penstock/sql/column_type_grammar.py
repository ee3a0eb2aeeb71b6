"""Types of columns as written (gram.y, Typename).

In: a cursor. Out: ``ColumnType``: the name under which PostgreSQL's catalog knows the type, with
its modifiers as written. Which type that is, is left to ``penstock.pgtypes.type_names``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import InvalidParameterValue
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.keywords import COLUMN_NAME, RESERVED
from penstock.sql.lexer import Kind
from penstock.sql.object_names import column_label


@dataclass(frozen=True, slots=True)
class ColumnType:
    """``name``: without ``pg_catalog``; ``schema``: one that was written. ``modifiers``: integers.

    ``array``: with brackets or ARRAY; PostgreSQL ignores how many and what is in them.
    """

    name: str
    schema: str | None = None
    modifiers: tuple[int, ...] = ()
    array: bool = False


_PLAIN: Final = {
    "int": "int4",
    "integer": "int4",
    "smallint": "int2",
    "bigint": "int8",
    "real": "float4",
    "boolean": "bool",
    "json": "json",
}
_MODIFIED: Final = {"decimal": "numeric", "dec": "numeric", "numeric": "numeric"}
_CHARACTER: Final = ("character", "char", "nchar", "national", "varchar")


def column_type(cursor: Cursor) -> ColumnType:
    """``Typename``"""
    if cursor.word() == "setof":
        raise not_supported("SETOF")
    found = _simple(cursor)
    if cursor.accept("array"):
        if cursor.accept_symbol("["):
            _bound(cursor)
        return replace(found, array=True)
    while cursor.accept_symbol("["):
        if not cursor.accept_symbol("]"):
            _bound(cursor)
        found = replace(found, array=True)
    return found


def _bound(cursor: Cursor) -> None:
    if cursor.token.kind is not Kind.INTEGER:
        raise cursor.syntax_error()
    cursor.take()
    cursor.expect_symbol("]")


def _simple(cursor: Cursor) -> ColumnType:
    """``SimpleTypename``"""
    word = cursor.word()
    if word in _PLAIN:
        cursor.take()
        return ColumnType(_PLAIN[word])
    if word in _MODIFIED:
        cursor.take()
        return ColumnType(_MODIFIED[word], modifiers=_modifiers(cursor))
    if word in _CHARACTER:
        return _character(cursor)
    match word:
        case "float":
            cursor.take()
            return _float(_length(cursor))
        case "bit":
            cursor.take()
            if cursor.accept("varying"):
                return ColumnType("varbit", modifiers=_modifiers(cursor))
            return ColumnType("bit", modifiers=_modifiers(cursor) or (1,))
        case "timestamp" | "time":
            return _datetime(cursor)
        case "interval":
            return _interval(cursor)
        case "double" if cursor.word_after() == "precision":
            cursor.expect("double", "precision")
            return ColumnType("float8")
    return _generic(cursor)


def _generic(cursor: Cursor) -> ColumnType:
    """``GenericType``: type_function_name opt_attrs opt_type_modifiers"""
    word = cursor.word()
    if cursor.token.kind is not Kind.QUOTED and (
        word is None or word in RESERVED or word in COLUMN_NAME
    ):
        raise cursor.syntax_error()
    names = [cursor.take().value]
    while cursor.accept_symbol("."):
        names.append(column_label(cursor))
    if len(names) > 2:
        raise not_supported("a type in another database")
    schema = names[0] if len(names) == 2 else None
    return ColumnType(
        names[-1], None if schema == "pg_catalog" else schema, modifiers=_modifiers(cursor)
    )


def _character(cursor: Cursor) -> ColumnType:
    """``Character``: without a length, char is char(1) and varchar has none."""
    word = cursor.take().value
    if word == "national" and not cursor.accept_any("character", "char"):
        raise cursor.syntax_error()
    varying = word == "varchar" or cursor.accept("varying")
    length = _length(cursor)
    if varying:
        return ColumnType("varchar", modifiers=() if length is None else (length,))
    return ColumnType("bpchar", modifiers=(1 if length is None else length,))


def _float(bits: int | None) -> ColumnType:
    """``opt_float``"""
    if bits is None:
        return ColumnType("float8")
    if bits < 1:
        raise InvalidParameterValue("precision for type float must be at least 1 bit")
    if bits > 53:
        raise InvalidParameterValue("precision for type float must be less than 54 bits")
    return ColumnType("float4" if bits <= 24 else "float8")


def _datetime(cursor: Cursor) -> ColumnType:
    """``ConstDatetime``"""
    name = cursor.take().value
    precision = _length(cursor)
    if cursor.word_after() == "time":
        zoned = cursor.accept("with")
        if zoned or cursor.accept("without"):
            cursor.expect("time", "zone")
            name += "tz" if zoned else ""
    return ColumnType(name, modifiers=() if precision is None else (precision,))


def _interval(cursor: Cursor) -> ColumnType:
    cursor.take()
    if cursor.accept_any("year", "month", "day", "hour", "minute", "second"):
        raise not_supported("an interval with fields")
    precision = _length(cursor)
    return ColumnType("interval", modifiers=() if precision is None else (precision,))


def _length(cursor: Cursor) -> int | None:
    """``'(' Iconst ')'`` or nothing."""
    if not cursor.accept_symbol("("):
        return None
    if cursor.token.kind is not Kind.INTEGER:
        raise cursor.syntax_error()
    length = int(cursor.take().value)
    cursor.expect_symbol(")")
    return length


def _modifiers(cursor: Cursor) -> tuple[int, ...]:
    """``opt_type_modifiers``: integers; other expressions are refused."""
    if not cursor.accept_symbol("("):
        return ()
    modifiers = [_modifier(cursor)]
    while cursor.accept_symbol(","):
        modifiers.append(_modifier(cursor))
    cursor.expect_symbol(")")
    return tuple(modifiers)


def _modifier(cursor: Cursor) -> int:
    if cursor.token.kind in (Kind.WORD, Kind.QUOTED, Kind.STRING):
        raise not_supported("a type modifier that is no integer")
    number = cursor.numeric_only()
    if not isinstance(number, int):
        raise InvalidParameterValue(f'invalid input syntax for type integer: "{number}"')
    return number
