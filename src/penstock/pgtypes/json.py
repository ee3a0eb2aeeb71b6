"""json, jsonb (json.c, jsonb.c): kept as text, so that no number loses digits and no key is lost.

jsonb in binary is a version byte (1) and the text that its output function prints.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.cells import Cells
from penstock.pgtypes.text import TextFamily, utf8_column, utf8_value

_VERSION = 1


class JsonbFamily(TextFamily):
    """jsonb: text behind a version byte in binary."""

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        null = cells.null if cells.null is not None else np.zeros(len(cells), np.bool_)
        if (~null & (cells.length < 1)).any():
            raise self.malformed_binary()
        if (cells.buffer[cells.start[~null]] != _VERSION).any():
            raise self.malformed_binary()
        return utf8_column(Cells(cells.buffer, cells.start + 1, cells.length - 1, cells.null))

    def binary_value(self, raw: bytes, typmod: int) -> str:
        if raw[:1] != bytes([_VERSION]):
            raise self.malformed_binary()
        return utf8_value(raw[1:])


def families() -> tuple[Any, ...]:
    """json has the same bytes in both formats."""
    return TextFamily("json", 114), JsonbFamily("jsonb", 3802)
