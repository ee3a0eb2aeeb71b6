"""numeric(p, s) of up to 38 digits becomes decimal128; any other numeric stays text (numeric.c).

A decimal cannot hold NaN and infinity, which raise ValueNotRepresentable. Unconstrained numeric and
more than 38 digits become strings, so that nothing is lost. The section on the binary format below
reads the digits.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.cells import Cells, window
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import primitive, validity
from penstock.pgtypes.type_names import numeric_modifiers
from penstock.pgtypes.varlena import utf8_column, utf8_value

_MAX_PRECISION = 38
_MAX_INT64_DIGITS = 18
_TEXT = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SPECIAL = ("NaN", "Infinity", "-Infinity")
_CONTEXT = Context(prec=2 * _MAX_PRECISION)


class NumericFamily(Family):
    """PostgreSQL's numeric."""

    name = "numeric"
    oids = (pg_type.NUMERIC,)

    def arrow(self, typmod: int) -> pa.DataType:
        shape = precision_and_scale(typmod)
        return pa.string() if shape is None else pa.decimal128(*shape)

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        text = utf8_column(cells)
        if precision_and_scale(typmod) is None:
            return text
        try:
            return pc.cast(text, self.arrow(typmod))
        except pa.ArrowInvalid:
            self.refuse_text(cells, typmod)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        digits = digits_of(cells)
        if digits is None:
            raise self.malformed_binary()
        shape = precision_and_scale(typmod)
        if shape is None:
            return printed(digits, cells.null)
        if shape[0] <= _MAX_INT64_DIGITS:
            numbers = unscaled(digits, *shape)
            if numbers is None:
                self._refuse_binary(cells, typmod)
            words = np.stack((numbers, numbers >> 63), axis=1)
            return primitive(words, cells.null, pa.decimal128(*shape))
        try:
            return pc.cast(printed(digits, cells.null), pa.decimal128(*shape))
        except pa.ArrowInvalid:
            self._refuse_binary(cells, typmod)

    def text_value(self, raw: bytes, typmod: int) -> Decimal | str:
        text = utf8_value(raw)
        shape = precision_and_scale(typmod)
        return text if shape is None else self._decimal(text, *shape)

    def binary_value(self, raw: bytes, typmod: int) -> Decimal | str:
        text = printed_one(raw)
        if text is None:
            raise self.malformed_binary()
        return self.text_value(text.encode("ascii"), typmod)

    def copied_as_text(self, typmod: int) -> bool:
        # A few bytes in binary may become 131,072 digits of text.
        return precision_and_scale(typmod) is None

    def _decimal(self, text: str, precision: int, scale: int) -> Decimal:
        if text in _SPECIAL or text in ("nan", "inf", "-inf"):
            raise self.unfit(text)
        if not _TEXT.fullmatch(text):
            raise self.malformed_text(text.encode())
        exact = Decimal(text)
        if exact and exact.adjusted() >= precision - scale:
            raise self.unfit(text)
        fitted = exact.quantize(Decimal(1).scaleb(-scale), context=_CONTEXT)
        if fitted != exact:
            raise self.unfit(text)
        return fitted

    def _refuse_binary(self, cells: Cells, typmod: int) -> NoReturn:
        for index in range(len(cells)):
            raw = cells.raw(index)
            if raw is not None:
                self.binary_value(raw, typmod)
        raise self.malformed_binary()


def precision_and_scale(typmod: int) -> tuple[int, int] | None:
    """Return precision and scale of the decimal that holds numeric(p, s); None if no decimal can.

    numeric(5, -2) holds up to 7 digits before the point; numeric(2, 5) holds 5 behind it.
    """
    modifiers = numeric_modifiers(typmod)
    if modifiers is None:
        return None
    precision, scale = modifiers
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return (precision, scale) if precision <= _MAX_PRECISION else None


