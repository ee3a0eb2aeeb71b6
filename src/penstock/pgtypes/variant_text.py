"""Variants as text, as jsonb's output function prints their values.

In: ``VARIANT`` columns of any writer, not shredded. Out: strings, in two forms: with the digits of
each number as they are, or so that equal numbers have one text, for comparing values. Values
without a JSON type (dates, times, bytes) become the strings that Spark's ``to_json`` makes of them.
Objects have jsonb's order.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import ValueNotRepresentable

_Number = Callable[[Decimal], str]
_EPOCH: Final = datetime(1970, 1, 1)
_LARGE_OBJECT: Final = 0x10
_LARGE_ARRAY: Final = 0x04
_STRING: Final = 16
_UNPACKED: Final = {3: "<b", 4: "<h", 5: "<i", 6: "<q", 11: "<i", 12: "<q", 13: "<q", 17: "<q"}
_FLOATS: Final = {7: "<d", 14: "<f"}
_DECIMALS: Final = {8: 4, 9: 8, 10: 16}
_BYTES: Final = 15
_NANOSECONDS: Final = {18: "+00:00", 19: ""}
_UUID: Final = 20


def variant_text(column: pa.Array) -> pa.Array:
    """Return the values as jsonb's text. Raises ValueNotRepresentable for invalid bytes."""
    return _each(column, lambda number: format(number, "f"))


def compared_text(column: pa.Array) -> pa.Array:
    """Return texts that are equal if the values are: 1.0 is 1, as it is to jsonb."""
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
        """Return the value's text, however deep it is."""
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
                pieces.append(_string(self._data[at + 1 : at + 1 + info].decode()))
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
            parts += [f"{_string(key)}: ", fields[key], ", "]
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
        if kind in _DECIMALS:
            scale, size = self._data[at + 1], _DECIMALS[kind]
            raw = self._data[at + 2 : at + 2 + size]
            unscaled = int.from_bytes(raw, "little", signed=True)
            digits = tuple(map(int, str(abs(unscaled))))
            return self._number(Decimal((int(unscaled < 0), digits, -scale)))
        if kind in _FLOATS:
            number: float = struct.unpack_from(_FLOATS[kind], self._data, at + 1)[0]
            return self._floating(number, kind)
        if kind in (_STRING, _BYTES):
            size = _integer(self._data, at + 1, 4)
            raw = self._data[at + 5 : at + 5 + size]
            return _string(raw.decode() if kind == _STRING else base64.b64encode(raw).decode())
        if kind in _UNPACKED:
            whole: int = struct.unpack_from(_UNPACKED[kind], self._data, at + 1)[0]
            moment = _MOMENTS.get(kind)
            return self._number(Decimal(whole)) if moment is None else _string(moment(whole))
        if kind in _NANOSECONDS:
            nanoseconds: int = struct.unpack_from("<q", self._data, at + 1)[0]
            seconds, rest = divmod(nanoseconds, 10**9)
            begun = _EPOCH + timedelta(seconds=seconds)
            return _string(f"{begun}.{rest:09}{_NANOSECONDS[kind]}")
        if kind == _UUID:
            return _string(str(uuid.UUID(bytes=self._data[at + 1 : at + 17])))
        raise ValueError(f"kind {kind} is not known")

    def _floating(self, number: float, kind: int) -> str:
        if not math.isfinite(number):
            return _string("NaN" if math.isnan(number) else f"{'-' * (number < 0)}Infinity")
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


_string: Final = json.JSONEncoder(ensure_ascii=False).encode
"""Prints a text as jsonb does (escape_json): DEL is no control character there."""


_WORDS: Final = ("null", "true", "false")
_MOMENTS: Final[Mapping[int, Callable[[int], str]]] = {
    11: lambda days: str((_EPOCH + timedelta(days=days)).date()),
    12: lambda us: str((_EPOCH + timedelta(microseconds=us)).replace(tzinfo=UTC)),
    13: lambda us: str(_EPOCH + timedelta(microseconds=us)),
    17: lambda us: str((_EPOCH + timedelta(microseconds=us)).time()),
}
