"""jsonb as the Parquet format's VARIANT (parquet-format, VariantEncoding.md).

The text of jsonb values becomes Arrow columns of ``VARIANT``, the plain struct of Delta's
``variantType``; ``variant_text`` turns them back into text. The bytes equal those of Spark's
``parse_json``: keys in the dictionary in the order of their appearance, fields of an object in
UTF-16 order, in which Spark searches them, integers in as few bytes as possible, other numbers as
decimals of up to 38 digits with their own scale. One text has one encoding, so rows can be found by
it. A number with more digits becomes a double only if the double equals it exactly; Spark rounds
other such numbers, and we refuse them.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, Generic, NoReturn, TypeVar

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolViolation, ValueNotRepresentable
from penstock.pgtypes.family import shown

VARIANT: Final = pa.struct(
    [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), False)]
)
"""A column of variants, not shredded, with its parts in Spark's order."""

SIZE_LIMIT: Final = 128 << 20
"""The largest value in bytes that Spark reads (VariantUtil.SIZE_LIMIT)."""
DEPTH_LIMIT: Final = 500
"""Levels of nested arrays and objects; Spark reads 1000 of them from JSON."""
KEEP_TEXT: Final = (
    "Correct the value at the publisher. Or keep the table's jsonb as text: ALTER SUBSCRIPTION ... "
    "SET (jsonb_as = text), and copy the table again: ALTER SUBSCRIPTION ... REFRESH TABLE. Where "
    "somebody else has made the target table: make its column STRING."
)
"""The hint for a value that no variant holds."""

_OBJECT: Final = 2
_ARRAY: Final = 3
_SHORT: Final = 63
"""The longest string, in bytes, whose length is in its first byte."""
_FEW: Final = 255
"""The largest number of elements or fields that is written in one byte."""
_VERSION: Final = 1
_NULL: Final = b"\x00"
_TRUE: Final = b"\x04"
_FALSE: Final = b"\x08"
_STRING: Final = 0x40
_REMEMBERED: Final = 1024
_REMEMBERED_CHARACTERS: Final = 2048
"""Characters of all keys up to which an object's keys are remembered, with the result for them."""
_Made = TypeVar("_Made")


def type_name(kind: pa.DataType) -> str:
    """Return the name of an Arrow type for people."""
    return "variant" if kind == VARIANT else str(kind)


def variants(texts: pa.Array) -> pa.Array:
    """Encode texts of jsonb as ``VARIANT``, null for NULL.

    Raises ValueNotRepresentable (22003, 54000), ProtocolViolation (22P02).
    """
    distinct = texts.dictionary_encode()
    made = [encoded(text) for text in distinct.dictionary.to_pylist()]
    made.append((b"", b""))
    rows = [made[number] for number in distinct.indices.fill_null(-1).to_pylist()]
    return pa.StructArray.from_arrays(
        [pa.array([row[part] for row in rows], pa.binary()) for part in range(len(VARIANT))],
        fields=list(VARIANT),
        mask=texts.is_null(),
    )


def encoded(text: str) -> tuple[bytes, bytes]:
    """Return (value, metadata) of the text of one jsonb. Raises as ``variants``."""
    ids: dict[str, int] = {}
    try:
        read, end = _JSON.raw_decode(text)
        if end < len(text):  # jsonb never prints that
            read = _JSON.decode(text)
        value = _encoded(read, ids, DEPTH_LIMIT)
        metadata = _dictionaries.of(tuple(ids))
    except RecursionError:
        raise _too_deep(text) from None
    except json.JSONDecodeError:
        raise _no_json(text) from None
    except NumberTooLarge as error:
        raise _unfit(text, error.args[0]) from None
    except UnicodeEncodeError:
        raise _no_json(text) from None
    except ValueError:  # an integer of more digits than Python reads
        raise _unfit(text, "A number has too many digits.") from None
    if max(len(value), len(metadata)) > SIZE_LIMIT:
        raise ValueNotRepresentable(
            f"a value of type jsonb is too large for a variant: {max(len(value), len(metadata))} "
            f"bytes of at most {SIZE_LIMIT}",
            hint=KEEP_TEXT,
            sqlstate="54000",
        )
    return value, metadata


