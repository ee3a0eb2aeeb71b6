"""The Spark of a node, which starts when the first job or statement asks for it.

``Cluster`` builds one session for all threads, and gathers jobs into groups. Most nodes have small
tables and small transactions, and do their work in the node's process. They never need a JVM, which
takes seconds to start and half a gigabyte.

The jobs of one statement are a group. When a group is cancelled all its jobs fail, including those
that have not begun.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import PenstockError

log = logging.getLogger(__name__)

_GROUP: Final = "spark.jobGroup.id"


class Spark(Protocol):
    """A runner of jobs: a SparkSession, or a ``Cluster``, which starts one at the first use."""

    @property
    def sparkContext(self) -> SparkContext:
        """The session's context."""

    def newSession(self) -> SparkSession:
        """Return a session with settings and functions of its own."""


class Cluster:
    """The Spark of one node, shared by its threads. ``build`` makes or finds the session, or
    raises."""

    def __init__(self, build: Callable[[], SparkSession]) -> None:
        self._build = build
        self._building = threading.Lock()
        self._session: SparkSession | None = None
        self._ended = False
        self._statement = _Statement()
        self._running: set[str] = set()
        """Groups that a thread is in."""
        self._cancelled: set[str] = set()
        """Running groups that were cancelled; ``_join`` also cancels them in a later context."""

    @property
    def started(self) -> bool:
        """Return whether there is a session."""
        return self._session is not None

    @property
    def session(self) -> SparkSession:
        """The session, which is built if there is none. Jobs of this thread belong to the thread's
        group. Raises the errors of ``build``; PenstockError after ``stop``."""
        with self._building:
            if self._ended:  # only background work, for which nobody waits, gets here
                raise PenstockError("Spark has ended with its node")
            if self._session is None:
                began = time.monotonic()
                self._session = self._build()
                log.info("Spark has started in %.1f s", time.monotonic() - began)
        self._join(self._session.sparkContext)
        return self._session

    @property
    def sparkContext(self) -> SparkContext:
        """The session's context (``Spark``)."""
        return self.session.sparkContext

    def newSession(self) -> SparkSession:
        """Return a session with settings and functions of its own (``Spark``)."""
        return self.session.newSession()

    def stop(self) -> None:
        """End the session if there is one, and let no other begin."""
        with self._building:
            self._ended = True
            if self._session is not None:
                # A signal to the whole process group (systemd, a terminal) has ended the JVM
                # already.
                with contextlib.suppress(Py4JError, OSError):
                    self._session.stop()
                self._session = None

    @contextlib.contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Put the jobs that this thread runs in the context into the group."""
        self._statement.group = name
        self._running.add(name)
        if self._session is not None:
            self._join(self._session.sparkContext)
        try:
            yield
        finally:
            joined, self._statement.joined = self._statement.joined, None
            self._statement.group = None
            self._running.discard(name)
            self._cancelled.discard(name)
            if joined is not None:
                joined.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]
                joined.setJobDescription(None)  # type: ignore[arg-type]

    def interrupt(self, name: str) -> None:
        """Cancel the group; any thread may call this."""
        if name in self._running:
            self._cancelled.add(name)
        # Only now look for a session: a thread that is starting one checks _cancelled afterwards.
        if self._session is not None:
            _cancel(self._session.sparkContext, name)

    def _join(self, context: SparkContext) -> None:
        mine = self._statement
        if mine.group is None or mine.joined is not None:
            return
        context.setJobGroup(mine.group, "penstock: statement")
        mine.joined = context
        if mine.group in self._cancelled:
            _cancel(context, mine.group)


class _Statement(threading.local):
    """The group of a thread, and the context that knows it."""

    group: str | None = None
    joined: SparkContext | None = None


def _cancel(context: SparkContext, group: str) -> None:
    scala: Any = context._jsc.sc()  # Python's cancelJobGroup lets the next job run
    scala.cancelJobGroupAndFutureJobs(group)
