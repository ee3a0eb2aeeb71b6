"""DEFAULT of a column: a constant, or the time of writing (gram.y, ColConstraintElem).

In: a cursor at the word DEFAULT. Out: the constant as SQL writes it. Other expressions are read to
no end: they are refused by name (0A000).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.datetime_literals import read_timestamp
from penstock.sql.lexer import Kind
from penstock.sql.quoting import quote_literal

NOW: Final = "now()"
"""The one default that is no constant: the time at which rows are written."""
_WORDS: Final = ("true", "false", "null")
BOOLEANS: Final = {"true": "t", "false": "f"}
"""Words that are defaults, and their values."""


def default_constant(cursor: Cursor) -> str | None:
    """None for DEFAULT NULL. Raises FeatureNotSupported."""
    cursor.expect("default")
    found = _constant(cursor)
    at_end = cursor.token.kind is Kind.END or cursor.at_symbol(",") or cursor.at_symbol(")")
    if not at_end and cursor.token.kind is not Kind.WORD:
        raise not_supported("DEFAULT with an expression")
    return None if found == "null" else found


def _constant(cursor: Cursor) -> str:
    sign = "-" if cursor.accept_symbol("-") else ""
    token = cursor.token
    if token.kind in (Kind.INTEGER, Kind.FLOAT):
        return sign + cursor.take().source
    if token.kind is Kind.STRING and not sign:
        return quote_literal(cursor.string())
    if cursor.word() in _WORDS and not sign:
        return cursor.take().value
    if cursor.accept("current_timestamp"):
        return NOW
    if cursor.word() == "now" and cursor.peek(1) == "(" and cursor.peek(2) == ")":
        for _ in range(3):
            cursor.take()
        return NOW
    raise not_supported("DEFAULT with an expression")


def default_text(default: str, now: datetime | None = None) -> str:
    """The value in PostgreSQL's text format. ``now``: what NOW stands for."""
    if default == NOW and now is not None:
        return read_timestamp(now.isoformat(sep=" "), zone=True)
    if default in BOOLEANS:
        return BOOLEANS[default]
    return default[1:-1].replace("''", "'") if default.startswith("'") else default
