"""Numbers of jsonb in a variant's encoding.

In: integers, and texts of numbers with a point. Out: the bytes that Spark's ``parse_json`` makes:
integers in as few as they need, other numbers as decimals of up to 38 digits with the scale that
they have; beyond that a double, where it is exactly the number, else ``Unfit``.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from functools import lru_cache
from typing import Final

from penstock.pgtypes.family import shown

_DIGITS: Final = 38
_INTEGERS: Final = ((1, 0x0C), (2, 0x10), (4, 0x14), (8, 0x18))
"""Bytes, and the first byte of such a value."""
_DOUBLE: Final = 0x1C
_DECIMALS: Final = ((9, 4, 0x20), (18, 8, 0x24), (_DIGITS, 16, 0x28))
"""Digits, and digits behind the point, up to which there are so many bytes."""
_REMEMBERED: Final = 1024
"""Texts, of which prices are many times the same."""


class Unfit(Exception):
    """What does not fit, in words."""


def integer(value: int) -> bytes:
    for size, first in _INTEGERS:
        if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
            return bytes((first,)) + value.to_bytes(size, "little", signed=True)
    return _decimal(value, 0) or _double(Decimal(value))


@lru_cache(maxsize=_REMEMBERED)
def fraction(text: str) -> bytes:
    """As jsonb prints them: without an exponent."""
    whole, _, behind = text.partition(".")
    try:
        number, scale = int(whole + behind), len(behind)
    except ValueError:  # an exponent, or too many digits
        return _double(Decimal(text))
    return _decimal(number, scale) or _double(Decimal(text))


def _decimal(number: int, scale: int) -> bytes | None:
    """A number of so many digits behind the point; None where there is no such variant."""
    for digits, size, first in _DECIMALS:
        if scale <= digits and -(10**digits) < number < 10**digits:
            return bytes((first, scale)) + number.to_bytes(size, "little", signed=True)
    if scale and not number % 10:
        while scale and not number % 10:
            number, scale = number // 10, scale - 1
        return _decimal(number, scale)
    return None


def _double(value: Decimal) -> bytes:
    double = float(value)
    if math.isinf(double) or Decimal(repr(double)) != value:
        raise Unfit(
            f'The number "{shown(value)}" is neither a decimal of up to {_DIGITS} digits nor '
            "exactly a double."
        )
    return struct.pack("<Bd", _DOUBLE, double)
