"""How many runs a figure gets: as many as wanted, as long as the whole stays within its time.

In: how long all may take, and about how long each workload takes with one run of each figure. Out:
run after run; none is left out but those behind the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from progress import say


class Budget:
    """``planned``: seconds by workload."""

    def __init__(
        self,
        seconds: float,
        planned: Mapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._rest = dict(planned)

    def begin(self, workload: str) -> None:
        """What it takes is no longer part of the rest."""
        del self._rest[workload]

    def runs(self, wanted: int) -> Iterator[int]:
        """Their numbers, from 0 on."""
        longest = 0.0
        for run in range(wanted):
            began = self._clock()
            if run and began + longest + sum(self._rest.values()) > self._end:
                say(f"no time for more than {run} of {wanted} runs")
                return
            yield run
            longest = max(longest, self._clock() - began)
