"""Let the statements of one role take turns, so that no role takes the processor from the others.

A node is one process: whoever runs fifty statements at once has most of its time. So only a few
statements of a role run at the same time; the next ones wait in line. A statement gives its turn
back while it waits for its client, and at times while it sends rows if others wait. Superusers do
not wait, nor do replication connections, which need a right.

Behind statements that take minutes, a short one does not wait for long: one more statement at a
time runs as a guest. A guest that takes longer, while others wait, begins again with a turn of its
own, if nothing is lost by that; if something is, the next one need not wait for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SLICE_S: Final = 0.1
"""A statement that has had its turn for so long goes to the end of the line between two rows."""
_TICK_S: Final = 0.1
_WAIT_S: Final = 1.0
"""Whoever has waited so long may be a guest."""
_VISIT_S: Final = 2.0
"""The time that a guest has while others wait."""


class _Line:
    """The turns of one role, and who waits for them."""

    def __init__(self) -> None:
        self.running = 0
        self.guests: set[Turn] = set()
        self.waiting: deque[Turn] = deque()

    @property
    def unused(self) -> bool:
        """True if nobody of the role runs or waits."""
        return not self.running and not self.guests and not self.waiting


class Turns:
    """The turns of a node's roles. ``most``: statements of a role that run at once, beside a guest;
    0: no limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[int, _Line] = {}
        self._lock = threading.Lock()

    def allow(self, most: int) -> None:
        """Let more or fewer statements of a role run at once, also of those that wait."""
        with self._lock:
            self._most = most
            for line in self._lines.values():
                self._hand_on(line)

    def take(self, role: int, mine: Turn, check: Callable[[], None]) -> None:
        """Wait for a turn, or to be a guest. ``check`` is called meanwhile, and may raise to give
        up."""
        with self._lock:
            line = self._lines.setdefault(role, _Line())
            mine.begins.clear()
            if not line.waiting and self._is_free(line):
                line.running += 1
                return
            line.waiting.append(mine)
        since = time.monotonic()
        try:
            while not mine.begins.wait(_TICK_S):
                check()
                if mine.may_visit and time.monotonic() - since >= _WAIT_S:
                    self._visit(line, mine)
            check()
        except BaseException:
            with self._lock:
                if mine in line.waiting:
                    line.waiting.remove(mine)
                    raise
            self.give_back(role, mine)
            raise

    def _visit(self, line: _Line, mine: Turn) -> None:
        with self._lock:
            if mine not in line.waiting:
                return
            now = time.monotonic()
            for guest in line.guests:
                if now < guest.visits_until:
                    return
                if guest.leaves is not None:
                    guest.leaves()
                    if now < guest.visits_until + _VISIT_S:  # it will hear of it
                        return
            line.waiting.remove(mine)
            line.guests.add(mine)
            mine.visits_until = now + _VISIT_S
            mine.begins.set()

    def give_back(self, role: int, mine: Turn) -> None:
        """End a turn or a visit; whoever has waited longest gets the next turn."""
        with self._lock:
            line = self._lines[role]
            if mine in line.guests:
                line.guests.remove(mine)
            else:
                line.running -= 1
                self._hand_on(line)
            if line.unused:
                del self._lines[role]

    def let_leave(self, mine: Turn, leaves: Callable[[], None] | None) -> None:
        """Let a guest that is to leave be told so; None: it cannot leave."""
        with self._lock:
            mine.leaves = leaves

    def wanted(self, role: int) -> bool:
        """Tell whether others of the role wait."""
        line = self._lines.get(role)
        return line is not None and bool(line.waiting)

    def _hand_on(self, line: _Line) -> None:
        while self._is_free(line):
            if line.waiting:
                line.waiting.popleft().begins.set()
            elif line.guests:
                line.guests.pop()
            else:
                return
            line.running += 1

    def _is_free(self, line: _Line) -> bool:
        return not self._most or line.running < self._most


class Turn:
    """The turn of one session. Only its own thread may use it."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._check: Callable[[], None] = _go_on
        self._role: int | None = None
        self._taken = False
        self._until = 0.0
        self.waits = False
        """True while the session waits for its turn. Other threads may read it."""
        self.begins = threading.Event()
        self.may_visit = True
        """False while the statement waits after it was a guest for too long."""
        self.visits_until = 0.0
        self.leaves: Callable[[], None] | None = None

    @contextmanager
    def of(self, role: int, check: Callable[[], None]) -> Iterator[None]:
        """Have a turn of a role in the ``with`` block. ``check`` is called while the session waits
        for it, and may raise to give up."""
        self._role, self._check, self.may_visit = role, check, True
        try:
            self._take(role)
            yield
        finally:
            self.leave()
            self._role = None

    def leave(self) -> None:
        """Give the turn back until the next ``share``: the session waits for something outside."""
        if self._taken and self._role is not None:
            self._taken = False
            self._turns.give_back(self._role, self)

    def share(self) -> None:
        """Go to the end of the line if the turn has been long and others wait, or if ``leave`` gave
        it back. The session must hold nothing that another one could wait for."""
        role = self._role
        if role is None or (self._taken and time.monotonic() < self._until):
            return
        if self._taken and not self._turns.wanted(role):
            self._until = time.monotonic() + _SLICE_S
            return
        self.leave()
        self._take(role)

    @contextmanager
    def repeatable(self, leave: Callable[[], None]) -> Iterator[None]:
        """Do what can be begun again in the ``with`` block. Another thread may call ``leave``
        during it, so that the block ends early; then ``wait_again``."""
        self._turns.let_leave(self, leave)
        try:
            yield
        finally:
            self._turns.let_leave(self, None)

    def wait_again(self) -> None:
        """Wait for a turn, after having been a guest for too long."""
        if self._role is not None:
            self.leave()
            self.may_visit = False
            self._take(self._role)
            self.may_visit = True

    def _take(self, role: int) -> None:
        self.waits = True
        try:
            self._turns.take(role, self, self._check)
        finally:
            self.waits = False
        self._taken, self._until = True, time.monotonic() + _SLICE_S


def _go_on() -> None:
    pass
