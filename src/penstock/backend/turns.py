"""Let the statements of one role take turns, so that no role takes the processor from the others.

A node is one process: whoever runs fifty statements at once has most of its time. So only a few
statements of a role run at the same time; the next ones wait in line, but not for long: behind
statements that take minutes, a short one begins after two seconds. A statement gives its turn back
while it waits for its client, and at times while it sends rows if others wait. Superusers do not
wait, nor do replication connections, which need a right.
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
_LONGEST_S: Final = 2.0
"""The longest wait for a turn."""


class _Line:
    """The turns of one role, and who waits for them."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[threading.Event] = deque()


class Turns:
    """The turns of a node's roles. ``most``: statements of a role that run at once; 0: no limit."""

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

    def take(self, role: int, check: Callable[[], None]) -> None:
        """Wait for a turn, or long enough. ``check`` is called meanwhile, and may raise to give
        up."""
        with self._lock:
            line = self._lines.setdefault(role, _Line())
            if not line.waiting and self._is_free(line):
                line.running += 1
                return
            mine = threading.Event()
            line.waiting.append(mine)
        until = time.monotonic() + _LONGEST_S
        try:
            while not mine.wait(_TICK_S):
                check()
                if time.monotonic() >= until:
                    self._begin(line, mine)
            check()
        except BaseException:
            with self._lock:
                if mine in line.waiting:
                    line.waiting.remove(mine)
                    raise
            self.give_back(role)
            raise

    def _begin(self, line: _Line, mine: threading.Event) -> None:
        with self._lock:
            if mine in line.waiting:
                line.waiting.remove(mine)
                line.running += 1
                mine.set()

    def give_back(self, role: int) -> None:
        """End a turn; whoever has waited longest gets the next one."""
        with self._lock:
            line = self._lines[role]
            line.running -= 1
            self._hand_on(line)
            if not line.running and not line.waiting:
                del self._lines[role]

    def wanted(self, role: int) -> bool:
        """Tell whether others of the role wait."""
        line = self._lines.get(role)
        return line is not None and bool(line.waiting)

    def _hand_on(self, line: _Line) -> None:
        while line.waiting and self._is_free(line):
            line.running += 1
            line.waiting.popleft().set()

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

    @contextmanager
    def of(self, role: int, check: Callable[[], None]) -> Iterator[None]:
        """Have a turn of a role in the ``with`` block. ``check`` is called while the session waits
        for it, and may raise to give up."""
        self._role, self._check = role, check
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
            self._turns.give_back(self._role)

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

    def _take(self, role: int) -> None:
        self.waits = True
        try:
            self._turns.take(role, self._check)
        finally:
            self.waits = False
        self._taken, self._until = True, time.monotonic() + _SLICE_S


def _go_on() -> None:
    pass
