"""One-dimensional arrays of every type that has a family (arrayfuncs.c).

An array becomes a list. PostgreSQL allows any number of dimensions in a column, and subscripts that
start anywhere. Any other value than a plain array raises ValueNotRepresentable; it is never
flattened. The two sections below find the elements in the bytes of either format.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells, int32_at
from penstock.kernel import BYTES, FLAGS, NUMBERS, PLACES, kernel, part
from penstock.pgtypes.family import Family, shown
from penstock.pgtypes.gather import nulls, present

_ARRAY_SUBSCRIPT_ERROR = "2202E"


class ArrayFamily(Family):
    """Arrays of one element type. The typmod is the element's."""

    def __init__(self, oid: int, element: Family) -> None:
        self.name = f"{element.name}[]"
        self.oids = (oid,)
        self._element = element

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.list_(self._element.arrow(typmod))

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        elements = text_elements(cells)
        if elements is None:
            self.refuse_text(cells, typmod)
        return self._list(elements[0], self._element.text_column(elements[1], typmod), cells)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        elements = binary_elements(cells, self._element.oids)
        if elements is None:
            for index in range(len(cells)):
                self.binary_value(cells.raw(index) or _EMPTY, typmod)
            raise self.malformed_binary()
        return self._list(elements[0], self._element.binary_column(elements[1], typmod), cells)

    def text_value(self, raw: bytes, typmod: int) -> list[Any]:
        dimensions = text_dimensions(raw)
        if dimensions:
            raise self.unfit(f"{shown(raw)}", _ARRAY_SUBSCRIPT_ERROR)
        raws = text_raws(raw)
        if raws is None:
            raise self.malformed_text(raw)
        return [None if r is None else self._element.text_value(r, typmod) for r in raws]

    def binary_value(self, raw: bytes, typmod: int) -> list[Any]:
        dimensions = binary_dimensions(raw)
        if dimensions:
            raise self.unfit(dimensions, _ARRAY_SUBSCRIPT_ERROR)
        raws = binary_raws(raw, self._element.oids)
        if raws is None:
            raise self.malformed_binary()
        return [None if r is None else self._element.binary_value(r, typmod) for r in raws]

    def copied_as_text(self, typmod: int) -> bool:
        return self._element.copied_as_text(typmod)

    def _list(self, counts: Any, values: pa.Array, cells: Cells) -> pa.Array:
        offsets = np.zeros(len(cells) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        mask = None if cells.null is None else pa.array(cells.null)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


_EMPTY = bytes(12)


# Read arrays in binary format (array_send).
#
# Int32 dimensions, Int32 flags, Int32 element type; per dimension Int32 size and Int32 lower bound;
# per element Int32 length (-1: NULL) and the element in its binary format. An empty array has no
# dimension. The elements of cells, or of one value, are returned as cells on the same buffer.

_HEADER = struct.Struct("!iiI")
_DIMENSION = struct.Struct("!ii")
_LENGTH = struct.Struct("!i")
_HEADER_SIZE = _HEADER.size
_FIRST = _HEADER.size + _DIMENSION.size


def binary_dimensions(raw: bytes) -> str:
    """Return the dimensions as array_out prints them; empty for one dimension that starts at 1."""
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
    """Return the elements of one value; None if it is malformed. The readable reference."""
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
    """Return the number of elements per cell, and all elements as cells; None if a cell is no plain
    array."""
    total = int(cells.length.sum(dtype=np.int64, where=present(cells)))
    counts = np.zeros(len(cells), np.int64)
    start, length = np.empty((2, total // _LENGTH.size), np.int32)
    where = cells.buffer, cells.start, cells.length, nulls(cells)
    found = _walk_binary(*where, np.array(element_oids, np.int64), counts, start, length)
    if found < 0:
        return None
    start, length = start[:found], length[:found]
    return counts, Cells(cells.buffer, start, length, length < 0)


@kernel(
    f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS}, {NUMBERS}, int64[::1], int32[::1], int32[::1])"
)
def _walk_binary(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    oids: NDArray[np.int64],
    counts: NDArray[np.int64],
    element_start: NDArray[np.int32],
    element_length: NDArray[np.int32],
) -> int:
    """Find the elements of arrays; return their number, -1 if an array is not a plain one."""
    found = 0
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        at, end = int(start[row]), int(start[row]) + int(length[row])
        if end - at < _HEADER_SIZE:
            return -1
        dimensions = int32_at(buffer, at)
        if dimensions == 0 and end - at == _HEADER_SIZE:
            continue
        if dimensions != 1 or end - at < _FIRST:
            return -1
        oid, known = int32_at(buffer, at + 8) & 0xFFFFFFFF, False
        for each in oids:
            known = known or each == oid
        size, lower = int32_at(buffer, at + 12), int32_at(buffer, at + 16)
        if not known or size < 1 or lower != 1:
            return -1
        at += _FIRST
        for _ in range(size):
            if at + 4 > end:
                return -1
            bytes_of_it = int32_at(buffer, at)
            at += 4
            if bytes_of_it < -1 or bytes_of_it > end - at:
                return -1
            element_start[found], element_length[found] = at, bytes_of_it
            found += 1
            if bytes_of_it > 0:
                at += bytes_of_it
        if at != end:
            return -1
        counts[row] = size
    return found


def _spans(buffer: Any, at: int, end: int, count: int) -> list[tuple[int, int]] | None:
    """Return position and length of ``count`` elements; None if they do not fill the range."""
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


# Read arrays in text format (array_out): ``{1,NULL,"a \"quoted\" one",""}``.
#
# An element is quoted if it is empty, says NULL, or holds braces, commas, quotes, backslashes or
# blanks; within quotes a backslash keeps the next character. The comma is the only delimiter here:
# no type with another one (box) has a family.

_QUOTE, _BACKSLASH, _COMMA = ord('"'), ord("\\"), ord(",")
_OPEN, _CLOSE = ord("{"), ord("}")
_NULL = np.frombuffer(b"NULL", np.uint8)
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^"\\{},]+)', re.DOTALL)
_DECORATED = re.compile(rb"(?:\[-?\d+:-?\d+\])+=\{")


def text_dimensions(raw: bytes) -> bool:
    """Return whether the value is nested, or gives its subscripts."""
    if _DECORATED.match(raw):
        return True
    return _QUOTED.sub(b"", raw).startswith(b"{{")


def text_raws(raw: bytes) -> list[bytes | None] | None:
    """Return the texts of a value's elements; None if it is malformed. The readable reference."""
    if raw == b"{}":
        return []
    if not (raw.startswith(b"{") and raw.endswith(b"}")):
        return None
    raws: list[bytes | None] = []
    at, end = 1, len(raw) - 1
    while True:
        match = _ELEMENT.match(raw, at, end)
        if match is None:
            return None
        quoted, bare = match.groups()
        if bare is None:
            raws.append(re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL))
        else:
            raws.append(None if bare == b"NULL" else bare)
        at = match.end()
        if at == end:
            return raws
        if raw[at] != _COMMA:
            return None
        at += 1


