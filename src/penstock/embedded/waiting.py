"""Waiting for a state, with a deadline: one way for the demo, the tests and the benchmarks.

In: a look at the state, and what it is waited for. Out: what the look has found, or a TimeoutError
that names what was waited for and the last state. Nothing in a production path waits like this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
_PAUSE: Final = 0.05
_SELDOM: Final = 2.0
"""So many times the duration of a look passes before the next one."""


def _nothing() -> None:
    return None


def wait_until(
    look: Callable[[], T],
    what: str,
    timeout: float = 60,
    *,
    state: Callable[[], object] | None = None,
    guard: Callable[[], object] = _nothing,
    progress: Callable[[], object] = _nothing,
    pause: float | None = None,
) -> T:
    """Look every ``pause`` seconds until what is found is true, and return it. Without a ``pause``,
    every 0.05 s, and more seldom where a look takes long: what is waited for is to have the
    processor, not the looking.

    ``state`` is asked for the message of the TimeoutError, else it shows what was found last.
    ``guard`` is called each time and raises when waiting has become pointless; as long as
    ``progress`` changes, there is time.
    """
    began = time.monotonic()
    deadline, reached = began + timeout, progress()
    while not (found := look()):
        if (now := progress()) != reached:
            deadline, reached = time.monotonic() + timeout, now
        guard()
        if time.monotonic() >= deadline:
            last = found if state is None else state()
            shown = "" if isinstance(last, bool) else f"; last seen: {last}"
            raise TimeoutError(f"no {what} in {timeout:g} s{shown}")
        adapted = max(_PAUSE, _SELDOM * (time.monotonic() - began))
        time.sleep(adapted if pause is None else pause)
        began = time.monotonic()
    return found
