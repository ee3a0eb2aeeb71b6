"""Copy cells to contiguous memory; nothing else copies the bytes of a column.

The families interpret the bytes. A buffer is smaller than 2 GiB, since Arrow's 32-bit offsets point
into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells, window

MAX_BUFFER = 2**31 - 1
"""Bytes that 32-bit offsets can address."""


def validity(null: NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Return Arrow's validity bitmap, None if nothing is NULL."""
    return None if null is None else pa.array(~null).buffers()[1]


def primitive(values: NDArray[Any], null: NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    """Turn fixed-width values in the machine's byte order into an Arrow array, without a copy."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity(null), data])


def strings(cells: Cells, kind: pa.DataType) -> pa.Array:
    """Copy the cells to an Arrow array of ``pa.binary()`` or ``pa.string()`` (UTF-8 unchecked).

    An array of 2 n values is laid over the shared buffer, (cell, gap, cell, gap ...), and its even
    values are taken, so that the copying loop is Arrow's.
    """
    count = len(cells)
    if len(cells.buffer) > MAX_BUFFER:
        raise ValueError("a buffer of cells must be smaller than 2 GiB")
    if count == 0:
        return pa.array([], kind)
    start, length = cells.start, cells.length
    if cells.null is not None:
        start = np.where(cells.null, 0, start)
        length = np.where(cells.null, 0, length)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = start
    offsets[1::2] = start + length
    # Arrow reserves memory by the mean length, computed from the last offset, which nothing else
    # reads.
    offsets[-1] = min(int(offsets[0]) + 2 * int(length.sum()), len(cells.buffer))
    laid = pa.Array.from_buffers(
        kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(cells.buffer)]
    )
    taken = laid.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))
    if cells.null is None:
        return taken
    _, ends, data = taken.buffers()
    return pa.Array.from_buffers(kind, count, [validity(cells.null), ends, data])


def contiguous(cells: Cells) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the cells' bytes in a row, and n + 1 offsets into them; NULL is empty."""
    offsets, data = _offsets_and_data(strings(cells, pa.binary()))
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def cells_of(array: pa.Array) -> Cells:
    """Return the cells of an Arrow array of strings, on its own memory."""
    offsets, data = _offsets_and_data(array)
    null = None if array.null_count == 0 else np.asarray(array.is_null())
    return Cells(data, offsets[:-1].astype(np.intp), np.diff(offsets).astype(np.intp), null)


def fixed(cells: Cells, dtype: Any) -> NDArray[Any] | None:
    """Return numbers of one width in the machine's byte order; 0 for NULL.

    Returns None if a cell has another length than ``dtype``.
    """
    kind = np.dtype(dtype)
    wrong = cells.length != kind.itemsize
    start = cells.start
    if cells.null is not None:
        wrong &= ~cells.null
        start = np.where(cells.null, 0, start)
    if wrong.any():
        return None
    if len(cells.buffer) < kind.itemsize:
        return np.zeros(len(cells), kind.newbyteorder("="))
    return window(cells.buffer, kind)[start].astype(kind.newbyteorder("="))


def _offsets_and_data(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    _, ends, data = array.buffers()
    if ends is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets.astype(np.int64), np.frombuffer(data or b"", np.uint8)
