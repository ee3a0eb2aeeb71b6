"""A copy for which Spark works ends at a cancel request, even if the JVM does not answer."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.interrupts import process_interrupts
from penstock.lakehouse.cluster import Cluster
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgtypes.pg_type import INT8
from penstock.pipeline import copy_to
from penstock.pipeline.scan import ScanColumn
from penstock.sqlstate import QueryCanceled

_ROWS = 20_000


def test_it_ends_without_an_answer_of_the_jvm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": pa.array(range(_ROWS), pa.int64())}))
    monkeypatch.setattr(copy_to, "_FIRST_WAVE_BYTES", 50_000)
    monkeypatch.setattr(copy_to, "_WAVE_BYTES", 50_000)
    monkeypatch.setattr(copy_to, "HERE_BYTES", -1.0)
    warehouse = Warehouse(str(tmp_path), fsync=False)
    table = copy_to.CopyTable(
        str(tmp_path / "t"), 0, (copy_to.CopyColumn(ScanColumn("id", "id", pa.int64()), INT8),)
    )
    cluster = Cluster(lambda: spark)
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise QueryCanceled.by_user()

    def copied() -> int:
        process_interrupts(check)
        staging = str(tmp_path / "staging")
        return sum(
            rows
            for rows, _ in copy_to.copy_to(cluster, warehouse.storage, [table], staging=staging)
        )

    assert copy_context().run(copied) == _ROWS
    gateway: Any = SparkContext._gateway
    jvm = gateway.proc.pid
    os.kill(jvm, signal.SIGSTOP)
    try:
        threading.Timer(1.0, cancelled.set).start()
        began = time.monotonic()
        with pytest.raises(QueryCanceled):
            copy_context().run(copied)
        assert time.monotonic() - began < 10
    finally:
        os.kill(jvm, signal.SIGCONT)
    cancelled.clear()
    assert copy_context().run(copied) == _ROWS
