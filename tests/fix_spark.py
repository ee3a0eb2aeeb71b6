"""Fixture ``spark``: one Spark session with Delta for the whole test run (a start costs 9 s)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.lakehouse.session import build_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The node's own session on two cores with little memory."""
    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        master="local[2]",
        driver_memory="1500m",
        conf={"spark.sql.warehouse.dir": str(folder)},
        app_name="penstock-tests",
    )
    yield session
    session.stop()
