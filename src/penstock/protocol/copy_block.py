"""Rows of COPY TO STDOUT (FORMAT binary), many at once: the places of rows and cells (copyto.c).

A server sends one CopyData for each row. ``CopyBlock`` has the positions at which rows begin and
end, and returns a column's cells. Nothing is copied; ``penstock.pgtypes`` reads the values.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.cells import Cells, int32_at, uint16_at
from penstock.errors import ProtocolViolation
from penstock.kernel import BYTES, NUMBERS, kernel
from penstock.protocol.copy_columns import SIGNATURE

COPY_DATA: Final = ord("d")
HEAD: Final = 1 + 4
"""Bytes of a message's type and length. The length counts itself and not the type."""

TRAILER: Final = b"\xff\xff"
_FILE_HEAD: Final = struct.Struct(f"!{len(SIGNATURE)}sII")
"""Signature, flags, bytes of an extension."""
_CRITICAL: Final = 16
"""Flags from this bit on change the format of rows."""

_COUNT: Final = 2
"""Bytes of a row's number of fields, with which it begins."""
_LENGTH: Final = 4
_NULL: Final = -1

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CopyBlock:
    """Rows that lie in a buffer: row i is ``buffer[start[i]:end[i]]``, shape (n,) each.

    A row begins with its number of fields.
    """

    buffer: NDArray[np.uint8]
    start: Positions
    end: Positions

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def none(cls) -> CopyBlock:
        """Return a block without rows."""
        nothing = np.zeros(0, np.int64)
        return cls(np.zeros(0, np.uint8), nothing, nothing)

    def cells(self, fields: int) -> list[Cells]:
        """Return each column's cells. Raises ProtocolViolation for another number of fields."""
        start = np.empty((fields, len(self)), np.int32)
        length = np.empty((fields, len(self)), np.int32)
        nulls = np.zeros(fields, np.int64)
        fault = _walk(self.buffer, self.start, self.end, start, length, nulls)
        if fault == _WRONG_NUMBER:
            raise ProtocolViolation(f"a row of the copy does not have {fields} fields")
        if fault == _TORN:
            raise ProtocolViolation("the fields of a row of the copy do not fill it")
        return [
            Cells(self.buffer, start[field], length[field], length[field] < 0 if some else None)
            for field, some in enumerate(nulls)
        ]


_TORN: Final = 1
_WRONG_NUMBER: Final = 2


@kernel(f"int64({BYTES}, {NUMBERS}, {NUMBERS}, int32[:, ::1], int32[:, ::1], int64[::1])")
def _walk(
    buffer: NDArray[np.uint8],
    begin: Positions,
    end: Positions,
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    nulls: NDArray[np.int64],
) -> int:
    """Find the cells of rows, shape (fields, rows); the length of NULL is -1, and ``nulls`` counts
    them. Return 0, or what is wrong with a row."""
    for row in range(len(begin)):
        at, stop = begin[row], end[row]
        if stop - at < _COUNT:
            return _TORN
        if uint16_at(buffer, at) != len(start):
            return _WRONG_NUMBER
        at += _COUNT
        for field in range(len(start)):
            if at + _LENGTH > stop:
                return _TORN
            size = int32_at(buffer, at)
            at += _LENGTH
            start[field, row] = at
            length[field, row] = size
            if size >= 0:
                at += size
            elif size == _NULL:
                nulls[field] += 1
            else:
                return _TORN
        if at != stop:
            return _TORN
    return 0


def block_of(rows: bytes, sizes: Sequence[int]) -> CopyBlock:
    """Return consecutive rows in ``rows``. ``sizes``: the length of each row."""
    length = np.array(sizes, np.int64)
    ends = np.cumsum(length)
    return CopyBlock(np.frombuffer(rows, np.uint8), ends - length, ends)


def whole_rows(buffer: NDArray[np.uint8], at: int, end: int, fields: int) -> CopyBlock:
    """Return the rows in ``buffer[at:end]`` whose messages follow one another from ``at`` on.

    They end before the first message that is not whole, or not a row of so many fields.
    """
    here = buffer[at:end]
    least = HEAD + _COUNT + fields * _LENGTH
    begin = np.empty(len(here) // least, np.int64)
    behind = np.empty(len(here) // least, np.int64)
    rows = _messages(here, fields, least, begin, behind)
    return CopyBlock(here, begin[:rows], behind[:rows])


@kernel(f"int64({BYTES}, int64, int64, int64[::1], int64[::1])")
def _messages(
    buffer: NDArray[np.uint8], fields: int, least: int, begin: Positions, end: Positions
) -> int:
    """Find the messages that are whole rows. ``least``: the size of a row without values. Returns
    their number."""
    at = rows = 0
    while at + least <= len(buffer):
        size = 1 + int32_at(buffer, at + 1)
        if buffer[at] != COPY_DATA or size < least or at + size > len(buffer):
            break
        if uint16_at(buffer, at + HEAD) != fields:
            break
        begin[rows] = at + HEAD
        at += size
        end[rows] = at
        rows += 1
    return rows


def file_header(contents: Any) -> int | None:
    """Return the length of the header that begins the first message; None if it is cut off.

    Raises ProtocolViolation (22P04) if it is no header, or announces another format of rows.
    """
    if len(contents) < _FILE_HEAD.size:
        return None
    signature, flags, extension = _FILE_HEAD.unpack_from(contents)
    if signature != SIGNATURE:
        raise ProtocolViolation("COPY file signature not recognized", sqlstate="22P04")
    if flags >> _CRITICAL:
        raise ProtocolViolation("unrecognized critical flags in COPY file header", sqlstate="22P04")
    size = _FILE_HEAD.size + extension
    return size if size <= len(contents) else None
