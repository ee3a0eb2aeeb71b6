"""One data file of a table as the log describes it, with its deleted positions.

In: add actions of the log, or files just written. Out: DataFile values; how they become actions is
``actions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyroaring import BitMap

from penstock.lakehouse.deletion_vectors import Descriptor
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.partition_values import PartitionValues

REWRITTEN: Final = "penstock.rewritten"
"""Tag: the path of the file whose rows this one holds, each in all columns of the table."""


@dataclass(frozen=True)
class DataFile:
    """A file of the current version, or staged for the next one.

    ``path``: as in the log. ``size``: bytes. ``rows``: physical rows, deleted ones included.
    ``deletion_vector``: the deleted positions, serialised by pyroaring, or None. ``descriptor``:
    where they lie in the table; None for a vector that is staged. ``partition_values``: as text, by
    column, where the table is partitioned. ``clustering_provider``: what has clustered its rows.
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
        """A file just written, with all its rows."""
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
        """Rows that readers see."""
        return self.rows - self.deleted

    def positions_deleted(self) -> BitMap:
        """Positions of the deleted rows; a new bitmap, which the caller may change."""
        return (
            BitMap() if self.deletion_vector is None else BitMap.deserialize(self.deletion_vector)
        )

    def with_deleted(self, positions: BitMap) -> DataFile:
        """This file with a new vector, which holds *all* deleted positions."""
        return replace(
            self, deletion_vector=positions.serialize(), descriptor=None, deleted=len(positions)
        )

    def with_descriptor(self, descriptor: Descriptor) -> DataFile:
        """This file once its vector has been written."""
        return replace(self, descriptor=descriptor)
