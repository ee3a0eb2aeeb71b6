"""Sessions that others bring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from faults.heavy import part_of_make_faults
from penstock.errors import ConfigurationError
from penstock.lakehouse.session import check_session

DELTA = {
    "spark.sql.extensions": "a.B,io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
}


class Conf(dict[str, str]):
    def set(self, name: str, value: str) -> None:
        self[name] = value


def session(version: str = "4.2.0", **conf: str) -> SimpleNamespace:
    return SimpleNamespace(
        version=version, sparkContext=object(), _jvm=object(), conf=Conf(DELTA | conf)
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (session(version="4.3.0"), "4.3.0"),
        (session(**{"spark.sql.extensions": ""}), "no Delta Lake"),
        (session(**{"spark.sql.catalog.spark_catalog": ""}), "no Delta Lake"),
        (SimpleNamespace(version="4.2.0"), "Connect"),
    ],
)
def test_unfit_sessions(given: SimpleNamespace, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        check_session(cast(SparkSession, given))
    assert caught.value.hint


@pytest.mark.spark
def test_fit_session_gets_utc(spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    check_session(own)
    assert own.conf.get("spark.sql.session.timeZone") == "UTC"
    jvm: Any = spark._jvm
    zone = jvm.java.util.TimeZone.getDefault().getID()
    assert zone == "UTC", "Delta verifies all files at each commit in other zones"


@pytest.mark.spark
def test_the_classes_of_a_job_are_not_looked_up_for_each(spark: SparkSession) -> None:
    known = vars(spark.sparkContext._jvm)
    spark.sparkContext.parallelize([1], 1).map(str).collect()
    for name in ("PythonRDD", "PythonUtils", "SimplePythonFunction"):
        assert known[name]._fqn == f"org.apache.spark.api.python.{name}"


@pytest.mark.spark
def test_vacuum_of_a_small_table_is_small_jobs(spark: SparkSession, tmp_path: Path) -> None:
    own = spark.newSession()
    own.sql(f"CREATE TABLE delta.`{tmp_path}` (id INT) USING delta")
    context = own.sparkContext
    context.setJobGroup("vacuum", "")
    try:
        own.sql(f"VACUUM delta.`{tmp_path}`")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("vacuum")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    tasks = [stage.numTasks for stage in stages if stage]
    assert tasks
    assert max(tasks) < 100


_BESIDE_DUCKDB = """
import duckdb, signal, threading
from penstock.lakehouse.session import build_session

ready, over = threading.Event(), threading.Event()
mine = threading.local()

def query():
    mine.connection = duckdb.connect()
    mine.connection.execute("SELECT sum(range) FROM range(1000000)").fetchall()
    ready.set()
    over.wait()

threading.Thread(target=query, daemon=True).start()
ready.wait()
session = build_session(master="local[1]", driver_memory="512m", conf={})
print(session.range(3).count())
session.stop()
"""


_REBUILT = """
import os, signal, sys, threading
from pyspark import SparkContext
from pyspark.sql import SparkSession
from penstock.errors import SparkUnavailable
from penstock.executor.spark_errors import spark_errors
from penstock.lakehouse.cluster import Cluster
from penstock.lakehouse.session import build_session, running_session

def built():
    return build_session(master="local[1]", driver_memory="512m", conf={})

given = built()
cluster = Cluster(lambda: running_session(given))
assert cluster.session is given
given.stop()
second = built()  # before the node has looked
assert cluster.session is second and second.range(3).count() == 3
assert SparkSession.builder.getOrCreate() is second
os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
SparkContext._gateway.proc.wait()
try:
    cluster.session
except SparkUnavailable as refused:
    assert "Build another one" in refused.hint
third = built()
assert cluster.session is third and third.range(4).count() == 4
threading.Timer(1.0, os.kill, (SparkContext._gateway.proc.pid, signal.SIGKILL)).start()
try:
    with spark_errors():
        while True:
            third.range(10_000_000).selectExpr("sum(hash(id))").collect()
except SparkUnavailable as ended:
    assert "while it worked" in ended.message
print("well")
"""


@part_of_make_faults
def test_a_session_that_ends_is_followed_by_the_users_next_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REBUILT], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["well"], done.stderr


@part_of_make_faults
def test_a_session_starts_beside_threads_that_use_duckdb() -> None:
    """They must not be in the child that becomes the JVM."""
    done = subprocess.run(
        [sys.executable, "-c", _BESIDE_DUCKDB], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["3"], done.stderr
