"""Cancelling a session's statement (postgres.c, ProcessInterrupts).

Another thread makes the request. The thread that runs the statement gets PostgreSQL's error at the
next row or portion that it reads, or when its Spark job has been stopped. Completed work, such as a
commit of the lake, is not undone.
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
        """Put the jobs that this thread starts inside the block into the group."""

    def interrupt(self, name: str) -> None:
        """End the jobs of the group, now and later."""


class Cancellation:
    """Cancel the statements of one session."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        # Others share the Spark context, and a cancelled name stays cancelled.
        session = uuid.uuid4()
        self._groups = (f"penstock {session} {number}" for number in itertools.count())
        self._group = next(self._groups)
        self._requested = threading.Event()
        self._ended = False
        self._actions: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin another query string; earlier requests do not cancel it."""
        self._group = next(self._groups)
        self._requested.clear()
        if self._ended:
            self.request()

    def request(self) -> None:
        """End the running statement soon; from any thread."""
        self._requested.set()
        self._jobs.interrupt(self._group)
        for action in list(self._actions):
            action()

    def end(self) -> None:
        """End the running statement and every later one; from any thread."""
        self._ended = True
        self.request()

    @property
    def ended(self) -> bool:
        """True once nothing may run any more."""
        return self._ended

    def forget(self) -> None:
        """Forget a request that was fulfilled; the rest of the query string runs."""
        self._group = next(self._groups)
        self._requested.clear()

    @contextmanager
    def interrupting(self, action: Callable[[], None]) -> Iterator[None]:
        """Let a request call ``action`` while inside, from any thread."""
        self._actions.append(action)
        try:
            yield
        finally:
            self._actions.remove(action)

    def requested(self) -> bool:
        """Tell whether the running statement has to end."""
        return self._requested.is_set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run a part of the statement that waits for jobs. Raises PenstockError (57014)."""
        try:
            with self._jobs.group(self._group):
                self.check()  # inside the group: from now on a request finds it
                yield
        except Exception:
            self.check()
            raise

    def drawn(self, items: Iterable[Drawn]) -> Iterator[Drawn]:
        """Yield the items until a request comes. Raises PenstockError (57014)."""
        for item in items:
            self.check()
            yield item

    def copied(self, chunks: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Yield ``CopyOut.chunks`` until a request comes; a message that has begun is finished.
        Raises PenstockError (57014)."""
        for rows, messages in chunks:
            if rows:
                self.check()
            yield rows, messages

    def check(self) -> None:
        """Raise PenstockError (57014) if there was a request."""
        if self.requested():
            raise QueryCanceled.by_user() from None
