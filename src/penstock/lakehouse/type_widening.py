"""Columns that get a wider type at the publisher (protocol: "Type Widening").

In: a table's columns, and those of the publisher's relation. Out: the columns that the table can
have without a new copy, and Delta's record of it. Two questions are asked, and both must be
answered with yes. Of PostgreSQL: whether ALTER TYPE leaves every row's value what it was; 7 is the
same number in a bigint, but numeric(4,-2) makes 100 of 123. Of Delta: whether its readers make the
wider value of what older files hold. A real becomes what its bits are in a double precision, on
both sides. What USING has made of the values is in no message: whoever lets a table follow without
a copy says that there is none (``schema_change = widen``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.lakehouse.delta_types import TIMESTAMP_NTZ, arrow_type, delta_type
from penstock.lakehouse.schema import TYPE, Column, TableSchema
from penstock.pgtypes.pg_type import (
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NAME,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    VARCHAR,
)
from penstock.pgtypes.type_names import numeric_modifiers

_CHANGES: Final = "delta.typeChanges"
"""Metadata of a field: the types that it had, and got."""
_SAME_VALUES: Final = frozenset(
    {(INT2, INT4), (INT2, INT8), (INT4, INT8), (FLOAT4, FLOAT8), (DATE, TIMESTAMP), (NAME, TEXT)}
)
"""Whatever the new type's modifier is: midnight has no fraction of a second."""
_OF_ANY_LENGTH: Final = frozenset({VARCHAR, TEXT})
_OF_SECONDS: Final = frozenset({TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ})
_SECONDS: Final = 6
"""Digits of a second without a modifier."""
_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def followed_types(
    have: TableSchema, wanted: TableSchema, *, widen: bool, clamped: bool = False
) -> TableSchema:
    """``have`` with the publisher's types where that leaves the values of all rows what they are.

    ``widen``: also where the table's files hold a narrower type then. ``clamped``: rows may have
    the last day in place of an infinite date, which has no hours.
    """

    def followed(column: Column) -> Column:
        other = wanted.by_source.get(column.source)
        if other is None or column.own or not _keeps_values(column, other):
            return column
        wider = widen and is_wider(column.type, other.type)
        if column.type != other.type and (not wider or (clamped and other.type_oid == TIMESTAMP)):
            return column
        return replace(column, type=other.type, type_oid=other.type_oid, typmod=other.typmod)

    return TableSchema(tuple(map(followed, have.columns)), have.key)


def retyped(have: TableSchema, wanted: TableSchema) -> Column | None:
    """A column of another type at the publisher, in whose rows the values may have become others:
    json is written otherwise as jsonb, in the same type of Delta."""
    for column in have.columns:
        other = wanted.by_source.get(column.source)
        if other is None or column.own:
            continue
        if (column.type_oid, column.typmod) != (other.type_oid, other.typmod):
            return column
    return None


def is_wider(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether Delta's readers make one of the other."""
    if narrow in _INTEGERS and wide in _INTEGERS:
        return _INTEGERS.index(narrow) < _INTEGERS.index(wide)
    if pa.types.is_decimal128(narrow) and pa.types.is_decimal128(wide):
        digits, behind = wide.precision - narrow.precision, wide.scale - narrow.scale
        return bool(digits >= behind >= 0 and digits > 0)
    return (narrow, wide) in ((pa.float32(), pa.float64()), (pa.date32(), TIMESTAMP_NTZ))


def has_wider(schema_json: str, columns: Sequence[Column]) -> bool:
    """Whether a field of a table's schema JSON is to be wider than it is."""
    types = {field["name"]: field["type"] for field in json.loads(schema_json)["fields"]}
    return any(arrow_type(types[c.name]) != c.type for c in columns if c.name in types)


def with_types(schema_json: str, columns: Sequence[Column]) -> str:
    """A table's schema JSON with the types of columns that are there, and a note of what they were
    where they are wider now."""
    schema = json.loads(schema_json)
    by_name = {column.name: column for column in columns}
    for field in schema["fields"]:
        column = by_name.get(field["name"])
        if column is None:
            continue
        if column.type_oid:
            field["metadata"][TYPE] = f"{column.type_oid},{column.typmod}"
        if arrow_type(field["type"]) != column.type:
            change = {"toType": delta_type(column.type), "fromType": field["type"]}
            field["metadata"][_CHANGES] = [*field["metadata"].get(_CHANGES, ()), change]
            field["type"] = change["toType"]
    return json.dumps(schema)


def _keeps_values(column: Column, other: Column) -> bool:
    """Whether ALTER TYPE without USING leaves the values, and their text where a string is kept."""
    old, new = column.typmod, other.typmod
    types = (column.type_oid, other.type_oid)
    if types in _SAME_VALUES:
        return True
    if _OF_ANY_LENGTH.issuperset(types):  # shorter, blanks at the end go
        return new < 0 or 0 <= old <= new
    if types[0] != types[1]:
        return False
    if types[0] in _OF_SECONDS:
        return new < 0 or (0 <= old <= new) or new == _SECONDS
    return old == new or (types[0] == NUMERIC and _keeps_digits(column, other))


def _keeps_digits(column: Column, other: Column) -> bool:
    old, new = numeric_modifiers(column.typmod), numeric_modifiers(other.typmod)
    if old is None or new is None:
        return new is None
    if pa.types.is_string(column.type) and old[1] != new[1]:
        return False  # 1.5 is 1.50 then
    return new[1] >= old[1] and new[0] - new[1] >= old[0] - old[1]
