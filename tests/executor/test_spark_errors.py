"""Errors of statements that Spark runs: what is told if it ends meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.catalog import LakeTable
from penstock.errors import SparkUnavailable
from penstock.executor.spark_errors import PartByPart, spark_errors
from penstock.sqlstate import StatementCompletionUnknown

pytestmark = pytest.mark.spark

_TABLE = LakeTable(16400, "public", "t", "file:///t")


def _stopped_meanwhile() -> None:
    context: Any = SimpleNamespace(_jsc=None)
    context._jsc.sc()


def _lost_meanwhile() -> None:
    raise Py4JError("An error occurred while calling o17.sql")


@pytest.mark.parametrize("work", [_stopped_meanwhile, _lost_meanwhile])
def test_spark_that_ends_meanwhile_is_named(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(_jsc=None))
    with pytest.raises(SparkUnavailable, match="has ended while it worked"), spark_errors():
        work()
    with pytest.raises(StatementCompletionUnknown), PartByPart().committing(_TABLE):
        work()
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(SparkUnavailable), spark_errors():
        work()


@pytest.mark.parametrize("work", [_stopped_meanwhile, _lost_meanwhile])
def test_a_mistake_of_ours_is_not_taken_for_an_end_of_spark(work: Any, spark: SparkSession) -> None:
    with pytest.raises((AttributeError, Py4JError)), spark_errors():
        work()
