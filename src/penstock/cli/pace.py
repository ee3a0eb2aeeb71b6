"""Amounts for people: bytes as pg_size_pretty prints them (dbsize.c), and the speed of copies.

In: the bytes and rows of each copy, with the time at which they were seen. Out: rates over the last
half minute, and the time left at that rate. Clocks are passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_UNIT: Final = 1024
_AS_THEY_ARE: Final = 10 * _UNIT
"""A number changes to the next unit at ten of that unit."""


def amount(size: int | None) -> str:
    """Return a size as pg_size_pretty prints it; - when unknown."""
    if size is None:
        return "-"
    value, unit = float(size), 0
    while round(value) >= _AS_THEY_ARE and unit < len(_UNITS) - 1:
        value, unit = value / _UNIT, unit + 1
    return f"{value:.0f} {_UNITS[unit]}"


_WINDOW_S: Final = 30.0
"""Seconds over which a rate is taken. Parts of a copy end in bursts: over less it would jump."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a copy. ``bytes``, ``rows``: per second; ``left``: seconds to the end, None
    while unknown."""

    bytes: float
    rows: float
    left: float | None


class Pace:
    """The recent progress of one copy."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def see(self, at: float, done: int, total: int, rows: int) -> Speed:
        """Record ``done`` of ``total`` bytes, and ``rows``, at a time in seconds; return the
        speed."""
        if self._seen and done < self._seen[-1][1]:  # the copy has begun again
            self._seen.clear()
        self._seen.append((at, done, rows))
        while len(self._seen) > 2 and self._seen[1][0] <= at - _WINDOW_S:
            self._seen.popleft()
        since, done_then, rows_then = self._seen[0]
        elapsed = at - since
        if elapsed <= 0 or done <= done_then:
            return Speed(0.0, 0.0, None)
        speed = (done - done_then) / elapsed
        return Speed(speed, (rows - rows_then) / elapsed, (total - done) / speed)
