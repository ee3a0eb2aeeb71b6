"""SELECT on tables of the lake: rows read by Spark's executors, joined and sorted by DuckDB.

In: compiled SQL, and its inputs as tables at versions. Out: record batches. Executors read the
columns that are used and leave out rows that the condition of their table excludes; the rest is one
DuckDB in this process, whose memory is bounded and which spills. A query that reads one table once
holds none of its rows longer than it needs them; for others inputs are kept until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import duckdb
import pyarrow as pa

from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.storage import Storage
from penstock.pipeline.copy_to import CopyTable, read_rows
from penstock.pipeline.duck import lent, query_error, read_from

_BATCH_ROWS: Final = 10_000


@dataclass(frozen=True)
class QueryInput:
    """A relation of the SQL. ``schema``: of its columns; ``predicate``: rows that can count."""

    name: str
    schema: pa.Schema
    tables: tuple[CopyTable, ...]
    predicate: str | None = None


class Interrupts(Protocol):
    """How a statement is ended from outside."""

    def interrupting(self, action: Callable[[], None]) -> AbstractContextManager[None]:
        """While inside, a request calls ``action``, from any thread."""

    def check(self) -> None:
        """Raises PenstockError (57014) when it is requested."""


class LakeQuery:
    """One query. ``staging``: URI of a folder; ``once``: each input is read once, in a stream."""

    def __init__(
        self, spark: Spark, storage: Storage, staging: str, interrupts: Interrupts
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._staging = staging
        self._interrupts = interrupts
        self._failed: list[BaseException] = []

    def run(
        self, sql: str, inputs: Sequence[QueryInput], *, once: bool
    ) -> Iterator[pa.RecordBatch]:
        """Raises PenstockError; ends when it is closed."""
        with lent() as duck, self._interrupts.interrupting(duck.interrupt):
            try:
                for given in inputs:
                    self._open(duck, given, once)
                yield from read_from(duck, sql, _BATCH_ROWS)
                for given in inputs:
                    _close(duck, given, once)
            except duckdb.Error as error:
                raise self._error(error) from None

    def _open(self, duck: duckdb.DuckDBPyConnection, given: QueryInput, once: bool) -> None:
        rows = pa.RecordBatchReader.from_batches(given.schema, self._rows(given))
        if once:
            duck.register(given.name, rows)
            return
        duck.register("arriving", rows)
        duck.execute(f"CREATE TEMP TABLE {given.name} AS SELECT * FROM arriving")
        duck.unregister("arriving")

    def _rows(self, given: QueryInput) -> Iterator[pa.RecordBatch]:
        """DuckDB hides what is raised here: it is kept."""
        try:
            for batch in read_rows(
                self._spark,
                self._storage,
                given.tables,
                staging=self._staging,
                predicate=given.predicate,
            ):
                self._interrupts.check()
                yield batch.cast(given.schema)
        except BaseException as error:
            self._failed.append(error)
            raise

    def _error(self, error: duckdb.Error) -> BaseException:
        self._interrupts.check()
        return self._failed[0] if self._failed else query_error(error)


def _close(duck: duckdb.DuckDBPyConnection, given: QueryInput, once: bool) -> None:
    if once:
        duck.unregister(given.name)
    else:
        duck.execute(f"DROP TABLE {given.name}")
