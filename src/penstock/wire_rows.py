"""Rows of cells as bytes, all rows of a batch at once.

The cells come as Arrow binary arrays, already in PostgreSQL's output format. The result is the
bytes of all rows, one row after another. ``pgoutput`` and ``protocol`` know the meaning of the
bytes around the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.cells import copy_bytes, write_bytes
from penstock.kernel import BYTES, FLAGS, PLACES, kernel, part

Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int64]

_LENGTH: Final = 4
_LENGTH_AT: Final = 1
"""The offset of the length in the head of a message. The length counts from there."""
_BACKSLASH: Final = ord("\\")
_FIRST_CONTROL: Final = ord("\b")
_LAST_CONTROL: Final = ord("\r")
_ESCAPES: Final = np.zeros(256, np.uint8)
"""The letter behind the backslash that stands for a byte in COPY's text format; 0 for bytes that
need none (CopyAttributeOutText)."""
for _byte, _letter in zip(b"\b\t\n\v\f\r\\", b"btnvfr\\", strict=True):
    _ESCAPES[_byte] = _letter
_NOTHING: Final = np.zeros(0, np.uint8)
_ALL: Final = np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True)
class Column:
    """One column's cells in every row. ``null``: what stands for NULL; ``kind``: what begins any
    other cell; ``counted``: its length follows, of four bytes; ``escaped``: bytes that COPY's text
    format escapes become a backslash and a letter."""

    cells: pa.Array
    null: bytes = b""
    kind: bytes = b""
    counted: bool = False
    escaped: bool = False


Part = bytes | Column
"""The same bytes in every row, or a column."""


def rows_of(parts: Sequence[Part], rows: int) -> tuple[Bytes, Lengths]:
    """Return the bytes of all rows, and where each row ends."""
    written = _written(parts)
    ends = np.cumsum(_sizes(written, rows))
    return _joined(written, ends, rows), ends


def messages_of(head: bytes, parts: Sequence[Part], rows: int) -> bytes:
    """Return rows as messages that begin with ``head``, in which the length is filled in."""
    written = _written([head, *parts])
    sizes = _sizes(written, rows)
    ends = np.cumsum(sizes)
    out = _joined(written, ends, rows)
    _put_lengths(ends - sizes + _LENGTH_AT, sizes - _LENGTH_AT, out)
    return out.tobytes()


def array_of(parts: Sequence[Part], rows: int) -> pa.Array:
    """Return rows as an Arrow binary array."""
    data, ends = rows_of(parts, rows)
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def fixed(table: Bytes) -> pa.Array:
    """Turn (n, width) bytes into a binary array of n."""
    count, width = table.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(table))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])


class _Written:
    """A column as the kernels take it: the bytes of each cell lie between ``offsets``."""

    def __init__(self, column: Column) -> None:
        self.kind, self.null = _bytes(column.kind), _bytes(column.null)
        self.counted = column.counted
        cells = column.cells
        self.offsets, self.data = np.zeros(len(cells) + 1, np.int32), _NOTHING
        _, offsets, data = cells.buffers()
        if offsets is not None and len(cells):
            self.offsets = np.frombuffer(offsets, np.int32, len(cells) + 1, 4 * cells.offset)
            self.data = np.frombuffer(data or b"", np.uint8)
        self.nulls = np.asarray(cells.is_null()) if cells.null_count else _ALL
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        escaped = column.escaped and _has_escapes(self.data[first:last])
        self.escapes = _ESCAPES if escaped else _NOTHING


def _written(parts: Sequence[Part]) -> list[bytes | _Written]:
    return [each if isinstance(each, bytes) else _Written(each) for each in parts]


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


def _sizes(parts: Sequence[bytes | _Written], rows: int) -> Lengths:
    sizes = np.zeros(rows, np.int64)
    for each in parts:
        if isinstance(each, bytes):
            sizes += len(each)
        else:
            more = len(each.kind) + (_LENGTH if each.counted else 0), len(each.null)
            _measure(each.data, each.offsets, each.nulls, *more, each.escapes, sizes)
    return sizes


def _joined(parts: Sequence[bytes | _Written], ends: Lengths, rows: int) -> Bytes:
    out = np.empty(int(ends[-1]) if rows else 0, np.uint8)
    at = np.zeros(rows, np.int64)
    at[1:] = ends[:-1]
    for each in parts:
        if isinstance(each, bytes):
            _put_constant(_bytes(each), at, out)
        else:
            how = each.null, each.kind, each.counted, each.escapes
            _put(each.data, each.offsets, each.nulls, *how, at, out)
    return out


@kernel(f"boolean({BYTES})")
def _has_escapes(data: Bytes) -> bool:
    found = False
    for byte in data:  # to the end: so it becomes a loop of whole vectors
        found |= (byte >= _FIRST_CONTROL) & (byte <= _LAST_CONTROL) | (byte == _BACKSLASH)
    return found


@kernel(f"void({BYTES}, {PLACES}, {FLAGS}, int64, int64, {BYTES}, int64[::1])")
def _measure(
    data: Bytes,
    offsets: npt.NDArray[np.int32],
    nulls: npt.NDArray[np.bool_],
    more: int,
    null: int,
    escapes: Bytes,
    sizes: Lengths,
) -> None:
    """Add the bytes of a column's cells. ``more``: the bytes that begin a cell; ``null``: those of
    NULL."""
    for row in range(len(sizes)):
        if len(nulls) and nulls[row]:
            sizes[row] += null
            continue
        begin, end = offsets[row], offsets[row + 1]
        sizes[row] += more + end - begin
        if len(escapes):
            for place in range(begin, end):
                if escapes[data[place]]:
                    sizes[row] += 1


@kernel(
    f"void({BYTES}, {PLACES}, {FLAGS}, {BYTES}, {BYTES}, boolean, {BYTES}, int64[::1], uint8[::1])"
)
def _put(
    data: Bytes,
    offsets: npt.NDArray[np.int32],
    nulls: npt.NDArray[np.bool_],
    null: Bytes,
    kind: Bytes,
    counted: bool,
    escapes: Bytes,
    at: Lengths,
    out: Bytes,
) -> None:
    """Write a column's cells at ``at``, which moves behind them."""
    for row in range(len(at)):
        to = at[row]
        if len(nulls) and nulls[row]:
            at[row] = write_bytes(null, out, to)
            continue
        begin, end = offsets[row], offsets[row + 1]
        to = write_bytes(kind, out, to)
        if counted:
            _write_length(end - begin, to, out)
            to += _LENGTH
        if len(escapes):
            for place in range(begin, end):
                byte = data[place]
                if escapes[byte]:
                    out[to] = _BACKSLASH
                    to += 1
                    byte = escapes[byte]
                out[to] = byte
                to += 1
        else:
            copy_bytes(data, begin, end - begin, out, to)
            to += end - begin
        at[row] = to


@kernel(f"void({BYTES}, int64[::1], uint8[::1])")
def _put_constant(text: Bytes, at: Lengths, out: Bytes) -> None:
    for row in range(len(at)):
        at[row] = write_bytes(text, out, at[row])


@kernel("void(Array(int64, 1, 'C', readonly=True), int64[::1], uint8[::1])")
def _put_lengths(at: Lengths, lengths: Lengths, out: Bytes) -> None:
    for row in range(len(at)):
        _write_length(lengths[row], at[row], out)


@part
def _write_length(length: int, to: int, out: Bytes) -> None:
    out[to], out[to + 1] = length >> 24 & 0xFF, length >> 16 & 0xFF
    out[to + 2], out[to + 3] = length >> 8 & 0xFF, length & 0xFF
