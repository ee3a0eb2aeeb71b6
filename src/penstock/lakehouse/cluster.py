"""The Spark of a node, which starts when the first job or statement asks for it.

``Cluster`` builds one session for all threads, and gathers jobs into groups. Most nodes have small
tables and small transactions, and do their work in the node's process. They never need a JVM, which
takes seconds to start and half a gigabyte. If Spark ends (its JVM is killed, somebody has stopped
the session), the next work builds another session.

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

from penstock.errors import PenstockError, SparkLost, SparkUnavailable
from penstock.wait_event import WaitEventType, waiting

log = logging.getLogger(__name__)

_GROUP: Final = "spark.jobGroup.id"
_GIVE_UP_S: Final = 300.0
"""Seconds for which a Spark that has ended is started again; then the process is to end."""
_LOOK_S: Final = 0.1
_STOP_S: Final = 4.0
"""Seconds that Spark has to end; then its JVM, which may be suspended, is killed."""
GONE: Final = (Py4JError, OSError, AttributeError)
"""What calls raise if the JVM has ended, or if the session was stopped (a missing ``_jsc``)."""


class Spark(Protocol):
    """A runner of jobs: a SparkSession, or a ``Cluster``, which starts one at the first use."""

    @property
    def sparkContext(self) -> SparkContext:
        """The session's context."""

    def newSession(self) -> SparkSession:
        """Return a session with settings and functions of its own."""


def is_running(context: SparkContext) -> bool:
    """Return whether the context can run jobs: nobody has stopped it, and its JVM lives."""
    jvm_context: Any = context._jsc
    if jvm_context is None:
        return False
    try:
        return not jvm_context.sc().isStopped()
    except GONE:
        return False


def forget(session: SparkSession) -> None:
    """Let the next session of this process be a new one, after Spark has ended. PySpark keeps the
    session and the way to its JVM for ever, and fails if it is to stop them without the JVM."""
    context: Any = session.sparkContext
    if not forget_dead_jvm():
        if SparkContext._active_spark_context is context:  # else it may end a later session
            with contextlib.suppress(*GONE):
                session.stop()
        return
    context._jsc = None
    with contextlib.suppress(*GONE):
        context._accumulatorServer.shutdown()


def forget_dead_jvm() -> bool:
    """Let the next session start a JVM if that of this process has ended; return whether it has."""
    with SparkContext._lock:
        gateway: Any = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if process is None or process.poll() is None:
            return False
        SparkContext._gateway = SparkContext._jvm = None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        with contextlib.suppress(*GONE):
            gateway.shutdown()
    return True


@contextlib.contextmanager
def working(context: SparkContext) -> Iterator[None]:
    """Work with a context. Raises SparkUnavailable if Spark ends meanwhile: PySpark's errors do not
    tell."""
    try:
        with waiting(WaitEventType.SPARK, "job"):
            yield
    except PenstockError:
        raise
    except Exception as error:
        if is_running(context):
            raise
        raise SparkUnavailable(
            "Spark has ended while it worked",
            detail=str(error).strip().partition("\n")[0] or None,
            hint="It is started again.",
        ) from error


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """Clean up in a session after work. If Spark has ended nothing is left there, and what the work
    raised is to be told."""
    with contextlib.suppress(*GONE):
        yield


def cancel_jobs(context: SparkContext, group: str) -> None:
    """Cancel the running jobs of a group; if Spark has ended they have, too."""
    with contextlib.suppress(*GONE):
        context.cancelJobGroup(group)


