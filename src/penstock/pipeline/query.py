"""SELECT on tables of the lake: rows read by Spark's executors, joined and sorted by DuckDB.

Compiled SQL reads tables at versions and returns record batches. Executors read the columns in use
and leave out rows that the condition on their table excludes. One DuckDB in this process does the
rest with bounded memory, and spills. A query that reads one table once holds rows only as long as
it needs them; other queries keep their inputs until the end.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Final, Protocol

import duckdb
import pyarrow as pa

from penstock.interrupts import note_open, repeatable
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.storage import Storage
from penstock.pipeline.copy_to import CopyTable, read_rows
from penstock.pipeline.duck import lent, query_error, read_from

_BATCH_ROWS: Final = 10_000


@dataclass(frozen=True)
class QueryInput:
    """A relation in the SQL. ``predicate``: selects the rows that can matter to the result."""

    name: str
    schema: pa.Schema
    tables: tuple[CopyTable, ...]
    predicate: str | None = None


class Interrupts(Protocol):
    """Requests from outside to end a statement."""

    def interrupting(self, action: Callable[[], None]) -> AbstractContextManager[None]:
        """Let a request call ``action``, in any thread, during the context."""

    def check(self) -> None:
        """Raise PenstockError (57014) if the end was requested."""


class LakeQuery:
    """One query. ``staging``: URI of a folder."""

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
        """Yield the query's rows; closing the iterator ends the query. ``once``: each input is read
        once, in a stream. Raises PenstockError."""
        return note_open(self._run(sql, inputs, once))

    def _run(
        self, sql: str, inputs: Sequence[QueryInput], once: bool
    ) -> Generator[pa.RecordBatch, None, None]:
        first, rows = repeatable(functools.partial(self._begun, sql, inputs, once))
        with closing(rows):
            yield from first
            yield from rows

    def _begun(
        self, sql: str, inputs: Sequence[QueryInput], once: bool
    ) -> tuple[list[pa.RecordBatch], Generator[pa.RecordBatch, None, None]]:
        """Return the first rows, and the iterator of the others."""
        rows = self._attempt(sql, inputs, once)
        return list(itertools.islice(rows, 1)), rows

    def _attempt(
        self, sql: str, inputs: Sequence[QueryInput], once: bool
    ) -> Generator[pa.RecordBatch, None, None]:
        self._failed.clear()
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
        """Yield the input's rows. An error is kept, since DuckDB hides errors raised here."""
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
        """Return the error to raise; ``lent`` tells of memory."""
        self._interrupts.check()
        if self._failed:
            return self._failed[0]
        return error if isinstance(error, duckdb.OutOfMemoryException) else query_error(error)


def _close(duck: duckdb.DuckDBPyConnection, given: QueryInput, once: bool) -> None:
    if once:
        duck.unregister(given.name)
    else:
        duck.execute(f"DROP TABLE {given.name}")
