"""How a target table may follow a change of the publisher's, and what a new copy of it keeps.

In: the schema that a table has, and the one that the publisher's relation would get. Out: columns
to be added, or a schema; RelationChanged for what the table cannot follow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported, RelationChanged, SchemaChanged
from penstock.lakehouse.conversion import MAKE_AGAIN, refusal, takes
from penstock.lakehouse.new_columns import AS_TYPES_ARE, NewColumns, check_no_variant
from penstock.lakehouse.schema import (
    ROW,
    TIMESTAMP_NTZ,
    TYPE,
    Column,
    TableSchema,
    arrow_type,
    delta_type,
    type_text,
)
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
from penstock.relation import Attribute


def copied_again(
    have: TableSchema, wanted: TableSchema, *, table: str, new: NewColumns = AS_TYPES_ARE
) -> TableSchema:
    """``wanted``, as ``new`` columns are made, with what the node's own CREATE TABLE has made
    beside it.

    Raises RelationChanged where one of the two would be lost, FeatureNotSupported where values do
    not go into a column of the node's own, and as ``check_no_variant``.
    """
    _check_not_generated(have, wanted, table)
    own = have.by_source
    made = new.schema(wanted)
    columns = [
        _keep_own_type(own[c.source], c, table) if c.source in own and own[c.source].local else m
        for c, m in zip(wanted.columns, made.columns, strict=True)
    ]
    rest = [
        # of the rows that it has now, none has a value that was sent
        replace(c, published=False)
        for c in have.columns
        if c.local and c.source not in wanted.by_source
    ]
    found = TableSchema((*columns, *rest), wanted.key)
    check_no_variant(found, table=table)
    return found.with_row()


def columns_added(
    have: TableSchema,
    wanted: TableSchema,
    *,
    table: str,
    whole_rows: bool = True,
    new: NewColumns = AS_TYPES_ARE,
) -> tuple[Column, ...]:
    """What must be added so that this (existing) table holds rows of ``wanted``; () = fits.

    The added columns carry the names that they get here. The order of columns does not matter.
    ``whole_rows``: without a key, rows are found by all their columns, so that none which were
    published once may be left here. ``new``: how added columns are made.
    Raises RelationChanged naming table, column and both types for anything else: a column that
    is gone, one of the node's own that may have another name now, a type that became another.
    To take it back at the publisher does not help: its WAL keeps the definition of then.
    """
    _check_same_columns(have, wanted, table, own=bool(have.key) or not whole_rows)
    return have.lacking(new.columns(wanted.columns))


def check_same_key(have: TableSchema, wanted: Collection[str], table: str) -> None:
    """Raises SchemaChanged where rows have another key than ``wanted``, names at the publisher."""
    if set(wanted) != set(have.source_key):
        mine, theirs = (
            f"({', '.join(names)})" if names else "none" for names in (have.source_key, wanted)
        )
        raise SchemaChanged(
            f'replica identity of relation "{table}" has changed',
            detail=f"The target table's key is {mine}, the publisher's {theirs}.",
        )


def _check_not_generated(have: TableSchema, wanted: TableSchema, table: str) -> None:
    """logicalrep_report_missing_and_gen_attrs: values come from the row or from the publisher."""
    both = [
        f'"{column.source}"'
        for column in have.columns
        if column.generated is not None and column.source in wanted.by_source
    ]
    if both:
        columns = "column" if len(both) == 1 else "columns"
        raise RelationChanged(
            f'logical replication target relation "{table}" has incompatible generated {columns}: '
            f"{', '.join(both)}",
            detail="Values of a generated column are made here, of the other values of the row.",
            hint="Leave it out of the publication, by a column list.",
        )


def _keep_own_type(own: Column, wanted: Column, table: str) -> Column:
    """A column that CREATE TABLE has made keeps the type that was chosen there. Raises
    FeatureNotSupported where values do not go into it."""
    _check_taken(own, _sent(wanted), table)
    return replace(
        wanted,
        type=own.type,
        type_oid=own.type_oid,
        typmod=own.typmod,
        local=True,
        published=True,
        default=own.default,
        primary=own.primary,
    )


def _check_same_columns(have: TableSchema, wanted: TableSchema, table: str, *, own: bool) -> None:
    _check_not_generated(have, wanted, table)
    missing = [column.source for column in wanted.columns if column.source not in have.by_source]
    for column in have.columns:
        other = wanted.by_source.get(column.source)
        if column.source == ROW.source or (other is None and column.generated is not None):
            continue  # says nothing, or follows from the others
        if other is None and column.published and missing:
            raise _may_be_renamed(column, missing, table)
        if other is None and column.local and (own or column.stamp or not column.published):
            continue  # keeps its own values, as a subscriber's do
        mine = type_text(delta_type(column.type))
        if other is None and not column.type_oid:
            raise RelationChanged(
                f'column "{column.name}" of target table "{table}" is not published',
                detail=f"Another writer has made it there, of type {mine}; the publication has no "
                "such column.",
            )
        if other is None:
            raise SchemaChanged(
                f'column "{column.source}" of relation "{table}" is no longer published',
                detail=f'The target table has the column "{column.name}" of type {mine}, the '
                "publication has not: it was dropped, renamed or left out of the column list.",
            )
        if column.stamp:
            raise SchemaChanged(
                f'column "{column.source}" of relation "{table}" has the name of a metadata column',
                detail="The target table's own column of that name tells of its rows.",
            )
        theirs = type_text(delta_type(other.type))
        if column.own:
            _check_taken(column, _sent(other), table)
        elif mine != theirs and not (column.converts and takes(column, _sent(other))):
            raise SchemaChanged(
                f'column "{column.source}" of relation "{table}" has changed its type',
                detail=f"The target table's column \"{column.name}\" is {mine}, the publisher's "
                f"needs {theirs}.",
            )


def _check_taken(column: Column, sent: Attribute, table: str) -> None:
    """A column of a type that somebody has chosen for it, which a new copy of the table keeps, too.
    Raises FeatureNotSupported where values do not go into it."""
    if not takes(column, sent):
        raise FeatureNotSupported(
            f'column "{column.source}" of relation "{table}" cannot be converted to the type of '
            "the target's column",
            detail=refusal(column, sent),
            hint=f"Give the column the publisher's type on the node, or text: {MAKE_AGAIN}",
        )


def _sent(column: Column) -> Attribute:
    """A published column of that type."""
    return Attribute(column.source, column.type_oid, column.typmod)


def _may_be_renamed(column: Column, missing: Sequence[str], table: str) -> SchemaChanged:
    """logicalrep_report_missing_and_gen_attrs. Missing columns are made here, as a rule; not where
    the values of another one may go on in them."""
    columns = "column" if len(missing) == 1 else "columns"
    names = ", ".join(f'"{name}"' for name in missing)
    return SchemaChanged(
        f'logical replication target relation "{table}" is missing replicated {columns}: {names}',
        detail=f'The column "{column.source}" is no longer published: it may have been renamed. A '
        "new copy of the table keeps it as a column of the node's own, without the publisher's "
        "values.",
    )


# Columns that get a wider type at the publisher (protocol: "Type Widening").
#
# In: a table's columns, and those of the publisher's relation. Out: the columns that the table can
# have without a new copy, and Delta's record of it. Two questions are asked, and both must be
# answered with yes. Of PostgreSQL: whether ALTER TYPE leaves every row's value what it was; 7 is
# the same number in a bigint, but numeric(4,-2) makes 100 of 123. Of Delta: whether its readers
# make the wider value of what older files hold. A real becomes what its bits are in a double
# precision, on both sides. What USING has made of the values is in no message: whoever lets a
# table follow without a copy says that there is none (``schema_change = widen``).

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
