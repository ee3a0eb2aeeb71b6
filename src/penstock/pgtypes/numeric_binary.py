"""numeric in binary format (numeric.c, numeric_send): base 10000 digits to numbers and to text.

A value is Int16 ndigits, Int16 weight, Int16 sign, Int16 dscale and ndigits Int16 digits; digit i
counts 10000 ** (weight - i), and the first one is not 0. In: cells. Out: unscaled integers, or the
text of numeric_out. Whether a value fits its type is left to ``numeric``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells, window
from penstock.pgtypes.gather import validity

_HEADER = struct.Struct("!HhHH")
_NEGATIVE = 0x4000
_NAN, _PLUS_INFINITY, _MINUS_INFINITY = 0xC000, 0xD000, 0xF000
_SPECIAL = {_NAN: b"NaN", _PLUS_INFINITY: b"Infinity", _MINUS_INFINITY: b"-Infinity"}
_SIGNS = (0, _NEGATIVE, *_SPECIAL)
_DSCALE_MAX = 0x3FFF
_BASE = 10_000
_WIDTH = 4
_POWER = 10 ** np.arange(19, dtype=np.int64)
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Numerics of a column, shape (n,) each but ``row``, ``place`` and ``digit``.

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
    """Take the numbers apart; None where a cell is malformed."""
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
    """Values times 10 ** scale, precision at most 18; None where one does not fit exactly."""
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
    """What numeric_out prints, as an Arrow string array."""
    count = len(digits.sign)
    whole = _whole_length(digits)
    fraction = np.where(digits.dscale > 0, digits.dscale + 1, 0)
    minus = (digits.sign == _NEGATIVE).astype(np.int64)
    length = minus + whole + fraction
    for sign, text in _SPECIAL.items():
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
    for sign, text in _SPECIAL.items():
        at = begin[digits.sign == sign]
        out[at[:, None] + np.arange(len(text))] = np.frombuffer(text, np.uint8)
    buffers = [validity(null), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _whole_length(digits: Digits) -> NDArray[np.int64]:
    """Decimal digits before the point: at least one, no leading zeros."""
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
    """What numeric_out prints of one value; None where it is malformed. The readable reference."""
    if len(raw) < _HEADER.size:
        return None
    ndigits, weight, sign, dscale = _HEADER.unpack_from(raw)
    if len(raw) != _HEADER.size + 2 * ndigits or sign not in _SIGNS or dscale > _DSCALE_MAX:
        return None
    digits: tuple[Any, ...] = struct.unpack_from(f"!{ndigits}H", raw, _HEADER.size)
    if any(digit >= _BASE for digit in digits) or digits[:1] == (0,):
        return None
    if sign in _SPECIAL:
        return None if digits else _SPECIAL[sign].decode("ascii")
    by_place = {weight - index: digit for index, digit in enumerate(digits)}
    whole = "".join(f"{by_place.get(place, 0):04}" for place in range(weight, -1, -1))
    last = -(-dscale // _WIDTH)
    fraction = "".join(f"{by_place.get(-place, 0):04}" for place in range(1, last + 1))[:dscale]
    minus = "-" if sign == _NEGATIVE else ""
    return minus + (whole.lstrip("0") or "0") + ("." + fraction if dscale else "")
