"""A session that is there when it is asked for, and groups of jobs that end together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.embedded import wait_until
from penstock.errors import ConfigurationError, PenstockError, SparkLost, SparkUnavailable
from penstock.lakehouse.cluster import Cluster, Spark, working
from penstock.lakehouse.session import running_session, session_of_a_statement
from penstock.pipeline.job import run_job

pytestmark = pytest.mark.spark


def one(item: int) -> list[int]:
    return [item]


def a_job(spark: Spark) -> list[int]:
    return run_job(spark, [(1.0, 1), (1.0, 2)], one, "a job")


def a_statement(spark: Spark) -> list[int]:
    session = session_of_a_statement(spark)
    return [row[0] for row in session.range(1, 3, numPartitions=2).collect()]


WORK = pytest.mark.parametrize("work", [a_job, a_statement])


def in_a_thread(work: Callable[[], None]) -> None:
    """As sessions have it: what a group sets is of this thread only."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = InheritableThread(run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@WORK
def test_the_first_work_builds_it_once(
    spark: SparkSession, work: Callable[[Spark], list[int]]
) -> None:
    built: list[SparkSession] = []

    def build() -> SparkSession:
        built.append(spark)
        return spark

    cluster = Cluster(build)
    assert not cluster.started
    with cluster.group("small"):
        assert run_job(cluster, [(0.1, 1)], one, "small", here=1.0) == [1]
    cluster.interrupt("small")
    assert not cluster.started
    for _ in range(2):
        assert sorted(work(cluster)) == [1, 2]
    assert built == [spark]


@WORK
def test_a_group_that_was_ended_before_there_was_a_session(
    spark: SparkSession, work: Callable[[Spark], list[int]]
) -> None:
    cluster = Cluster(lambda: spark)

    def statement() -> None:
        with cluster.group("early"):
            cluster.interrupt("early")
            with pytest.raises((PySparkException, Py4JError), match="cancelled"):
                work(cluster)
        work(cluster)
        with cluster.group("another"):
            work(cluster)

    in_a_thread(statement)


