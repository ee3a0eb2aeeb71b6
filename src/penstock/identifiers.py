"""Names as PostgreSQL reads, keeps and quotes them, and strings in quotes (scansup.c, varlena.c,
quote.c).

In: an identifier as written, or a text with several of them. Out: the name that is stored, at most
63 bytes of UTF-8; and names and strings in quotes. Which names need none depends on key words: that
is ``sql.text.quoting``.
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
    """Lower case for A-Z only, as in a UTF-8 database (downcase_identifier)."""
    return identifier.translate(_LOWER)


def truncated(identifier: str, size: int = NAMEDATALEN - 1) -> str:
    """Cut to 63 bytes, or another size, at a character's end."""
    return identifier.encode()[:size].decode(errors="ignore")


def truncate(identifier: str) -> tuple[str, str | None]:
    """The same with the text of the NOTICE (42622), if the name was cut."""
    kept = truncated(identifier)
    if kept == identifier:
        return identifier, None
    return kept, f'identifier "{identifier}" will be truncated to "{kept}"'


def quoted(name: str) -> str:
    """A name in double quotes, whether it needs them or not: for PostgreSQL, and for DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def simple_quote_literal(text: str) -> str:
    """A string constant where standard_conforming_strings is on: for DuckDB, and as PostgreSQL
    prints those of expressions (ruleutils.c)."""
    return "'" + text.replace("'", "''") + "'"


def quote_literal(text: str) -> str:
    """A string constant for any server, with ``E''`` where it holds a backslash."""
    if "\\" not in text:
        return simple_quote_literal(text)
    return "E" + simple_quote_literal(text.replace("\\", "\\\\"))


def split_identifiers(text: str, separator: str = ",") -> tuple[str, ...] | None:
    """SplitIdentifierString: the names between the separators, folded and cut; None for a text
    that is no list. An empty text has none.
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
    """stringToQualifiedNameList: the parts of ``schema.name``. Raises PenstockError (42602)."""
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
