"""Read the values of options (define.c)."""

from __future__ import annotations

from penstock import guc
from penstock.errors import SqlSyntaxError
from penstock.sql import DefElem


def def_get_string(option: DefElem) -> str:
    """Return an option's value as text (defGetString)."""
    if option.arg is None:
        raise SqlSyntaxError(f"{option.name} requires a parameter")
    return str(option.arg)


def def_get_boolean(option: DefElem) -> bool:
    """Return an option's value as a boolean; without a value it is true (defGetBoolean)."""
    return guc.def_get_boolean(option.name, option.arg)


def def_get_streaming_mode(option: DefElem) -> str:
    """Return off, on or parallel (defGetStreamingMode)."""
    value = guc.option_bool(option.arg)
    if value is not None:
        return "on" if value else "off"
    if str(option.arg).lower() == "parallel":
        return "parallel"
    raise SqlSyntaxError(f'{option.name} requires a Boolean value or "parallel"')


def conflicting_options() -> SqlSyntaxError:
    """Return the error for an option that is given twice (errorConflictingDefElem)."""
    return SqlSyntaxError("conflicting or redundant options")
