"""Read real and double precision, and print them as the server does (float.c, d2s.c, f2s.c).

NaN, Infinity and -Infinity are ordinary values. A number's text is the shortest that reads back as
the same number: plain digits for exponents from -4 to 14 (5 for real), otherwise ``d.ddde+XX``.
"""

from __future__ import annotations

import re
import struct
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.cells import Cells
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import fixed, primitive, strings

_HALVES: Final = {pa.float32(): (2.0**24, 1e21), pa.float64(): (2.0**53, 1e41)}
"""The range in which a short decimal can lie exactly between two floating-point numbers.

Below it they have fractions, above it 5**k has too many bits.
"""
_LOWEST: Final = -4
_DIGITS: Final = {pa.float32(): 6, pa.float64(): 15}
_EXACT: Final = {pa.float32(): 1e6, pa.float64(): 1e15}
"""The bound below which whole numbers are printed as integers."""
_TEXT = re.compile(rb"NaN|-?Infinity|-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?|-?\.[0-9]+")


class FloatFamily(Family):
    """IEEE 754 of 4 or 8 bytes, big-endian in binary, shortest exact decimal in text."""

    def __init__(self, oid: int, size: int) -> None:
        self.name = pg_type.types()[oid].sql_name
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


def float_text(array: pa.Array) -> pa.Array:
    """Return the text of each value."""
    kind = array.type
    numbers = np.asarray(pc.fill_null(array, 0))
    with np.errstate(invalid="ignore"):
        whole = (np.abs(numbers) < _EXACT[kind]) & (np.trunc(numbers) == numbers)
    whole &= ~(np.signbit(numbers) & (numbers == 0))
    integers = pc.cast(pa.array(np.where(whole, numbers, 0).astype(np.int64)), pa.string())
    if whole.all():
        text = integers
    else:
        # Repeated numbers, such as prices, are formatted once.
        distinct, place = np.unique(numbers[~whole], return_inverse=True)
        texts = pa.array([_printed(v, kind) for v in distinct], pa.string())
        others = texts.take(pa.array(place.reshape(-1)))
        text = pc.replace_with_mask(integers, pa.array(~whole), others)
    return pc.if_else(pc.is_valid(array), text, pa.scalar(None, pa.string()))


def float_out(value: float, kind: pa.DataType) -> str:
    """Return the text of one value; it is a real if ``kind`` is float32."""
    return _printed(np.float32(value) if kind == pa.float32() else np.float64(value), kind)


def _printed(value: np.floating, kind: pa.DataType) -> str:
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if np.signbit(value) else "0"
    # numpy finds the shortest digits that read back, for either size of number.
    text = np.format_float_scientific(value, unique=True, trim="-")
    low, high = _HALVES[kind]
    if low <= abs(value) < high:
        text = _within_bounds(value, text)
    mantissa, exponent_text = text.split("e")
    exponent = int(exponent_text)
    if not _LOWEST <= exponent < _DIGITS[kind]:
        return f"{mantissa}e{exponent:+03d}"
    return np.format_float_positional(value, unique=True, trim="-")


def _within_bounds(value: np.floating, text: str) -> str:
    """Return the shortest digits that are nearer to the number than to any other one.

    Digits exactly between two numbers are read as the even one, so numpy takes them, and d2s.c does
    not: 1e23 is 9.999999999999999e+22. Only numbers without a fraction have such digits.
    """
    number = int(value)
    neighbours = [np.nextafter(value, value.dtype.type(to)) for to in (-np.inf, np.inf)]
    halves = {number + int(other) for other in neighbours}
    while Decimal(text) * 2 in halves:
        digits = len(text.partition("e")[0].lstrip("-").replace(".", ""))
        text = f"{number:.{digits}e}"
    return text
