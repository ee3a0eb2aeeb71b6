"""uuid as lower-case text with hyphens, since Delta has no such type (uuid.c)."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.cells import Cells
from penstock.errors import ValueNotRepresentable
from penstock.kernel import BYTES, FLAGS, PLACES, kernel, part
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import cells_of, nulls, present, strings, validity, written
from penstock.pgtypes.varlena import HEX, NIBBLES, NOT_HEX

_SIZE = 16
_PRINTED = 36
_ZERO, _A, _HYPHEN = map(ord, "0a-")
_TEXT = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class UuidFamily(Family):
    """16 bytes in binary, 36 characters in text."""

    name = "uuid"
    oids = (pg_type.UUID,)

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.string()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        where = cells.buffer, cells.start, cells.length, nulls(cells)
        self.check_text(cells, _find_other(*where), typmod)
        return strings(cells, pa.string())

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        here = np.broadcast_to(present(cells), len(cells))
        if not (cells.length == _SIZE).all(where=here):
            raise self.malformed_binary()
        offsets = np.zeros(len(cells) + 1, np.int32)
        np.cumsum(here, out=offsets[1:])
        offsets *= _PRINTED
        data = np.full(offsets[-1], _HYPHEN, np.uint8)
        _print(cells.buffer, cells.start, nulls(cells), offsets, data)
        buffers = [validity(cells.null), pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.string(), len(cells), buffers)

    def text_value(self, raw: bytes, typmod: int) -> str:
        if not _TEXT.fullmatch(raw):
            raise self.malformed_text(raw)
        return raw.decode("ascii")

    def binary_value(self, raw: bytes, typmod: int) -> str:
        if len(raw) != _SIZE:
            raise self.malformed_binary()
        digits = raw.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@part
def _is_hyphens(place: int) -> bool:
    return place in (8, 13, 18, 23)


@kernel(f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS})")
def _find_other(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
) -> int:
    """Return the first row that is no uuid as the server prints it, -1 if all are."""
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        if length[row] != _PRINTED:
            return row
        for place in range(_PRINTED):
            character = buffer[start[row] + place]
            if _is_hyphens(place):
                if character != _HYPHEN:
                    return row
            elif not (_ZERO <= character <= _ZERO + 9 or _A <= character <= _A + 5):
                return row
    return -1


@kernel(f"void({BYTES}, {PLACES}, {FLAGS}, {PLACES}, uint8[::1])")
def _print(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Print uuids into ``out``, which is full of hyphens, at ``offsets``."""
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        to = np.int64(offsets[row])
        for byte in range(_SIZE):
            to += _is_hyphens(to - offsets[row])
            value = buffer[start[row] + byte]
            out[to], out[to + 1] = HEX[value >> 4], HEX[value & 15]
            to += 2


def uuid_binary(array: pa.Array) -> pa.Array:
    """Return the 16 bytes of each uuid. Raises ValueNotRepresentable (22P02) for other text."""
    cells = cells_of(array)
    where = cells.buffer, cells.start, cells.length
    found = written(array, pa.binary(), _SIZE * len(array), _read, *where)
    wrong = pc.index(pc.binary_length(found), 0).as_py()
    if wrong >= 0:
        text = array[wrong].as_py()
        raise ValueNotRepresentable(
            f'invalid input syntax for type uuid: "{text}"', sqlstate="22P02"
        )
    return found


@kernel(f"void({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int32[::1], uint8[::1])")
def _read(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Read 32 hexadecimal digits, whatever hyphens are among them; other text becomes nothing."""
    at = 0
    for row in range(len(start)):
        if not (len(null) and null[row]):
            count = value = 0
            for place in range(start[row], start[row] + length[row]):
                if buffer[place] == _HYPHEN:
                    continue
                digit = int(np.int64(NIBBLES[buffer[place]]))
                if digit == NOT_HEX or count == 2 * _SIZE:
                    count = 0
                    break
                value = value << 4 | digit
                count += 1
                if count % 2 == 0:
                    out[at + count // 2 - 1] = value & 0xFF
            if count == 2 * _SIZE:
                at += _SIZE
        offsets[row + 1] = at
