"""Schema changes: how a target table follows the publisher, and what a new copy of it keeps.

The functions compare a table's schema with the schema that the publisher's relation would get. They
return columns to add, or a schema, and raise RelationChanged if the table cannot follow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, RelationChanged, SchemaChanged
from penstock.lakehouse.conversion import MAKE_AGAIN, refusal, takes
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
    JSONB,
    NAME,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    VARCHAR,
)
from penstock.pgtypes.text_output import may_not_fit
from penstock.pgtypes.type_names import numeric_modifiers
from penstock.pgtypes.variant import VARIANT

# A subscription's options change the types of new columns (out_of_range = text, jsonb_as =
# variant). Existing columns stay as they are.

JSONB_AS_TEXT: Final = "text"
JSONB_AS_VARIANT: Final = "variant"
JSONB_AS: Final = (JSONB_AS_TEXT, JSONB_AS_VARIANT)
"""The values of jsonb_as: the types that columns of jsonb can get."""


@dataclass(frozen=True)
class NewColumns:
    """The types of new columns. ``as_text``: columns whose type here cannot hold all of
    PostgreSQL's values become text; ``variants``: jsonb becomes a variant (``check_no_variant``
    refuses it in a key)."""

    as_text: bool = False
    variants: bool = False

    def schema(self, wanted: TableSchema) -> TableSchema:
        """Return the schema for a new table of a relation."""
        return TableSchema(self.columns(wanted.columns), wanted.key)

    def columns(self, wanted: Sequence[Column]) -> tuple[Column, ...]:
        """Return published columns with the types that new columns get."""
        return tuple(map(self._column, wanted))

    def _column(self, column: Column) -> Column:
        if self.variants and column.attribute.type_oid == JSONB:
            return replace(column, type=VARIANT)
        if self.as_text and may_not_fit(column.attribute.type_oid, column.attribute.typmod):
            text = replace(column.attribute, type_oid=TEXT, typmod=-1)
            return replace(column, attribute=text, type=pa.string(), as_text=True)
        return column


AS_TYPES_ARE: Final = NewColumns()


def check_no_variant(schema: TableSchema, *, table: str) -> None:
    """Raise FeatureNotSupported for a key with a variant: rows could not be found by it."""
    for column in schema.columns:
        if column.name in schema.key and column.type == VARIANT:
            raise FeatureNotSupported(
                f'column "{column.source}" of table "{table}" cannot be a variant',
                detail="It is of the key by which rows are found, and Delta's variants have no "
                "order.",
                hint="Give the table another replica identity at the publisher. Or keep its jsonb "
                "as text: ALTER SUBSCRIPTION ... SET (jsonb_as = text).",
            )


# How a table follows the publisher.


def schema_of_copy(
    have: TableSchema, wanted: TableSchema, *, table: str, new: NewColumns = AS_TYPES_ARE
) -> TableSchema:
    """Return the schema of a new copy: the columns of ``wanted``, with the types of ``new``, and
    those of CREATE TABLE on the node.

    Raises as ``check_no_variant``; RelationChanged if the publisher sends a column that is
    generated here; FeatureNotSupported if a column of the node does not take published values.
    """
    _check_not_generated(have, wanted, table)
    own = have.by_source
    made = new.schema(wanted)
    columns = [
        _keep_own(own[c.source], c, table) if c.source in own and own[c.source].local else m
        for c, m in zip(wanted.columns, made.columns, strict=True)
    ]
    rest = [
        # the copied rows have no published values in this column
        replace(c, published=False)
        for c in have.columns
        if c.local and c.source not in wanted.by_source
    ]
    found = TableSchema((*columns, *rest), wanted.key)
    check_no_variant(found, table=table)
    return found.with_row()


def columns_to_add(
    have: TableSchema,
    wanted: TableSchema,
    *,
    table: str,
    whole_rows: bool = True,
    new: NewColumns = AS_TYPES_ARE,
) -> tuple[Column, ...]:
    """Return the columns that an existing table lacks to hold rows of ``wanted``; () if it fits.

    The added columns have the names that they get here. The order of columns does not matter.
    ``whole_rows``: without a key rows are found by all their columns, so every column here must
    still be published. ``new``: the types of added columns.
    Raises RelationChanged, with table, column and both types, for anything else: a column was
    dropped, its type has changed, or a column of the node may have been renamed. Undoing the change
    at the publisher does not help: its WAL still has changes with the other definition. Raises
    FeatureNotSupported if a column of the node does not take published values.
    """
    _check_same_columns(have, wanted, table, own=bool(have.key) or not whole_rows)
    return have.lacking(new.columns(wanted.columns))


def check_same_key(have: TableSchema, wanted: Collection[str], table: str) -> None:
    """Raise SchemaChanged if rows have another key than ``wanted`` (names at the publisher)."""
    if set(wanted) != set(have.source_key):
        mine, theirs = (
            f"({', '.join(names)})" if names else "none" for names in (have.source_key, wanted)
        )
        raise SchemaChanged(
            f'replica identity of relation "{table}" has changed',
            detail=f"The target table's key is {mine}, the publisher's {theirs}.",
        )


def _check_not_generated(have: TableSchema, wanted: TableSchema, table: str) -> None:
    """Raise RelationChanged if the publisher sends a column that is generated here
    (logicalrep_report_missing_and_gen_attrs)."""
    both = [
        f'"{column.source}"'
        for column in have.columns
        if column.attribute.generation is not None and column.source in wanted.by_source
    ]
    if both:
        columns = "column" if len(both) == 1 else "columns"
        raise RelationChanged(
            f'logical replication target relation "{table}" has incompatible generated {columns}: '
            f"{', '.join(both)}",
            detail="Values of a generated column are made here, of the other values of the row.",
            hint="Leave it out of the publication, by a column list.",
        )


def _keep_own(own: Column, wanted: Column, table: str) -> Column:
    """Return a column of CREATE TABLE on the node, with its own type, default and NOT NULL. Raises
    FeatureNotSupported if it does not take published values."""
    _check_taken(own, wanted.attribute, table)
    return replace(
        wanted,
        attribute=own.attribute,
        type=own.type,
        local=True,
        published=True,
        primary=own.primary,
    )


def _check_same_columns(have: TableSchema, wanted: TableSchema, table: str, *, own: bool) -> None:
    _check_not_generated(have, wanted, table)
    missing = [column.source for column in wanted.columns if column.source not in have.by_source]
    for column in have.columns:
        other = wanted.by_source.get(column.source)
        if column.source == ROW.source or (
            other is None and column.attribute.generation is not None
        ):
            continue  # ROW has no values; a generated column follows from the others
        if other is None and column.published and missing:
            raise _may_be_renamed(column, missing, table)
        if other is None and column.local and (own or column.stamp or not column.published):
            continue  # the column keeps its own values, as on a PostgreSQL subscriber
        mine = type_text(delta_type(column.type))
        if other is None and not column.attribute.type_oid:
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
            _check_taken(column, other.attribute, table)
        elif mine != theirs and not (column.converts and takes(column, other.attribute)):
            raise SchemaChanged(
                f'column "{column.source}" of relation "{table}" has changed its type',
                detail=f"The target table's column \"{column.name}\" is {mine}, the publisher's "
                f"needs {theirs}.",
            )


def _check_taken(column: Column, sent: Attribute, table: str) -> None:
    """Raise FeatureNotSupported if a column whose type was chosen on the node does not take
    published values. A new copy of the table keeps that type, too."""
    if not takes(column, sent):
        raise FeatureNotSupported(
            f'column "{column.source}" of relation "{table}" cannot be converted to the type of '
            "the target's column",
            detail=refusal(column, sent),
            hint=f"Give the column the publisher's type on the node, or text: {MAKE_AGAIN}",
        )


def _may_be_renamed(column: Column, missing: Sequence[str], table: str) -> SchemaChanged:
    """Return the error of logicalrep_report_missing_and_gen_attrs. Missing columns are normally
    added, but not if one of them may be the new name of a column that is here."""
    columns = "column" if len(missing) == 1 else "columns"
    names = ", ".join(f'"{name}"' for name in missing)
    return SchemaChanged(
        f'logical replication target relation "{table}" is missing replicated {columns}: {names}',
        detail=f'The column "{column.source}" is no longer published: it may have been renamed. A '
        "new copy of the table keeps it as a column of the node's own, without the publisher's "
        "values.",
    )


# A column may get a wider type at the publisher (protocol: "Type Widening"). A table follows
# without a new copy if two conditions hold. ALTER TYPE must keep the value of every row: 7 is the
# same number in a bigint, but numeric(4,-2) turns 123 into 100. And Delta's readers must convert
# the values of older files in the same way; a real becomes the double precision of its exact value
# on both sides. No message shows whether USING has changed values: ``schema_change = widen`` states
# that it was not used.

_CHANGES: Final = "delta.typeChanges"
"""Metadata of a field: its changes of type, each with the old and the new type."""
_SAME_VALUES: Final = frozenset(
    {(INT2, INT4), (INT2, INT8), (INT4, INT8), (FLOAT4, FLOAT8), (DATE, TIMESTAMP), (NAME, TEXT)}
)
"""Changes of type that keep every value whatever the modifier of the new type is. A date becomes
midnight, which has no fraction of a second."""
_OF_ANY_LENGTH: Final = frozenset({VARCHAR, TEXT})
_OF_SECONDS: Final = frozenset({TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ})
_SECONDS: Final = 6
"""Digits of a second's fraction in a type without a modifier."""
_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def followed_types(
    have: TableSchema, wanted: TableSchema, *, widen: bool, clamped: bool = False
) -> TableSchema:
    """Return ``have`` with the publisher's types for columns whose values all stay the same.

    ``widen``: also change a type if existing files have a narrower one. ``clamped``: rows may have
    the last day in place of an infinite date, so no date becomes a timestamp.
    """

    def followed(column: Column) -> Column:
        other = wanted.by_source.get(column.source)
        if other is None or column.own or not _keeps_values(column, other):
            return column
        wider = widen and is_wider(column.type, other.type)
        was_date = clamped and other.attribute.type_oid == TIMESTAMP
        if column.type != other.type and (not wider or was_date):
            return column
        return replace(column, attribute=column.attribute.of_type(other.attribute), type=other.type)

    return TableSchema(tuple(map(followed, have.columns)), have.key)


