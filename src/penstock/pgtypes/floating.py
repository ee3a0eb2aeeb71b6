"""Read real and double precision, and print them as the server does (float.c, d2s.c, f2s.c).

NaN, Infinity and -Infinity are ordinary values. A number's text is the shortest that reads back as
the same number: plain digits for exponents from -4 to 14 (5 for real), otherwise ``d.ddde+XX``.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.cells import Cells, write_bytes
from penstock.civil import write_digits
from penstock.kernel import FLAGS, NUMBERS, kernel, part
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import fixed, numbers_of, primitive, strings, written

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
        texts = strings(cells, pa.string())
        try:
            values = pc.cast(texts, self._type)
        except pa.ArrowInvalid:
            self.refuse_text(cells, typmod)
        if pc.any(infinite := pc.is_inf(values)).as_py():
            too_large = pc.and_(infinite, pc.invert(pc.match_substring(texts, "Infinity")))
            self.check_text(cells, pc.index(too_large, True).as_py(), typmod)
        return values

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = fixed(cells, np.dtype(f">f{self._size}"))
        if values is None:
            raise self.malformed_binary()
        return primitive(values, cells.null, self._type)

    def text_value(self, raw: bytes, typmod: int) -> float:
        if not _TEXT.fullmatch(raw):
            raise self.malformed_text(raw)
        value = read_float(raw.decode(), self._type)
        if math.isinf(value) and b"I" not in raw:
            raise self.malformed_text(raw)
        return value

    def binary_value(self, raw: bytes, typmod: int) -> float:
        if len(raw) != self._size:
            raise self.malformed_binary()
        return float(self._struct.unpack(raw)[0])


def read_float(text: str, kind: pa.DataType) -> float:
    """Return the nearest number of the kind, infinity if the text is too large. A real is rounded
    once: Python would round it to double precision first."""
    return float(pc.cast(pa.scalar(text, pa.string()), kind).as_py())


# Print numbers with the fewest digits that read back as the same number (d2s.c, f2s.c), by the
# algorithm of Raffaele Giulietti ("The Schubfach way to render doubles"). A number is c * 2**q. The
# decimals that read back as it lie between the middles to its neighbours. The server does not take
# the middles themselves, whether c is even or not.

_MANTISSA: Final = 52, 23
_BIAS: Final = 1023, 127
_PLAIN: Final = 15, 6
"""The exponent from which on numbers are printed as ``d.ddde+XX``: of double precision and real."""
_LOWEST: Final = -4
_MOST_DIGITS: Final = 17
_LONGEST: Final = len("-2.2250738585072014e-308")
_NAN, _INFINITY = (np.frombuffer(text, np.uint8) for text in (b"NaN", b"Infinity"))
_ZERO, _MINUS, _PLUS, _POINT, _E = map(ord, "0-+.e")
_FIRST_POWER: Final = -292
_LAST_POWER: Final = 324


def _powers() -> NDArray[np.uint64]:
    """Return the first 128 bits of the powers of ten, rounded up, shape (n, 2): higher word first.
    The highest bit of each is 1."""
    words = np.empty((_LAST_POWER - _FIRST_POWER + 1, 2), np.uint64)
    for row, power in enumerate(range(_FIRST_POWER, _LAST_POWER + 1)):
        if power >= 0:
            number = 10**power
            shift = 128 - number.bit_length()
            bits = number << shift if shift >= 0 else -(-number >> -shift)
        else:
            number = 10**-power
            bits = -(-(1 << 127 + number.bit_length()) // number)
        words[row] = bits >> 64, bits & (1 << 64) - 1
    return words


_POWERS: Final = _powers()
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def float_text(array: pa.Array) -> pa.Array:
    """Return the text of each value."""
    double = pa.types.is_float64(array.type)
    bits = numbers_of(array, np.int64 if double else np.int32).astype(np.int64, copy=False)
    most = len(array) * _LONGEST
    return written(array, pa.string(), most, _print, bits, double, _POWERS)


def float_out(value: float, kind: pa.DataType) -> str:
    """Return the text of one value; it is a real if ``kind`` is float32."""
    return str(float_text(pa.array([value], kind))[0])


@kernel(
    f"void({NUMBERS}, boolean, Array(uint64, 2, 'C', readonly=True), {FLAGS}, int32[::1],"
    " uint8[::1])"
)
def _print(
    numbers: NDArray[np.int64],
    double: bool,
    powers: NDArray[np.uint64],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Print numbers, given as their bits."""
    kind = 0 if double else 1
    mantissa, bias, plain = _MANTISSA[kind], _BIAS[kind], _PLAIN[kind]
    exponents = 2 * bias + 1
    at = 0
    for row in range(len(numbers)):
        if len(null) and null[row]:
            offsets[row + 1] = at
            continue
        bits = numbers[row]
        fraction = bits & ((1 << mantissa) - 1)
        exponent = bits >> mantissa & exponents
        special = exponent == exponents
        if bits < 0 and not (special and fraction):
            out[at] = _MINUS
            at += 1
        if special:
            at = write_bytes(_NAN if fraction else _INFINITY, out, at)
        elif exponent == 0 and fraction == 0:
            out[at] = _ZERO
            at += 1
        else:
            digits, scale = _shortest(fraction, exponent, mantissa, bias, powers)
            at = _write_number(out, at, digits, scale, plain)
        offsets[row + 1] = at


