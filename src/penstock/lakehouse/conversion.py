"""Columns of a target of another type than the publisher's: which fit, and values in their type.

In: a column that somebody else than a subscription has made (CREATE TABLE on the node, Spark), and
a published one. Out: whether it takes values of it; such values in its type. A PostgreSQL
subscriber gives each value's text to the input function of its own column, so what comes out is
what that makes of it: 0.1 of a real is 0.1 in a double precision, not 0.10000000149; and a bigint
goes into an integer until one comes that is out of its range. Types that would lose digits in
silence are not among them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.errors import ProtocolViolation, ValueNotRepresentable
from penstock.lakehouse.delta_types import TIMESTAMP_NTZ
from penstock.lakehouse.schema import Column
from penstock.pgtypes.as_text import may_not_fit
from penstock.pgtypes.family import CORRECT
from penstock.pgtypes.gather import cells_of
from penstock.pgtypes.pg_type import JSONB, NUMERIC, TEXT, VARCHAR
from penstock.pgtypes.registry import arrow_type, find, type_of_arrow
from penstock.pgtypes.text_output import text_output
from penstock.pgtypes.variant import KEEP_TEXT, VARIANT, variants

_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_NARROW: Final = (pa.int16(), pa.int32())
"""Integers with an input function: Spark's tinyint has none."""
_EXACT: Final = {pa.float32(): 5, pa.float64(): 10}
"""Digits of the largest integer type that a floating one holds whole."""


def takes(column: Column, published: pa.DataType, type_oid: int) -> bool:
    """Whether values of a published column go into one here: all, or what ``converted`` takes."""
    own = column.type
    if own == VARIANT:
        return type_oid == JSONB
    if own == published or _by_input(own, published):
        return True
    if pa.types.is_string(own):
        return _is_text(column, published)
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


def _is_text(column: Column, published: pa.DataType) -> bool:
    """Not each string is: it may be a uuid, json or an enum to PostgreSQL."""
    if column.type_oid == NUMERIC and column.typmod < 0:
        return published in _DIGITS or pa.types.is_decimal128(published)
    return column.type_oid in (0, TEXT) or (column.type_oid == VARCHAR and column.typmod < 0)


def kept_as_text(column: Column, type_oid: int, typmod: int) -> bool:
    """Whether a column takes the text of each published value, so that those which their type here
    has not are among them."""
    if not (column.converts and pa.types.is_string(column.type)):
        return False
    published = arrow_type(type_oid, typmod)
    return may_not_fit(type_oid, typmod) and _is_text(column, published)


def _by_input(own: pa.DataType, published: pa.DataType) -> bool:
    """Whether the input function decides on each value, as integerin and byteain do."""
    if pa.types.is_string(published):
        return bool(pa.types.is_binary(own))
    return own in _NARROW and _DIGITS[own] < _DIGITS.get(published, 0)


def converted(array: pa.Array, column: Column, *, table: str) -> pa.Array:
    """Values of a published column in the type of one that ``takes`` them.

    Raises ValueNotRepresentable as the input function of the type does (22003: an integer that is
    out of its range; 22P02: no bytea).
    """
    own = column.type
    if array.type == own:
        return array
    if own == VARIANT:
        return _variants(array, column, table)
    if _by_input(own, array.type):
        try:
            return find(type_of_arrow(own)[0]).text_column(cells_of(text_output(array)), -1)
        except ProtocolViolation as error:
            where = f'Table "{table}", column "{column.source}".'
            raise ValueNotRepresentable(
                error.message, detail=where, hint=CORRECT, sqlstate=error.sqlstate
            ) from None
    if pa.types.is_string(own):
        return text_output(array).cast(pa.string())
    if pa.types.is_float32(array.type):
        return text_output(array).cast(pa.string()).cast(own)
    return array.cast(own)


def _variants(array: pa.Array, column: Column, table: str) -> pa.Array:
    try:
        return variants(array)
    except (ProtocolViolation, ValueNotRepresentable) as error:
        where = f'Table "{table}", column "{column.source}".'
        raise ValueNotRepresentable(
            error.message,
            detail=" ".join(filter(None, (where, error.detail))),
            hint=error.hint or KEEP_TEXT,
            sqlstate=error.sqlstate,
        ) from None
