"""The oracle of ``penstock.pgtypes.variant``: the same encoding, a value at a time, nothing
remembered.

It calls nothing of the product, so that a shortcut there, such as shapes of objects that are kept
from one value to the next, cannot be wrong in both.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

_OBJECT: Final = 2
_ARRAY: Final = 3
_SHORT: Final = 63
"""Bytes of a string whose length is in its first byte."""
_FEW: Final = 255
"""Elements or fields whose number is one byte."""
_DIGITS: Final = 38
_VERSION: Final = 1
_NULL: Final = b"\x00"
_TRUE: Final = b"\x04"
_FALSE: Final = b"\x08"
_INTEGERS: Final = ((1, 0x0C), (2, 0x10), (4, 0x14), (8, 0x18))
"""Bytes, and the first byte of such a value."""
_DOUBLE: Final = 0x1C
_DECIMALS: Final = ((9, 4, 0x20), (18, 8, 0x24), (_DIGITS, 16, 0x28))
"""Digits, and digits behind the point, up to which there are so many bytes."""
_STRING: Final = 0x40


def encoded(text: str) -> tuple[bytes, bytes]:
    """(value, metadata) of the text of one jsonb. Raises ValueError."""
    ids: dict[str, int] = {}
    return _encoded(_JSON.decode(text), ids), _dictionary(ids)


class _Fraction(str):
    """A number with a point, or an exponent, as it was written."""

    __slots__ = ()


_JSON: Final = json.JSONDecoder(parse_float=_Fraction)


def _encoded(value: Any, ids: dict[str, int]) -> bytes:
    kind = type(value)
    if kind is str:
        raw: bytes = value.encode()
        size = len(raw)
        if size <= _SHORT:
            return bytes((size << 2 | 1,)) + raw
        return struct.pack("<BI", _STRING, size) + raw
    if kind is int:
        return _integer(value)
    if value is None:
        return _NULL
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind is _Fraction:
        return _fraction(value)
    parts: list[bytes] = []
    offsets = [0]
    if kind is list:
        for inner in value:
            parts.append(_encoded(inner, ids))
            offsets.append(offsets[-1] + len(parts[-1]))
        return b"".join((_array(offsets), *parts))
    numbers: list[int] = []
    for key, inner in value.items():
        numbers.append(ids.setdefault(key, len(ids)))
        parts.append(_encoded(inner, ids))
        offsets.append(offsets[-1] + len(parts[-1]))
    return b"".join((_object(value, numbers, offsets), *parts))


def _object(keys: Mapping[str, Any], numbers: Sequence[int], offsets: Sequence[int]) -> bytes:
    """What comes before the fields' values. ``numbers``: the keys', in the dictionary."""
    place = {key: at for at, key in enumerate(keys)}
    order = [place[key] for key in _in_order(keys)]
    many, size = len(order) > _FEW, offsets[-1]
    id_size, offset_size = _size_of(max(numbers, default=0)), _size_of(size)
    header = many << 6 | (id_size - 1) << 4 | (offset_size - 1) << 2 | _OBJECT
    return b"".join(
        (
            bytes((header,)),
            len(order).to_bytes(4 if many else 1, "little"),
            _numbers([numbers[at] for at in order], id_size),
            _numbers([*(offsets[at] for at in order), size], offset_size),
        )
    )


def _array(offsets: Sequence[int]) -> bytes:
    """What comes before the elements."""
    count, offset_size = len(offsets) - 1, _size_of(offsets[-1])
    many = count > _FEW
    header = many << 4 | (offset_size - 1) << 2 | _ARRAY
    counted = count.to_bytes(4 if many else 1, "little")
    return b"".join((bytes((header,)), counted, _numbers(offsets, offset_size)))


def _in_order(keys: Mapping[str, Any]) -> list[str]:
    """As Java compares strings, by which Spark looks for a field in a large object."""
    if "".join(keys).isascii():
        return sorted(keys)
    return sorted(keys, key=lambda key: key.encode("utf-16-be"))


def _integer(value: int) -> bytes:
    for size, first in _INTEGERS:
        if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
            return bytes((first,)) + value.to_bytes(size, "little", signed=True)
    return _decimal(value, 0) or _double(Decimal(value))


def _fraction(text: str) -> bytes:
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
        raise ValueError(
            f'The number "{value}" is neither a decimal of up to {_DIGITS} digits nor '
            "exactly a double."
        )
    return struct.pack("<Bd", _DOUBLE, double)


def _dictionary(ids: Mapping[str, int]) -> bytes:
    keys = [key.encode() for key in ids]
    offsets = [0]
    for key in keys:
        offsets.append(offsets[-1] + len(key))
    size = _size_of(max(offsets[-1], len(keys)))
    header = bytes((_VERSION | (size - 1) << 6,))
    return b"".join((header, _numbers([len(keys), *offsets], size), *keys))


def _size_of(number: int) -> int:
    """Bytes that hold it."""
    return 1 if number < 1 << 8 else (number.bit_length() + 7) // 8


_FORMATS: Final = {2: "H", 4: "I"}


def _numbers(numbers: Sequence[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    if size in _FORMATS:
        return struct.pack(f"<{len(numbers)}{_FORMATS[size]}", *numbers)
    return b"".join(number.to_bytes(size, "little") for number in numbers)
