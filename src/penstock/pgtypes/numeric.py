"""numeric(p, s) of up to 38 digits becomes decimal128; any other numeric stays text (numeric.c).

A decimal cannot hold NaN and infinity, which raise ValueNotRepresentable. Unconstrained numeric and
more than 38 digits become strings, so that nothing is lost. The section on the binary format below
reads the digits.
"""

from __future__ import annotations

import re
import struct
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells, int16_at, uint16_at
from penstock.errors import ProtocolViolation
from penstock.kernel import BYTES, FLAGS, NUMBERS, PLACES, kernel, part
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import nulls, numbers_of, primitive, validity, written
from penstock.pgtypes.type_names import numeric_modifiers
from penstock.pgtypes.varlena import utf8_column, utf8_value

_MAX_PRECISION = 38
_MOST_PRINTED = 100 << 20
"""The most bytes of text that numbers in binary may become at a time: ten bytes may be 131,072
digits, which no memory would hold if a message were full of them."""
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
        shape = precision_and_scale(typmod)
        if shape is None:
            return utf8_column(cells)
        words = np.zeros((len(cells), 2), np.int64)
        where = cells.buffer, cells.start, cells.length, nulls(cells)
        self.check_text(cells, _read(*where, *shape, words), typmod)
        return primitive(words, cells.null, pa.decimal128(*shape))

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        shape = precision_and_scale(typmod)
        if shape is None:
            return self._printed(cells)
        words = np.zeros((len(cells), 2), np.int64)
        wrong = _unscaled(cells.buffer, cells.start, cells.length, nulls(cells), *shape, words)
        if wrong >= 0:
            return self._one_by_one(cells, typmod)
        return primitive(words, cells.null, pa.decimal128(*shape))

    def _one_by_one(self, cells: Cells, typmod: int) -> pa.Array:
        """Read numbers of which some are not as numeric_send sends them, but as numeric_recv takes
        them."""
        raw = map(cells.raw, range(len(cells)))
        values = [None if each is None else self.binary_value(each, typmod) for each in raw]
        return pa.array(values, self.arrow(typmod))

    def _printed(self, cells: Cells) -> pa.Array:
        """Print numbers as numeric_out does."""
        offsets = np.zeros(len(cells) + 1, np.int64)
        where = cells.buffer, cells.start, cells.length, nulls(cells)
        if not _print_sizes(*where, offsets):
            return self._one_by_one(cells, -1)
        if offsets[-1] > _MOST_PRINTED:
            raise ProtocolViolation(
                f"{len(cells)} values of type numeric have {offsets[-1]} digits together",
                detail=f"In binary, at most {_MOST_PRINTED} digits are read at a time.",
                hint="Set binary = false for the subscription: the values then come as text.",
                sqlstate="54000",
            )
        data = np.full(offsets[-1], ord("0"), np.uint8)
        _print(*where, offsets, data)
        buffers = [validity(cells.null), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.string(), len(cells), buffers)

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


# Read numeric in binary format (numeric.c, numeric_send).
#
# A value is Int16 ndigits, Int16 weight, Int16 sign, Int16 dscale and ndigits Int16 digits; digit i
# counts 10000 ** (weight - i). numeric_send sends no leading 0, and no digit beyond the scale.
# numeric_recv takes others, too, and cuts digits beyond the scale.

_HEADER = struct.Struct("!HhHH")
_NEGATIVE = 0x4000
_NAN, _PLUS_INFINITY, _MINUS_INFINITY = 0xC000, 0xD000, 0xF000
_SPECIAL_TEXT = {_NAN: b"NaN", _PLUS_INFINITY: b"Infinity", _MINUS_INFINITY: b"-Infinity"}
_SIGNS = (0, _NEGATIVE, *_SPECIAL_TEXT)
_NAN_TEXT, _INFINITY_TEXT = (np.frombuffer(text, np.uint8) for text in (b"NaN", b"-Infinity"))
_ZERO, _MINUS, _POINT = ord("0"), ord("-"), ord(".")
_DSCALE_MAX = 0x3FFF
_BASE = 10_000
_WIDTH = 4
_DIGITS_AT = 8
_MAX_WORD = 18
"""The largest number of decimal digits that 64 bits hold, whatever they are."""
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MASK = 0xFFFFFFFF


