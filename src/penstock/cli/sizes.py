"""Bytes for people (dbsize.c, pg_size_pretty)."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_UNIT: Final = 1024
_AS_THEY_ARE: Final = 10 * _UNIT
"""Below ten of the next unit a number is told in its own."""


def amount(size: int | None) -> str:
    """As pg_size_pretty prints them; - when unknown."""
    if size is None:
        return "-"
    value, unit = float(size), 0
    while round(value) >= _AS_THEY_ARE and unit < len(_UNITS) - 1:
        value, unit = value / _UNIT, unit + 1
    return f"{value:.0f} {_UNITS[unit]}"
