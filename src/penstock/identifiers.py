"""Names as PostgreSQL reads, keeps and quotes them, and strings in quotes (scansup.c, varlena.c,
quote.c).

An identifier as written, or a text with several of them, becomes the stored name, at most 63 bytes
of UTF-8. Names and strings are also put in quotes. Whether a name needs quotes depends on key
words, so ``sql.text.quoting`` decides it.
"""

from __future__ import annotations

import re
import string
from functools import cache
from typing import Final

from penstock.sqlstate import InvalidName

NAMEDATALEN: Final = 64
"""Bytes of a name with its terminating zero (pg_config_manual.h)."""

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_SPACE: Final = " \t\n\r\f\v"


def fold(identifier: str) -> str:
    """Turn A-Z, and nothing else, into lower case, as in a UTF-8 database (downcase_identifier)."""
    return identifier.translate(_LOWER)


def truncated(identifier: str, size: int = NAMEDATALEN - 1) -> str:
    """Cut the name to 63 bytes, or another size, at a character's end."""
    return identifier.encode()[:size].decode(errors="ignore")


def truncate(identifier: str) -> tuple[str, str | None]:
    """Cut the name as ``truncated``; return the text of the NOTICE (42622) too, if it was cut."""
    kept = truncated(identifier)
    if kept == identifier:
        return identifier, None
    return kept, f'identifier "{identifier}" will be truncated to "{kept}"'


def quoted(name: str) -> str:
    """Put a name in double quotes, needed or not, which both PostgreSQL and DuckDB read."""
    return '"' + name.replace('"', '""') + '"'


def simple_quote_literal(text: str) -> str:
    """Return a string constant for standard_conforming_strings = on: for DuckDB, and as PostgreSQL
    prints constants of expressions (ruleutils.c)."""
    return "'" + text.replace("'", "''") + "'"


def quote_literal(text: str) -> str:
    """Return a string constant that any server reads, with ``E''`` if it holds a backslash."""
    if "\\" not in text:
        return simple_quote_literal(text)
    return "E" + simple_quote_literal(text.replace("\\", "\\\\"))


def split_identifiers(text: str, separator: str = ",") -> tuple[str, ...] | None:
    """Return the names between the separators, folded and cut (SplitIdentifierString).

    Returns None if the text is no list. An empty text has no names.
    """
    if not text.strip(_SPACE):
        return ()
    item = _item(separator)
    names, at = [], 0
    while match := item.match(text, at):
        inside, plain, stop = match.groups()
        name = inside.replace('""', '"') if inside is not None else fold(plain)
        names.append(truncated(name))
        at = match.end()
        if stop == "":
            return tuple(names)
    return None


def split_qualified(text: str) -> tuple[str, ...]:
    """Split ``schema.name`` (stringToQualifiedNameList). Raises PenstockError (42602)."""
    parts = split_identifiers(text, ".")
    if not parts:
        raise InvalidName("invalid name syntax")
    return parts


@cache
def _item(separator: str) -> re.Pattern[str]:
    end = re.escape(separator)
    return re.compile(
        rf'[{_SPACE}]*(?:"((?:[^"]|"")*)"|([^{end}{_SPACE}"][^{end}{_SPACE}]*))'
        rf"[{_SPACE}]*({end}|\Z)"
    )
