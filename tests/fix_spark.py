"""Fixture ``spark``: one Spark session with Delta for the whole test run (a start costs 9 s).

Nodes inside the tests' process run on it; what they do at intervals they do more often.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import pytest
from pyspark.sql import SparkSession

from penstock.lakehouse.session import build_session
from penstock.node import reports, running
from penstock.subscription import streaming

_INTERVALS: Final[tuple[tuple[ModuleType, str, float], ...]] = (
    (streaming, "_IDLE_CUT_INTERVAL", 0.1),
    (running, "_LOOK_INTERVAL", 0.05),
    (running, "_REPORT_INTERVAL", 0.1),
    (reports, "_INTERVAL", 0.5),
)
"""Seconds. Tests wait for what nodes do so: the cut of a quiet stream, and what a status shows."""

_INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Thousands of statements on a few rows each: to compile code for them is a quarter of the work.
``make faults``, and nodes that tests start as programs, compile as Spark does by itself."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The node's own session on two cores with little memory."""
    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        master="local[2]",
        driver_memory="1500m",
        conf={
            "spark.sql.warehouse.dir": str(folder),
            **({} if "PENSTOCK_FAULT_CYCLES" in os.environ else _INTERPRETED),
        },
        app_name="penstock-tests",
    )
    with pytest.MonkeyPatch.context() as patch:
        for module, name, seconds in _INTERVALS:
            patch.setattr(module, name, seconds)
        yield session
    session.stop()
