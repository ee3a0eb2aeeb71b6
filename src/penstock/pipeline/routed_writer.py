"""Routed writer: write rows of a relation to the tables that hold them. This runs inside tasks.

Batches have the relation's columns. Each table gets files of its own. Memory holds one row group in
all, however many leaves there are: the leaf with the most rows in memory is written first.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.lakehouse.files import ROW_GROUP_BYTES, WritesFiles, WrittenFile
from penstock.lakehouse.table_writer import TableWriter
from penstock.pipeline.columns import Integers
from penstock.pipeline.routing import Level, by_leaf
from penstock.pipeline.write import Destination


class RoutedWriter(WritesFiles):
    """A writer of rows to the files of their leaves. ``routing`` None: there is one destination."""

    def __init__(
        self, destinations: Sequence[Destination], routing: Level | None, target_file_bytes: int
    ) -> None:
        self._destinations = destinations
        self._routing = routing
        self._target = target_file_bytes
        self._writers: dict[int, TableWriter] = {}

    def close(self) -> None:
        """Finish the open files of all destinations."""
        try:
            for writer in self._writers.values():
                writer.close()
        except BaseException:
            self.abort()
            raise

    @property
    def files(self) -> list[tuple[int, WrittenFile]]:
        """The finished files with the numbers of their destinations."""
        return [(at, file) for at, writer in self._writers.items() for file in writer.files]

    def add(self, rows: pa.RecordBatch, leaves: Integers | None = None) -> None:
        """Write a batch. ``leaves``: the leaf of each row, if known. Raises StorageError;
        ReplicationConflict (23514) for a row without a partition."""
        table = pa.Table.from_batches([rows])
        if self._routing is None:
            self._write(0, table)
            return
        if leaves is None:
            leaves = self._routing.leaves(table)
        for at, positions in by_leaf(leaves).items():
            self._write(at, table.take(pa.array(positions)))
        while sum(writer.held_bytes for writer in self._writers.values()) > ROW_GROUP_BYTES:
            max(self._writers.values(), key=lambda writer: writer.held_bytes).flush()

    def abort(self) -> None:
        """Remove all written files."""
        for writer in self._writers.values():
            writer.abort()

    def _write(self, at: int, rows: pa.Table) -> None:
        destination = self._destinations[at]
        if at not in self._writers:
            self._writers[at] = destination.writer(self._target)
        self._writers[at].add(destination.of(rows))
