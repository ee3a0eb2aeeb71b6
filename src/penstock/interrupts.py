"""Requests to end the statement that a thread runs (miscadmin.h, CHECK_FOR_INTERRUPTS), and the
point from which it may last.

The session that runs the statement says how to check for them. Loops whose length a client decides
call ``check_for_interrupts``, and what commits calls ``commit_begins``; in threads of nobody's
statement they do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from penstock.errors import PenstockError

_CHECK: Final[ContextVar[Callable[[], None] | None]] = ContextVar("interrupts", default=None)


class BeginAgain(PenstockError):
    """Raised in ``repeatable`` work that is to begin again later."""

    default_sqlstate = "57014"


_Result = TypeVar("_Result")
_REPEAT: Final[ContextVar[Callable[[Callable[[], Any]], Any] | None]] = ContextVar(
    "repeat", default=None
)


def repeat_with(run: Callable[[Callable[[], Any]], Any]) -> None:
    """Let ``repeatable`` call ``run`` in this thread. It calls the work, again after BeginAgain."""
    _REPEAT.set(run)


def repeatable(work: Callable[[], _Result]) -> _Result:
    """Return what the work returns. It may be interrupted by BeginAgain, and called again, if
    others wait for the thread's turn; so it must have no effect, and keep nothing open then."""
    run = _REPEAT.get()
    result: _Result = work() if run is None else run(work)
    return result


_BEGINS: Final[ContextVar[Callable[[], None] | None]] = ContextVar("commit", default=None)


def process_interrupts(check: Callable[[], None]) -> None:
    """Let ``check_for_interrupts`` call ``check`` in this thread."""
    _CHECK.set(check)
    if _OPEN.get() is None:  # one set for this thread and those that work for it
        _OPEN.set(WeakSet())


def check_for_interrupts() -> None:
    """Raise PenstockError (57014) if somebody has cancelled this thread's statement."""
    check = _CHECK.get()
    if check is not None:
        check()


def notice_commits(begins: Callable[[], None]) -> None:
    """Let ``commit_begins`` call ``begins`` in this thread."""
    _BEGINS.set(begins)


def commit_begins() -> None:
    """Note that what this thread's statement does may last from now on, even if nobody hears of
    it."""
    begins = _BEGINS.get()
    if begins is not None:
        begins()


# What a statement has open is closed when it fails. The garbage collector would come too late: an
# error's traceback holds what the statement was doing.


class Open(Protocol):
    """Something that holds memory or files until it is closed, such as a generator."""

    def close(self) -> None:
        """Let them go. It may be closed already."""


_Work = TypeVar("_Work", bound=Open)
_OPEN: Final[ContextVar[WeakSet[Open] | None]] = ContextVar("open", default=None)


def note_open(work: _Work) -> _Work:
    """Let ``close_open`` close the work of this thread's session; return it."""
    known = _OPEN.get()
    if known is None:
        known = WeakSet()
        _OPEN.set(known)
    known.add(work)
    return work


def close_open() -> None:
    """Close what statements of this thread's session have left open."""
    for work in tuple(_OPEN.get() or ()):
        work.close()
