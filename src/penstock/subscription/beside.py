"""One piece of work at a time in a thread of its own, beside the thread that applies batches.

In: work that touches nothing which that thread changes. Out: its result or its error, when the
applying thread asks for it; results that nobody takes any more are undone. What is done, and what
becomes of it, is ``upkeep``'s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Beside(Generic[Result]):
    """Of one session. All but the work is done by one thread."""

    def __init__(self, name: str, undo: Callable[[Result], None]) -> None:
        """``undo``: of a result that is not wanted; in any thread."""
        self._name, self._undo = name, undo
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended: tuple[Result | None, Exception | None] | None = None
        self._closed = False

    @property
    def free(self) -> bool:
        """Whether there is no work, nor a result that has not been taken."""
        return self._thread is None

    def begin(self, work: Callable[[], Result]) -> None:
        """Start it. Only where it is ``free``."""
        assert self.free
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name)
        self._thread.start()

    def take(self) -> Result | None:
        """The result, once it is there. Raises what the work has raised."""
        with self._lock:
            ended, self._ended = self._ended, None
        if ended is None:
            return None
        self._thread = None
        result, error = ended
        if error is not None:
            raise error
        return result

    def wait(self) -> None:
        """Until there is no more work to wait for."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Nothing is taken any more. Work that runs goes on to its end, and is undone."""
        with self._lock:
            self._closed, ended, self._ended = True, self._ended, None
        if ended is not None and ended[0] is not None:
            self._undo(ended[0])

    def _run(self, work: Callable[[], Result]) -> None:
        result: Result | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:  # for who takes the result
            error = raised
        with self._lock:
            closed = self._closed
            if not closed:
                self._ended = result, error
        if closed and result is not None:
            self._undo(result)
        if closed and error is not None:
            log.debug("%s, after the end of its session: %s", self._name, error)
