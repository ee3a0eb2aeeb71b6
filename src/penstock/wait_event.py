"""The waits of this process for something outside it (wait_event.c).

A thread calls ``waiting`` around a call that only storage, the state store's server or Spark can
end. The node's reports, and a stop, ask for the longest wait of a kind; they decide how long is too
long.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final


class WaitEventType(Enum):
    """What is waited for."""

    STORAGE = "storage"
    STATE_STORE = "state store"
    SPARK = "Spark"


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait. ``event``: the call, in words. ``since``: seconds since 1970."""

    type: WaitEventType
    event: str
    since: float


_waits: Final[dict[int, Wait]] = {}
_numbers: Final = itertools.count()


@contextlib.contextmanager
def waiting(type: WaitEventType, event: str) -> Iterator[None]:
    """Wait while the block runs."""
    number = next(_numbers)
    _waits[number] = Wait(type, event, time.time())
    try:
        yield
    finally:
        del _waits[number]


def longest_wait(type: WaitEventType) -> Wait | None:
    """Return the wait of this kind that began first; None if nothing waits."""
    found = (wait for wait in list(_waits.values()) if wait.type is type)
    return min(found, key=lambda wait: wait.since, default=None)
