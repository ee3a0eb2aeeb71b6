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

from penstock.errors import PenstockError
from penstock.identifiers import simple_quote_literal
from penstock.sql.builtin.type_cache import types
from penstock.sql.grammar.libpg_query import ScanToken, Token, scan
from penstock.sql.text.array_literals import split_array
from penstock.sql.text.limits import MAX_PARAMETERS
from penstock.sqlstate import InvalidTextRepresentation, UndefinedParameter

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


def last_parameter(text: str) -> int:
    """The highest ``$n`` of a statement, 0 for none. Raises PenstockError (42P02)."""
    data = text.encode()
    return max((_number(data, token) for token in scan(text).tokens), default=0)


def with_values(text: str, values: Sequence[bytes | None], type_oids: Sequence[int]) -> str:
    """The statement with its parameters' values; those in text format and UTF-8.

    Raises InvalidParameterValue (22P02).
    """
    data = text.encode()
    out: list[bytes] = []
    at, before = 0, ""
    for token in scan(text).tokens:
        number = _number(data, token)
        if number:
            value, oid = values[number - 1], type_oids[number - 1]
            if before in _COUNTS:
                written = _count(value, before)
            else:
                written = _constant(None if value is None else value.decode(), oid)
            out += (data[at : token.start], f" {written} ".encode())
            at = token.end
        before = data[token.start : token.end].decode().lower()
    return b"".join((*out, data[at:])).decode()


def _number(data: bytes, token: ScanToken) -> int:
    if token.kind != Token.PARAM:
        return 0
    digits = data[token.start + 1 : token.end]
    if not 1 <= int(digits) <= MAX_PARAMETERS:
        raise UndefinedParameter(f"there is no parameter ${digits.decode()}")
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
        return f"CAST({simple_quote_literal(value)} AS {name})"
    return simple_quote_literal(value)


def _boolean(value: str) -> str:
    word = value.strip().lower()
    if word not in _TRUE | _FALSE:
        raise _invalid(value, "boolean")
    return "TRUE" if word in _TRUE else "FALSE"


def _invalid(value: str, name: str) -> PenstockError:
    return InvalidTextRepresentation(f'invalid input syntax for type {name}: "{value}"')
