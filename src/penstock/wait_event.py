"""The waits of this process for something outside it (wait_event.c).

A thread calls ``waiting`` around a call that only storage, the state store's server or Spark can
end. The node's reports, and a stop, ask for the longest wait of a kind; they decide how long is too
long.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

log = logging.getLogger(__name__)


class WaitEventType(Enum):
    """What is waited for."""

    STORAGE = "storage"
    STATE_STORE = "state store"
    FILES = "files in an object store"
    """Work with files there: not all of its time is a wait."""
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


# Stops. What is stopped ends its present work, which takes as long as it takes; but it does not
# wait for what does not answer. Any thread may be left behind at any point, as by SIGKILL: the next
# start finds what it has left.

PATIENCE_S: Final = 2.5
"""Seconds from the beginning of a stop in which what is outside may answer."""
_SILENT_S: Final = {
    WaitEventType.STORAGE: 3.0,  # a local disk under load takes its time
    WaitEventType.STATE_STORE: 1.0,
    WaitEventType.FILES: 1.5,
}
"""Seconds after which a wait counts as one for something that does not answer."""
_LOOK_S: Final = 0.1

left_behind: Final[list[str]] = []
"""What stops have left behind in this process: its threads do not end by themselves."""


def silent_wait() -> Wait | None:
    """Return the longest wait for something that does not answer; None if there is none."""
    now = time.time()
    waits = [wait for wait in map(longest_wait, _SILENT_S) if wait is not None]
    silent = [wait for wait in waits if now - wait.since > _SILENT_S[wait.type]]
    return min(silent, key=lambda wait: wait.since, default=None)


class Patience:
    """The patience of one stop, which begins when this is made."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PATIENCE_S

    def join(self, thread: threading.Thread, name: str, longest_s: float | None = None) -> bool:
        """Wait until the thread has ended, and return True; or leave it behind, as something
        outside does not answer, and say so. ``name``: for the log. ``longest_s``: of any wait."""
        until = None if longest_s is None else time.monotonic() + longest_s
        while thread.is_alive():
            if until is not None and time.monotonic() > until:
                return False
            thread.join(_LOOK_S)
            if thread.is_alive() and (wait := self.over()) is not None:
                leave_behind(name, wait)
                return False
        return True

    def over(self) -> Wait | None:
        """Return the wait for which a stop waits no longer; None while it goes on."""
        return silent_wait() if time.monotonic() > self._until else None

    def run(self, work: Callable[[], object], name: str) -> bool:
        """Do work that may wait for something outside, as ``join``; its error is only logged."""

        def do() -> None:
            try:
                work()
            except Exception as error:
                log.warning("%s: %s", name, error)

        thread = threading.Thread(target=do, name=name, daemon=True)
        thread.start()
        return self.join(thread, name)


def leave_behind(name: str, wait: Wait) -> None:
    """Note and log that a stop leaves something behind."""
    left_behind.append(name)
    waited = time.time() - wait.since
    log.warning(
        "the stop leaves the %s behind: %.0f s without answer: %s", name, waited, wait.event
    )
