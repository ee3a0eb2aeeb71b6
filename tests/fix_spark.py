"""Fixture ``spark``: one Spark session with Delta for the whole test run (a start costs 9 s)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1500m",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.log.level": "ERROR",
}


def _jars() -> str:
    folder = Path(os.environ.get("PENSTOCK_TEST_JARS", "/tmp/jars"))
    jars = [*folder.glob("delta-*.jar"), *folder.glob("unitycatalog-*.jar")]
    if not jars:
        pytest.skip("Delta's jars are missing")
    return ",".join(str(jar) for jar in sorted(jars))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Delta, UTC, two cores and little memory."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers without an active venv
    builder = SparkSession.builder.master("local[2]").appName("penstock-tests")
    builder = builder.config("spark.jars", _jars())
    builder = builder.config("spark.sql.warehouse.dir", str(folder))
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
