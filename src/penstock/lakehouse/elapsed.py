"""Elapsed time that does not depend on one clock.

In: nothing. Out: seconds. The time of day may be set back, and the time since the machine's start
may stand still while it is suspended or its image is moved. The clock that says more is believed:
callers ask whether something may still be trusted.
"""

from __future__ import annotations

import time
from typing import Final

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _steady() -> float:
    return time.clock_gettime(_STEADY)


class Elapsed:
    """The time since this object was made."""

    def __init__(self) -> None:
        self._time, self._since_start = time.time(), _steady()

    @property
    def seconds(self) -> float:
        """The seconds that have passed by the clock that says more."""
        return max(time.time() - self._time, _steady() - self._since_start)
