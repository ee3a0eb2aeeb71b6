"""real, double precision (float.c): NaN, Infinity and -Infinity are values like others."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.cells import Cells
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import fixed, primitive, strings

_TEXT = re.compile(rb"NaN|-?Infinity|-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?|-?\.[0-9]+")


class FloatFamily(Family):
    """IEEE 754 of 4 or 8 bytes, big-endian in binary, shortest exact decimal in text."""

    def __init__(self, name: str, oid: int, size: int) -> None:
        self.name = name
        self.oids = (oid,)
        self._size = size
        self._type = {4: pa.float32(), 8: pa.float64()}[size]
        self._struct = struct.Struct({4: "!f", 8: "!d"}[size])

    def arrow(self, typmod: int) -> pa.DataType:
        return self._type

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        try:
            return pc.cast(strings(cells, pa.string()), self._type)
        except pa.ArrowInvalid:
            self.refuse_text(cells, typmod)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = fixed(cells, np.dtype(f">f{self._size}"))
        if values is None:
            raise self.malformed_binary()
        return primitive(values, cells.null, self._type)

    def text_value(self, raw: bytes, typmod: int) -> float:
        if not _TEXT.fullmatch(raw):
            raise self.malformed_text(raw)
        try:
            (value,) = self._struct.unpack(self._struct.pack(float(raw)))
        except OverflowError:
            raise self.malformed_text(raw) from None
        return float(value)

    def binary_value(self, raw: bytes, typmod: int) -> float:
        if len(raw) != self._size:
            raise self.malformed_binary()
        return float(self._struct.unpack(raw)[0])

    def copy_column(self, array: pa.Array, typmod: int) -> pa.Array:
        return array.cast(self._type)


def families() -> tuple[Any, ...]:
    """One family per width."""
    return FloatFamily("real", 700, 4), FloatFamily("double precision", 701, 8)
