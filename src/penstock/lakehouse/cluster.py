"""The Spark of a node: there when the first job or statement asks for it.

In: how its session is built. Out: the session, one for all threads, and groups of jobs that end
together. Most nodes have small tables and small transactions, whose work is done in the node's
process: they never need a JVM, which takes seconds to start and half a gigabyte.

Jobs that one statement of a session runs are a group: a cancelled one's jobs fail, those that it
has not begun too.
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
    """What runs jobs: a SparkSession, or a ``Cluster``, which starts it at the first of these."""

    @property
    def sparkContext(self) -> SparkContext:
        """Of the session."""

    def newSession(self) -> SparkSession:
        """One with settings and functions of its own."""


class Cluster:
    """Of one node; threads share it. ``build``: makes or finds the session, or raises."""

    def __init__(self, build: Callable[[], SparkSession]) -> None:
        self._build = build
        self._building = threading.Lock()
        self._session: SparkSession | None = None
        self._ended = False
        self._statement = _Statement()
        self._running: set[str] = set()
        """Groups that a thread is in."""
        self._cancelled: set[str] = set()
        """Those of them that were ended before there was a session to tell."""

    @property
    def started(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    @property
    def session(self) -> SparkSession:
        """The session; what this thread runs belongs to its group. Raises what building raises, and
        PenstockError once it was stopped."""
        with self._building:
            if self._ended:  # work beside the batches, which nobody waits for
                raise PenstockError("Spark has ended with its node")
            if self._session is None:
                began = time.monotonic()
                self._session = self._build()
                log.info("Spark has started in %.1f s", time.monotonic() - began)
        self._join(self._session.sparkContext)
        return self._session

    @property
    def sparkContext(self) -> SparkContext:
        """As ``Spark`` has it."""
        return self.session.sparkContext

    def newSession(self) -> SparkSession:
        """As ``Spark`` has it."""
        return self.session.newSession()

    def stop(self) -> None:
        """End the session, where there is one. None begins after it."""
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
        """Jobs that this thread runs inside belong to the group."""
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
        """Cancel the group, from any thread."""
        if name in self._running:
            self._cancelled.add(name)
        # After that: a thread that starts the session meanwhile looks there afterwards.
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
