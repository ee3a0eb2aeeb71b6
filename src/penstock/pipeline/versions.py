"""The versions that the rows of a table had during a run of changes, as its history tells of them.

In: the rows that the changes gave, and which cells are whose. Out: rows, a part at a time: a large
value that was sent once, and left as it is by each change after, is in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.lakehouse.batches import row_bytes, runs
from penstock.pipeline.columns import Integers, Mask


@dataclass(frozen=True)
class Versions:
    """Every row that the changes made or ended, in order, for the table's history.

    ``sequence``: of the messages; ``type``: numbers of ``history_table.CHANGE_TYPES``. ``given``
    has the target's columns, ``row`` tells which of its rows a version is, ``cells`` of which one
    it has a column's cell, -1 where that is to be taken from row ``old`` of ``NetChange.removed``.
    """

    sequence: Integers
    type: Integers
    given: pa.Table
    row: Integers
    cells: Mapping[str, Integers]
    old: Integers

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def rows(self) -> pa.Table:
        """NULL in cells to be completed."""
        columns = []
        for name, column in zip(self.given.column_names, self.given.columns, strict=True):
            at = self.cells.get(name, self.row)
            columns.append(column.take(pa.array(at, mask=at < 0)))
        return pa.Table.from_arrays(columns, schema=self.given.schema)

    @property
    def missing(self) -> Mapping[str, Mask]:
        """As in ``Incomplete``, for all rows."""
        return {name: at < 0 for name, at in self.cells.items()}

    @property
    def incomplete(self) -> Mask:
        """Mask of the rows with cells to be completed."""
        found = np.zeros(len(self), bool)
        for mask in self.missing.values():
            found |= mask
        return found

    def take(self, kept: Mask | slice) -> Versions:
        """Those of a mask, or in a row."""
        return Versions(
            self.sequence[kept],
            self.type[kept],
            self.given,
            self.row[kept],
            {name: at[kept] for name, at in self.cells.items()},
            self.old[kept],
        )

    def parts(self, max_bytes: int) -> Iterator[Versions]:
        """In order, not more than so many bytes of rows each, but one row at least."""
        if not self.cells:  # each value is in one row
            yield self
            return
        size = np.zeros(len(self))
        for name, column in zip(self.given.column_names, self.given.columns, strict=True):
            at = self.cells.get(name, self.row)
            size += np.where(at < 0, 0, row_bytes(column)[at])
        for part in runs(size, max_bytes):
            yield self.take(part)