# Read numeric in binary format (numeric.c, numeric_send): base 10000 digits to numbers and to text.
#
# A value is Int16 ndigits, Int16 weight, Int16 sign, Int16 dscale and ndigits Int16 digits; digit i
# counts 10000 ** (weight - i), and the first one is not 0. Cells become unscaled integers, or the
# text of numeric_out. The family checks that a value fits its type.

_HEADER = struct.Struct("!HhHH")
_NEGATIVE = 0x4000
_NAN, _PLUS_INFINITY, _MINUS_INFINITY = 0xC000, 0xD000, 0xF000
_SPECIAL_TEXT = {_NAN: b"NaN", _PLUS_INFINITY: b"Infinity", _MINUS_INFINITY: b"-Infinity"}
_SIGNS = (0, _NEGATIVE, *_SPECIAL_TEXT)
_DSCALE_MAX = 0x3FFF
_BASE = 10_000
_WIDTH = 4
_POWER = 10 ** np.arange(19, dtype=np.int64)
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Numerics of a column, shape (n,) each except ``row``, ``place`` and ``digit``.

    The digits of all rows lie in a row, shape (sum of ndigits,): ``digit`` 0..9999, the ``row`` it
    belongs to, and ``place``, its power of 10000. NULL is a zero without digits.
    """

    weight: NDArray[np.int64]
    sign: NDArray[np.int64]
    dscale: NDArray[np.int64]
    row: NDArray[np.int64]
    place: NDArray[np.int64]
    digit: NDArray[np.int64]


def digits_of(cells: Cells) -> Digits | None:
    """Take the numbers apart; None if a cell is malformed."""
    count = len(cells)
    present = np.arange(count) if cells.null is None else np.flatnonzero(~cells.null)
    start, length = cells.start[present], cells.length[present]
    if (length < _HEADER.size).any():
        return None
    words = window(cells.buffer, ">u2")
    header = np.zeros((4, count), np.int64)
    for field in range(4):
        header[field, present] = words[start + 2 * field]
    ndigits, weight, sign, dscale = header
    weight = np.where(weight > 0x7FFF, weight - 0x10000, weight)
    if (length != _HEADER.size + 2 * ndigits[present]).any() or (dscale > _DSCALE_MAX).any():
        return None
    if not np.isin(sign, _SIGNS).all():
        return None
    row = np.repeat(np.arange(count), ndigits)
    index = np.arange(len(row)) - np.repeat(np.cumsum(ndigits) - ndigits, ndigits)
    begin = np.zeros(count, np.int64)
    begin[present] = start + _HEADER.size
    digit = words[begin[row] + 2 * index].astype(np.int64) if len(row) else np.zeros(0, np.int64)
    if (
        (digit >= _BASE).any()
        or ((index == 0) & (digit == 0)).any()
        or (sign[row] > _NEGATIVE).any()
    ):
        return None
    return Digits(weight, sign, dscale, row, weight[row] - index, digit)


def unscaled(digits: Digits, precision: int, scale: int) -> NDArray[np.int64] | None:
    """Return values times 10 ** scale, precision at most 18; None if one does not fit exactly."""
    if (digits.sign > _NEGATIVE).any():
        return None
    shift = _WIDTH * digits.place + scale
    significant = digits.digit != 0
    row, shift, digit = digits.row[significant], shift[significant], digits.digit[significant]
    cut = _POWER[np.clip(-shift, 0, _WIDTH)]
    room = _POWER[np.clip(_MAX_DIGITS - shift, 0, _MAX_DIGITS)]
    if (digit % cut != 0).any() or (digit >= room).any():
        return None
    parts = digit // cut * _POWER[np.clip(shift, 0, _MAX_DIGITS)]
    total = np.zeros(len(digits.sign), np.int64)
    np.add.at(total, row, parts)
    if (total >= _POWER[precision]).any():
        return None
    return np.where(digits.sign == _NEGATIVE, -total, total)


def printed(digits: Digits, null: NDArray[np.bool_] | None) -> pa.Array:
    """Print the numbers as numeric_out does, as an Arrow string array."""
    count = len(digits.sign)
    whole = _whole_length(digits)
    fraction = np.where(digits.dscale > 0, digits.dscale + 1, 0)
    minus = (digits.sign == _NEGATIVE).astype(np.int64)
    length = minus + whole + fraction
    for sign, text in _SPECIAL_TEXT.items():
        length[digits.sign == sign] = len(text)
    if null is not None:
        length[null] = 0
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    out = np.full(offsets[-1], ord("0"), np.uint8)
    begin = offsets[:-1]
    live = digits.sign <= _NEGATIVE if null is None else (digits.sign <= _NEGATIVE) & ~null
    out[begin[live & (minus == 1)]] = ord("-")
    point = begin + minus + whole
    out[point[live & (fraction > 0)]] = ord(".")
    _put_digits(out, digits, begin + minus, point)
    for sign, text in _SPECIAL_TEXT.items():
        at = begin[digits.sign == sign]
        out[at[:, None] + np.arange(len(text))] = np.frombuffer(text, np.uint8)
    buffers = [validity(null), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _whole_length(digits: Digits) -> NDArray[np.int64]:
    """Count the decimal digits before the point: at least one, no leading zeros."""
    first = np.zeros(len(digits.sign), np.int64)
    at_weight = digits.place == digits.weight[digits.row]
    first[digits.row[at_weight]] = digits.digit[at_weight]
    leading = 1 + (first >= 10).astype(np.int64) + (first >= 100) + (first >= 1000)
    whole: NDArray[np.int64] = _WIDTH * digits.weight + leading
    return np.where((digits.weight >= 0) & (first > 0), whole, 1)


def _put_digits(
    out: NDArray[np.uint8], digits: Digits, begin: NDArray[np.int64], point: NDArray[np.int64]
) -> None:
    """Write every base 10000 digit as four characters, as far as they lie within their number.

    ``begin`` and ``point``: where each number's whole part begins and ends in ``out``.
    """
    row = digits.row
    before = digits.place >= 0
    at = np.where(before, point[row] - _WIDTH * (digits.place + 1), point[row] + 1)
    at += np.where(before, 0, -_WIDTH * (digits.place + 1))
    low = np.where(before, begin[row], point[row] + 1)
    high = np.where(before, point[row], point[row] + 1 + digits.dscale[row])
    for character in range(_WIDTH):
        where = at + character
        inside = (where >= low) & (where < high)
        value = digits.digit // 10 ** (_WIDTH - 1 - character) % 10
        out[where[inside]] = ord("0") + value[inside]


def printed_one(raw: bytes) -> str | None:
    """Print one value as numeric_out does; None if it is malformed. The readable reference."""
    if len(raw) < _HEADER.size:
        return None
    ndigits, weight, sign, dscale = _HEADER.unpack_from(raw)
    if len(raw) != _HEADER.size + 2 * ndigits or sign not in _SIGNS or dscale > _DSCALE_MAX:
        return None
    digits: tuple[Any, ...] = struct.unpack_from(f"!{ndigits}H", raw, _HEADER.size)
    if any(digit >= _BASE for digit in digits) or digits[:1] == (0,):
        return None
    if sign in _SPECIAL_TEXT:
        return None if digits else _SPECIAL_TEXT[sign].decode("ascii")
    by_place = {weight - index: digit for index, digit in enumerate(digits)}
    whole = "".join(f"{by_place.get(place, 0):04}" for place in range(weight, -1, -1))
    last = -(-dscale // _WIDTH)
    fraction = "".join(f"{by_place.get(-place, 0):04}" for place in range(1, last + 1))[:dscale]
    minus = "-" if sign == _NEGATIVE else ""
    return minus + (whole.lstrip("0") or "0") + ("." + fraction if dscale else "")