class Cluster:
    """The Spark of one node, shared by its threads. ``build`` makes or finds the session, or
    raises; ``end_build`` makes a ``build`` that is under way raise."""

    def __init__(
        self, build: Callable[[], SparkSession], end_build: Callable[[], None] = lambda: None
    ) -> None:
        self._build = build
        self._end_build = end_build
        self._building = threading.Lock()
        self._session: SparkSession | None = None
        self._ended = False
        self._ended_at: float | None = None
        """The time at which Spark was found to have ended; None once it has started again."""
        self._lost: SparkLost | None = None
        self._given_up = False
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
            if self._session is not None and not is_running(self._session.sparkContext):
                log.warning("Spark has ended; it is started again")
                forget(self._session)
                self._session = None
                self._ended_at = time.monotonic()
            if self._session is None:
                if self._given_up:
                    raise SparkUnavailable("Spark is not started: its node stops")
                began = time.monotonic()
                self._session = self._start()
                log.info("Spark has started in %.1f s", time.monotonic() - began)
        self._join(self._session.sparkContext)
        return self._session

    def _start(self) -> SparkSession:
        try:
            session = self._build()
        except Exception as error:
            at = time.monotonic()
            if self._ended_at is not None and at - self._ended_at > _GIVE_UP_S:
                self._lost = SparkLost(
                    f"Spark has ended, and could not be started again for {_GIVE_UP_S:.0f} s",
                    detail=str(error),
                    hint="Start the node again, by a supervisor that restarts it after a failure.",
                )
            raise
        self._ended_at = self._lost = None
        return session

    def check(self) -> None:
        """Raise SparkLost if Spark has ended and cannot be started again in this process."""
        if self._lost is not None:
            raise self._lost

    @property
    def sparkContext(self) -> SparkContext:
        """The session's context (``Spark``)."""
        return self.session.sparkContext

    def newSession(self) -> SparkSession:
        """Return a session with settings and functions of its own (``Spark``)."""
        return self.session.newSession()

    @property
    def starved(self) -> bool:
        """Return whether there are jobs and none of their tasks runs: no executor takes them."""
        if (session := self._session) is None:
            return False
        with contextlib.suppress(*GONE):
            tracker = session.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            return bool(stages) and not any(stage.numActiveTasks for stage in stages if stage)
        return False

    def stop(self) -> None:
        """End the session if there is one, and let no other begin."""
        with self._building:
            self._ended = True
            if self._session is not None:
                ending = threading.Thread(target=_end, args=(self._session,), daemon=True)
                ending.start()
                ending.join(_STOP_S)
                if ending.is_alive():
                    log.warning("Spark has not ended within %.0f s; its JVM is killed", _STOP_S)
                    _kill_jvm()
                self._session = None

    def give_up(self) -> None:
        """Begin no session until ``take_up``, and end the start of one. A session that is there
        goes on. Returns at once."""
        self._given_up = True
        threading.Thread(target=self._end_builds, name="end of a start", daemon=True).start()

    def _end_builds(self) -> None:
        # A start that has just begun may have nothing to end yet.
        while self._given_up and self._building.locked() and self._session is None:
            self._end_build()
            time.sleep(_LOOK_S)

    def take_up(self) -> None:
        """Begin a session when one is needed again."""
        self._given_up = False

    @contextlib.contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Put the jobs that this thread runs in the context into the group."""
        self._statement.group = name
        self._running.add(name)
        if (session := self._session) is not None:
            with contextlib.suppress(*GONE):
                self._join(session.sparkContext)
        try:
            yield
        finally:
            joined, self._statement.joined = self._statement.joined, None
            self._statement.group = None
            self._running.discard(name)
            self._cancelled.discard(name)
            if joined is not None:
                with contextlib.suppress(*GONE):
                    joined.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]
                    joined.setJobDescription(None)  # type: ignore[arg-type]

    def interrupt(self, name: str) -> None:
        """Cancel the group if a thread is in it; any thread may call this. Return at once: a JVM
        may take long to answer."""
        if name not in self._running:
            return
        self._cancelled.add(name)
        # Only now look for a session: a thread that is starting one checks _cancelled afterwards.
        if (session := self._session) is not None:
            arguments = (session.sparkContext, name)
            threading.Thread(target=_cancel, args=arguments, name="cancel", daemon=True).start()

    def _join(self, context: SparkContext) -> None:
        mine = self._statement
        if mine.group is None or mine.joined is context:
            return
        context.setJobGroup(mine.group, "penstock: statement")
        mine.joined = context
        if mine.group in self._cancelled:
            _cancel(context, mine.group)


def _end(session: SparkSession) -> None:
    # A signal to the whole process group (systemd, a terminal) has ended the JVM already.
    with contextlib.suppress(Py4JError, OSError):
        session.stop()


def _kill_jvm() -> None:
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()


@contextlib.contextmanager
def job_group(spark: Spark, name: str) -> Iterator[None]:
    """Put this thread's jobs into a group that ``end_jobs`` ends. Users' own sessions have none."""
    with spark.group(name) if isinstance(spark, Cluster) else contextlib.nullcontext():
        yield


def end_jobs(spark: Spark, name: str) -> None:
    """Cancel the group's jobs, also those that have not begun. Any thread may call this."""
    if isinstance(spark, Cluster):
        spark.interrupt(name)


class _Statement(threading.local):
    """The group of a thread, and the context that knows it."""

    group: str | None = None
    joined: SparkContext | None = None


def _cancel(context: SparkContext, group: str) -> None:
    with contextlib.suppress(*GONE):  # its jobs have ended, too
        scala: Any = context._jsc.sc()  # Python's cancelJobGroup lets the next job run
        scala.cancelJobGroupAndFutureJobs(group)
