"""Many tuples of one relation side by side: where each cell lies (proto.c, logicalrep_read_tuple).

In: a buffer and where the tuples begin. Out: per column the place and kind of every row's cell. A
column is one step for all rows, so the cost is that of the columns, not of the rows. What the cells
mean is left to ``columns``.

A length that is garbage makes a row's position run beyond its message, where it is found before
the next field is read; positions only grow, so nothing is read out of place unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.cells import window
from penstock.errors import ProtocolViolation
from penstock.pgoutput.change_reader import unknown_representation

NULL: Final = ord("n")
UNCHANGED: Final = ord("u")
TEXT: Final = ord("t")
BINARY: Final = ord("b")

_HEADER: Final = 5
"""Kind and length in front of a cell's bytes."""

_KNOWN: Final = np.isin(np.arange(256), (NULL, UNCHANGED, TEXT, BINARY))


@dataclass(frozen=True, slots=True, eq=False)
class CellColumn:
    """One column's cells, shape (rows,) each. ``kind``: one for all rows, or one per row."""

    start: NDArray[np.intp]
    length: NDArray[np.intp]
    kind: int | NDArray[np.uint8]

    def spread(self, where: NDArray[np.bool_]) -> CellColumn:
        """The column for more rows: row i of this one is the i-th true of ``where``; else NULL."""
        start = np.zeros(len(where), np.intp)
        length = np.zeros(len(where), np.intp)
        kind = np.full(len(where), NULL, np.uint8)
        start[where], length[where], kind[where] = self.start, self.length, self.kind
        return CellColumn(start, length, kind)

    def mask(self, kind: int) -> NDArray[np.bool_]:
        """Which cells are of a kind."""
        return np.broadcast_to(np.equal(self.kind, kind), self.start.shape)


def walk_tuples(
    buffer: NDArray[np.uint8], at: NDArray[np.int64], end: NDArray[np.int64], columns: int
) -> tuple[list[CellColumn], NDArray[np.int64]]:
    """Cells of the tuples that begin at ``at``, and the positions behind them.

    ``end``: where each row's message ends; ``buffer`` goes on for 8 bytes behind the last one. The
    positions that come back may lie beyond ``end``: the caller knows what must be there. Raises
    ProtocolViolation.
    """
    _inside(at + 1, end)
    received = window(buffer, ">u2")[at]
    if (received != columns).any():
        raise _wrong_number(int(received[received != columns][0]), columns)
    lengths = window(buffer, ">u4")
    at = at + 2
    walked = []
    for _ in range(columns):
        _inside(at, end)
        column = _column(buffer[at], at, lengths)
        walked.append(column)
        at = column.start + column.length
    return walked, at


def _column(
    kind: NDArray[np.uint8], at: NDArray[np.int64], lengths: NDArray[np.uint32]
) -> CellColumn:
    first = int(kind[0]) if len(kind) else NULL
    if first in (TEXT, BINARY) and (kind == first).all():
        return CellColumn(at + _HEADER, lengths[at + 1].astype(np.intp), first)
    if not _KNOWN[kind].all():
        raise unknown_representation(chr(kind[~_KNOWN[kind]][0]))
    sized = (kind == TEXT) | (kind == BINARY)
    length = np.where(sized, lengths[at + 1], 0).astype(np.intp)
    return CellColumn(np.where(sized, at + _HEADER, at + 1), length, kind)


def _inside(at: NDArray[np.int64], end: NDArray[np.int64]) -> None:
    if (at >= end).any():
        raise ProtocolViolation("insufficient data left in message")


def _wrong_number(received: int, columns: int) -> ProtocolViolation:
    if received < columns:
        return ProtocolViolation(
            f"logical replication column {received} not found in tuple: "
            f"only {received} column(s) received"
        )
    return ProtocolViolation(f"tuple of {received} columns for a relation of {columns}")
