"""Rows that functions of FROM give, drawn by the query that has them there.

In: whoever gives rows, as record batches. Out: a reader for DuckDB, which hides what is raised
while it draws: it is put aside. Rows that nobody draws are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa


class RowStream(Protocol):
    """The rows of one call."""

    @property
    def schema(self) -> pa.Schema:
        """Of the batches: o1, o2 ..., as ``held_as`` has their types."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Raises PenstockError."""

    def succeed(self) -> None:
        """The query has given all of its rows; what is left of these counts as read."""

    def close(self) -> None:
        """The call is over, whatever became of it."""


OpenRows = Callable[..., RowStream]
"""Begins a call. Raises PenstockError."""


def guarded(rows: RowStream, errors: list[Exception]) -> pa.RecordBatchReader:
    """A reader that may be drawn once."""

    def drawn() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows.batches()
        except Exception as error:
            errors.append(error)
            raise

    return pa.RecordBatchReader.from_batches(rows.schema, drawn())
