"""Cancel a session's statement, also after ``statement_timeout`` (postgres.c, ProcessInterrupts).

Another thread requests it. In the thread that runs the statement, PostgreSQL's error is raised at
the next row or portion that it reads, or when its Spark job has been stopped. Completed work, such
as a Delta commit, is not undone.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from penstock.interrupts import BeginAgain, process_interrupts
from penstock.precedence import PRECEDENCE
from penstock.protocol.answers import Cells, ColumnRows
from penstock.sqlstate import QueryCanceled, StatementCompletionUnknown

Drawn = TypeVar("Drawn")
_TICK_S: Final = 0.1


class Jobs(Protocol):
    """Groups of jobs that statements wait for, such as Spark jobs."""

    def group(self, name: str) -> AbstractContextManager[None]:
        """Put the jobs that this thread starts inside the ``with`` block into the group."""

    def interrupt(self, name: str) -> None:
        """Stop the group's jobs, including any that start later."""


class Cancellation:
    """Cancels the statements of one session. ``pause`` is called between rows."""

    def __init__(self, jobs: Jobs, pause: Callable[[], None] = lambda: None) -> None:
        self._jobs = jobs
        self._pause = pause
        # Sessions share the Spark context, and a cancelled group stays cancelled: use new names.
        session = uuid.uuid4()
        self._groups = (f"penstock {session} {number}" for number in itertools.count())
        self._group = next(self._groups)
        self._requested = threading.Event()
        self._again = threading.Event()
        self._ended = self._timed_out = False
        self._timer: threading.Timer | None = None
        self._timing = threading.Lock()
        self._actions: list[Callable[[], None]] = []
        self._acting = threading.Lock()

    def begin(self) -> None:
        """Begin a query string, in the session's thread; earlier requests do not cancel it."""
        process_interrupts(self.check)
        self._group = next(self._groups)
        self._requested.clear()
        self._again.clear()
        if self._ended or self._timed_out:
            self.request()

    def start_timer(self, timeout_s: float) -> None:
        """Cancel what the session runs after so many seconds, unless a timer runs already; 0:
        never (enable_statement_timeout)."""
        if timeout_s <= 0 or self._timer is not None:
            return
        timer = threading.Timer(timeout_s, lambda: self._time_out(timer))
        timer.daemon = True
        with self._timing:  # it must not be over before it is known
            timer.start()
            self._timer = timer

    def stop_timer(self) -> None:
        """Stop the timer: the statement has ended, or commits (disable_statement_timeout)."""
        with self._timing:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            if self._timed_out:
                self.forget()

    def _time_out(self, timer: threading.Timer) -> None:
        with self._timing:
            if self._timer is not timer:
                return
            self._timed_out, group = True, self._group
            self._requested.set()
        self._interrupt(group)

    def request(self) -> None:
        """Cancel the running statement. Any thread may call this."""
        self._requested.set()
        self._interrupt(self._group)

    def begin_again(self) -> None:
        """Let ``check`` raise BeginAgain, until ``begins_again``. Any thread may call this."""
        if not self._again.is_set():
            self._again.set()
            with suppress(RuntimeError):  # there are too many threads
                self._start_acting()

    def begins_again(self) -> None:
        """Note that the work begins again, or has ended before."""
        if self._again.is_set():
            with self._acting:
                self._again.clear()

    def _interrupt(self, group: str) -> None:
        self._jobs.interrupt(group)
        self._start_acting()

    def _start_acting(self) -> None:
        threading.Thread(target=self._act, name="cancel", daemon=True).start()

    def _act(self) -> None:
        """Run the actions until the statement has ended: an action just before the work that it is
        to interrupt would be lost."""
        while True:
            with self._acting:
                if not self.requested() or not self._actions:
                    return
                for action in self._actions:
                    action()
            time.sleep(_TICK_S)

    def end(self) -> None:
        """Cancel the running statement and every later one. Any thread may call this."""
        self._ended = True
        self.request()

    @property
    def ended(self) -> bool:
        """True after ``end``: no statement may run any more."""
        return self._ended

    def forget(self) -> None:
        """Forget a request that has been handled, so that the rest of the query string runs."""
        self._group = next(self._groups)
        self._timed_out = False
        self._requested.clear()

    @contextmanager
    def interrupting(self, action: Callable[[], None]) -> Iterator[None]:
        """Let a cancel request run ``action`` during the ``with`` block, in any thread."""
        with self._acting:
            self._actions.append(action)
        try:
            self.check()
            yield
        finally:
            with self._acting:
                self._actions.remove(action)

    def requested(self) -> bool:
        """Tell whether the running statement is to be cancelled, or begins again."""
        return self._requested.is_set() or self._again.is_set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run a part of the statement that waits for jobs. Raises PenstockError (57014), but not in
        the place of 40003: whoever reads that nothing was done would do it again."""
        try:
            with self._jobs.group(self._group):
                self.check()  # inside the group: a later request will stop its jobs
                yield
        except StatementCompletionUnknown:
            raise
        except Exception:
            self.check()
            raise

    def drawn(self, rows: Iterable[Cells]) -> Iterable[Cells]:
        """Return the rows. Reading them raises PenstockError (57014) at a cancel request."""
        if isinstance(rows, ColumnRows):
            return replace(rows, batches=self._checked(rows.batches))
        return self._checked(rows)

    def _checked(self, items: Iterable[Drawn]) -> Iterator[Drawn]:
        for item in items:
            self.check()
            self._pause()
            yield item

    def copied(self, chunks: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Yield ``CopyOut.chunks``. Raises PenstockError (57014) at a cancel request, but never
        within a message."""
        for rows, messages in chunks:
            if rows:
                self.check()
                self._pause()
            yield rows, messages

    def check(self) -> None:
        """Raise PenstockError (57014) if cancellation was requested, or the time is over. Give way
        to what goes first."""
        PRECEDENCE.give_way()
        if self._requested.is_set():
            raise (QueryCanceled.by_timeout if self._timed_out else QueryCanceled.by_user)()
        if self._again.is_set():
            raise BeginAgain("the statement begins again later")
