"""Let statements of roles that have just used much give way to others, and to the node's own work.

All threads of a node share one Python interpreter, which has no priorities: beside two statements
that compute in Python, a third one has a third of it, however short it is. So a statement whose
role has used more than another one's gives way while the other one begins: it stops at the next
``give_way``. It does not stop for long, so that it comes to an end beside any number of others, and
a part of the time for which it stops counts as used by the role that it stops for: who only waits
for something outside cannot hold others up again and again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeVar

_HALF_LIFE_S: Final = 1.0
"""The time after which a second that was used counts half."""
_MARGIN_S: Final = 0.03
"""Whoever has used so much more gives way."""
_FIRST_S: Final = 0.25
"""Work has precedence for so long; after that it may wait for something for minutes."""
_LONGEST_S: Final = 0.1
"""The longest that work gives way at a time."""
_STOPS: Final = 9.0
"""In all it stops for so many times as long as it goes on."""
_CHARGE: Final = 0.25
"""The part of the time for which others stop that counts as used."""
_EVERY_S: Final = 0.001
_MUCH_S: Final = 1.0
"""Whoever has used so much does further work with low priority."""
_NICE: Final = 5
"""Not more: whoever waits for the interpreter waits for a thread that has it, too."""
_Result = TypeVar("_Result")
NODE: Final = 0
"""The owner of the node's own work, which does not give way. No role has this oid."""
LOGIN: Final = -1
"""The owner of what is done for clients before they have a role. Nobody gives way to it."""


@dataclass(eq=False, slots=True)
class _Use:
    """The seconds of processor time that an owner has used, those long ago counted less."""

    seconds: float = 0.0
    at: float = field(default_factory=time.monotonic)
    stopped_until: float = 0.0
    """Until when the time for which others have stopped is counted."""

    def now(self, now: float, more: float = 0.0) -> float:
        """Add to it, and return it."""
        decayed = 0.5 ** ((now - self.at) / _HALF_LIFE_S)
        self.seconds, self.at = self.seconds * decayed + more, now
        return self.seconds

    def stopped(self, since: float, now: float) -> None:
        """Add a part of the time for which others have stopped, once for all of them."""
        self.now(now, max(now - max(since, self.stopped_until), 0.0) * _CHARGE)
        self.stopped_until = now


@dataclass(eq=False, slots=True)
class _Work:
    """What one thread does."""

    owner: int
    superuser: bool = False
    began: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.thread_time)
    looks: float = 0.0
    """When it looks next whether it has to give way."""
    arrivals: int = 0
    """The work that had begun when it looked last: it also looks after new work has begun."""
    stopped: float = 0.0
    """The time for which it has given way."""
    holds: int = 0
    """How many things it holds that others may wait for."""

    def may_stop(self, now: float) -> float:
        """Return for how many seconds it may give way."""
        ran = now - self.began - self.stopped
        return _LONGEST_S + ran * _STOPS - self.stopped


_MINE: Final = threading.local()


