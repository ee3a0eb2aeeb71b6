"""Spark jobs that can be cancelled together: those that one statement of a session runs.

In: names of groups. Out: nothing; a cancelled group's jobs fail, those that it has not begun too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

_GROUP: Final = "spark.jobGroup.id"


class JobGroups:
    """Of one Spark session; threads may share it."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Jobs that this thread runs inside belong to the group."""
        self._context.setJobGroup(name, "penstock: statement")
        try:
            yield
        finally:
            self._context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]
            self._context.setJobDescription(None)  # type: ignore[arg-type]

    def interrupt(self, name: str) -> None:
        """Cancel the group, from any thread."""
        scala = self._context._jsc.sc()  # Python's cancelJobGroup lets the next job run
        scala.cancelJobGroupAndFutureJobs(name)
