"""Rows that functions in FROM return, read by the query that calls them.

In: a source of record batches. Out: a reader for DuckDB. DuckDB hides an error that is raised while
it reads, so the reader keeps it for the caller. Rows that nobody reads are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa


class RowStream(Protocol):
    """The rows of one call of a function."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches: o1, o2 ..., in the types that ``held_as`` returns."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises PenstockError."""

    def succeed(self) -> None:
        """Note that the query has returned all of its rows: the rest of these counts as read."""

    def close(self) -> None:
        """End the call, with or without success."""


OpenRows = Callable[..., RowStream]
"""A function that begins a call. Raises PenstockError."""


def guarded(rows: RowStream, errors: list[Exception]) -> pa.RecordBatchReader:
    """Return a reader of the rows, to be read once; errors are added to ``errors``."""

    def drawn() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows.batches()
        except Exception as error:
            errors.append(error)
            raise

    return pa.RecordBatchReader.from_batches(rows.schema, drawn())
