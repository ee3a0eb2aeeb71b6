"""Arrays in binary format (array_send).

Int32 dimensions, Int32 flags, Int32 element type; per dimension Int32 size and Int32 lower bound;
per element Int32 length (-1: NULL) and the element in its binary format. An empty array has no
dimension. In: cells, or one value. Out: the elements as cells on the same buffer.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cells import Cells, window

_HEADER = struct.Struct("!iiI")
_DIMENSION = struct.Struct("!ii")
_LENGTH = struct.Struct("!i")
_FIRST = _HEADER.size + _DIMENSION.size
_FEW = 16
"""Below so many rows, walking them one by one costs less than numpy's calls."""


def binary_dimensions(raw: bytes) -> str:
    """Dimensions as array_out prints them, where they are not one that starts at 1; else empty."""
    if len(raw) < _HEADER.size:
        return ""
    ndim = _HEADER.unpack_from(raw)[0]
    if not 1 <= ndim <= 6 or len(raw) < _HEADER.size + ndim * _DIMENSION.size:
        return ""
    at = range(_HEADER.size, _HEADER.size + ndim * _DIMENSION.size, _DIMENSION.size)
    dimensions = [_DIMENSION.unpack_from(raw, position) for position in at]
    if ndim == 1 and dimensions[0][1] == 1:
        return ""
    return "".join(f"[{lower}:{lower + size - 1}]" for size, lower in dimensions)


def binary_raws(raw: bytes, element_oids: tuple[int, ...]) -> list[bytes | None] | None:
    """Elements of one value; None where it is malformed. The readable reference."""
    if len(raw) < _HEADER.size:
        return None
    ndim, _, element = _HEADER.unpack_from(raw)
    if ndim == 0 and len(raw) == _HEADER.size:
        return []
    if ndim != 1 or element not in element_oids or len(raw) < _FIRST:
        return None
    size, lower = _DIMENSION.unpack_from(raw, _HEADER.size)
    spans = _spans(raw, _FIRST, len(raw), size)
    if spans is None or lower != 1 or size < 1:
        return None
    return [None if length < 0 else raw[at : at + length] for at, length in spans]


def binary_elements(
    cells: Cells, element_oids: tuple[int, ...]
) -> tuple[NDArray[np.int64], Cells] | None:
    """Number of elements per cell, and all elements as cells; None where a cell is no plain array.

    The rows are walked side by side, element by element, as long as there are many of them.
    """
    counts = _counts(cells, element_oids)
    if counts is None:
        return None
    total = int(counts.sum())
    start, length = np.zeros(total, np.int64), np.full(total, -1, np.int64)
    rows = np.flatnonzero(counts)
    rows = rows[np.argsort(counts[rows], kind="stable")]
    slot = np.cumsum(counts)[rows] - counts[rows]
    at, end = cells.start[rows] + _FIRST, (cells.start + cells.length)[rows]
    left, lengths = counts[rows], window(cells.buffer, ">i4")
    done = 0
    while len(rows) - done > _FEW:
        live = slice(done, None)
        if (at[live] + _LENGTH.size > end[live]).any():
            return None
        size = lengths[at[live]].astype(np.int64)
        start[slot[live]], length[slot[live]] = at[live] + _LENGTH.size, size
        at[live] += _LENGTH.size + np.maximum(size, 0)
        if (at[live] > end[live]).any() or (size < -1).any():
            return None
        slot[live] += 1
        left[live] -= 1
        done = int(np.searchsorted(left, 1))
    for row in range(done, len(rows)):
        spans = _spans(cells.buffer, int(at[row]), int(end[row]), int(left[row]))
        if spans is None:
            return None
        at[row] = end[row]
        where = slice(slot[row], slot[row] + left[row])
        start[where] = [position for position, _ in spans]
        length[where] = [size for _, size in spans]
    if (at != end).any():
        return None
    null = length < 0
    return counts, Cells(cells.buffer, start, np.where(null, 0, length), null)


def _counts(cells: Cells, element_oids: tuple[int, ...]) -> NDArray[np.int64] | None:
    """Elements per cell by the headers; None where a header is not that of a plain array."""
    counts = np.zeros(len(cells), np.int64)
    present = np.arange(len(cells)) if cells.null is None else np.flatnonzero(~cells.null)
    if (cells.length[present] < _HEADER.size).any():
        return None
    words = window(cells.buffer, ">i4")
    ndim = words[cells.start[present]]
    empty, filled = present[ndim == 0], present[ndim == 1]
    if len(empty) + len(filled) != len(present):
        return None
    if (cells.length[empty] != _HEADER.size).any() or (cells.length[filled] < _FIRST).any():
        return None
    start = cells.start[filled]
    size, lower = words[start + _HEADER.size].astype(np.int64), words[start + _HEADER.size + 4]
    known = np.isin(window(cells.buffer, ">u4")[start + 8], element_oids)
    # Every element has a length, which bounds a size that is garbage before memory is taken.
    fits = size * _LENGTH.size <= cells.length[filled] - _FIRST
    if not (known & fits & (lower == 1) & (size > 0)).all():
        return None
    counts[filled] = size
    return counts


def _spans(buffer: Any, at: int, end: int, count: int) -> list[tuple[int, int]] | None:
    """Position and length of each of ``count`` elements that fill ``buffer[at:end]``."""
    if count * _LENGTH.size > end - at:
        return None
    spans = []
    for _ in range(count):
        if at + _LENGTH.size > end:
            return None
        (length,) = _LENGTH.unpack_from(buffer, at)
        at += _LENGTH.size
        spans.append((at, length))
        at += max(length, 0)
        if length < -1 or at > end:
            return None
    return spans if at == end else None
