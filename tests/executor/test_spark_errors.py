"""Errors of statements that Spark runs: what is told if it ends meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.catalog import LakeTable
from penstock.errors import SparkUnavailable, StorageError
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


def test_a_damaged_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": list(range(1000))}))
    (file,) = tmp_path.glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes(byte ^ 255 for byte in whole[100:300]) + whole[300:])
    with pytest.raises(StorageError) as error, spark_errors("t"):
        spark.read.format("delta").load(str(tmp_path)).selectExpr("sum(hash(id))").collect()
    assert file.name in error.value.message
    assert error.value.sqlstate == "XX001"
