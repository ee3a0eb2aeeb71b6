"""Writers of a table's rows, to as many data files as they need, each for one partition.

``TableWriter`` takes batches in the table's Arrow schema, and returns a WrittenFile per file,
durable on return. Files of all partitions lie in the table's folder: the Delta log records each
file's partition. Memory holds one row group in all, however many partitions there are, and at most
``_MOST_OPEN`` open files. The partition with the most bytes in memory is written first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from penstock.lakehouse.batches import slices
from penstock.lakehouse.files import (
    ROW_GROUP_BYTES,
    TARGET_FILE_BYTES,
    FileWriter,
    WritesFiles,
    WrittenFile,
)
from penstock.lakehouse.partition_values import partitions
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout

_MOST_OPEN: Final = 64
"""The most files open at a time. Later rows for the partition of a closed file get a new file."""
_MOST_HELD: Final = 1024
"""The most partitions that may have waiting rows: each costs more memory than its rows."""

_Partition = tuple[str | None, ...]


class TableWriter(WritesFiles):
    """A writer of one table's rows, to files of one partition each.

    ``files`` holds the finished files after ``close``; ``write`` does everything in one call.
    """

    def __init__(
        self,
        storage: Storage,
        table_uri: str,
        schema: pa.Schema,
        layout: TableLayout = NO_LAYOUT,
        *,
        target_file_bytes: int = TARGET_FILE_BYTES,
        mark: str = "",
    ) -> None:
        """``mark``: a part of the files' names."""
        self._storage = storage
        self._table_uri = table_uri
        self._layout = layout
        names = [name for name in schema.names if name not in layout.partition_by]
        self._schema = pa.schema([schema.field(name) for name in names])
        self._target = target_file_bytes
        self._mark = mark
        self._done: list[WrittenFile] = []
        self._writers: dict[_Partition, FileWriter] = {}  # in the order of last use

    @property
    def files(self) -> list[WrittenFile]:
        """The finished files."""
        return [*self._done, *(file for writer in self._writers.values() for file in writer.files)]

    @property
    def held_bytes(self) -> int:
        """The bytes that are held until a row group is full."""
        return sum(writer.held_bytes for writer in self._writers.values())

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> list[WrittenFile]:
        """Write all batches and close. Raises StorageError, ValueNotRepresentable; nothing is left
        behind then."""
        with self:
            for batch in batches:
                self.add(batch)
        return self.files

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Take rows in the table's schema. Raises as ``write``."""
        if not self._layout.partition_by:
            self._writer(()).add(rows)
            return
        parts = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        for part in parts:
            for piece in slices(part, ROW_GROUP_BYTES // 4):
                self._divide(piece)

    def flush(self) -> None:
        """Write the held rows of the partition with the most bytes, as a row group."""
        if self._writers:
            max(self._writers.values(), key=lambda writer: writer.held_bytes).flush()
        self._close_some()

    def close(self) -> None:
        """Finish the open files, and make the new names in the folder durable."""
        try:
            for writer in self._writers.values():
                writer.finish()
            if self.files:
                self._storage.sync_folder(self._table_uri)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Remove everything that was written."""
        for writer in self._writers.values():
            writer.abort()
        for file in self._done:
            self._storage.remove(f"{self._table_uri}/{file.path}")
        self._done, self._writers = [], {}

    def _divide(self, rows: pa.RecordBatch) -> None:
        held = rows.select(self._schema.names)
        for partition, positions in partitions(rows, self._layout.partition_by):
            whole = len(positions) == rows.num_rows
            mine = held if whole else held.take(pa.array(positions))
            self._writer(partition).add(mine)
        while self.held_bytes > ROW_GROUP_BYTES:
            self.flush()
        self._close_some()

    def _writer(self, partition: _Partition) -> FileWriter:
        writer = self._writers.pop(partition, None)
        if writer is None:
            names = self._layout.partition_by
            writer = FileWriter(
                self._storage,
                self._table_uri,
                self._schema,
                target_file_bytes=self._target,
                mark=self._mark,
                partition_values=dict(zip(names, partition, strict=True)) or None,
                indexed=self._layout.cluster_by,
            )
        self._writers[partition] = writer
        return writer

    def _close_some(self) -> None:
        """Close the least recently used files, if too many are open or have waiting rows."""
        is_open = [partition for partition, writer in self._writers.items() if writer.is_open]
        due = is_open[: max(0, len(is_open) - _MOST_OPEN)]
        due = due or list(self._writers)[: max(0, len(self._writers) - _MOST_HELD)]
        for partition in due:
            writer = self._writers[partition]
            writer.finish()
            self._done += writer.files
            del self._writers[partition]