def _no_json(text: str) -> NoReturn:
    raise ProtocolViolation(
        f'invalid input syntax for type json: "{shown(text)}"', sqlstate="22P02"
    )


# Encode jsonb's numbers.
#
# The bytes are those that Spark's ``parse_json`` makes: integers in as few as they need, other
# numbers as decimals of up to 38 digits with their own scale. Any other number becomes a double if
# the double equals it exactly; otherwise it raises ``NumberTooLarge``.

_DIGITS: Final = 38
_INTEGERS: Final = ((1, 0x0C), (2, 0x10), (4, 0x14), (8, 0x18))
"""The sizes in bytes, each with the first byte of such a value."""
_DOUBLE: Final = 0x1C
_DECIMALS: Final = ((9, 4, 0x20), (18, 8, 0x24), (_DIGITS, 16, 0x28))
"""The most digits (before and behind the point), the bytes that hold them, and the first byte."""


class NumberTooLarge(Exception):
    """A number does not fit; the text says why."""


def integer(value: int) -> bytes:
    for size, first in _INTEGERS:
        if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
            return bytes((first,)) + value.to_bytes(size, "little", signed=True)
    return _decimal(value, 0) or _double(Decimal(value))


@lru_cache(maxsize=_REMEMBERED)
def fraction(text: str) -> bytes:
    """Encode a number in jsonb's form, without an exponent."""
    whole, _, behind = text.partition(".")
    try:
        number, scale = int(whole + behind), len(behind)
    except ValueError:  # an exponent, or too many digits
        return _double(Decimal(text))
    return _decimal(number, scale) or _double(Decimal(text))


def _decimal(number: int, scale: int) -> bytes | None:
    """Encode a number with ``scale`` digits behind the point; None if no decimal holds it."""
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
        raise NumberTooLarge(
            f'The number "{shown(value)}" is neither a decimal of up to {_DIGITS} digits nor '
            "exactly a double."
        )
    return struct.pack("<Bd", _DOUBLE, double)


_JSON: Final = json.JSONDecoder(parse_float=fraction, parse_constant=_no_json)


def _unfit(text: str, why: str) -> ValueNotRepresentable:
    return ValueNotRepresentable(
        f'value "{shown(text)}" of type jsonb cannot be represented as a variant',
        detail=why,
        hint=KEEP_TEXT,
        sqlstate="22003",
    )


def _too_deep(text: str) -> ValueNotRepresentable:
    return ValueNotRepresentable(
        f'value "{shown(text)}" of type jsonb cannot be represented as a variant',
        detail=f"It has more than {DEPTH_LIMIT} arrays and objects inside one another.",
        hint=KEEP_TEXT,
        sqlstate="54001",
    )


def _encoded(value: Any, ids: dict[str, int], depth: int) -> bytes:
    """Encode a value; one frame of Python's stack for each level. Scalars are made in the loops."""
    scalar = _SCALARS.get(type(value))
    if scalar is not None:
        return scalar(value)
    if not depth:
        raise RecursionError
    parts: list[bytes] = []
    add, depth = parts.append, depth - 1
    if type(value) is list:
        for inner in value:
            scalar = _SCALARS.get(type(inner))
            add(_encoded(inner, ids, depth) if scalar is None else scalar(inner))
        offsets = list(accumulate(map(len, parts), initial=0))
        return b"".join((_array(offsets), *parts))
    numbers: list[int] = []
    for key, inner in value.items():
        numbers.append(ids.setdefault(key, len(ids)))
        scalar = _SCALARS.get(type(inner))
        add(_encoded(inner, ids, depth) if scalar is None else scalar(inner))
    *begins, size = accumulate(map(len, parts), initial=0)
    shape, offset_size = _shapes.of(tuple(value), tuple(numbers)), _size_of(size)
    ends = _numbers((*shape.ordered(begins), size), offset_size)
    return b"".join((shape.headers[offset_size - 1], shape.fields, ends, *parts))


