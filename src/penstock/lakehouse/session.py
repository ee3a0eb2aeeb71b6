"""The Spark session: built with Delta, or checked when the caller brings one.

In: master, memory, extra settings; or a session. Out: a session whose jobs are small and many, with
Delta's classes, in UTC. A zone other than UTC would make Delta verify every file at each commit,
and shows timestamps in a way that the publisher does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from penstock.errors import ConfigurationError
from penstock.lakehouse.jars import delta_jars

_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_SETTINGS: Final = {
    "spark.sql.extensions": _EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    "spark.log.level": "ERROR",
}
"""Small jobs in a row: little planning, few partitions, workers that stay. FAIR: a copy does not
hold up the stream."""

_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def build_session(
    *, master: str, driver_memory: str, conf: Mapping[str, str], app_name: str = "penstock"
) -> SparkSession:
    """Start a session. ``conf`` wins over everything here. Raises ConfigurationError."""
    # Executors on this machine run the interpreter that has the node's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {
        **_SETTINGS,
        **(_LOCAL_SETTINGS if master.startswith("local") else {}),
        "spark.driver.memory": driver_memory,
        "spark.jars": ",".join(str(jar) for jar in delta_jars()),
        **conf,
    }
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check_session(spark: SparkSession) -> None:
    """Whether a given session can do the node's work. Raises ConfigurationError with the remedy."""
    if _EXTENSION not in spark.conf.get("spark.sql.extensions", ""):
        raise ConfigurationError(
            "the SparkSession has no Delta Lake",
            detail=f'spark.sql.extensions does not name "{_EXTENSION}".',
            hint="Build it with Delta's extension, catalog and jars, or give no session to Node.",
        )
    spark.conf.set("spark.sql.session.timeZone", "UTC")
