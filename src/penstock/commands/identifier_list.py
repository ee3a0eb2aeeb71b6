"""Lists of identifiers within a string (varlena.c, SplitIdentifierString).

In: a text such as ``insert, "Update"``. Out: the names, folded and cut as identifiers are.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.sql.identifiers import fold, truncate

_SPACE: Final = " \t\n\r\f\v"
_ITEM: Final = re.compile(
    rf'[{_SPACE}]*(?:"((?:[^"]|"")*)"|([^,{_SPACE}"][^,{_SPACE}]*))[{_SPACE}]*(,|\Z)'
)


def split_identifier_string(text: str) -> tuple[str, ...] | None:
    """The names between the commas; None for a list that is no list. An empty text has none."""
    if not text.strip(_SPACE):
        return ()
    names, at = [], 0
    while match := _ITEM.match(text, at):
        quoted, plain, stop = match.groups()
        name = quoted.replace('""', '"') if quoted is not None else fold(plain)
        names.append(truncate(name)[0])
        at = match.end()
        if stop == "":
            return tuple(names)
    return None
