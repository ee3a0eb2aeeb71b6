"""boolean, smallint, integer, bigint (bool.c, int.c, int8.c): numbers of a fixed width."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells
from penstock.errors import ProtocolViolation
from penstock.kernel import BYTES, FLAGS, PLACES, kernel
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family, shown
from penstock.pgtypes.gather import fixed, nulls, primitive, validity

_WORDS = {b"t": True, b"f": False}


class BooleanFamily(Family):
    """PostgreSQL's boolean."""

    name = "boolean"
    oids = (pg_type.BOOL,)

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.bool_()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = fixed(cells, np.uint8)
        if values is None:
            self.refuse_text(cells, typmod)
        true = values == ord("t")
        wrong = ~true & (values != ord("f"))
        if cells.null is not None:
            wrong &= ~cells.null
        if wrong.any():
            self.refuse_text(cells, typmod)
        return _bits(true, cells.null)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = fixed(cells, np.uint8)
        if values is None:
            raise self.malformed_binary()
        return _bits(values != 0, cells.null)

    def text_value(self, raw: bytes, typmod: int) -> bool:
        if raw not in _WORDS:
            raise self.malformed_text(raw)
        return _WORDS[raw]

    def binary_value(self, raw: bytes, typmod: int) -> bool:
        if len(raw) != 1:
            raise self.malformed_binary()
        return raw != b"\0"


def _bits(values: NDArray[np.bool_], null: NDArray[np.bool_] | None) -> pa.Array:
    bits = pa.array(values).buffers()[1]
    return pa.Array.from_buffers(pa.bool_(), len(values), [validity(null), bits])


_ZERO, _MINUS = map(ord, "0-")
_NUMBER = re.compile(rb"-?[0-9]+")


class IntegerFamily(Family):
    """Two's complement of 2, 4 or 8 bytes, big-endian in binary."""

    def __init__(self, oid: int, size: int) -> None:
        self.name = pg_type.types()[oid].sql_name
        self.oids = (oid,)
        self._size = size
        self._type = {2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[size]

    def arrow(self, typmod: int) -> pa.DataType:
        return self._type

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = np.zeros(len(cells), np.int64)
        where = cells.buffer, cells.start, cells.length, nulls(cells)
        self.check_text(cells, _read(*where, 8 * self._size, values), typmod)
        return primitive(values.astype(f"i{self._size}", copy=False), cells.null, self._type)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = fixed(cells, np.dtype(f">i{self._size}"))
        if values is None:
            raise self.malformed_binary()
        return primitive(values, cells.null, self._type)

    def text_value(self, raw: bytes, typmod: int) -> int:
        if not _NUMBER.fullmatch(raw):
            raise self.malformed_text(raw)
        value = int(raw)
        if value.bit_length() >= 8 * self._size and value != -(1 << (8 * self._size - 1)):
            message = f'value "{shown(raw)}" is out of range for type {self.name}'
            raise ProtocolViolation(message, sqlstate="22003")
        return value

    def binary_value(self, raw: bytes, typmod: int) -> int:
        if len(raw) != self._size:
            raise self.malformed_binary()
        return int.from_bytes(raw, "big", signed=True)


@kernel(f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int64, int64[::1])")
def _read(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    bits: int,
    values: NDArray[np.int64],
) -> int:
    """Read integers; return the first row that is no number of so many bits, -1 if none is."""
    lowest = -(1 << (bits - 1))
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        at, end = np.int64(start[row]), np.int64(start[row]) + length[row]
        negative = at < end and buffer[at] == _MINUS
        at += negative
        if at == end:
            return row
        value = 0  # as a negative number, since there is one more of those
        while at < end:
            digit = int(np.int64(buffer[at])) - _ZERO
            if digit < 0 or digit > 9 or value < (lowest + digit + 9) // 10:
                return row
            value = value * 10 - digit
            at += 1
        if not negative:
            if value == lowest:
                return row
            value = -value
        values[row] = value
    return -1
