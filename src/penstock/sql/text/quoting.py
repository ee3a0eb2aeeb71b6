"""Print names and types as PostgreSQL does (ruleutils.c, format_type.c).

The functions follow quote_identifier and format_type_with_typemod.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.identifiers import quoted
from penstock.pgtypes.pg_type import (
    BIT,
    BPCHAR,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    Type,
)
from penstock.pgtypes.type_names import typmod_out
from penstock.sql.builtin.type_cache import types
from penstock.sql.text.keywords import COLUMN_NAME, RESERVED, TYPE_OR_FUNCTION_NAME

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_KEY_WORDS: Final = RESERVED | TYPE_OR_FUNCTION_NAME | COLUMN_NAME
_WITHOUT_LENGTH: Final = {BPCHAR: "bpchar", BIT: '"bit"'}
"""The names for any length; SQL's own names, character and bit, mean length 1."""
_TIMES: Final = frozenset((TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ))


def quote_identifier(name: str) -> str:
    """Return the name, quoted if necessary."""
    if _PLAIN.fullmatch(name) and name not in _KEY_WORDS:
        return name
    return quoted(name)


def format_type(type_: Type, typmod: int | None = -1) -> str:
    """Print a type as format_type_extended: ``numeric(10,2)``, ``character varying(20)[]``.

    ``typmod``: None if none is given, which prints bpchar and bit differently from -1.
    """
    if type_.element and not type_.is_vector:
        element = types().get(type_.element)
        # The element may be an enum that this thread does not know: use the array type's name.
        name = (
            type_.sql_name.removesuffix("[]") if element is None else format_type(element, typmod)
        )
        return f"{name}[]"
    if typmod is None:
        return type_.sql_name
    if typmod < 0:
        return _WITHOUT_LENGTH.get(type_.oid, type_.sql_name)
    name, modifier = type_.sql_name, typmod_out(type_, typmod)
    if type_.oid in _TIMES and modifier:
        word, _, rest = name.partition(" ")
        return f"{word}{modifier} {rest}"
    return name + modifier


def type_text(oid: int, typmod: int | None = -1) -> str:
    """Print the type with this oid as ``format_type`` does; ``???`` if there is none."""
    type_ = types().get(oid)
    return "???" if type_ is None else format_type(type_, typmod)


def type_name(oid: int) -> str:
    """Return the type's name for messages, without a modifier (format_type_be)."""
    type_ = types().get(oid)
    return type_.sql_name if type_ else "???"
