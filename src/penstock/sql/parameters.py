"""Parameters ``$1``, ``$2`` ... of a statement on tables of the lake: numbers, and values in place.

In: a statement's text, types and values of its parameters. Out: the same statement with the values
as constants of those types, which is what PostgreSQL's planner makes of them, too. Which types they
have is found by ``parameter_types``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from penstock.errors import InvalidParameterValue, PenstockError
from penstock.sql.array_literals import split_array
from penstock.sql.lexer import Kind, Token, lex
from penstock.sql.quoting import quote_literal
from penstock.sql.type_cache import types

_BOOL: Final = 16
_NUMERIC: Final = 1700
_INTEGERS: Final = (21, 23, 20)
_CAST: Final = frozenset((700, 701, 1082, 1114, 1184))
"""Types that are written as a cast of a string; those of strings and all others as strings."""
_DECIMAL: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\Z", re.ASCII)
_INTEGER: Final = re.compile(r"\s*[+-]?\d+\s*\Z", re.ASCII)
_TRUE: Final = frozenset(("t", "true", "y", "yes", "on", "1"))
_FALSE: Final = frozenset(("f", "false", "n", "no", "off", "0"))
_COUNTS: Final = frozenset(("limit", "offset", "first", "next"))
"""Words in front of a number of rows, which is a plain number."""
_ALL_ROWS: Final = (1 << 31) - 1
_MAX_PARAMETERS: Final = 65_535
"""What Bind can give."""


def last_parameter(text: str) -> int:
    """The highest ``$n`` of a statement, 0 for none. Raises PenstockError (42P02)."""
    return max((_number(token) for token in lex(text)), default=0)


def with_values(text: str, values: Sequence[bytes | None], type_oids: Sequence[int]) -> str:
    """The statement with its parameters' values; those in text format and UTF-8.

    Raises InvalidParameterValue (22P02).
    """
    out: list[str] = []
    at, before = 0, ""
    for token in lex(text):
        number = _number(token)
        if number:
            value, oid = values[number - 1], type_oids[number - 1]
            if before in _COUNTS:
                written = _count(value, before)
            else:
                written = _constant(None if value is None else value.decode(), oid)
            out += (text[at : token.start], f" {written} ")
            at = token.start + len(token.source)
        before = token.value if token.kind is Kind.WORD else ""
    return "".join((*out, text[at:]))


def _number(token: Token) -> int:
    if token.kind is not Kind.OTHER or not token.source.startswith("$"):
        return 0
    digits = token.source[1:]
    if not digits.isdigit():
        return 0
    if not 1 <= int(digits) <= _MAX_PARAMETERS:
        raise PenstockError(f"there is no parameter {token.source}", sqlstate="42P02")
    return int(digits)


def _count(value: bytes | None, word: str) -> str:
    """A number of rows is a plain number; NULL is all rows, or none to skip."""
    if value is None:
        return "0" if word == "offset" else str(_ALL_ROWS)
    text = value.decode()
    if not _INTEGER.match(text):
        raise _invalid(text, "bigint")
    return str(int(text))


def _constant(value: str | None, oid: int) -> str:
    known = types().get(oid)
    name = "text" if known is None else known.sql_name
    if value is None:
        return f"CAST(NULL AS {name})"
    if known is not None and known.element and not known.is_vector:
        items = [_constant(item, known.element) for item in split_array(value)]
        return f"ARRAY[{', '.join(items)}]"
    if oid in _INTEGERS:
        if not _INTEGER.match(value):
            raise _invalid(value, name)
        return f"CAST({int(value)} AS {name})"
    if oid == _BOOL:
        return _boolean(value)
    if oid == _NUMERIC and _DECIMAL.match(value):
        number_text = format(Decimal(value.strip()), "f")
        return f"({number_text})" if number_text.startswith("-") else number_text
    if oid in _CAST:
        return f"CAST({quote_literal(value)} AS {name})"
    return quote_literal(value)


def _boolean(value: str) -> str:
    word = value.strip().lower()
    if word not in _TRUE | _FALSE:
        raise _invalid(value, "boolean")
    return "TRUE" if word in _TRUE else "FALSE"


def _invalid(value: str, name: str) -> PenstockError:
    return InvalidParameterValue(
        f'invalid input syntax for type {name}: "{value}"', sqlstate="22P02"
    )
