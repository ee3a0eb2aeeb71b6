"""The versions that a table's rows had during a run of changes, for the table's history.

They are made from the changes' rows and the origin of each cell, and returned in parts, because
every later version repeats a large value that was sent once.
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

    ``sequence``: message numbers; ``type``: numbers of ``history_table.CHANGE_TYPES``. ``given``
    has the target's columns. ``row``: each version's row in ``given``. ``cells``: column -> for
    each version, the row of ``given`` that has its cell; -1 if the cell must be taken from row
    ``old`` of ``NetChange.removed``.
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
        """The rows, with NULL in cells to be completed."""
        columns = []
        for name, column in zip(self.given.column_names, self.given.columns, strict=True):
            at = self.cells.get(name, self.row)
            columns.append(column.take(pa.array(at, mask=at < 0)))
        return pa.Table.from_arrays(columns, schema=self.given.schema)

    @property
    def missing(self) -> Mapping[str, Mask]:
        """Per column, the mask of cells to be completed."""
        return {name: at < 0 for name, at in self.cells.items()}

    @property
    def incomplete(self) -> Mask:
        """The mask of the rows with cells to be completed."""
        found = np.zeros(len(self), bool)
        for mask in self.missing.values():
            found |= mask
        return found

    def take(self, kept: Mask | slice) -> Versions:
        """Return the versions that a mask or a slice selects."""
        return Versions(
            self.sequence[kept],
            self.type[kept],
            self.given,
            self.row[kept],
            {name: at[kept] for name, at in self.cells.items()},
            self.old[kept],
        )

    def parts(self, max_bytes: int) -> Iterator[Versions]:
        """Yield parts of at most ``max_bytes`` of rows, but at least one row, in order."""
        if not self.cells:  # each value is in one row
            yield self
            return
        size = np.zeros(len(self))
        for name, column in zip(self.given.column_names, self.given.columns, strict=True):
            at = self.cells.get(name, self.row)
            size += np.where(at < 0, 0, row_bytes(column)[at])
        for part in runs(size, max_bytes):
            yield self.take(part)