@part
def _is_numeric(buffer: NDArray[np.uint8], at: int, length: int) -> bool:
    """Return whether the bytes are what numeric_send sends, but for zeros behind the last digit."""
    if length < _DIGITS_AT:
        return False
    ndigits, sign = uint16_at(buffer, at), uint16_at(buffer, at + 4)
    if length != _DIGITS_AT + 2 * ndigits or uint16_at(buffer, at + 6) > _DSCALE_MAX:
        return False
    if sign not in (0, _NEGATIVE):
        return sign in (_NAN, _PLUS_INFINITY, _MINUS_INFINITY) and ndigits == 0
    for index in range(ndigits):
        digit = uint16_at(buffer, at + _DIGITS_AT + 2 * index)
        if digit >= _BASE or (index == 0 and digit == 0):
            return False
    return sign == 0 if ndigits == 0 else not _hides_digits(buffer, at)


@part
def _hides_digits(buffer: NDArray[np.uint8], at: int) -> bool:
    """Return whether there are digits beyond the scale."""
    ndigits, dscale = uint16_at(buffer, at), uint16_at(buffer, at + 6)
    hidden = -_WIDTH * (int16_at(buffer, at + 2) - ndigits + 1) - dscale
    if hidden <= 0:
        return False
    last = uint16_at(buffer, at + _DIGITS_AT + 2 * (ndigits - 1))
    return hidden >= _WIDTH or last % _power(hidden) != 0


@part
def _decimals(digit: int) -> int:
    """Return the number of decimal digits of 1 to 9999."""
    if digit < 100:
        return 1 if digit < 10 else 2
    return 3 if digit < 1000 else 4


@part
def _power(exponent: int) -> int:
    power = 1
    for _ in range(exponent):
        power *= 10
    return power


@part
def _times(words: NDArray[np.int64], factor: int, more: int) -> None:
    """Multiply an unsigned number of 128 bits, and add; both numbers have at most 31 bits."""
    low, high = np.uint64(words[0]), np.uint64(words[1])
    by = np.uint64(factor)
    first = (low & _LOW) * by + np.uint64(more)
    second = (low >> _HALF) * by + (first >> _HALF)
    words[0] = np.int64((second << _HALF) | (first & _LOW))
    words[1] = np.int64(high * by + (second >> _HALF))


@kernel(f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int64, int64, int64[:, ::1])")
def _unscaled(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    precision: int,
    scale: int,
    words: NDArray[np.int64],
) -> int:
    """Write values times 10 ** scale, of 128 bits, shape (n, 2); the lower word is the first.
    Return the first row that is malformed or does not fit exactly, -1 if there is none."""
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        at = start[row]
        if not _is_numeric(buffer, at, length[row]):
            return row
        ndigits, weight = uint16_at(buffer, at), int16_at(buffer, at + 2)
        sign = uint16_at(buffer, at + 4)
        if sign > _NEGATIVE:
            return row
        if ndigits == 0:
            continue
        first = uint16_at(buffer, at + _DIGITS_AT)
        if _WIDTH * weight + _decimals(first) + scale > precision:
            return row
        word, wide = 0, words[row]
        shift = 0
        for index in range(ndigits):
            digit = uint16_at(buffer, at + _DIGITS_AT + 2 * index)
            shift = _WIDTH * (weight - index) + scale
            factor = _BASE
            if shift < 0:  # behind the scale, where only zeros are exact
                cut = _power(min(-shift, _WIDTH))
                if digit % cut:
                    return row
                digit //= cut
                factor = _BASE // cut
            if precision <= _MAX_WORD:
                word = word * factor + digit
            else:
                _times(wide, factor, digit)
        while shift > 0:
            step = min(shift, _WIDTH)
            if precision <= _MAX_WORD:
                word *= _power(step)
            else:
                _times(wide, _power(step), 0)
            shift -= step
        if precision <= _MAX_WORD:
            wide[0] = word
        if sign == _NEGATIVE:
            _negate(wide)
    return -1


@kernel(f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int64, int64, int64[:, ::1])")
def _read(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    precision: int,
    scale: int,
    words: NDArray[np.int64],
) -> int:
    """Read texts as ``_unscaled`` reads the binary format."""
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        at, end = np.int64(start[row]), np.int64(start[row]) + length[row]
        negative = at < end and buffer[at] == _MINUS
        at += negative
        word, wide = 0, words[row]
        significant = whole = 0
        fraction = -1
        while at < end:
            digit = int(np.int64(buffer[at])) - _ZERO
            at += 1
            if digit < 0 or digit > 9:
                if digit != _POINT - _ZERO or fraction >= 0 or not whole:
                    return row
                fraction = 0
                continue
            if fraction < 0:
                whole += 1
            else:
                fraction += 1
            if fraction > scale:
                if digit:
                    return row
                continue
            significant += 1 if significant or digit else 0
            if significant > precision:
                return row
            if precision <= _MAX_WORD:
                word = word * 10 + digit
            else:
                _times(wide, 10, digit)
        if not whole or fraction == 0:
            return row
        missing = scale - max(fraction, 0)
        if significant and significant + missing > precision:
            return row
        for _ in range(missing):
            if precision <= _MAX_WORD:
                word *= 10
            else:
                _times(wide, 10, 0)
        if precision <= _MAX_WORD:
            wide[0] = word
        if negative:
            _negate(wide)
    return -1


