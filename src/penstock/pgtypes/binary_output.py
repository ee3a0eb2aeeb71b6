"""Arrow columns in PostgreSQL's binary format: the send functions of all types (utils/adt).

Types that are kept as PostgreSQL's text have no binary form here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.civil import EPOCH_DAYS, EPOCH_MICROSECONDS
from penstock.errors import FeatureNotSupported, ValueNotRepresentable
from penstock.pgtypes import pg_type
from penstock.pgtypes.datetime import check_dates, check_timestamps
from penstock.pgtypes.family import shown
from penstock.pgtypes.numeric import decimal_binary
from penstock.pgtypes.registry import element_oid
from penstock.pgtypes.uuid import uuid_binary
from penstock.wire_rows import Column, array_of, fixed

_TEXTS: Final = frozenset(
    {pg_type.NAME, pg_type.TEXT, pg_type.JSON, pg_type.BPCHAR, pg_type.VARCHAR}
)
_DIGITS: Final = 4
_NEGATIVE: Final = 0x4000
_SPECIAL: Final = {"NaN": (0xC000, 0), "Infinity": (0xD000, 32), "-Infinity": (0xF000, 32)}
"""The sign and the display scale. An infinity's scale has no meaning; the server sends this one."""
_NUMBERS: Final[dict[int, str]] = {
    pg_type.INT8: ">i8",
    pg_type.INT2: ">i2",
    pg_type.INT4: ">i4",
    pg_type.FLOAT4: ">f4",
    pg_type.FLOAT8: ">f8",
}


def has_binary_output(type_oid: int, arrow: pa.DataType) -> bool:
    """Return whether ``binary_output`` knows the type of such a column."""
    element = element_oid(type_oid)
    if element is not None:
        return pa.types.is_list(arrow) and has_binary_output(element, arrow.value_type)
    if type_oid == pg_type.NUMERIC:
        return bool(pa.types.is_decimal(arrow) or pa.types.is_string(arrow))
    if type_oid in _TEXTS or type_oid in (pg_type.UUID, pg_type.JSONB):
        return bool(pa.types.is_string(arrow))
    return type_oid in _NUMBERS or type_oid in _OTHERS


def binary_output(array: pa.Array, type_oid: int, typmod: int = -1) -> pa.Array:
    """Return the bytes of each value, null for NULL. Raises FeatureNotSupported;
    ValueNotRepresentable (22P02) for a text of another writer that is no value of the type."""
    if not has_binary_output(type_oid, array.type):
        raise FeatureNotSupported(
            f"no binary output function available for type {type_oid}",
            hint="Subscribe with binary = false.",
        )
    if isinstance(array, pa.ChunkedArray):
        parts = [binary_output(chunk, type_oid, typmod) for chunk in array.chunks]
        return pa.chunked_array(parts, pa.binary())
    if element_oid(type_oid) is not None:
        return _nullable(array, _arrays(array, element_oid(type_oid) or 0))
    if type_oid in _TEXTS:
        return array.cast(pa.binary())
    if type_oid in _NUMBERS:
        numbers = np.asarray(pc.fill_null(array, 0)).astype(_NUMBERS[type_oid])
        return _nullable(array, _wide(numbers))
    if type_oid == pg_type.NUMERIC:
        if pa.types.is_decimal(array.type):
            return decimal_binary(array)
        return pa.array([_numeric(v) for v in array.to_pylist()], pa.binary())
    return _nullable(array, _OTHERS[type_oid](array))


def _wide(numbers: np.ndarray) -> pa.Array:
    return fixed(numbers.view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize))


def _nullable(array: pa.Array, values: pa.Array) -> pa.Array:
    if not array.null_count:
        return values
    return pc.if_else(pc.is_valid(array), values, pa.scalar(None, pa.binary()))


def _boolean(array: pa.Array) -> pa.Array:
    flags = np.asarray(pc.fill_null(array, False)).astype(np.uint8)
    return fixed(flags.reshape(-1, 1))


def _date(array: pa.Array) -> pa.Array:
    check_dates(array)
    days = np.asarray(pc.fill_null(array.cast(pa.int32()), 0)) - EPOCH_DAYS
    return _wide(days.astype(">i4"))


def _timestamp(array: pa.Array) -> pa.Array:
    check_timestamps(array)
    moments = np.asarray(pc.fill_null(array.cast(pa.int64()), 0)) - EPOCH_MICROSECONDS
    return _wide(moments.astype(">i8"))


def _jsonb(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(b"\x01", array.cast(pa.binary()), b"")


def _numeric(text: str | None) -> bytes | None:
    """Write a number that is kept as text: ndigits, weight, sign, dscale, digits of base 10000."""
    if text is None:
        return None
    if text in _SPECIAL:
        return struct.pack("!HhHH", 0, 0, *_SPECIAL[text])
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
        after = int(exponent)
    except (InvalidOperation, ValueError):
        raise ValueNotRepresentable(
            f'invalid input syntax for type numeric: "{shown(text)}"', sqlstate="22P02"
        ) from None
    scale = max(0, -after)
    # whole groups of four digits, counted from the point
    whole = "".join(map(str, digits)) + "0" * (max(0, after) + -scale % _DIGITS)
    whole = whole.zfill(-(-len(whole) // _DIGITS) * _DIGITS)
    groups = [int(whole[at : at + _DIGITS]) for at in range(0, len(whole), _DIGITS)]
    weight = len(groups) - -(-scale // _DIGITS) - 1
    while groups and not groups[0]:
        groups, weight = groups[1:], weight - 1
    while groups and not groups[-1]:
        groups.pop()
    signed = (weight, _NEGATIVE if sign else 0) if groups else (0, 0)
    return struct.pack(f"!HhHH{len(groups)}H", len(groups), *signed, scale, *groups)


def _arrays(array: pa.Array, element: int) -> pa.Array:
    """Write as array_send: dimensions, flags, element type, length, lower bound, elements."""
    values = binary_output(array.flatten(), element)
    cells = array_of([Column(values, null=b"\xff\xff\xff\xff", counted=True)], len(values))
    counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int64)
    nulls = np.asarray(pc.is_null(values)).astype(np.int64)
    ends = np.cumsum(counts)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    running = np.concatenate([[0], np.cumsum(nulls)])
    has_null = running[ends] - running[ends - counts] > 0
    bodies = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), cells), b"")
    heads = [
        struct.pack("!iiI", 0, 0, element)
        if not count
        else struct.pack("!iiIii", 1, int(null), element, count, 1)
        for count, null in zip(counts.tolist(), has_null.tolist(), strict=True)
    ]
    return array_of([Column(pa.array(heads, pa.binary())), Column(bodies)], len(heads))


_OTHERS: Final[dict[int, Callable[[pa.Array], pa.Array]]] = {
    pg_type.BOOL: _boolean,
    pg_type.BYTEA: lambda array: array.cast(pa.binary()),
    pg_type.DATE: _date,
    pg_type.TIMESTAMP: _timestamp,
    pg_type.TIMESTAMPTZ: _timestamp,
    pg_type.UUID: uuid_binary,
    pg_type.JSONB: _jsonb,
}
