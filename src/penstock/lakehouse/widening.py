"""Columns of a target that are wider than the publisher's: which are, and values in their type.

In: a column that somebody else than a subscription has made (CREATE TABLE on the node, Spark), and
a published one. Out: whether it holds every value of it; such values in its type. A PostgreSQL
subscriber gives each value's text to the input function of its own column, so what comes out is
what that makes of it: 0.1 of a real is 0.1 in a double precision, not 0.10000000149. Types that
would take some of the values only are not among them.
"""

from __future__ import annotations

from typing import Final, Protocol

import pyarrow as pa

from penstock.lakehouse.delta_types import TIMESTAMP_NTZ
from penstock.pgtypes.pg_type import NUMERIC, TEXT, VARCHAR
from penstock.pgtypes.text_output import text_output

_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_EXACT: Final = {pa.float32(): 5, pa.float64(): 10}
"""Digits of the largest integer type that a floating one holds whole."""


class Typed(Protocol):
    """A column, here or at the publisher."""

    @property
    def type_oid(self) -> int:
        """0 where another writer has made it."""

    @property
    def typmod(self) -> int:
        """-1: no modifier."""


def holds(own: pa.DataType, typed: Typed, published: pa.DataType) -> bool:
    """Whether a column of type ``own``, ``typed`` to PostgreSQL, holds all values of a published
    one."""
    if own == published:
        return True
    if pa.types.is_string(own):
        return _is_text(typed, published)
    if published in _DIGITS:
        digits = _DIGITS[published]
        if pa.types.is_decimal128(own):
            return bool(own.precision - own.scale >= digits)
        return digits <= _DIGITS.get(own, _EXACT.get(own, 0))
    if pa.types.is_decimal128(published) and pa.types.is_decimal128(own):
        whole = own.precision - own.scale >= published.precision - published.scale
        return bool(whole and own.scale >= published.scale)
    return (published, own) in (
        (pa.float32(), pa.float64()),
        (pa.date32(), TIMESTAMP_NTZ),
    )


def _is_text(typed: Typed, published: pa.DataType) -> bool:
    """Not each string is: it may be a uuid, json or an enum to PostgreSQL."""
    if typed.type_oid == NUMERIC and typed.typmod < 0:
        return published in _DIGITS or pa.types.is_decimal128(published)
    return typed.type_oid in (0, TEXT) or (typed.type_oid == VARCHAR and typed.typmod < 0)


def widened(array: pa.Array, own: pa.DataType) -> pa.Array:
    """Values of a published column in the type of one that ``holds`` them."""
    if array.type == own:
        return array
    if pa.types.is_string(own):
        return text_output(array).cast(pa.string())
    if pa.types.is_float32(array.type):
        return text_output(array).cast(pa.string()).cast(own)
    return array.cast(own)
