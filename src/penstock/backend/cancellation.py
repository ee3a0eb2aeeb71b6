"""Cancelling a session's statement (postgres.c, ProcessInterrupts).

In: a request from another thread. Out: PostgreSQL's error in the thread that runs the statement, at
the next row or portion that is drawn, or when the Spark job that it waits for has been stopped.
What is done before, such as a commit of the lake, stays done.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from penstock.sqlstate import QueryCanceled

Drawn = TypeVar("Drawn")


class Jobs(Protocol):
    """Work that statements wait for, by groups."""

    def group(self, name: str) -> AbstractContextManager[None]:
        """What this thread starts inside belongs to the group."""

    def interrupt(self, name: str) -> None:
        """End what belongs to the group, now and later."""


class Cancellation:
    """Of one session."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        session = uuid.uuid4()  # others share the Spark context, and a cancelled name stays so
        self._groups = (f"penstock {session} {number}" for number in itertools.count())
        self._group = next(self._groups)
        self._requested = threading.Event()
        self._ended = False
        self._actions: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Another query string: what was asked before does not concern it."""
        self._group = next(self._groups)
        self._requested.clear()
        if self._ended:
            self.request()

    def request(self) -> None:
        """End what runs, soon; from any thread."""
        self._requested.set()
        self._jobs.interrupt(self._group)
        for action in list(self._actions):
            action()

    def end(self) -> None:
        """End what runs, and whatever would run after it; from any thread."""
        self._ended = True
        self.request()

    @property
    def ended(self) -> bool:
        """Whether nothing is to run any more."""
        return self._ended

    def forget(self) -> None:
        """What was asked for has been done: what comes next in the query string runs."""
        self._group = next(self._groups)
        self._requested.clear()

    @contextmanager
    def interrupting(self, action: Callable[[], None]) -> Iterator[None]:
        """While inside, a request calls ``action``, from any thread."""
        self._actions.append(action)
        try:
            yield
        finally:
            self._actions.remove(action)

    def requested(self) -> bool:
        """Whether what runs is to end."""
        return self._requested.is_set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """A part of the statement that waits for jobs. Raises PenstockError (57014)."""
        try:
            with self._jobs.group(self._group):
                self.check()  # inside: from here on a request finds the group
                yield
        except Exception:
            self.check()
            raise

    def drawn(self, items: Iterable[Drawn]) -> Iterator[Drawn]:
        """The items, until it is requested. Raises PenstockError (57014)."""
        for item in items:
            self.check()
            yield item

    def copied(self, chunks: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """As ``drawn``, for ``CopyOut.chunks``: a message that has begun is finished."""
        for rows, messages in chunks:
            if rows:
                self.check()
            yield rows, messages

    def check(self) -> None:
        """Raises PenstockError (57014) when it is requested."""
        if self.requested():
            raise QueryCanceled.by_user() from None
