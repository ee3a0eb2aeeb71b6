"""How much time has passed, whatever is done to the clocks.

In: nothing. Out: seconds. The time of day may be set back, and the time since the start of the
machine may stand still while it is suspended or its image is moved: the one that says more is
believed, because what is asked is always whether something may still be trusted.
"""

from __future__ import annotations

import time
from typing import Final

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _steady() -> float:
    return time.clock_gettime(_STEADY)


class Elapsed:
    """Time since it was made."""

    def __init__(self) -> None:
        self._time, self._since_start = time.time(), _steady()

    @property
    def seconds(self) -> float:
        """Never less than 0."""
        return max(time.time() - self._time, _steady() - self._since_start)
