"""A data file of a table as the Delta log describes it, with its deleted positions.

A ``DataFile`` is made from an add action or from a file just written. ``actions`` turns it into an
action again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyroaring import BitMap

from penstock.errors import PenstockError
from penstock.lakehouse.deletion_vectors import Descriptor
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.partition_values import PartitionValues

REWRITTEN: Final = "penstock.rewritten"
"""The tag with the path of the file that this file replaces; both have the same rows."""


@dataclass(frozen=True)
class DataFile:
    """A file of the current version, or a file staged for the next version.

    ``path``: as in the Delta log. ``size``: bytes. ``rows``: physical rows, deleted ones included.
    ``deletion_vector``: the deleted positions, serialised by pyroaring, or None. ``descriptor``:
    where the vector is stored; None while it is only staged. ``partition_values``: as text, by
    column, if the table is partitioned. ``clustering_provider``: the program that clustered the
    rows.
    """

    path: str
    size: int
    rows: int
    stats: Mapping[str, Any]
    modification_time: int = 0
    deletion_vector: bytes | None = None
    descriptor: Descriptor | None = None
    deleted: int = 0
    tags: Mapping[str, str] | None = None
    partition_values: PartitionValues | None = None
    clustering_provider: str | None = None

    @classmethod
    def of_written(
        cls, written: WrittenFile, now_ms: int, tags: Mapping[str, str] | None = None
    ) -> DataFile:
        """Return a file just written, with all its rows."""
        return cls(
            written.path,
            written.size,
            written.rows,
            written.stats,
            now_ms,
            tags=tags,
            partition_values=written.partition_values,
        )

    @property
    def live_rows(self) -> int:
        """The number of rows that readers see."""
        if self.deletion_vector is None and self.descriptor is not None:  # not read
            return self.rows - int(self.descriptor["cardinality"])
        return self.rows - self.deleted

    def positions_deleted(self) -> BitMap:
        """Return the positions of deleted rows, as a new bitmap that the caller may change."""
        return (
            BitMap() if self.deletion_vector is None else BitMap.deserialize(self.deletion_vector)
        )

    def without(self, positions: BitMap) -> DataFile | None:
        """Return this file with these rows deleted, too; None if no row is left. Raises
        PenstockError if it has no such row."""
        gone = self.positions_deleted() | positions
        if gone and gone.max() >= self.rows:
            raise PenstockError(
                f'file "{self.path}" has {self.rows} rows, row {gone.max()} was deleted'
            )
        if len(gone) == self.rows:
            return None
        return self if len(gone) == self.deleted else self.with_deleted(gone)

    def gone_in(self, now: DataFile | None) -> BitMap:
        """Return the positions of rows that a later version lacks. ``now``: the file in that
        version, or None if it is gone."""
        return BitMap(range(self.rows)) if now is None else now.positions_deleted()

    def restored(self, now: DataFile | None, positions: BitMap) -> DataFile:
        """Return the file with these rows restored. ``now``: the file in the version to commit on,
        or None if that version lacks it."""
        return (now or self).with_deleted(self.gone_in(now) - positions)

    def with_deleted(self, positions: BitMap) -> DataFile:
        """Return this file with a new vector, which holds *all* deleted positions."""
        return replace(
            self, deletion_vector=positions.serialize(), descriptor=None, deleted=len(positions)
        )

    def with_descriptor(self, descriptor: Descriptor) -> DataFile:
        """Return this file with the descriptor of its vector, which has been written."""
        return replace(self, descriptor=descriptor)
