"""Which rows of a table are compared: those whose key lies between two numbers.

In: a column, an integer at the publisher, that the table's key begins with, and bounds. Out: the
same choice as a condition of SQL at the publisher, as a filter of Arrow batches at the node, and of
its data files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.identifiers import quoted

_INTEGER: Final = r"^(0|-?[1-9][0-9]{0,18})$"
"""As ``int8out`` prints it."""
_NUMBER: Final = pa.decimal128(19, 0)
"""It has all of these, and some that are no bigint."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """``low`` <= ``column`` < ``high``; None: without that bound. ``bytes``: about so much at the
    publisher."""

    column: str
    low: int | None
    high: int | None
    bytes: int

    @property
    def condition(self) -> str:
        """At the publisher, where no row of a key is NULL."""
        name = quoted(self.column)
        bounds = [] if self.low is None else [f"{name} >= {self.low}"]
        bounds += [] if self.high is None else [f"{name} < {self.high}"]
        return " AND ".join(bounds) or "true"

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of a batch; rows with NULL, which only other writers make, are of the first
        range."""
        column = _numbers(batch.column(self.column))
        if self.low is not None:
            kept = pc.greater_equal(column, self.low)
            batch, column = batch.filter(kept), column.filter(kept)
        if self.high is not None:
            kept = pc.less(column, self.high)
            batch = batch.filter(pc.fill_null(kept, self.low is None))
        return batch

    def may_hold(self, bounds: tuple[int, int] | None) -> bool:
        """Whether a file may have such rows. ``bounds``: its least and greatest value, if they are
        known. The first range reads every file, since NULL has no place in bounds."""
        if bounds is None or self.low is None:
            return True
        return bounds[1] >= self.low and (self.high is None or bounds[0] < self.high)


def _numbers(column: pa.Array) -> pa.Array:
    """The column's values, of texts the numbers that they are of: a target may keep the key as
    text, padded if it is a char. What is no integer is another writer's, and counts as NULL."""
    if not pa.types.is_string(column.type):
        return column
    texts = pc.utf8_rtrim_whitespace(column)
    integers = pc.match_substring_regex(texts, _INTEGER)
    return pc.if_else(integers, texts, pa.scalar(None, pa.string())).cast(_NUMBER)
