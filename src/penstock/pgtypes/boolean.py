"""boolean (bool.c): ``t`` and ``f`` in text, one byte in binary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import fixed, validity

_TEXT = {b"t": True, b"f": False}


class BooleanFamily(Family):
    """PostgreSQL's boolean."""

    name = "boolean"
    oids = (16,)

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
        return _array(true, cells.null)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = fixed(cells, np.uint8)
        if values is None:
            raise self.malformed_binary()
        return _array(values != 0, cells.null)

    def text_value(self, raw: bytes, typmod: int) -> bool:
        if raw not in _TEXT:
            raise self.malformed_text(raw)
        return _TEXT[raw]

    def binary_value(self, raw: bytes, typmod: int) -> bool:
        if len(raw) != 1:
            raise self.malformed_binary()
        return raw != b"\0"

    def copy_column(self, array: pa.Array, typmod: int) -> pa.Array:
        return array.cast(pa.bool_())


def _array(values: NDArray[np.bool_], null: NDArray[np.bool_] | None) -> pa.Array:
    bits = pa.array(values).buffers()[1]
    return pa.Array.from_buffers(pa.bool_(), len(values), [validity(null), bits])


def families() -> tuple[Any, ...]:
    """The one family."""
    return (BooleanFamily(),)
