"""Identifiers as PostgreSQL quotes and reads them (quote_identifier, stringToQualifiedNameList).

In: names. Out: text, and back.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import PenstockError
from penstock.sql.identifiers import fold
from penstock.sql.keywords import COLUMN_NAME, RESERVED, TYPE_OR_FUNCTION_NAME

_KEY_WORDS: Final = RESERVED | TYPE_OR_FUNCTION_NAME | COLUMN_NAME
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_$]*\Z")
_PART: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([A-Za-z_\x80-\U0010ffff][\w$]*))\s*')


def quote_identifier(name: str) -> str:
    """The name as it must be written in SQL."""
    if _PLAIN.match(name) and name not in _KEY_WORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def split_qualified(text: str) -> list[str]:
    """The parts of ``schema.name``. Raises PenstockError (42602)."""
    parts: list[str] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        if match is None:
            raise PenstockError("invalid name syntax", sqlstate="42602")
        quoted, plain = match.groups()
        parts.append(quoted.replace('""', '"') if quoted else fold(plain))
        at = match.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            raise PenstockError("invalid name syntax", sqlstate="42602")
        at += 1
