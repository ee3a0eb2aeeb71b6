"""Parse options of plugins that take them one by one, as test_decoding and wal2json do in C.

The functions parse values, or raise PostgreSQL's errors (22023).
"""

from __future__ import annotations

from penstock.errors import InvalidParameterValue
from penstock.guc import parse_bool


def boolean(name: str, value: str | None) -> bool:
    """Return a boolean option's value; a missing one means true. Raises InvalidParameterValue."""
    if value is None:
        return True
    found = parse_bool(value)
    if found is None:
        raise not_parsed(name, value)
    return found


def not_parsed(name: str, value: str) -> InvalidParameterValue:
    """Return the error for a value that cannot be parsed."""
    return InvalidParameterValue(f'could not parse value "{value}" for parameter "{name}"')


def unknown(name: str, value: str | None) -> InvalidParameterValue:
    """Return the error for an option that the plugin does not have."""
    shown = "(null)" if value is None else value
    return InvalidParameterValue(f'option "{name}" = "{shown}" is unknown')