@part
def _shortest(
    fraction: int, exponent: int, mantissa: int, bias: int, powers: NDArray[np.uint64]
) -> tuple[int, int]:
    """Return the shortest decimal, as a whole number without trailing zeros and a power of ten."""
    c = fraction | 1 << mantissa if exponent else fraction
    q = max(exponent, 1) - bias - mantissa
    # below a power of two numbers are twice as close
    closer = fraction == 0 and exponent > 1
    k = (q * 1262611 - (524031 if closer else 0)) >> 22  # floor of log10
    h = q + (-k * 1741647 >> 19) + 1  # floor of log2 of 10**-k
    high, low = powers[-k - _FIRST_POWER, 0], powers[-k - _FIRST_POWER, 1]
    # four times the number and the two middles, in units of 10**k; odd if there is a rest
    lower = _scaled(high, low, (4 * c - (1 if closer else 2)) << h) + 1
    value = _scaled(high, low, 4 * c << h)
    upper = _scaled(high, low, (4 * c + 2) << h) - 1
    whole = value >> 2
    tens = whole // 10
    down, up = lower <= 40 * tens, 40 * tens + 40 <= upper
    if whole >= 10 and down != up:
        digits, k = tens + up, k + 1
    else:
        down, up = lower <= 4 * whole, 4 * whole + 4 <= upper
        middle = 4 * whole + 2
        if down == up:
            up = value > middle or (value == middle and whole & 1 == 1)
        digits = whole + up
    while digits % 10 == 0:
        digits //= 10
        k += 1
    return digits, k


@part
def _scaled(high: np.uint64, low: np.uint64, factor: int) -> int:
    """Return the highest 64 bits of a product of 192 bits. The last one is 1 if any bit beyond it
    is, but for the error of ``_powers``."""
    by = np.uint64(factor)
    first, _ = _product(low, by)
    second, rest = _product(high, by)
    lower = (rest & _LOW) + (first & _LOW)
    upper = (rest >> _HALF) + (first >> _HALF) + (lower >> _HALF)
    odd = (upper & _LOW) != 0 or (lower & _LOW) > np.uint64(1)
    return int(np.int64(second + (upper >> _HALF))) | int(odd)


@part
def _product(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the higher and the lower 64 bits of a product."""
    low = (a & _LOW) * (b & _LOW)
    one = (a >> _HALF) * (b & _LOW) + (low >> _HALF)
    two = (a & _LOW) * (b >> _HALF) + (one & _LOW)
    high = (a >> _HALF) * (b >> _HALF) + (one >> _HALF) + (two >> _HALF)
    return high, two << _HALF | low & _LOW


@part
def _write_number(out: NDArray[np.uint8], at: int, digits: int, scale: int, plain: int) -> int:
    """Write digits times 10**scale."""
    count, limit = 1, 10
    while count < _MOST_DIGITS and digits >= limit:
        count += 1
        limit *= 10
    exponent = count + scale - 1
    if _LOWEST <= exponent < plain:
        if exponent < 0:  # zeros first
            count, point = count - exponent, 1
        else:
            point = exponent + 1
        for _ in range(point - count):
            digits *= 10
        count = max(count, point)
    else:
        point = 1
    width = count + (count > point)
    for place in range(at + width - 1, at - 1, -1):
        if place == at + point:
            out[place] = _POINT
        else:
            out[place] = _ZERO + digits % 10
            digits //= 10
    at += width
    if _LOWEST <= exponent < plain:
        return at
    out[at], out[at + 1] = _E, _MINUS if exponent < 0 else _PLUS
    return write_digits(out, at + 2, abs(exponent), 3 if abs(exponent) >= 100 else 2)
