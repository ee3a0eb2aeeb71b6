"""The default of a column: its type, and the value that it gives (heap.c, cookDefault).

A default, as ``grammar.column`` reads it, becomes a value in PostgreSQL's text format, coerced by
assignment. A default of the wrong type raises PostgreSQL's error. Constants are computed only in
this file, so that a default has one value everywhere. As in PostgreSQL, a value that does not fit
(22001, 22003) is an error when the default is used, not when it is defined.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    OID,
    REG_TYPES,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    VARCHAR,
)
from penstock.pgtypes.pg_type import types as builtin_types
from penstock.sql.builtin.type_cache import types
from penstock.sql.grammar.column import (
    BOOLEANS,
    CURRENT_DATE,
    CURRENT_TIMESTAMP,
    LOCALTIMESTAMP,
    NEXTVAL,
    NOW,
    TIMES,
    default_text,
)
from penstock.sql.text.array_literals import join_array, split_array
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.coercion import element, to_target
from penstock.sql.typed.deparse import deparse
from penstock.sql.typed.expression_analysis import number
from penstock.sql.typed.input_functions import fitted, rounded
from penstock.sql.typed.literals import canonical
from penstock.sql.typed.primnodes import (
    ArrayCoerceExpr,
    CoerceViaIO,
    Const,
    Form,
    FuncExpr,
    Node,
    RelabelType,
    is_cast,
)
from penstock.sqlstate import NumericValueOutOfRange

_DATATYPE_MISMATCH: Final = "42804"
_STRINGS: Final = frozenset({TEXT, BPCHAR, VARCHAR})
_BITS: Final = {INT2: 16, INT4: 32, INT8: 64}
_OIDS: Final = 1 << 32
_TIME_TYPES: Final = {
    NOW: TIMESTAMPTZ,
    CURRENT_TIMESTAMP: TIMESTAMPTZ,
    CURRENT_DATE: DATE,
    LOCALTIMESTAMP: TIMESTAMP,
}
_WORDS: Final = {"t": "true", "f": "false"}


def check_default(column: str, default: str, type_oid: int, typmod: int) -> None:
    """Check a default.

    Raises PenstockError (42804, 22P02, ...); FeatureNotSupported for types whose literals are not
    supported.
    """
    _cooked(column, default, type_oid, typmod, None)


def shown_default(column: Attribute) -> str | None:
    """Return the default as pg_get_expr prints it; None if a sequence gives it. The type of an enum
    column, whose name depends on the search path, is left as its oid: ``'ok'::16385``."""
    default, type_oid = column.default, column.type_oid
    if default is None or default == NEXTVAL:
        return None
    if default in TIMES:
        return default
    if type_oid not in builtin_types():
        return f"{default}::{type_oid}"
    try:
        return deparse(_cooked(column.name, default, type_oid, column.typmod, None))
    except PenstockError:  # a type whose literals the node does not read
        return default


def coerced_default(
    column: str, default: str, type_oid: int, typmod: int, now: datetime | None = None
) -> str | None:
    """Return the value in PostgreSQL's text format. ``now``: the time; constants do not need it.

    Raises PenstockError (22001, 22003, ...), and the errors of ``check_default``.
    """
    if type_oid not in types():  # an enum, outside of any statement
        return default_text(default)
    return _value(_cooked(column, default, type_oid, typmod, now))


def _cooked(column: str, default: str, type_oid: int, typmod: int, now: datetime | None) -> Node:
    """Return the default as an expression, with its coercions."""
    given = _constant(default, now)
    if type_oid in REG_TYPES:
        raise FeatureNotSupported(f"constants of type {type_name(type_oid)} are not supported")
    found = to_target(given, type_oid, typmod, "a", Form.IMPLICIT)
    if found is None:
        raise PenstockError(
            f'column "{column}" is of type {type_name(type_oid)} but default expression is of type '
            f"{type_name(given.type)}",
            hint="You will need to rewrite or cast the expression.",
            sqlstate=_DATATYPE_MISMATCH,
        )
    return found


def _constant(default: str, now: datetime | None) -> Const:
    """Return the default as a constant (make_const)."""
    text = default_text(default, now)
    if default.startswith("'"):
        return Const(UNKNOWN, text)
    if default in _TIME_TYPES:
        return Const(_TIME_TYPES[default], text)
    if default in BOOLEANS:
        return Const(BOOL, text)
    return number(text.replace("_", ""))


def _in_range(whole: str, type_oid: int) -> bool:
    half = 1 << _BITS[type_oid] - 1
    return -half <= int(whole) < half


def _value(node: Node) -> str | None:
    """Compute a constant with its coercions."""
    match node:
        case Const():
            return node.text
        case RelabelType(type_oid, argument):
            text = _value(argument)
            return text if type_oid != OID or text is None else str(int(text) % _OIDS)
        case CoerceViaIO(type_oid, argument):
            text = _value(argument)
            return None if text is None else canonical(text, type_oid)
        case ArrayCoerceExpr():
            return _array(node)
        case FuncExpr(arguments=(argument,)) if is_cast(node):
            text = _value(argument)
            if text is None:
                return None
            if argument.type == node.type:
                return fitted(text, node.type, node.typmod)
            return _converted(text, argument.type, node.type)
    raise FeatureNotSupported("such a default is not supported")


def _array(node: ArrayCoerceExpr) -> str | None:
    text, item = _value(node.argument), element(node.type)
    if text is None or element(node.argument.type) != item:
        raise FeatureNotSupported("such a default is not supported")
    items = split_array(text)
    return join_array([i if i is None else fitted(i, item, node.typmod) for i in items])


def _converted(text: str, source: int, target: int) -> str:
    """Apply a cast function, between types that constants can have."""
    if target in _BITS:
        whole = rounded(text, 0)
        if not _in_range(whole, target):
            raise NumericValueOutOfRange(f"{type_name(target)} out of range")
        return whole
    if target in (NUMERIC, FLOAT4, FLOAT8):
        return canonical(text, target)
    if source == BOOL and target in _STRINGS:
        return _WORDS[text]
    if source in _TIME_TYPES.values() and target in _TIME_TYPES.values():
        return canonical(text, target)
    raise FeatureNotSupported(
        f"a default of type {type_name(source)} is not supported for a column of type "
        f"{type_name(target)}"
    )
