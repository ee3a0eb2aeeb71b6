"""Routed writer: write rows of a relation to the tables that hold them. This runs inside tasks.

Batches have the relation's columns. Each table gets files of its own. Memory holds one row group in
all, however many leaves there are: the leaf with the most rows in memory is written first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.lakehouse.files import (
    ROW_GROUP_BYTES,
    TARGET_FILE_BYTES,
    WritesFiles,
    WrittenFile,
)
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout
from penstock.lakehouse.table_writer import TableWriter
from penstock.pipeline.columns import Integers
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.routing import Level, by_leaf


@dataclass(frozen=True)
class Destination:
    """A table that rows go to. ``columns``: for each column of its ``schema``, the position of that
    column in the rows; ``generated``: the columns that are computed from others."""

    storage: Storage
    table_uri: str
    schema: pa.Schema
    columns: tuple[int, ...]
    generated: GeneratedColumns
    layout: TableLayout = NO_LAYOUT

    def writer(self, target_file_bytes: int = TARGET_FILE_BYTES) -> TableWriter:
        """Return a writer for rows as the table holds them."""
        return TableWriter(
            self.storage,
            self.table_uri,
            self.schema,
            self.layout,
            target_file_bytes=target_file_bytes,
        )

    def given(self, rows: pa.Table) -> pa.Table:
        """Return rows in the table's columns and order; generated columns are not computed yet."""
        columns = [rows.column(at) for at in self.columns]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def of(self, rows: pa.Table) -> pa.Table:
        """Return rows as the table holds them. Raises ValueNotRepresentable."""
        return self.generated.filled(self.given(rows))


class RoutedWriter(WritesFiles):
    """A writer of rows to the files of their leaves. ``routing`` None: the leaves are given with
    the rows, or there is one destination."""

    def __init__(
        self,
        destinations: Sequence[Destination] | Mapping[int, Destination],
        routing: Level | None,
        target_file_bytes: int,
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

    def add(self, rows: pa.RecordBatch | pa.Table, leaves: Integers | None = None) -> None:
        """Write a batch. ``leaves``: the leaf of each row, if known. Raises StorageError;
        ReplicationConflict (23514) for a row without a partition."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        if leaves is None:
            if self._routing is None:
                self._write(0, table)
                return
            leaves = self._routing.leaves(table)
        found = by_leaf(leaves)
        for at, positions in found.items():
            self._write(at, table if len(found) == 1 else table.take(pa.array(positions)))
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