def text_elements(cells: Cells) -> tuple[NDArray[np.int64], Cells] | None:
    """Return the number of elements per cell, and all elements as cells in a buffer without quotes
    and escapes; None if a cell is no plain array."""
    total = int(cells.length.sum(dtype=np.int64, where=present(cells)))
    counts, data = np.zeros(len(cells), np.int64), np.empty(total, np.uint8)
    start, length = np.empty((2, total // 2), np.int32)
    where = cells.buffer, cells.start, cells.length, nulls(cells)
    found = _walk_text(*where, counts, data, start, length)
    if found < 0:
        return None
    start, length = start[:found], length[:found]
    return counts, Cells(data, start, length, length < 0)


@kernel(
    f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int64[::1], uint8[::1], int32[::1], int32[::1])"
)
def _walk_text(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    counts: NDArray[np.int64],
    data: NDArray[np.uint8],
    element_start: NDArray[np.int32],
    element_length: NDArray[np.int32],
) -> int:
    """Copy the elements of arrays; return their number, -1 if an array is not a plain one."""
    found = to = 0
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        at, end = int(start[row]) + 1, int(start[row]) + int(length[row]) - 1
        if end < at or buffer[at - 1] != _OPEN or buffer[end] != _CLOSE:
            return -1
        if at == end:
            continue
        while True:
            begin = to
            quoted = at < end and buffer[at] == _QUOTE
            at += quoted
            while at < end:
                character = buffer[at]
                if quoted and character == _QUOTE:
                    break
                if quoted and character == _BACKSLASH:
                    at += 1
                    if at == end:
                        return -1
                    character = buffer[at]
                elif not quoted and _ends_bare(character):
                    break
                data[to] = character
                to += 1
                at += 1
            if quoted:
                if at == end:
                    return -1
                at += 1
            elif to == begin:
                return -1
            missing = not quoted and to - begin == 4 and _says_null(data, begin)
            element_start[found], element_length[found] = begin, -1 if missing else to - begin
            found += 1
            counts[row] += 1
            if at == end:
                break
            if buffer[at] != _COMMA:
                return -1
            at += 1
    return found


@part
def _ends_bare(character: int) -> bool:
    """Return whether an unquoted element cannot contain the character."""
    return character in (_COMMA, _OPEN, _CLOSE, _QUOTE, _BACKSLASH)


@part
def _says_null(data: NDArray[np.uint8], at: int) -> bool:
    for offset in range(4):  # noqa: SIM110 (no generators in kernels)
        if data[at + offset] != _NULL[offset]:
            return False
    return True