@part
def _negate(words: NDArray[np.int64]) -> None:
    words[0] = -words[0]
    words[1] = ~words[1] if words[0] else -words[1]


@part
def _whole_digits(buffer: NDArray[np.uint8], at: int) -> int:
    """Return the decimal digits before the point: at least one, without leading zeros."""
    weight = int16_at(buffer, at + 2)
    if weight < 0 or uint16_at(buffer, at) == 0:
        return 1
    return _WIDTH * weight + _decimals(uint16_at(buffer, at + _DIGITS_AT))


@kernel(f"boolean({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int64[::1])")
def _print_sizes(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int64],
) -> bool:
    """Write where each number's text begins and ends; return False if a number is malformed."""
    for row in range(len(start)):
        size = 0
        if not (len(null) and null[row]):
            at = start[row]
            if not _is_numeric(buffer, at, length[row]):
                return False
            sign, dscale = uint16_at(buffer, at + 4), uint16_at(buffer, at + 6)
            if sign == _NAN:
                size = len(_NAN_TEXT)
            elif sign == _PLUS_INFINITY:
                size = len(_INFINITY_TEXT) - 1
            elif sign == _MINUS_INFINITY:
                size = len(_INFINITY_TEXT)
            else:
                size = _whole_digits(buffer, at) + dscale
                size += (1 if sign else 0) + (1 if dscale else 0)
        offsets[row + 1] = offsets[row] + size
    return True


