"""Errors of statements that Spark runs, as a server would report them.

Spark makes one commit of each table. If an error comes after some of them, the client is told which
tables have their part of the statement already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from penstock.catalog import LakeTable
from penstock.errors import PenstockError, SparkUnavailable
from penstock.executor.rows import partly_done
from penstock.pipeline.evaluate import error_in_text


class PartByPart:
    """Follow a statement that commits its tables one after another."""

    def __init__(self) -> None:
        self._done: list[str] = []

    @contextmanager
    def committing(self, table: LakeTable) -> Iterator[None]:
        """Commit one table inside. Raises PenstockError (40003 if others are committed)."""
        try:
            with spark_errors():
                yield
        except PenstockError as error:
            if not self._done:
                raise
            raise partly_done(error, self._done) from error
        self._done.append(table.qualified_name)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn Spark's errors into ours, with the first line of the message."""
    try:
        yield
    except PySparkException as error:
        raise _failure(str(error), str(error), error.getSqlState()) from None
    except Py4JJavaError as error:  # a job that Delta ran for itself
        raise _failure(str(error.java_exception), str(error)) from None
    except (Py4JNetworkError, ConnectionError) as error:
        raise SparkUnavailable(
            "Spark has ended while it worked", hint="Try again: Spark is started again."
        ) from error


def _failure(message: str, trace: str, sqlstate: str | None = None) -> PenstockError:
    """Return our error for one of Spark's. ``trace`` has the causes, which the message of a failed
    job may lack."""
    told = error_in_text(trace)
    if told is not None:
        return told
    lines = message.strip().splitlines() or ["no message"]
    return PenstockError(f"the query failed: {lines[0]}", sqlstate=sqlstate or "XX000")
