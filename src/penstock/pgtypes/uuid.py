"""uuid as lower-case text with hyphens, since Delta has no such type (uuid.c)."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells, window
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import contiguous, strings, validity

_SIZE = 16
_PRINTED = 36
_HYPHENS = (8, 13, 18, 23)
_DIGITS = tuple(i for i in range(_PRINTED) if i not in _HYPHENS)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_IS_HEX = np.isin(np.arange(256), _HEX)
_TEXT = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class UuidFamily(Family):
    """16 bytes in binary, 36 characters in text."""

    name = "uuid"
    oids = (pg_type.UUID,)

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.string()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        present = cells.length if cells.null is None else cells.length[~cells.null]
        if (present != _PRINTED).any():
            self.refuse_text(cells, typmod)
        characters = contiguous(cells)[0].reshape(-1, _PRINTED)
        if not _IS_HEX[characters[:, _DIGITS]].all() or (characters[:, _HYPHENS] != 45).any():
            self.refuse_text(cells, typmod)
        return strings(cells, pa.string())

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        present = cells.start if cells.null is None else cells.start[~cells.null]
        length = cells.length if cells.null is None else cells.length[~cells.null]
        if (length != _SIZE).any():
            raise self.malformed_binary()
        raw = window(cells.buffer, f"V{_SIZE}")[present].view(np.uint8).reshape(-1, _SIZE)
        return _printed(raw, cells.null, len(cells))

    def text_value(self, raw: bytes, typmod: int) -> str:
        if not _TEXT.fullmatch(raw):
            raise self.malformed_text(raw)
        return raw.decode("ascii")

    def binary_value(self, raw: bytes, typmod: int) -> str:
        if len(raw) != _SIZE:
            raise self.malformed_binary()
        digits = raw.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _printed(raw: NDArray[np.uint8], null: NDArray[np.bool_] | None, count: int) -> pa.Array:
    """Print uuids. ``raw``: shape (values, 16), without the NULL ones."""
    out = np.full((len(raw), _PRINTED), ord("-"), np.uint8)
    for byte in range(_SIZE):
        out[:, _DIGITS[2 * byte]] = _HEX[raw[:, byte] >> 4]
        out[:, _DIGITS[2 * byte + 1]] = _HEX[raw[:, byte] & 15]
    length = np.full(count, _PRINTED, np.int64)
    if null is not None:
        length[null] = 0
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(length, out=offsets[1:])
    buffers = [validity(null), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), count, buffers)
