"""Errors of statements that Spark runs, as a server would report them.

Spark makes one commit of each table. If an error comes after some of them, the client is told which
tables have their part of the statement already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from penstock.catalog import LakeTable
from penstock.errors import PenstockError, SparkUnavailable, StorageError
from penstock.executor.rows import partly_done
from penstock.lakehouse.cluster import GONE, is_running
from penstock.sql.to_duckdb.fmgr import retold
from penstock.sqlstate import StatementCompletionUnknown


def has_spark_ended(error: BaseException) -> bool:
    """Tell whether a call has failed because Spark has ended meanwhile: its JVM, or its session.
    What the call was to do may be done. Not every error of py4j tells it."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    context = SparkContext._active_spark_context
    return isinstance(error, GONE) and (context is None or not is_running(context))


class PartByPart:
    """Follow a statement that commits its tables one after another."""

    def __init__(self) -> None:
        self._done: list[str] = []

    @contextmanager
    def committing(self, table: LakeTable) -> Iterator[None]:
        """Commit one table inside. Raises PenstockError (40003 if others are committed, or if it is
        not known whether this one is)."""
        try:
            with spark_errors(table.name):
                yield
        except PenstockError as error:
            if self._done:
                raise partly_done(error, self._done) from error
            if isinstance(error, SparkUnavailable) and isinstance(error.__cause__, GONE):
                raise StatementCompletionUnknown(
                    error.message,
                    detail=f'It is not known whether the rows of "{table.qualified_name}" are '
                    "changed.",
                    hint="Look at what is there before you run the statement again.",
                ) from error
            raise
        self._done.append(table.qualified_name)


@contextmanager
def spark_errors(table: str = "") -> Iterator[None]:
    """Turn Spark's errors into a server's, or into ours with the first line of the message.
    ``table``: the name of the table that is written, if there is one."""
    try:
        yield
    except PySparkException as error:
        raise _failure(str(error), str(error), table, error.getSqlState()) from None
    except Py4JJavaError as error:  # a job that Delta ran for itself
        raise _failure(str(error.java_exception), str(error), table) from None
    except GONE as error:
        if not has_spark_ended(error):
            raise
        raise SparkUnavailable(
            "Spark has ended while it worked", hint="Try again: Spark is started again."
        ) from error


_CONSTRAINTS: Final = (
    (
        r"\[DELTA_VIOLATE_CONSTRAINT\w*\] CHECK constraint (.+?) (?:\(|violated)",
        "23514",
        'new row for relation "{table}" violates check constraint "{found}"',
    ),
    (
        r"\[DELTA_NOT_NULL_CONSTRAINT_VIOLATED\]"
        r" NOT NULL constraint violated for column: (.+?)\.(?:\s|$)",
        "23502",
        'null value in column "{found}" of relation "{table}" violates not-null constraint',
    ),
    (
        r"\[(?:DELTA_)?EXCEED_CHAR_VARCHAR_LIMIT\] .*?(?:limitation: |length\(.*?\) <= )(\d+)",
        "22001",
        "value too long for type character varying({found})",
    ),
)
"""Rules of Delta and Spark: how their errors begin, and SQLSTATE and message of a server."""
_DAMAGED: Final = re.compile(r"\[FAILED_READ_FILE[.\w]*\] .*? file ([^\s]+?)\.?(?:\s|$)")
_JAVA: Final = re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): ")


def _failure(message: str, trace: str, table: str, sqlstate: str | None = None) -> PenstockError:
    """Return our error for one of Spark's. ``trace`` has the causes, which the message of a failed
    job may lack. ``table``: the name of the table that is written, or ""."""
    told = retold(trace)
    if told is not None:
        return told
    if damaged := _DAMAGED.search(trace):
        return StorageError(
            f'could not read file "{damaged[1]}"',
            hint="Put the file back from a copy.",
            sqlstate="XX001",
        )
    for pattern, state, words in _CONSTRAINTS:
        if found := re.search(pattern, trace):
            return PenstockError(words.format(table=table, found=found[1]), sqlstate=state)
    lines = message.strip().splitlines() or ["no message"]
    words = _JAVA.sub("", lines[0])
    return PenstockError(f"the query failed: {words}", sqlstate=sqlstate or "XX000")
