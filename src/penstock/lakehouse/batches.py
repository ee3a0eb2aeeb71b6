"""Record batches of a bounded size in bytes, however wide their rows are.

The functions read an open data file, or split batches, into batches of about the wanted number of
bytes; a larger row is a batch of its own. The footer of a file gives the decoded size of a row
group, and so the average size of a row. But it counts a repeated value of a dictionary once. With
dictionaries, a few rows are therefore read first to learn their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.lakehouse.layouts import plain_batch

BATCH_BYTES: Final = 16 << 20
"""Arrow bytes that are read at a time."""
_ROWS: Final = 1 << 16
"""The largest number of rows that are read at a time; a larger number is no faster."""
_LOOKED_AT: Final = 256
"""The number of rows that are read first if the footer does not give the width of rows."""
_TOO_LARGE: Final = 4
"""A batch of more than this many times the wanted size is followed by smaller ones."""

RowRangeFilter = Callable[[int, int], bool]
"""A function that tells whether any row from the first position up to the second is needed."""


def slices(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield runs of rows of at most ``max_bytes``, but of at least one row."""
    if batch.nbytes <= max_bytes or batch.num_rows < 2:
        if batch.num_rows:
            yield batch
        return
    for part in runs(_row_sizes(batch), max_bytes):
        yield batch.slice(part.start, part.stop - part.start)


def runs(size: np.ndarray, max_bytes: int) -> Iterator[slice]:
    """Yield runs of rows whose sizes add up to at most ``max_bytes``, but of at least one row."""
    ends = np.cumsum(size)
    start = 0
    while start < len(size):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + max_bytes, "right")))
        yield slice(start, stop)
        start = stop


def row_bytes(column: pa.ChunkedArray) -> np.ndarray:
    """Return the approximate bytes of each value of a column."""
    return np.concatenate([np.zeros(0), *(_sizes(chunk) for chunk in column.chunks)])


def read_batches(
    parquet: pq.ParquetFile,
    columns: Sequence[str],
    *,
    wanted: RowRangeFilter | None = None,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (position of the first row, batch) in order, for the ``wanted`` row groups."""
    start = 0
    for group in range(parquet.metadata.num_row_groups):
        end = start + parquet.metadata.row_group(group).num_rows
        if end > start and (wanted is None or wanted(start, end)):
            for at, batch in _read_group(parquet, group, columns, max_bytes):
                for part in slices(batch, max_bytes):
                    yield start + at, part
                    at += part.num_rows
        start = end


def read_rows(
    parquet: pq.ParquetFile, columns: Sequence[str], position: np.ndarray
) -> Iterator[tuple[slice, pa.RecordBatch]]:
    """Yield the rows at ascending positions of a file, run by run: the run's place in ``position``,
    and its rows. A position may occur several times. If ``columns`` is empty, another column is
    read to count the rows."""

    def wanted(start: int, end: int) -> bool:
        first, last = np.searchsorted(position, (start, end))
        return bool(first < last)

    read = columns or parquet.schema_arrow.names[:1]
    for start, batch in read_batches(parquet, read, wanted=wanted):
        low, high = np.searchsorted(position, (start, start + batch.num_rows)).tolist()
        for part in _taken_at_a_time(batch, position[low:high] - start):
            here = slice(low + part.start, low + part.stop)
            yield here, batch.take(pa.array(position[here] - start))


def _taken_at_a_time(batch: pa.RecordBatch, rows: np.ndarray) -> Iterable[slice]:
    """Split the rows to take from a batch into runs: a repeated row may make the result large."""
    if not len(rows):
        return ()
    if np.all(rows[1:] > rows[:-1]):
        return (slice(0, len(rows)),)
    return runs(_row_sizes(batch)[rows], BATCH_BYTES)


def _read_group(
    parquet: pq.ParquetFile, group: int, columns: Sequence[str], max_bytes: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    rows = parquet.metadata.row_group(group).num_rows
    row_bytes, doubtful = _estimate(parquet.metadata.row_group(group), columns)
    if doubtful * rows > max_bytes and rows > _LOOKED_AT:
        first = next(_iterate(parquet, group, columns, _LOOKED_AT))
        row_bytes = max(row_bytes, first.nbytes / _LOOKED_AT)
    step = int(min(max(1, max_bytes // max(1, row_bytes)), _ROWS))
    done = 0
    while done < rows:
        at = 0
        for batch in _iterate(parquet, group, columns, step):
            end = at + batch.num_rows
            if end > done:
                batch = batch.slice(max(0, done - at))
                yield done, batch
                done = end
                if batch.nbytes > _TOO_LARGE * max_bytes and step > 1:
                    step = max(1, step * max_bytes // batch.nbytes)
                    break  # read on in smaller steps
            at = end


def _iterate(
    parquet: pq.ParquetFile, group: int, columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    found = parquet.iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False)
    return map(plain_batch, found)


def _estimate(group: pq.RowGroupMetaData, columns: Sequence[str]) -> tuple[float, int]:
    """Return the average bytes of a row, and how many bytes more a row may have: the bytes of all
    columns with dictionaries."""
    names = set(columns)
    size = doubtful = 0
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema.split(".")[0] in names or chunk.path_in_schema in names:
            size += chunk.total_uncompressed_size
            if chunk.physical_type == "BYTE_ARRAY" and _has_dictionary(chunk):
                doubtful += chunk.total_uncompressed_size
    return size / max(1, group.num_rows), doubtful


def _has_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    return any("DICTIONARY" in encoding for encoding in chunk.encodings)


def _row_sizes(batch: pa.RecordBatch) -> np.ndarray:
    return sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows))


def _sizes(array: pa.Array) -> np.ndarray:
    """Return the bytes of each row's value, with its offset and its validity bit."""
    kind = array.type
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    beside = (8 if large or pa.types.is_large_list(kind) else 4) + 1 / 8
    if large or pa.types.is_string(kind) or pa.types.is_binary(kind):
        lengths = np.asarray(pc.fill_null(pc.binary_length(array), 0))
        sizes: np.ndarray = lengths + beside
        return sizes
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ends = np.concatenate(([0.0], np.cumsum(_sizes(array.values))))
        items: np.ndarray = np.diff(ends[np.asarray(array.offsets)])
        return items + beside
    if pa.types.is_struct(kind):
        parts = (_sizes(array.field(n)) for n in range(kind.num_fields))
        return sum(parts, np.full(len(array), 1 / 8))
    return np.full(len(array), array.nbytes / max(1, len(array)))
