"""Values of options (define.c), and lists of identifiers within them (varlena.c).

In: a ``DefElem``, or a text such as ``insert, "Update"``. Out: its value as the type that the
option wants, or PostgreSQL's error; the names, folded and cut as identifiers are.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import SqlSyntaxError
from penstock.sql import DefElem
from penstock.sql.identifiers import fold, truncate


def def_get_string(option: DefElem) -> str:
    """defGetString"""
    if option.arg is None:
        raise SqlSyntaxError(f"{option.name} requires a parameter")
    return str(option.arg)


def def_get_boolean(option: DefElem) -> bool:
    """defGetBoolean: no value is true."""
    value = _boolean(option)
    if value is None:
        raise SqlSyntaxError(f"{option.name} requires a Boolean value")
    return value


def def_get_streaming_mode(option: DefElem) -> str:
    """defGetStreamingMode: off, on or parallel."""
    value = _boolean(option)
    if value is not None:
        return "on" if value else "off"
    if str(option.arg).lower() == "parallel":
        return "parallel"
    raise SqlSyntaxError(f'{option.name} requires a Boolean value or "parallel"')


def _boolean(option: DefElem) -> bool | None:
    match option.arg:
        case None | 1:
            return True
        case 0:
            return False
        case str() as text:
            return {"true": True, "on": True, "false": False, "off": False}.get(text.lower())
    return None


def conflicting_options() -> SqlSyntaxError:
    """errorConflictingDefElem"""
    return SqlSyntaxError("conflicting or redundant options")


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
