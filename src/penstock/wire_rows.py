"""Rows of cells as bytes, all rows of a batch at once.

The cells come as Arrow binary arrays, already in PostgreSQL's output format. The result is an Arrow
array with the bytes of one row or message in each element; its data buffer is the stream.
``pgoutput`` and ``protocol`` know the meaning of the bytes around the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_LENGTH: Final = 4
Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int64]


def lengths(cells: pa.Array) -> Lengths:
    """Return the bytes of each cell, 0 for null."""
    return np.asarray(pc.fill_null(pc.binary_length(cells), 0)).astype(np.int64)


def valid(cells: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the cells that are not null; None if no cell is null."""
    return None if cells.null_count == 0 else np.asarray(pc.is_valid(cells))


def big_endian(numbers: Lengths) -> Bytes:
    """Return the four bytes of each number, shape (n, 4)."""
    return numbers.astype(">i4").view(np.uint8).reshape(-1, _LENGTH)


def counted_prefix(cells: pa.Array, kind: bytes, null: bytes) -> tuple[pa.Array, Lengths]:
    """Return the prefix of each cell, and the bytes of prefix and cell together.

    The prefix is ``kind`` and the cell's length, or ``null`` if the cell is null. ``null`` must be
    no longer than ``kind`` and a length.
    """
    size = lengths(cells)
    width = len(kind) + _LENGTH
    table = np.empty((len(cells), width), np.uint8)
    table[:, : len(kind)] = np.frombuffer(kind, np.uint8)
    table[:, len(kind) :] = big_endian(size)
    here = valid(cells)
    if here is None:
        return fixed(table), size + width
    table[~here, : len(null)] = np.frombuffer(null, np.uint8)
    kept = np.ones(table.shape, bool)
    kept[~here, len(null) :] = False
    widths = kept.sum(axis=1)
    offsets = np.zeros(len(cells) + 1, np.int32)
    np.cumsum(widths, out=offsets[1:])
    data = pa.py_buffer(np.ascontiguousarray(table[kept]))
    prefix = pa.Array.from_buffers(pa.binary(), len(cells), [None, pa.py_buffer(offsets), data])
    return prefix, size + widths


def fixed(table: Bytes) -> pa.Array:
    """Turn (n, width) bytes into a binary array of n."""
    count, width = table.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(table))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])


def framed(head: bytes, counts_from: int, length_at: int, sizes: Lengths) -> pa.Array:
    """Return ``head`` once for each row, with the length of the message written into it.

    ``length_at``: where in ``head`` the four bytes of the length stand. The length counts
    everything from ``counts_from`` on, including the ``sizes`` bytes after ``head``.
    """
    table = np.empty((len(sizes), len(head)), np.uint8)
    table[:] = np.frombuffer(head, np.uint8)
    total = sizes + (len(head) - counts_from)
    table[:, length_at : length_at + _LENGTH] = big_endian(total)
    return fixed(table)


def joined(parts: Sequence[pa.Array | bytes]) -> pa.Array:
    """Join the parts of each row; null counts as nothing. ``parts`` has at least one array."""
    arrays = [
        part if isinstance(part, bytes) else (pc.fill_null(part, b"") if part.null_count else part)
        for part in parts
    ]
    arrays = [pa.scalar(a, pa.binary()) if isinstance(a, bytes) else a for a in arrays]
    return pc.binary_join_element_wise(*arrays, pa.scalar(b"", pa.binary()))


def data_of(rows: pa.Array) -> bytes:
    """Return the bytes of all rows, one after another."""
    return bytes_of(rows).tobytes()


def bytes_of(cells: pa.Array) -> Bytes:
    """Return the bytes of all cells in order, without a copy; null cells may have bytes, too."""
    if len(cells) == 0:
        return np.empty(0, np.uint8)
    _, offsets, data = cells.buffers()
    kind = np.int64 if pa.types.is_large_binary(cells.type) else np.int32
    ends = np.frombuffer(offsets, kind, len(cells) + 1, cells.offset * np.dtype(kind).itemsize)
    return np.frombuffer(data or b"", np.uint8)[int(ends[0]) : int(ends[-1])]
