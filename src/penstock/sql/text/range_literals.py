"""Read ranges in literals (range_in, range_parse of rangetypes.c).

The result is the text that range_out prints. Ranges of whole numbers and dates are canonical: they
include their lower bound, and exclude their upper one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from penstock.civil import parse_date, print_date
from penstock.errors import PenstockError
from penstock.sqlstate import InvalidTextRepresentation, NumericValueOutOfRange

_BOUND: Final = r'((?:[^"\\,()\[\]]++|\\.|"(?:[^"\\]++|\\.|"")*+")*+)'
_RANGE: Final = re.compile(rf"\s*([\[(]){_BOUND},{_BOUND}([\])])\s*", re.DOTALL)
_QUOTED: Final = re.compile(r'[\s"\\,()\[\]]')
_EMPTY: Final = "empty"


def read_range(
    text: str, canonical: Callable[[str], str], key: Callable[[str], object], bits: int = 0
) -> str:
    """Read a range. ``canonical``: reads a bound; ``key``: by which bounds are ordered.

    ``bits``: the width of whole numbers, 1 for dates, 0 for types without a successor. Raises
    PenstockError (22000, 22003, 22P02).
    """
    if text.strip().lower() == _EMPTY:
        return _EMPTY
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InvalidTextRepresentation(f'malformed range literal: "{text}"')
    below, above = match[1] == "[" and match[2] != "", match[4] == "]" and match[3] != ""
    lower, upper = (
        None if said == "" else canonical(_unquoted(said)) for said in (match[2], match[3])
    )
    if lower is not None and upper is not None:
        first, last = key(lower), key(upper)
        if first > last:  # type: ignore[operator]
            raise PenstockError(
                "range lower bound must be less than or equal to range upper bound",
                sqlstate="22000",
            )
        if first == last and not (below and above):
            return _EMPTY
    if bits:
        lower = _next(lower, bits) if lower is not None and not below else lower
        upper = _next(upper, bits) if upper is not None and above else upper
        below, above = lower is not None, False
        if lower is not None and lower == upper:
            return _EMPTY
    shown = (_shown(lower), _shown(upper))
    return f"{'[' if below else '('}{shown[0]},{shown[1]}{']' if above else ')'}"


def _next(bound: str, bits: int) -> str:
    if bits == 1:
        days = parse_date(bound.encode())
        return bound if days is None else print_date(days + 1)
    if int(bound) + 1 >= 1 << bits - 1:
        name = "integer" if bits == 32 else "bigint"
        raise NumericValueOutOfRange(f"{name} out of range")
    return str(int(bound) + 1)


def _unquoted(said: str) -> str:
    parts = re.findall(r'\\(.)|"((?:[^"\\]|\\.|"")*)"|(.)', said, re.DOTALL)
    return "".join(
        escaped or re.sub(r'\\(.)|""', lambda m: m[1] or '"', inner) or plain
        for escaped, inner, plain in parts
    )


def _shown(bound: str | None) -> str:
    if bound is None:
        return ""
    if bound and not _QUOTED.search(bound):
        return bound
    doubled = bound.replace("\\", "\\").replace('"', '""')
    return f'"{doubled}"'
