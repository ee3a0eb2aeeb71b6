"""Waiting for a state, with a deadline: one way for the demo, the tests and the benchmarks.

In: a function that looks at the state, and a name for what is waited for. Out: what the look has
found, or a TimeoutError with that name and the last state. No production code waits like this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
_PAUSE: Final = 0.05
_SELDOM: Final = 2.0
"""The pause before the next look, in durations of the last one."""


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
    """Look every ``pause`` seconds until the result is true, and return it.

    Without ``pause``, look every 0.05 s, and less often if a look takes long, so as to leave the
    processor to the work that is waited for. The TimeoutError shows ``state()``, or the last result
    without ``state``. ``guard`` is called at each look and raises if waiting has become pointless.
    The deadline moves on whenever ``progress()`` changes.
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
