"""Copy cells to contiguous memory, and texts of values to Arrow; nothing else copies the bytes of a
column.

The families interpret the bytes. A buffer is smaller than 2 GiB, since Arrow's 32-bit offsets point
into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells, copy_bytes, int16_at, int32_at, int64_at
from penstock.kernel import BYTES, FLAGS, PLACES, kernel

MAX_BUFFER = 2**31 - 1
"""Bytes that 32-bit offsets can address."""


def validity(null: NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Return Arrow's validity bitmap, None if nothing is NULL."""
    return None if null is None else pa.array(~null).buffers()[1]


def nulls(cells: Cells) -> NDArray[np.bool_]:
    """Return the mask of NULLs for kernels: empty if there is none."""
    return _NONE if cells.null is None else cells.null


def present(cells: Cells) -> Any:
    """Return the mask of values that are not NULL; True if all are."""
    return True if cells.null is None else ~cells.null


_NONE = np.zeros(0, np.bool_)


def primitive(values: NDArray[Any], null: NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    """Turn fixed-width values in the machine's byte order into an Arrow array, without a copy."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity(null), data])


def strings(cells: Cells, kind: pa.DataType) -> pa.Array:
    """Copy the cells to an Arrow array of ``pa.binary()`` or ``pa.string()`` (UTF-8 unchecked)."""
    data, offsets = contiguous(cells)
    buffers = [validity(cells.null), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(cells), buffers)


def contiguous(cells: Cells) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the cells' bytes end to end, and n + 1 offsets into them; NULL is empty."""
    if len(cells.buffer) > MAX_BUFFER:
        raise ValueError("a buffer of cells must be smaller than 2 GiB")
    offsets = np.empty(len(cells) + 1, np.int32)
    null = nulls(cells)
    data = np.empty(_place(cells.length, null, offsets), np.uint8)
    _copy(cells.buffer, cells.start, null, offsets, data)
    return data, offsets


@kernel(f"int64({PLACES}, {FLAGS}, int32[::1])")
def _place(length: NDArray[np.int32], null: NDArray[np.bool_], offsets: NDArray[np.int32]) -> int:
    """Write the offsets of cells in a row; return the bytes of all."""
    end = 0
    offsets[0] = 0
    for row in range(len(length)):
        if not (len(null) and null[row]):
            end += length[row]
        offsets[row + 1] = end
    return end


@kernel(f"void({BYTES}, {PLACES}, {FLAGS}, {PLACES}, uint8[::1])")
def _copy(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
) -> None:
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        size = offsets[row + 1] - offsets[row]
        copy_bytes(buffer, start[row], size, data, offsets[row])


def numbers_of(array: pa.Array, kind: Any) -> NDArray[Any]:
    """Return an Arrow array's numbers without a copy, and anything for NULL. ``kind``: a dtype,
    with a shape if a value has several numbers."""
    dtype = np.dtype(kind)
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def written(
    array: pa.Array, kind: pa.DataType, most: int, write: Callable[..., object], *given: Any
) -> pa.Array:
    """Return what a kernel makes of each value, as ``pa.string()`` or ``pa.binary()``.

    ``most``: the most bytes of all values together. ``write``: called with ``given``, the mask of
    NULLs, n + 1 offsets and the bytes, and writes the latter two.
    """
    if most > MAX_BUFFER:
        raise ValueError("a column of texts must be smaller than 2 GiB")
    null = _mask(array)
    offsets, data = np.zeros(len(array) + 1, np.int32), np.empty(most, np.uint8)
    write(*given, _NONE if null is None else null, offsets, data)
    data.resize(int(offsets[-1]), refcheck=False)
    buffers = [validity(null), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(array), buffers)


def cells_of(array: pa.Array) -> Cells:
    """Return the cells of an Arrow array of strings, without a copy."""
    _, ends, data = array.buffers()
    if ends is None or len(array) == 0:
        nothing = np.zeros(len(array), np.int32)
        return Cells(np.empty(0, np.uint8), nothing, nothing, _mask(array))
    offsets = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1]
    bytes_ = np.frombuffer(data or b"", np.uint8)
    return Cells(bytes_, offsets[:-1], np.diff(offsets), _mask(array))


def _mask(array: pa.Array) -> NDArray[np.bool_] | None:
    return None if array.null_count == 0 else np.asarray(array.is_null())


def fixed(cells: Cells, dtype: Any) -> NDArray[Any] | None:
    """Return numbers of one width in the machine's byte order; 0 for NULL.

    Returns None if a cell has another length than ``dtype``.
    """
    kind = np.dtype(dtype).newbyteorder("=")
    values = np.empty(len(cells), np.int64)
    if not _numbers(cells.buffer, cells.start, cells.length, nulls(cells), kind.itemsize, values):
        return None
    if kind.itemsize < values.itemsize:
        values = values.astype(f"i{kind.itemsize}")
    found: NDArray[Any] = values.view(kind)
    return found


@kernel(f"boolean({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int64, int64[::1])")
def _numbers(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    width: int,
    values: NDArray[np.int64],
) -> bool:
    """Read signed numbers of ``width`` bytes, 1, 2, 4 or 8; return whether all have so many."""
    for row in range(len(start)):
        if len(null) and null[row]:
            values[row] = 0
        elif length[row] != width:
            return False
        elif width == 4:
            values[row] = int32_at(buffer, start[row])
        elif width == 8:
            values[row] = int64_at(buffer, start[row])
        elif width == 2:
            values[row] = int16_at(buffer, start[row])
        else:
            values[row] = buffer[start[row]]
    return True
