"""``VACUUM`` of a node's tables every few minutes, by a Spark of its own, as a user's scheduler
would run it.

In: folders of Delta tables. Out: nothing; files older than the tables' retention are gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.lakehouse.session import build_session
from progress import say

_CONF: Final = {"spark.sql.shuffle.partitions": "1"}


class Vacuum:
    """Runs in a thread until the block is left, which raises what it has failed with."""

    def __init__(self, folders: Sequence[Path], minutes: float) -> None:
        self._folders = folders
        self._every_s = minutes * 60
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._spark: SparkSession | None = None

    def __enter__(self) -> Vacuum:
        self._spark = build_session(
            master="local[1]", driver_memory="512m", conf=_CONF, app_name="bench-vacuum"
        )
        self._all(self._spark)  # what the JVM has to load and compile is not part of the load
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._spark is not None:
            self._spark.stop()
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        assert self._spark is not None
        try:
            while not self._stop.wait(self._every_s):
                self._all(self._spark)
        except BaseException as error:
            self._failed.append(error)

    def _all(self, spark: SparkSession) -> None:
        began = time.monotonic()
        for folder in self._folders:
            spark.sql(f"VACUUM delta.`{folder}`").collect()
        say(f"VACUUM of {len(self._folders)} tables: {time.monotonic() - began:.1f} s")