@kernel(f"void({BYTES}, {PLACES}, {PLACES}, {FLAGS}, {NUMBERS}, uint8[::1])")
def _print(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Print numbers into ``out``, which is full of ``0``, between ``offsets``."""
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        at, to = start[row], offsets[row]
        ndigits, weight = uint16_at(buffer, at), int16_at(buffer, at + 2)
        sign, dscale = uint16_at(buffer, at + 4), uint16_at(buffer, at + 6)
        if sign > _NEGATIVE:
            text = _NAN_TEXT if sign == _NAN else _INFINITY_TEXT
            skipped = 1 if sign == _PLUS_INFINITY else 0
            for index in range(offsets[row + 1] - to):
                out[to + index] = text[skipped + index]
            continue
        if sign == _NEGATIVE:
            out[to] = _MINUS
            to += 1
        point = to + _whole_digits(buffer, at)
        if dscale:
            out[point] = _POINT
        for index in range(ndigits):
            digit = uint16_at(buffer, at + _DIGITS_AT + 2 * index)
            place = weight - index
            # the last of the four decimal digits comes first
            here = point - _WIDTH * place if place >= 0 else point + 1 - _WIDTH * (place + 1) + 3
            for _ in range(_WIDTH):
                if place >= 0:
                    here -= 1
                    inside = here >= to
                else:
                    inside = here <= point + dscale
                if inside:
                    out[here] = _ZERO + digit % 10
                if place < 0:
                    here -= 1
                digit //= 10


# Decimals as numeric_out prints and numeric_send sends them.

_DIGITS = 48
"""The decimal digits of a number in kernels. The last ones are beyond its scale, and 0."""
_ONES = 44
"""The position behind the last digit of the unscaled number."""
_NINE = 10**9
_WORDS = "Array(int64, 2, 'C', readonly=True)"


def decimal_text(array: pa.Array) -> pa.Array:
    """Return the text of each decimal128."""
    words, scale = numbers_of(array, "2i8"), array.type.scale
    most = len(array) * (_MAX_PRECISION + len("-0."))
    return written(array, pa.string(), most, _print_decimals, words, scale)


def decimal_binary(array: pa.Array) -> pa.Array:
    """Return the binary format of each decimal128."""
    words, scale = numbers_of(array, "2i8"), array.type.scale
    most = len(array) * (_DIGITS_AT + 2 * (_DIGITS // _WIDTH))
    return written(array, pa.binary(), most, _send_decimals, words, scale)


@part
def _take_magnitude(words: NDArray[np.int64], wide: NDArray[np.int64]) -> bool:
    """Write the magnitude of a number of 128 bits; return whether the number is negative."""
    wide[0], wide[1] = words[0], words[1]
    negative = bool(wide[1] < 0)
    if negative:
        _negate(wide)
    return negative


@part
def _to_digits(words: NDArray[np.int64], digits: NDArray[np.uint8]) -> int:
    """Write the digits of a magnitude of 128 bits; return where the first one stands."""
    digits[:] = 0
    at = _ONES
    if words[1] == 0 and words[0] >= 0:
        word = words[0]
        while word:
            at -= 1
            digits[at] = word % 10
            word //= 10
        return at
    limbs = (words[1] >> 32 & _MASK, words[1] & _MASK, words[0] >> 32 & _MASK, words[0] & _MASK)
    first, second, third, fourth = limbs
    while first or second or third or fourth:
        first, rest = divmod(first, _NINE)
        second, rest = divmod(rest << 32 | second, _NINE)
        third, rest = divmod(rest << 32 | third, _NINE)
        fourth, rest = divmod(rest << 32 | fourth, _NINE)
        for _ in range(9):
            at -= 1
            digits[at] = rest % 10
            rest //= 10
    while digits[at] == 0:
        at += 1
    return at


@kernel(f"void({_WORDS}, int64, {FLAGS}, int32[::1], uint8[::1])")
def _print_decimals(
    words: NDArray[np.int64],
    scale: int,
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    digits, wide = np.zeros(_DIGITS, np.uint8), np.zeros(2, np.int64)
    at = 0
    for row in range(len(words)):
        if not (len(null) and null[row]):
            if _take_magnitude(words[row], wide):
                out[at] = _MINUS
                at += 1
            point = _ONES - scale
            for place in range(min(_to_digits(wide, digits), point - 1), _ONES):
                if place == point:
                    out[at] = _POINT
                    at += 1
                out[at] = _ZERO + digits[place]
                at += 1
        offsets[row + 1] = at


@kernel(f"void({_WORDS}, int64, {FLAGS}, int32[::1], uint8[::1])")
def _send_decimals(
    words: NDArray[np.int64],
    scale: int,
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    digits, wide = np.zeros(_DIGITS, np.uint8), np.zeros(2, np.int64)
    at = 0
    for row in range(len(words)):
        if not (len(null) and null[row]):
            negative = _take_magnitude(words[row], wide)
            first, last, point = _to_digits(wide, digits), _ONES, _ONES - scale
            while last > first and digits[last - 1] == 0:
                last -= 1
            # digits of base 10000 are counted from the point
            begin = (first - point) // _WIDTH
            count = 0 if first == last else -((point - last) // _WIDTH) - begin
            at = _write16(out, at, count)
            at = _write16(out, at, -begin - 1 if count else 0)
            at = _write16(out, at, _NEGATIVE if negative else 0)
            at = _write16(out, at, scale)
            for group in range(begin, begin + count):
                number = 0
                for place in range(point + _WIDTH * group, point + _WIDTH * (group + 1)):
                    number = number * 10 + int(np.int64(digits[place]))
                at = _write16(out, at, number)
        offsets[row + 1] = at


@part
def _write16(out: NDArray[np.uint8], at: int, number: int) -> int:
    out[at], out[at + 1] = number >> 8 & 0xFF, number & 0xFF
    return at + 2


def printed_one(raw: bytes) -> str | None:
    """Print one value that numeric_recv takes, as numeric_out does; None if it is malformed. The
    readable reference."""
    if len(raw) < _HEADER.size:
        return None
    ndigits, weight, sign, dscale = _HEADER.unpack_from(raw)
    if len(raw) != _HEADER.size + 2 * ndigits or sign not in _SIGNS or dscale > _DSCALE_MAX:
        return None
    digits: tuple[Any, ...] = struct.unpack_from(f"!{ndigits}H", raw, _HEADER.size)
    if any(digit >= _BASE for digit in digits):
        return None
    if sign in _SPECIAL_TEXT:
        return _SPECIAL_TEXT[sign].decode("ascii")
    by_place = {weight - index: digit for index, digit in enumerate(digits)}
    whole = "".join(f"{by_place.get(place, 0):04}" for place in range(weight, -1, -1))
    last = -(-dscale // _WIDTH)
    fraction = "".join(f"{by_place.get(-place, 0):04}" for place in range(1, last + 1))[:dscale]
    minus = "-" if sign == _NEGATIVE and (whole + fraction).strip("0") else ""
    return minus + (whole.lstrip("0") or "0") + ("." + fraction if dscale else "")
