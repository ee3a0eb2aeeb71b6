"""Rows of a share in the files that ``change_shares`` has written to the staging area.

In: record batches of a file. Out: them, with the columns that are asked for. Runs inside tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.errors import StorageError
from penstock.lakehouse.storage import Storage, resolve, storage_errors
from penstock.pipeline.change_item import StoredRows


def read_stored(
    storage: Storage, rows: StoredRows, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """A share's rows of one file. Raises StorageError."""
    with storage_errors("read file", rows.uri):
        filesystem, path = resolve(rows.uri)
        with filesystem.open_input_file(path) as source:
            if source.size() != rows.size:
                raise StorageError(
                    f'file "{rows.uri}" has {source.size()} bytes, {rows.size} were written',
                    sqlstate="XX001",
                )
            reader = pa.ipc.open_file(source)
            for run in rows.runs:
                yield reader.get_batch(run).select(list(columns))
