"""How far readers are behind while a load goes on: delays, interval by interval.

In: commits as they are made, and what a reader sees, both from threads of this process. Out: the
delays of the commits that became visible since the last question.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from changes import Commit

_PAUSE_S: Final = 0.005


class Follower:
    """Notes when the visible position has moved, in a thread of its own, until the block is left.

    ``commits`` grows meanwhile."""

    def __init__(self, look: Callable[[], int | None], commits: Sequence[Commit]) -> None:
        self._look = look
        self._commits = commits
        self._seen: deque[tuple[float, int]] = deque()
        self._counted = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Commits that have not been seen when ``interval`` was last called."""
        return len(self._commits) - self._counted

    def interval(self) -> list[float]:
        """Delays of the commits seen since the last call, and the age of the oldest that is not."""
        found: list[float] = []
        while self._seen:
            at, position = self._seen.popleft()
            end = bisect_right(self._commits, position, key=lambda commit: commit.position)
            found += [at - commit.at for commit in self._commits[self._counted : end]]
            self._counted = max(self._counted, end)
        if self.waiting:
            found.append(time.time() - self._commits[self._counted].at)
        return found

    def _watch(self) -> None:
        last = 0
        while not self._stop.wait(_PAUSE_S):
            newest = self._look() or 0
            if newest > last:
                last = newest
                self._seen.append((time.time(), newest))