def _string(value: str) -> bytes:
    raw = value.encode()
    size = len(raw)
    if size <= _SHORT:
        return _SHORT_HEADERS[size] + raw
    return struct.pack("<BI", _STRING, size) + raw


_SHORT_HEADERS: Final = tuple(bytes((size << 2 | 1,)) for size in range(_SHORT + 1))
_SMALL: Final = {value: integer(value) for value in range(-128, 1024)}
_SCALARS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    str: _string,
    int: lambda value: _SMALL.get(value) or integer(value),
    bytes: lambda value: value,  # a fraction, encoded already
    bool: lambda value: _TRUE if value else _FALSE,
    type(None): lambda _: _NULL,
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """The common parts of objects with the same keys.

    ``headers``: the first byte, by the size of offsets. ``fields``: the number of fields, and their
    keys' numbers in order. ``ordered``: puts one item for each key into that order.
    """

    headers: tuple[bytes, ...]
    fields: bytes
    ordered: Callable[[Sequence[int]], Sequence[int]]

    @classmethod
    def of(cls, keys: tuple[str, ...], numbers: tuple[int, ...]) -> _Shape:
        """Make a shape. ``numbers``: the numbers of the keys in the dictionary."""
        place = {key: at for at, key in enumerate(keys)}
        order = [place[key] for key in _in_order(keys)]
        many, id_size = len(order) > _FEW, _size_of(max(numbers, default=0))
        first = many << 6 | (id_size - 1) << 4 | _OBJECT
        count = len(order).to_bytes(4 if many else 1, "little")
        return cls(
            tuple(bytes((first | (size - 1) << 2,)) for size in range(1, 5)),
            count + _numbers([numbers[at] for at in order], id_size),
            itemgetter(*order) if len(order) > 1 else tuple,
        )


class _Remembered(Generic[_Made]):
    """A cache of values made from keys: most objects have the keys of an earlier one."""

    def __init__(self, make: Callable[[tuple[str, ...], tuple[int, ...]], _Made]) -> None:
        self._make = make
        self._known: dict[tuple[tuple[str, ...], tuple[int, ...]], _Made] = {}

    def of(self, keys: tuple[str, ...], numbers: tuple[int, ...] = ()) -> _Made:
        """Return the value made from these keys before, or make it."""
        found = self._known.get((keys, numbers))
        if found is None:
            found = self._make(keys, numbers)
            if len(keys) <= _FEW and sum(map(len, keys)) <= _REMEMBERED_CHARACTERS:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[keys, numbers] = found
        return found


def _array(offsets: Sequence[int]) -> bytes:
    """Return the bytes before an array's elements."""
    count, offset_size = len(offsets) - 1, _size_of(offsets[-1])
    many = count > _FEW
    header = many << 4 | (offset_size - 1) << 2 | _ARRAY
    counted = count.to_bytes(4 if many else 1, "little")
    return b"".join((bytes((header,)), counted, _numbers(offsets, offset_size)))


def _in_order(keys: Collection[str]) -> list[str]:
    """Sort keys as Java does: Spark looks for a field of a large object in that order."""
    if "".join(keys).isascii():
        return sorted(keys)
    return sorted(keys, key=lambda key: key.encode("utf-16-be"))


def _dictionary(keys: tuple[str, ...], _numbers_of_keys: tuple[int, ...] = ()) -> bytes:
    raw = [key.encode() for key in keys]
    offsets = list(accumulate(map(len, raw), initial=0))
    size = _size_of(max(offsets[-1], len(raw)))
    header = bytes((_VERSION | (size - 1) << 6,))
    return b"".join((header, _numbers([len(raw), *offsets], size), *raw))


def _size_of(number: int) -> int:
    """Return how many bytes hold the number."""
    return 1 if number < 1 << 8 else (number.bit_length() + 7) // 8


_FORMATS: Final = {2: "H", 4: "I"}