class _PoliteThreads:
    """Threads of low priority. They are kept, with what they keep in thread-local variables."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    def result_of(self, call: Callable[[], _Result]) -> _Result:
        """Return what the call returns, or raise what it raises, in one of the threads."""
        made = Future[_Result]()
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = SimpleQueue()
            try:
                threading.Thread(target=_serve, args=(calls,), name="polite", daemon=True).start()
            except RuntimeError:  # there are too many threads
                return call()
        calls.put(partial(_make, call, made))
        try:
            return made.result()
        finally:
            del made  # as in ``_make``
            self._idle.append(calls)


def _serve(calls: SimpleQueue[Callable[[], None]]) -> None:
    if sys.platform == "linux":  # other systems know no priorities of threads
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    while True:
        calls.get()()


def _make(call: Callable[[], _Result], made: Future[_Result]) -> None:
    try:
        made.set_result(call())
    except BaseException as error:
        made.set_exception(error)
    finally:
        del made, call  # an error holds this frame by its traceback


class Precedence:
    """The work of a process's threads."""

    def __init__(self) -> None:
        self._active: set[_Work] = set()
        self._use: dict[int, _Use] = {}
        self._changed = threading.Condition()
        self._arrivals = 0
        self._polite = _PoliteThreads()

    @contextmanager
    def work(self, owner: int, *, superuser: bool = False) -> Iterator[None]:
        """Do an owner's work in the ``with`` block, in this thread. Work within work belongs to it.
        ``superuser``: it gives way to the node's own work only."""
        if getattr(_MINE, "work", None) is not None:
            yield
            return
        mine = _MINE.work = _Work(owner, superuser)
        with self._changed:
            self._active.add(mine)
            self._arrivals += 1
        try:
            self.give_way()
            yield
        finally:
            _MINE.work = None
            with self._changed:
                self._active.remove(mine)
                self._count(mine, time.monotonic())
                self._changed.notify_all()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Do not give way in the ``with`` block: this thread holds what others may wait for."""
        _hold(1)
        try:
            yield
        finally:
            _hold(-1)

    @property
    def idle(self) -> bool:
        """True while nobody has precedence."""
        with self._changed:
            now = time.monotonic()
            return not any(each.owner != LOGIN and _left(each, now) > 0 for each in self._active)

    def give_way(self) -> None:
        """Wait while this thread's work has to give way; only within ``work``."""
        mine: _Work | None = getattr(_MINE, "work", None)
        if mine is None or mine.holds or mine.owner == NODE:
            return
        now, arrivals = time.monotonic(), self._arrivals
        if now < mine.looks and arrivals == mine.arrivals:
            return
        mine.arrivals, began = arrivals, now
        until = began + min(_LONGEST_S, mine.may_stop(now))
        with self._changed:
            self._count(mine, now)
            while now < until and (first := self._before(mine, now)):
                left = max(_left(each, now) for each in first)
                self._changed.wait(min(left, until - now))
                since, now = now, time.monotonic()
                for owner in {each.owner for each in first} - {NODE}:
                    self._use.setdefault(owner, _Use()).stopped(since, now)
        mine.stopped += now - began
        mine.looks = now + _EVERY_S

    def _before(self, mine: _Work, now: float) -> list[_Work]:
        """Return the work of others that goes first."""
        limit = self._use[mine.owner].now(now) - _MARGIN_S
        if limit <= 0:
            return []
        return [
            each
            for each in self._active
            if each.owner not in (mine.owner, LOGIN)
            and (each.owner == NODE or not mine.superuser)
            and _left(each, now) > 0
            and (each.owner not in self._use or self._use[each.owner].now(now) < limit)
        ]

    def politely(self, call: Callable[[], _Result]) -> _Result:
        """Return what the call returns; if this thread's work has used much, a thread of low
        priority makes the call. A thread cannot have its own priority back without a right."""
        mine: _Work | None = getattr(_MINE, "work", None)
        if mine is None or mine.owner == NODE or not self._has_used_much(mine):
            return call()
        with self._changed:
            self._count(mine, time.monotonic())
        context = copy_context()
        try:
            return self._polite.result_of(lambda: context.run(self._within, mine, call))
        finally:
            mine.used = time.thread_time()

    def _has_used_much(self, mine: _Work) -> bool:
        with self._changed:
            use = self._use.get(mine.owner)
            return use is not None and use.now(time.monotonic()) > _MUCH_S

    def _within(self, mine: _Work, call: Callable[[], _Result]) -> _Result:
        """Make a call that belongs to the work of another thread, which waits for it."""
        _MINE.work, mine.used = mine, time.thread_time()
        try:
            return call()
        finally:
            _MINE.work = None
            with self._changed:
                self._count(mine, time.monotonic())

    def _count(self, mine: _Work, now: float) -> None:
        used = time.thread_time()
        self._use.setdefault(mine.owner, _Use()).now(now, used - mine.used)
        mine.used = used


def _left(work: _Work, now: float) -> float:
    """Return for how many seconds work has precedence yet."""
    return work.began + _FIRST_S - now


def _hold(more: int) -> None:
    """Let this thread's work hold more things that others may wait for, or fewer."""
    mine: _Work | None = getattr(_MINE, "work", None)
    if mine is not None:
        mine.holds += more


PRECEDENCE: Final = Precedence()
"""The work of this process."""


class WorkLock:
    """A lock whose holder does not give way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        _hold(1)

    def __exit__(self, *error: object) -> None:
        _hold(-1)
        self._lock.release()