@WORK
def test_a_group_that_is_ended_while_the_session_is_built(
    spark: SparkSession, work: Callable[[Spark], list[int]]
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def build() -> SparkSession:
        entered.set()
        assert go_on.wait(20)
        return spark

    cluster = Cluster(build)

    def end() -> None:
        assert entered.wait(20)
        cluster.interrupt("slow start")
        go_on.set()

    def statement() -> None:
        other = threading.Thread(target=end)
        other.start()
        with (
            cluster.group("slow start"),
            pytest.raises((PySparkException, Py4JError), match="cancelled"),
        ):
            work(cluster)
        other.join()

    in_a_thread(statement)


def test_a_job_that_runs_is_ended(spark: SparkSession) -> None:
    cluster = Cluster(lambda: spark)
    group = "long job"

    def end() -> None:
        jobs = spark.sparkContext.statusTracker()
        wait_until(lambda: jobs.getJobIdsForGroup(group), "the job", 20)
        cluster.interrupt(group)

    def statement() -> None:
        other = threading.Thread(target=end)
        other.start()
        session = session_of_a_statement(cluster)
        with cluster.group(group), pytest.raises((PySparkException, Py4JError), match="cancelled"):
            session.range(1 << 50, numPartitions=2).selectExpr("sum(hash(id))").collect()
        other.join()

    in_a_thread(statement)


def test_a_session_that_cannot_be_built_is_tried_again(spark: SparkSession) -> None:
    answers: list[Callable[[], SparkSession]] = [lambda: spark]

    def build() -> SparkSession:
        if answers:
            answers.pop()
            raise ConfigurationError("no cluster")
        return spark

    cluster = Cluster(build)
    with pytest.raises(ConfigurationError, match="no cluster"):
        a_job(cluster)
    assert not cluster.started
    assert sorted(a_job(cluster)) == [1, 2]


def test_spark_that_cannot_be_started_again_is_lost(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.lakehouse.cluster._GIVE_UP_S", 0.0)
    sessions: list[Any] = []

    def build() -> SparkSession:
        if not sessions:
            raise SparkUnavailable("no memory")
        found: SparkSession = sessions.pop()
        return found

    cluster = Cluster(build)
    with pytest.raises(SparkUnavailable, match="no memory"):
        _ = cluster.session
    cluster.check()  # it has not started yet, and may
    sessions.append(_Stopped())
    _ = cluster.session
    with pytest.raises(SparkUnavailable, match="no memory"):
        _ = cluster.session
    with pytest.raises(SparkLost, match="could not be started again") as lost:
        cluster.check()
    assert lost.value.detail == "no memory"
    sessions.append(spark)
    assert cluster.session is spark
    cluster.check()


def test_nothing_begins_after_its_end() -> None:
    cluster = Cluster(lambda: pytest.fail("it is built"))
    cluster.stop()
    with pytest.raises(PenstockError, match="has ended"):
        _ = cluster.session


class _Stopped:
    """A session that somebody has stopped."""

    _jvm = object()

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(_jsc=None, setJobGroup=lambda *_: None)

    def stop(self) -> None:
        """As again and again in a notebook."""


def test_a_session_that_was_stopped_is_replaced(spark: SparkSession) -> None:
    sessions: list[Any] = [_Stopped(), spark]
    cluster = Cluster(lambda: sessions.pop(0))

    def statement() -> None:
        with cluster.group("first"):
            assert cluster.session is not spark
            cluster.interrupt("another")
        with cluster.group("second"):
            assert sorted(a_job(cluster)) == [1, 2]

    in_a_thread(statement)
    assert sessions == [] and cluster.session is spark


def test_a_given_session_that_was_stopped_is_replaced_by_the_next(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: Any = _Stopped()
    assert running_session(spark) is spark
    assert running_session(stopped) is SparkSession._instantiatedSession
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    with pytest.raises(SparkUnavailable, match="has been stopped"):
        running_session(stopped)


def test_work_in_a_session_that_is_stopped_meanwhile_says_so(spark: SparkSession) -> None:
    context: Any = SimpleNamespace(_jsc=None)
    with pytest.raises(SparkUnavailable, match="has ended"), working(context):
        context._jsc.sc()
    with pytest.raises(ZeroDivisionError), working(spark.sparkContext):
        _ = 1 // 0
    with pytest.raises(ConfigurationError), working(context):
        raise ConfigurationError("ours")


def test_a_start_that_is_given_up_ends() -> None:
    entered, ended = threading.Event(), threading.Event()

    def build() -> SparkSession:
        entered.set()
        assert ended.wait(20)
        raise SparkUnavailable("could not start Spark")

    cluster = Cluster(build, ended.set)
    waiting = ThreadPoolExecutor(1).submit(lambda: cluster.session)
    assert entered.wait(20)
    cluster.give_up()
    with pytest.raises(SparkUnavailable, match="could not start"):
        waiting.result(20)
    with pytest.raises(SparkUnavailable, match="its node stops"):
        _ = cluster.session


class _Suspended:
    """A session whose JVM does not answer."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(sc=self.go_on.wait))

    def stop(self) -> None:
        self.go_on.wait()


def test_who_ends_work_does_not_wait_for_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.lakehouse.cluster._STOP_S", 0.1)
    session: Any = _Suspended()
    killed: list[bool] = []
    gateway = SimpleNamespace(proc=SimpleNamespace(kill=lambda: killed.append(True)))
    cluster = Cluster(lambda: session)
    cluster._session = session
    with ThreadPoolExecutor(1) as pool:
        cluster.interrupt("nobody's")
        with monkeypatch.context() as patched:
            patched.setattr(SparkContext, "_gateway", gateway)
            cluster._running.add("a group")
            pool.submit(cluster.interrupt, "a group").result(20)
            pool.submit(cluster.stop).result(20)
        session.go_on.set()
    assert killed == [True]
