"""``VACUUM`` of a node's tables every few minutes, by a Spark of its own, as a user's scheduler
would run it.

In: folders of Delta tables. Out: nothing; files older than the tables' retention are gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.lakehouse.session import build_session
from progress import say

_CONF: Final = {"spark.sql.shuffle.partitions": "1"}


@contextmanager
def vacuuming(folders: Sequence[Path], minutes: float) -> Iterator[None]:
    """Until the block is left, which raises what it has failed with."""
    spark = build_session(
        master="local[1]", driver_memory="512m", conf=_CONF, app_name="bench-vacuum"
    )
    _vacuum(spark, folders)  # what the JVM has to load and compile is not part of the load
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(minutes * 60):
            _vacuum(spark, folders)

    with ThreadPoolExecutor(1, "vacuum") as thread:
        running = thread.submit(run)
        try:
            yield
        finally:
            stop.set()
    spark.stop()
    running.result()


def _vacuum(spark: SparkSession, folders: Sequence[Path]) -> None:
    began = time.monotonic()
    for folder in folders:
        spark.sql(f"VACUUM delta.`{folder}`").collect()
    say(f"VACUUM of {len(folders)} tables: {time.monotonic() - began:.1f} s")