def retyped(have: TableSchema, wanted: TableSchema) -> Column | None:
    """Return a column whose values may differ because its type has changed at the publisher; None
    if there is none. The Delta type may be the same: jsonb is printed differently from json.
    """
    for column in have.columns:
        other = wanted.by_source.get(column.source)
        if other is None or column.own:
            continue
        if not column.attribute.has_type_of(other.attribute):
            return column
    return None


def is_wider(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether Delta's readers convert the narrow type to the wide one."""
    if narrow in _INTEGERS and wide in _INTEGERS:
        return _INTEGERS.index(narrow) < _INTEGERS.index(wide)
    if pa.types.is_decimal128(narrow) and pa.types.is_decimal128(wide):
        digits, behind = wide.precision - narrow.precision, wide.scale - narrow.scale
        return bool(digits >= behind >= 0 and digits > 0)
    return (narrow, wide) in ((pa.float32(), pa.float64()), (pa.date32(), TIMESTAMP_NTZ))


def has_wider(schema_json: str, columns: Sequence[Column]) -> bool:
    """Return whether a column has another type than its field in a table's schema JSON."""
    types = {field["name"]: field["type"] for field in json.loads(schema_json)["fields"]}
    return any(arrow_type(types[c.name]) != c.type for c in columns if c.name in types)


def with_types(schema_json: str, columns: Sequence[Column]) -> str:
    """Return a table's schema JSON with the types of ``columns``. Each type that is wider now is
    recorded as Delta does."""
    schema = json.loads(schema_json)
    by_name = {column.name: column for column in columns}
    for field in schema["fields"]:
        column = by_name.get(field["name"])
        if column is None:
            continue
        if column.attribute.type_oid:
            field["metadata"][TYPE] = f"{column.attribute.type_oid},{column.attribute.typmod}"
        if arrow_type(field["type"]) != column.type:
            change = {"toType": delta_type(column.type), "fromType": field["type"]}
            field["metadata"][_CHANGES] = [*field["metadata"].get(_CHANGES, ()), change]
            field["type"] = change["toType"]
    return json.dumps(schema)


def _keeps_values(column: Column, other: Column) -> bool:
    """Return whether ALTER TYPE without USING keeps the values, and also their text if the column
    holds text."""
    old, new = column.attribute.typmod, other.attribute.typmod
    types = (column.attribute.type_oid, other.attribute.type_oid)
    if types in _SAME_VALUES:
        return True
    if _OF_ANY_LENGTH.issuperset(types):  # a shorter type would cut blanks at the end
        return new < 0 or 0 <= old <= new
    if types[0] != types[1]:
        return False
    if types[0] in _OF_SECONDS:
        return new < 0 or (0 <= old <= new) or new == _SECONDS
    return old == new or (types[0] == NUMERIC and _keeps_digits(column, other))


def _keeps_digits(column: Column, other: Column) -> bool:
    old, new = numeric_modifiers(column.attribute.typmod), numeric_modifiers(other.attribute.typmod)
    if old is None or new is None:
        return new is None
    if pa.types.is_string(column.type) and old[1] != new[1]:
        return False  # 1.5 would become 1.50
    return new[1] >= old[1] and new[0] - new[1] >= old[0] - old[1]
