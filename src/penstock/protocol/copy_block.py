"""Rows of COPY TO STDOUT (FORMAT binary), many at once: the places of rows and cells (copyto.c).

A server sends one CopyData for each row. ``CopyBlock`` has the positions at which rows begin and
end, and returns a column's cells. Nothing is copied; ``penstock.pgtypes`` reads the values.

Each message holds only its own length, so a simple reader would walk from message to message.
Instead, each position that looks like a row's message is a candidate. Candidates that form a chain,
each beginning where the one before ends, are kept; the others are dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.cells import Cells, window
from penstock.errors import ProtocolViolation
from penstock.protocol.copy_columns import SIGNATURE

COPY_DATA: Final = ord("d")
HEAD: Final = 1 + 4
"""Bytes of a message's type and length. The length counts itself and not the type."""

TRAILER: Final = b"\xff\xff"
_FILE_HEAD: Final = struct.Struct(f"!{len(SIGNATURE)}sII")
"""Signature, flags, bytes of an extension."""
_CRITICAL: Final = 16
"""Flags from this bit on change the format of rows."""

_HEAD: Final = struct.Struct("!BiH")
"""The head of a row's message: type, length, number of fields."""
_COUNT: Final = 2
"""Bytes of a row's number of fields, with which it begins."""
_LENGTH: Final = 4
_NULL: Final = -1

Positions = NDArray[np.intp]


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
        nothing = np.zeros(0, np.intp)
        return cls(np.zeros(0, np.uint8), nothing, nothing)

    def cells(self, fields: int) -> list[Cells]:
        """Return each column's cells. Raises ProtocolViolation for another number of fields."""
        if (self.end - self.start < _COUNT).any():
            raise _torn()
        if (window(self.buffer, ">u2")[self.start] != fields).any():
            raise ProtocolViolation(f"a row of the copy does not have {fields} fields")
        lengths = window(self.buffer, ">i4")
        at = self.start + _COUNT
        columns: list[Cells] = []
        for _ in range(fields):
            # Positions only grow: one that is beyond its row cannot return to the row's end.
            try:
                length = lengths[at].astype(np.intp)
            except IndexError:
                raise _torn() from None
            at = at + _LENGTH
            null = None
            if length.min(initial=0) < 0:
                null = length < 0
                if (length < _NULL).any():
                    raise _torn()
                length[null] = 0
            columns.append(Cells(self.buffer, at, length, null))
            at = at + length
        if (at != self.end).any():
            raise _torn()
        return columns


def _torn() -> ProtocolViolation:
    return ProtocolViolation("the fields of a row of the copy do not fill it")


def block_of(rows: bytes, sizes: Sequence[int]) -> CopyBlock:
    """Return consecutive rows in ``rows``. ``sizes``: the length of each row."""
    length = np.array(sizes, np.intp)
    ends = np.cumsum(length)
    return CopyBlock(np.frombuffer(rows, np.uint8), ends - length, ends)


def whole_rows(buffer: NDArray[np.uint8], at: int, end: int, fields: int) -> CopyBlock:
    """Return the rows in ``buffer[at:end]`` whose messages follow one another from ``at`` on.

    They end before the first message that is not whole, or not a row of so many fields.
    """
    here = buffer[at:end]
    alike = _alike(here, fields)
    if alike is not None:
        return alike
    start = _that_look_so(here, fields)
    following = start + 1 + window(here, ">i4")[start + 1]
    chain = _chain(start, following)
    start, following = start[chain], following[chain]
    if len(start) and following[-1] > len(here):
        start, following = start[:-1], following[:-1]
    return CopyBlock(here, start + HEAD, following)


def _alike(here: NDArray[np.uint8], fields: int) -> CopyBlock | None:
    """Return the rows if all are as long as the first one; None if they must be searched."""
    first = _row_at(here, 0, fields)
    if first is None:
        return None
    rows = len(here) // first
    if _row_at(here, rows * first, fields) is not None:  # a shorter one follows
        return None
    end = rows * first
    length = window(here, ">i4")[1:end:first]
    if (length != first - 1).any() or (window(here, ">u2")[HEAD:end:first] != fields).any():
        return None
    if (here[:end:first] != COPY_DATA).any():
        return None
    start = np.arange(0, end, first)
    return CopyBlock(here, start + HEAD, start + first)


def _row_at(here: NDArray[np.uint8], at: int, fields: int) -> int | None:
    """Return the bytes of the row's message at ``at``; None if there is none or it is not whole."""
    head = here[at : at + _HEAD.size].tobytes()
    if len(head) < _HEAD.size:
        return None
    kind, length, count = _HEAD.unpack(head)
    whole = _HEAD.size <= 1 + length <= len(here) - at
    return 1 + length if kind == COPY_DATA and count == fields and whole else None


def _that_look_so(here: NDArray[np.uint8], fields: int) -> Positions:
    """Return places that may be a row's message by type, length and number of fields."""
    last = len(here) - HEAD - _COUNT
    if last < 0:
        return np.zeros(0, np.intp)
    found = np.flatnonzero(here[: last + 1] == COPY_DATA)
    found = found[window(here, ">u2")[found + HEAD] == fields]
    length = window(here, ">i4")[found + 1]
    likely: Positions = found[length >= _LENGTH + _COUNT + fields * _LENGTH]
    return likely


def _chain(start: Positions, following: Positions) -> NDArray[np.bool_]:
    """Return a mask of the messages that follow one another, from 0 on.

    Costs one step for each place that only looks like a message; few values do by chance.
    """
    kept = np.ones(len(start), np.bool_)
    if not len(start) or start[0] != 0:
        kept[:] = False
        return kept
    reached = 0
    for wrong in np.flatnonzero(following[:-1] != start[1:]).tolist():
        if wrong < reached:
            continue
        reached = int(np.searchsorted(start, following[wrong]))
        kept[wrong + 1 : reached] = False
        if reached == len(start) or start[reached] != following[wrong]:
            kept[wrong + 1 :] = False
            break
    return kept


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
