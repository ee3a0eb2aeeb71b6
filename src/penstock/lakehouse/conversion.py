"""Conversion of published values for target columns of another type.

CREATE TABLE on the node, or Spark, may have made a column with another type than the publisher's.
``takes`` decides whether the column can hold published values, ``converted`` converts them. As on a
PostgreSQL subscriber, each value's text goes through the input function of the column's own type: a
real 0.1 becomes the double precision 0.1, not 0.10000000149; a bigint goes into an integer if it is
in range; a numeric(10,1) rounds 1.26 to 1.3; a text goes into a jsonb if it is valid. If both types
store a value in the same way, its text is not read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.attribute import Attribute
from penstock.errors import (
    FeatureNotSupported,
    PenstockError,
    UnknownLabel,
    ValueNotRepresentable,
)
from penstock.identifiers import quote_literal
from penstock.lakehouse.schema import FIRST_NORMAL_OID, TIMESTAMP_NTZ, Column
from penstock.pgtypes.family import Unfit, shown
from penstock.pgtypes.gather import cells_of
from penstock.pgtypes.pg_type import (
    BPCHAR,
    JSON,
    JSONB,
    NAME,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    VARBIT,
    VARCHAR,
)
from penstock.pgtypes.registry import find, type_of_arrow
from penstock.pgtypes.text_output import may_not_fit, text_output
from penstock.pgtypes.type_names import length_of, numeric_modifiers
from penstock.pgtypes.variant import KEEP_TEXT, VARIANT, variants
from penstock.sql.text.quoting import type_text
from penstock.sql.typed.input_functions import has_input, input_function

_DIGITS: Final = {pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_EXACT: Final = {pa.float32(): 5, pa.float64(): 10}
"""Digits of the largest integer type whose values a floating-point type holds exactly."""
_ANY_NUMERIC: Final = (NUMERIC, -1)
_ANY_PRECISION: Final = (-1, 6)
_SHORTER_FIT: Final = frozenset({VARCHAR, TIMESTAMP, TIMESTAMPTZ, TIME, TIMETZ, VARBIT})
"""Types whose values are all valid under a larger modifier too."""
MAKE_AGAIN: Final = (
    "take the table out of the publication, and out of the subscription with ALTER SUBSCRIPTION "
    "... REFRESH PUBLICATION, drop it on the node and make it again, and bring it back in the same "
    "way."
)
"""Instructions for giving a column another type. Before the table's copy is complete it is not
enough to drop the table."""
_CORRECT: Final = (
    "Correct the value at the publisher, or leave it out with a row filter or a column list of the "
    f"publication. Or give the table a column that takes it: {MAKE_AGAIN}"
)
_UTC: Final = pa.timestamp("us", "UTC")


def takes(column: Column, sent: Attribute) -> bool:
    """Return whether a column takes a published column's values, even if only those that the input
    function of its type accepts."""
    if column.type == VARIANT:
        return sent.type_oid == JSONB
    own = _own_type(column)
    if own is None:
        return False
    enum = column.local and own[0] >= FIRST_NORMAL_OID
    return enum or _is_same(own, sent) or _takes_texts(own) or has_input(*own)


def refusal(column: Column, sent: Attribute) -> str:
    """Return the detail of an error about a column that does not take a published one."""
    own = _own_type(column)
    mine = str(column.type) if own is None else type_text(*own)
    return (
        f'The target table\'s column "{column.name}" is {mine}, which has no conversion from '
        f"{published_type(sent)} here."
    )


def kept_as_text(column: Column, sent: Attribute) -> bool:
    """Return whether a column is filled from the text of each published value. Such a column can
    hold values that the published type cannot hold here: as text, or as floating point."""
    if not column.converts or not may_not_fit(sent.type_oid, sent.typmod) or column.type == VARIANT:
        return False
    return bool(pa.types.is_string(column.type) or pa.types.is_floating(column.type))


def converted(array: pa.Array, sent: Attribute, column: Column, *, table: str) -> pa.Array:
    """Return values of a published column in the type of ``column``, which ``takes`` them. The
    caller has made the node's own enums known to the thread (``known_enums``).

    Raises ValueNotRepresentable with the input function's SQLSTATE (22P02, 22003, 22001 ...).
    """
    if not column.converts:
        return array if array.type == column.type else array.cast(column.type)
    try:
        if column.type == VARIANT:
            return array if array.type == VARIANT else variants(array)
        own = _own_type(column)
        if own is None or (_is_same(own, sent) and array.type == column.type):
            return array
        found = _at_once(array, column.type, own)
        return _by_input(array, column.type, own) if found is None else found
    except (PenstockError, pa.ArrowInvalid) as error:
        raise _told(error, column, table) from None


def _own_type(column: Column) -> tuple[int, int] | None:
    """Return a column's OID and modifier, by its Arrow type if another writer has made it; None if
    PostgreSQL has no such type."""
    if column.attribute.type_oid:
        return column.attribute.type_oid, column.attribute.typmod
    try:
        return None if column.type == pa.int8() else type_of_arrow(column.type)
    except FeatureNotSupported:
        return None


def _is_same(own: tuple[int, int], sent: Attribute) -> bool:
    """Return whether the input function would return every value unchanged: the types are the same,
    or ours is wider. OIDs of user-defined types never match: each server has its own."""
    oid, modifier = own
    if oid != sent.type_oid or oid >= FIRST_NORMAL_OID:
        return (sent.type_oid, oid) == (JSONB, JSON) or (oid == TEXT and sent.type_oid == NAME)
    if modifier in (-1, sent.typmod):
        return True
    return oid in _SHORTER_FIT and 0 <= sent.typmod <= modifier


def _takes_texts(own: tuple[int, int]) -> bool:
    """Return whether a type holds any text."""
    return own[0] == TEXT or (own[0] in (VARCHAR, BPCHAR) and own[1] < 0)


def _at_once(array: pa.Array, to: pa.DataType, own: tuple[int, int]) -> pa.Array | None:
    """Return the values if they can be converted as a whole; None if the input function has to
    read them one by one."""
    kind = array.type
    if _takes_texts(own):
        return text_output(array).cast(pa.string())
    if own[0] in (VARCHAR, BPCHAR) and pa.types.is_string(kind):
        return _of_length(array, *own)
    if kind in _DIGITS:
        return _number_at_once(array, to, own)
    if pa.types.is_decimal128(kind) and own == _ANY_NUMERIC:
        return text_output(array).cast(pa.string())
    if pa.types.is_decimal128(kind) and pa.types.is_decimal128(to):
        whole = to.precision - to.scale >= kind.precision - kind.scale
        plain = numeric_modifiers(own[1]) == (to.precision, to.scale)
        return array.cast(to) if whole and plain and to.scale >= kind.scale else None
    if (kind, to) == (pa.float32(), pa.float64()):
        return text_output(array).cast(pa.string()).cast(to)
    if (kind, to) == (pa.date32(), TIMESTAMP_NTZ):
        return array.cast(to)
    if {kind, to} == {_UTC, TIMESTAMP_NTZ} and own[1] in _ANY_PRECISION:
        return array.cast(to)  # sessions are in UTC
    return None


def _number_at_once(array: pa.Array, to: pa.DataType, own: tuple[int, int]) -> pa.Array | None:
    digits = _DIGITS[array.type]
    if own == _ANY_NUMERIC:
        return text_output(array).cast(pa.string())
    if pa.types.is_decimal128(to):
        plain = numeric_modifiers(own[1]) == (to.precision, to.scale)
        return array.cast(to) if plain and to.precision - to.scale >= digits else None
    if to in _DIGITS:
        if _DIGITS[to] >= digits:
            return array.cast(to)
        return find(own[0]).text_column(cells_of(text_output(array)), -1)
    return array.cast(to) if digits <= _EXACT.get(to, 0) else None


def _of_length(array: pa.Array, type_oid: int, typmod: int) -> pa.Array | None:
    """Return the texts as the type holds them; None if one is longer than allowed."""
    length = length_of(typmod)
    longest = pc.max(pc.utf8_length(array)).as_py()
    if longest is not None and longest > length:
        return None
    return pc.utf8_rpad(array, length, " ") if type_oid == BPCHAR else array


def _by_input(array: pa.Array, to: pa.DataType, own: tuple[int, int]) -> pa.Array:
    """Return the values, with each different text read once by the input function."""
    read = input_function(*own)
    texts = text_output(array).cast(pa.string()).dictionary_encode()
    found = pa.array([_read(text, read, own) for text in texts.dictionary.to_pylist()], pa.string())
    family = find(own[0])
    values = found if pa.types.is_string(to) else family.text_column(cells_of(found), own[1])
    return values.cast(to).take(texts.indices)


def _read(text: str, read: Callable[[str], str], own: tuple[int, int]) -> str:
    try:
        return read(text)
    except FeatureNotSupported:
        message = f'value "{shown(text)}" cannot be converted to type {type_text(*own)}'
        raise ValueNotRepresentable(message, sqlstate="0A000") from None
    except PenstockError as error:
        if own[0] >= FIRST_NORMAL_OID:
            raise UnknownLabel(error.message, hint=_no_label(text, own)) from None
        if shown(text) in error.message:
            raise
        value = f'The value is "{shown(text)}".'
        raise error.changed(detail=f"{error.detail} {value}" if error.detail else value) from None


def _no_label(text: str, own: tuple[int, int]) -> str:
    added = f"ALTER TYPE {type_text(*own)} ADD VALUE {quote_literal(text)}"
    return f"Add the label to the node's type: {added}."


def _told(error: Exception, column: Column, table: str) -> ValueNotRepresentable:
    """Return the error to raise, which names the column."""
    where = f'Table "{table}", column "{column.source}".'
    if not isinstance(error, PenstockError):
        return ValueNotRepresentable(str(error), detail=where, hint=_CORRECT, column=column.source)
    kind = UnknownLabel if isinstance(error, UnknownLabel) else ValueNotRepresentable
    hint = KEEP_TEXT if column.type == VARIANT else _CORRECT
    return kind(
        error.message,
        detail=f"{where} {error.detail}" if error.detail else where,
        # the hint about out_of_range would not help: the target's own type cannot hold the value
        hint=hint if isinstance(error, Unfit) else error.hint or hint,
        sqlstate=error.sqlstate,
        column=column.source,
    )


def published_type(sent: Attribute) -> str:
    """Return the name of a column's type; of the publisher's own types only the OID is known."""
    own = sent.type_oid >= FIRST_NORMAL_OID
    return f"type {sent.type_oid}" if own else type_text(sent.type_oid, sent.typmod)
