"""Requests to end the statement that a thread runs (miscadmin.h, CHECK_FOR_INTERRUPTS).

The session that runs the statement says how to check for them. Loops whose length a client decides
call ``check_for_interrupts``; in threads of nobody's statement it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

_CHECK: Final[ContextVar[Callable[[], None] | None]] = ContextVar("interrupts", default=None)


def process_interrupts(check: Callable[[], None]) -> None:
    """Let ``check_for_interrupts`` call ``check`` in this thread."""
    _CHECK.set(check)


def check_for_interrupts() -> None:
    """Raise PenstockError (57014) if somebody has cancelled this thread's statement."""
    check = _CHECK.get()
    if check is not None:
        check()
