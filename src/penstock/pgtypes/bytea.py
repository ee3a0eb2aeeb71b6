r"""bytea (varlena.c): ``\x`` and hexadecimal digits, or the old escape format, in text.

``bytea_output`` may be ``escape`` for the publisher's database or role, and no subscriber sets it.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells, window
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import contiguous, strings, validity

_NOT_HEX = 255
_NIBBLE = np.full(256, _NOT_HEX, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _NIBBLE[np.frombuffer(_digits, np.uint8)] = np.arange(16)
_ESCAPE = re.compile(rb"\\(?:\\|([0-3][0-7]{2}))")
_ESCAPED = re.compile(rb"(?:[^\\]|\\\\|\\[0-3][0-7]{2})*", re.DOTALL)


class ByteaFamily(Family):
    """PostgreSQL's bytea."""

    name = "bytea"
    oids = (17,)

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.binary()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        if not _all_hex(cells):
            raws = (cells.raw(index) for index in range(len(cells)))
            values = [None if raw is None else self.text_value(raw, typmod) for raw in raws]
            return pa.array(values, pa.binary())
        digits, ends = contiguous(
            Cells(cells.buffer, cells.start + 2, cells.length - 2, cells.null)
        )
        nibbles = _NIBBLE[digits]
        if (np.diff(ends) % 2).any() or (nibbles == _NOT_HEX).any():
            self.refuse_text(cells, typmod)
        data = (nibbles[0::2] << 4) | nibbles[1::2]
        buffers = [
            validity(cells.null),
            pa.py_buffer((ends // 2).astype(np.int32)),
            pa.py_buffer(data),
        ]
        return pa.Array.from_buffers(pa.binary(), len(cells), buffers)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        return strings(cells, pa.binary())

    def text_value(self, raw: bytes, typmod: int) -> bytes:
        if raw.startswith(b"\\x"):
            if not re.fullmatch(rb"(?:[0-9a-fA-F]{2})*", raw[2:]):
                raise self.malformed_text(raw)
            return bytes.fromhex(raw[2:].decode("ascii"))
        if not _ESCAPED.fullmatch(raw):
            raise self.malformed_text(raw)
        return _ESCAPE.sub(lambda m: bytes([int(m[1], 8)]) if m[1] else b"\\", raw)

    def binary_value(self, raw: bytes, typmod: int) -> bytes:
        return raw

    def copy_column(self, array: pa.Array, typmod: int) -> pa.Array:
        return array.cast(pa.binary())


def _all_hex(cells: Cells) -> bool:
    present: NDArray[np.intp] = cells.start
    length = cells.length
    if cells.null is not None:
        present, length = present[~cells.null], length[~cells.null]
    if (length < 2).any():
        return False
    return bool((window(cells.buffer, ">u2")[present] == 0x5C78).all())


def families() -> tuple[Any, ...]:
    """The one family."""
    return (ByteaFamily(),)
