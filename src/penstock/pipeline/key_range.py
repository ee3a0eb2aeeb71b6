"""Key ranges: the part of a table to compare, by keys between two numbers.

The first column of the table's key must be an integer at the publisher. The range becomes an SQL
condition at the publisher, and filters of Arrow batches and data files at the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.identifiers import quoted

_INTEGER: Final = r"^(0|-?[1-9][0-9]{0,18})$"
"""The form in which ``int8out`` prints an integer."""
_NUMBER: Final = pa.decimal128(19, 0)
"""A type for all such integers, even those beyond bigint."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows with ``low`` <= ``column`` < ``high``; None: no such bound. ``bytes``: the estimated
    size at the publisher."""

    column: str
    low: int | None
    high: int | None
    bytes: int

    @property
    def condition(self) -> str:
        """The condition at the publisher, where no key column is NULL."""
        name = quoted(self.column)
        bounds = [] if self.low is None else [f"{name} >= {self.low}"]
        bounds += [] if self.high is None else [f"{name} < {self.high}"]
        return " AND ".join(bounds) or "true"

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are in the range. Rows with NULL, which only other
        writers make, are in the first range."""
        column = _numbers(batch.column(self.column))
        if self.low is not None:
            kept = pc.greater_equal(column, self.low)
            batch, column = batch.filter(kept), column.filter(kept)
        if self.high is not None:
            kept = pc.less(column, self.high)
            batch = batch.filter(pc.fill_null(kept, self.low is None))
        return batch

    def may_hold(self, bounds: tuple[int, int] | None) -> bool:
        """Return whether a file may have rows of the range. ``bounds``: the column's least and
        greatest value, if known. The first range reads every file, since bounds ignore NULL."""
        if bounds is None or self.low is None:
            return True
        return bounds[1] >= self.low and (self.high is None or bounds[0] < self.high)


def _numbers(column: pa.Array) -> pa.Array:
    """Return the column's values as numbers: a target may keep the key as text, padded if it is a
    char. A text that is no integer comes from another writer, and counts as NULL."""
    if not pa.types.is_string(column.type):
        return column
    texts = pc.utf8_rtrim_whitespace(column)
    integers = pc.match_substring_regex(texts, _INTEGER)
    return pc.if_else(integers, texts, pa.scalar(None, pa.string())).cast(_NUMBER)
