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

from penstock.cells import Cells, window
from penstock.pgtypes.family import Family, shown
from penstock.pgtypes.gather import contiguous

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
_FIRST = _HEADER.size + _DIMENSION.size
_FEW = 16
"""The number of rows below which a loop over them costs less than numpy's calls."""


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
    """Return the number of elements per cell, and all elements as cells.

    Returns None if a cell is no plain array. The rows are walked side by side, element by element,
    as long as there are many of them.
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
    """Return the elements per cell by the headers; None if one is no plain array's."""
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
    # Every element has a length word. This limits a garbage size before memory is allocated for it.
    fits = size * _LENGTH.size <= cells.length[filled] - _FIRST
    if not (known & fits & (lower == 1) & (size > 0)).all():
        return None
    counts[filled] = size
    return counts


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
    """Return the number of elements per cell, and all elements as cells.

    Returns None if a cell is no plain array. Quotes and backslashes are found for all rows at once:
    a character is escaped behind an odd run of backslashes, and it is within quotes if an odd
    number of quotes lies before it. Both hold across rows, since every row ends outside of quotes.
    """
    data, ends = contiguous(cells)
    begin, end = ends[:-1], ends[1:]
    present = np.ones(len(cells), np.bool_) if cells.null is None else ~cells.null
    if ((end - begin)[present] < 2).any():
        return None
    if (data[begin[present]] != _OPEN).any() or (data[end[present] - 1] != _CLOSE).any():
        return None
    keep, bare = _unquote(data)
    if not keep[end[present] - 1].all() or not bare[end[present] - 1].all():
        return None
    braces = bare & ((data == _OPEN) | (data == _CLOSE))
    if int(braces.sum()) != 2 * int(present.sum()):
        return None
    filled = present & (end - begin > 2)
    commas = np.flatnonzero(bare & (data == _COMMA))
    counts = np.where(filled, 1, 0).astype(np.int64)
    row_of_comma = np.searchsorted(ends, commas, side="right") - 1
    counts += np.bincount(row_of_comma, minlength=len(cells))
    # Elements begin behind an opening brace or a comma, and end before the next one.
    starts = np.sort(np.concatenate((begin[filled], commas)), kind="stable") + 1
    stops = np.sort(np.concatenate((commas, end[filled] - 1)), kind="stable")
    quoted = data[np.minimum(starts, len(data) - 1)] == _QUOTE
    if not _well_formed(data, keep, starts, stops, quoted):
        return None
    return counts, _compact(data, keep, starts, stops, quoted)


def _unquote(data: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks: characters that belong to values, and characters outside of quotes."""
    backslash = data == _BACKSLASH
    if backslash.any():
        index = np.arange(len(data))
        run = index - np.maximum.accumulate(np.where(backslash, -1, index))
        escaped = np.zeros(len(data), np.bool_)
        escaped[1:] = run[:-1] % 2 == 1
    else:
        escaped = backslash
    quote = (data == _QUOTE) & ~escaped
    bare = np.cumsum(quote, dtype=np.int64) % 2 == 0
    return ~quote & ~(backslash & ~escaped), bare & ~quote


def _well_formed(
    data: NDArray[np.uint8],
    keep: NDArray[np.bool_],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    quoted: NDArray[np.bool_],
) -> bool:
    """Return whether no unquoted element is empty, and quotes only enclose whole elements."""
    if (stops <= starts).any() or (data[stops[quoted] - 1] != _QUOTE).any():
        return False
    quotes = int(((data == _QUOTE) & ~keep).sum())
    return quotes == 2 * int(quoted.sum())


def _compact(
    data: NDArray[np.uint8],
    keep: NDArray[np.bool_],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    quoted: NDArray[np.bool_],
) -> Cells:
    """Return the elements' cells, in a buffer that has no quotes and no escaping backslashes."""
    size = stops - starts
    null = ~quoted & (size == len(_NULL))
    for offset, character in enumerate(_NULL):
        null &= data[np.minimum(starts + offset, len(data) - 1)] == character
    if keep.all():
        return Cells(data, starts, size, null)
    position = np.zeros(len(data) + 1, np.int64)
    np.cumsum(keep, out=position[1:])
    begin = position[starts]
    return Cells(data[keep], begin, position[stops] - begin, null)
