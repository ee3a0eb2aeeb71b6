"""From a commit on the publisher to a reader who can see it: two processes beside the subscriber.

In: a function that commits, and one that tells how far a reader sees. Out: one delay per
transaction. The writer commits at a steady rate; the reader looks again and again and notes when
the visible position has moved. Both use the clock of this machine.
"""

from __future__ import annotations

import multiprocessing
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Final

from changes import Commit
from percentiles import Delay

_LONGEST: Final = 120.0

Look = Callable[[], int | None]
"""The newest position that a reader sees."""


def measure(
    make_look: Callable[[], Look], write: Callable[[], list[Commit]], *, pause: float
) -> list[Delay]:
    """Delays of what ``write`` commits. ``make_look`` must pickle: the reader calls it."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    ours, theirs = context.Pipe()
    reader = context.Process(target=_read, args=(make_look, theirs, ready, done, pause))
    reader.start()
    if not ready.wait(_LONGEST):
        reader.kill()
        raise TimeoutError("the reading process has not started")
    commits = write()
    ours.send(commits[-1].position)
    done.set()
    seen: list[tuple[float, int]] = ours.recv()
    reader.join()
    return delays(commits, seen)


def delays(commits: Sequence[Commit], seen: Sequence[tuple[float, int]]) -> list[Delay]:
    """For each commit the time until the first look that showed its position or a later one."""
    positions = [position for _, position in seen]
    found = []
    for commit in commits:
        at = bisect_left(positions, commit.position)
        if at == len(positions):
            raise RuntimeError("a transaction has not become visible")
        found.append(Delay(commit.at, seen[at][0] - commit.at))
    return found


def _read(
    make_look: Callable[[], Look], pipe: Connection, ready: Event, done: Event, pause: float
) -> None:
    look = make_look()
    seen: list[tuple[float, int]] = []
    last = look() or 0
    ready.set()
    until: int | None = None
    deadline = 0.0
    while until is None or last < until:
        newest = look() or 0
        now = time.time()
        if newest > last:
            seen.append((now, newest))
            last = newest
        if until is None and done.is_set():
            until, deadline = pipe.recv(), time.monotonic() + _LONGEST
        if until is not None and time.monotonic() > deadline:
            break
        time.sleep(pause)
    pipe.send(seen)