def _numbers(numbers: Sequence[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    if size in _FORMATS:
        return struct.pack(f"<{len(numbers)}{_FORMATS[size]}", *numbers)
    return b"".join(number.to_bytes(size, "little") for number in numbers)


_shapes: Final = _Remembered(_Shape.of)
_dictionaries: Final = _Remembered(_dictionary)


# Variants as text, as jsonb's output function prints their values. Values without a JSON type
# (dates, times, bytes) become the strings that Spark's ``to_json`` makes of them. Objects have
# jsonb's order.

_Number = Callable[[Decimal], str]
_EPOCH: Final = datetime(1970, 1, 1)
_LARGE_OBJECT: Final = 0x10
_LARGE_ARRAY: Final = 0x04
_LONG_STRING: Final = 16
_UNPACKED: Final = {3: "<b", 4: "<h", 5: "<i", 6: "<q", 11: "<i", 12: "<q", 13: "<q", 17: "<q"}
_FLOATS: Final = {7: "<d", 14: "<f"}
_SCALED: Final = {8: 4, 9: 8, 10: 16}
_BYTES: Final = 15
_NANOSECONDS: Final = {18: "+00:00", 19: ""}
_UUID: Final = 20


def variant_text(column: pa.Array) -> pa.Array:
    """Return the values as jsonb's text. Raises ValueNotRepresentable for invalid bytes."""
    return _each(column, lambda number: format(number, "f"))


def compared_text(column: pa.Array) -> pa.Array:
    """Return texts that are equal if the values are: 1.0 equals 1, as in jsonb."""
    return _each(column, _shortest)


def _shortest(number: Decimal) -> str:
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _each(column: pa.Array, number: _Number) -> pa.Array:
    values, metadata = column.field("value").to_pylist(), column.field("metadata").to_pylist()
    valid = np.asarray(column.is_valid())
    found = [
        _text(value, keys, number) if there else None
        for there, value, keys in zip(valid, values, metadata, strict=True)
    ]
    return pa.array(found, pa.string())


def _text(value: bytes, metadata: bytes, number: _Number) -> str:
    try:
        return _Printer(value, _keys(metadata), number).printed()
    except (IndexError, ValueError, struct.error, OverflowError) as error:
        raise ValueNotRepresentable(
            "a value of type variant cannot be read",
            detail=f"Its bytes are none: {error}.",
            sqlstate="22P03",
        ) from None


def _keys(metadata: bytes) -> list[str]:
    size = (metadata[0] >> 6) + 1
    count = _integer(metadata, 1, size)
    offsets = [_integer(metadata, 1 + size * (n + 1), size) for n in range(count + 1)]
    start = 1 + size * (count + 2)
    ends = itertools.pairwise(offsets)
    return [metadata[start + low : start + high].decode() for low, high in ends]


def _integer(data: bytes, at: int, size: int) -> int:
    raw = data[at : at + size]
    if len(raw) < size:
        raise IndexError("it ends too early")
    return int.from_bytes(raw, "little")


class _Printer:
    """The printer of one value."""

    def __init__(self, data: bytes, keys: list[str], number: _Number) -> None:
        self._data = data
        self._keys = keys
        self._number = number

    def printed(self) -> str:
        """Return the value's text, at any depth."""
        pieces: list[str] = []
        waiting: list[str | int] = [0]
        while waiting:
            at = waiting.pop()
            if isinstance(at, str):
                pieces.append(at)
                continue
            first = self._data[at]
            kind, info = first & 3, first >> 2
            if kind == 0:
                pieces.append(self._primitive(at, info))
            elif kind == 1:
                pieces.append(_quoted(self._data[at + 1 : at + 1 + info].decode()))
            else:
                parts = self._object(at, info) if kind == 2 else self._array(at, info)
                waiting += reversed(parts)
        return "".join(pieces)

    def _object(self, at: int, info: int) -> list[str | int]:
        """Return pieces of the object's text, and between them the positions where values begin."""
        count_size = 4 if info & _LARGE_OBJECT else 1
        count = _integer(self._data, at + 1, count_size)
        offset_size, id_size = (info & 3) + 1, (info >> 2 & 3) + 1
        ids = at + 1 + count_size
        offsets = ids + count * id_size
        start = offsets + (count + 1) * offset_size
        fields: dict[str, int] = {}
        for n in range(count):
            key = self._keys[_integer(self._data, ids + n * id_size, id_size)]
            fields[key] = start + _integer(self._data, offsets + n * offset_size, offset_size)
        parts: list[str | int] = ["{"]
        for key in sorted(fields, key=_of_jsonb):
            parts += [f"{_quoted(key)}: ", fields[key], ", "]
        return _closed(parts, "}")

    def _array(self, at: int, info: int) -> list[str | int]:
        count_size = 4 if info & _LARGE_ARRAY else 1
        count = _integer(self._data, at + 1, count_size)
        offset_size = (info & 3) + 1
        offsets = at + 1 + count_size
        start = offsets + (count + 1) * offset_size
        parts: list[str | int] = ["["]
        for n in range(count):
            parts += [start + _integer(self._data, offsets + n * offset_size, offset_size), ", "]
        return _closed(parts, "]")

    def _primitive(self, at: int, kind: int) -> str:
        if kind < len(_WORDS):
            return _WORDS[kind]
        if kind in _SCALED:
            scale, size = self._data[at + 1], _SCALED[kind]
            raw = self._data[at + 2 : at + 2 + size]
            unscaled = int.from_bytes(raw, "little", signed=True)
            digits = tuple(map(int, str(abs(unscaled))))
            return self._number(Decimal((int(unscaled < 0), digits, -scale)))
        if kind in _FLOATS:
            number: float = struct.unpack_from(_FLOATS[kind], self._data, at + 1)[0]
            return self._floating(number, kind)
        if kind in (_LONG_STRING, _BYTES):
            size = _integer(self._data, at + 1, 4)
            raw = self._data[at + 5 : at + 5 + size]
            return _quoted(raw.decode() if kind == _LONG_STRING else base64.b64encode(raw).decode())
        if kind in _UNPACKED:
            whole: int = struct.unpack_from(_UNPACKED[kind], self._data, at + 1)[0]
            moment = _MOMENTS.get(kind)
            return self._number(Decimal(whole)) if moment is None else _quoted(moment(whole))
        if kind in _NANOSECONDS:
            nanoseconds: int = struct.unpack_from("<q", self._data, at + 1)[0]
            seconds, rest = divmod(nanoseconds, 10**9)
            begun = _EPOCH + timedelta(seconds=seconds)
            return _quoted(f"{begun}.{rest:09}{_NANOSECONDS[kind]}")
        if kind == _UUID:
            return _quoted(str(uuid.UUID(bytes=self._data[at + 1 : at + 17])))
        raise ValueError(f"kind {kind} is not known")

    def _floating(self, number: float, kind: int) -> str:
        if not math.isfinite(number):
            return _quoted("NaN" if math.isnan(number) else f"{'-' * (number < 0)}Infinity")
        shortest = repr(number) if _FLOATS[kind] == "<d" else str(np.float32(number))
        return self._number(Decimal(shortest))


def _closed(parts: list[str | int], end: str) -> list[str | int]:
    if len(parts) > 1:
        parts.pop()
    return [*parts, end]


def _of_jsonb(key: str) -> tuple[int, bytes]:
    """Return the sort key of jsonb's order of keys (lengthCompareJsonbString)."""
    raw = key.encode()
    return len(raw), raw


_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
"""Prints a text as jsonb does (escape_json): DEL is no control character there."""


_WORDS: Final = ("null", "true", "false")
_MOMENTS: Final[Mapping[int, Callable[[int], str]]] = {
    11: lambda days: str((_EPOCH + timedelta(days=days)).date()),
    12: lambda us: str((_EPOCH + timedelta(microseconds=us)).replace(tzinfo=UTC)),
    13: lambda us: str(_EPOCH + timedelta(microseconds=us)),
    17: lambda us: str((_EPOCH + timedelta(microseconds=us)).time()),
}
