"""One-dimensional arrays of every type that has a family (arrayfuncs.c).

An array becomes a list. PostgreSQL does not hold a column to one dimension, nor to subscripts that
start at 1: a value with other dimensions raises ValueNotRepresentable, it is never flattened. How
the elements lie in the bytes is left to ``array_text`` and ``array_binary``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.cells import Cells
from penstock.pgtypes.array_binary import binary_dimensions, binary_elements, binary_raws
from penstock.pgtypes.array_text import text_dimensions, text_elements, text_raws
from penstock.pgtypes.family import Family, TypeFamily, shown

_ARRAY_SUBSCRIPT_ERROR = "2202E"


class ArrayFamily(Family):
    """Arrays of one element type. typmod is the element's."""

    def __init__(self, oid: int, element: TypeFamily) -> None:
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
