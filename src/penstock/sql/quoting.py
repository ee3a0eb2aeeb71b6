"""Names, literals and types as PostgreSQL prints them (ruleutils.c, format_type.c).

In: names, texts, type oids. Out: SQL text that PostgreSQL's own functions would print:
quote_identifier, simple_quote_literal, format_type_with_typemod.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.identifiers import quoted
from penstock.sql.keywords import COLUMN_NAME, RESERVED, TYPE_OR_FUNCTION_NAME
from penstock.sql.type_cache import types

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_KEY_WORDS: Final = RESERVED | TYPE_OR_FUNCTION_NAME | COLUMN_NAME
_VARHDRSZ: Final = 4
_WITH_LENGTH: Final = (1042, 1043)
_NUMERIC: Final = 1700
_WITH_PRECISION: Final = (1083, 1114, 1184, 1266)
_BPCHAR: Final = 1042


def quote_identifier(name: str) -> str:
    """A name, in quotes where it needs them."""
    if _PLAIN.fullmatch(name) and name not in _KEY_WORDS:
        return name
    return quoted(name)


def quote_literal(text: str) -> str:
    """A string constant (standard_conforming_strings on)."""
    return "'" + text.replace("'", "''") + "'"


def type_text(oid: int, typmod: int = -1) -> str:
    """format_type with the modifier: ``numeric(10,2)``, ``character varying(20)[]``."""
    type_ = types().get(oid)
    if type_ is None:
        return "???"
    if type_.element:
        return type_text(type_.element, typmod) + "[]"
    if oid == _BPCHAR and typmod < 0:
        return "bpchar" if typmod == -1 else "character"
    name, modifier = type_.sql_name, _modifier(oid, typmod)
    if oid in _WITH_PRECISION and modifier:
        word, _, rest = name.partition(" ")
        return f"{word}{modifier} {rest}"
    return name + modifier


def type_name(oid: int) -> str:
    """format_type_be: the name in messages, without a modifier."""
    type_ = types().get(oid)
    return type_.sql_name if type_ else "???"


def _modifier(oid: int, typmod: int) -> str:
    if typmod < 0:
        return ""
    if oid in _WITH_LENGTH:
        return f"({typmod - _VARHDRSZ})"
    if oid == _NUMERIC:
        packed = typmod - _VARHDRSZ
        scale = ((packed & 0x7FF) ^ 0x400) - 0x400
        return f"({packed >> 16 & 0xFFFF},{scale})"
    return f"({typmod})" if oid in _WITH_PRECISION else ""
