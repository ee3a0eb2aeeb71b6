"""PostgreSQL values as DuckDB holds them: types, constants, the order of numerics and enums.

A ``Value`` is SQL text with facts that DuckDB's own types lack. Columns are held in the types of
``penstock.pgtypes.arrow_type``: numeric(p,s) is a DECIMAL, a numeric without precision is held as
text, an enum as its label. To compare them, ``comparable`` turns the text of a numeric into a
string that sorts like the number, and a label into its rank in the enum.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.identifiers import quoted, simple_quote_literal
from penstock.pgtypes.numeric import precision_and_scale
from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    NAME,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
)
from penstock.sql.builtin.type_cache import is_enum, types
from penstock.sql.text.array_literals import split_array
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.coercion import element

STRINGS: Final = frozenset({TEXT, VARCHAR, BPCHAR, NAME})
MAX_PRECISION: Final = 38
_DIGITS: Final = {INT2: 5, INT4: 10, INT8: 19}
_LAST_TIMESTAMP_YEAR: Final = 294_246
_NUMBER: Final = re.compile(r"-?(\d+)(?:\.(\d+))?")
EACH: Final = "each".ljust(64, "_")
"""The parameter of a lambda. It is longer than a column's name can be (NAMEDATALEN): DuckDB would
take a column of this name, in upper or lower case, for the parameter."""

DUCKDB: Final = {
    BOOL: "BOOLEAN",
    INT2: "SMALLINT",
    INT4: "INTEGER",
    INT8: "BIGINT",
    FLOAT4: "FLOAT",
    FLOAT8: "DOUBLE",
    TEXT: "VARCHAR",
    VARCHAR: "VARCHAR",
    BPCHAR: "VARCHAR",
    NAME: "VARCHAR",
    UUID: "VARCHAR",
    BYTEA: "BLOB",
    DATE: "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE",
}
"""DuckDB's types by type oid. numeric is missing: it is a DECIMAL, or without precision VARCHAR."""

Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Value:
    """A value as SQL. ``type``: pg_type oid; ``shape``: precision and scale of a DECIMAL (or of an
    array's elements), None for numerics held as text; ``fails``: evaluation may raise an error.

    ``printed``: SQL for the text of a numeric, or of an array's elements, if one DECIMAL holds
    numbers of several scales; None: the DECIMAL's own text is right.
    """

    sql: str
    type: int
    shape: Shape | None = None
    fails: bool = False
    printed: str | None = None


def refused(what: str) -> FeatureNotSupported:
    """Return the error for a feature that PostgreSQL has and Penstock does not."""
    return FeatureNotSupported(
        f"{what} is not supported",
        hint="The documentation lists the functions, operators and casts that are supported.",
    )


def duckdb_type(oid: int, shape: Shape | None) -> str:
    """Return DuckDB's name of a type. Raises FeatureNotSupported for unsupported types."""
    item = element(oid)
    if item:
        return duckdb_type(item, shape) + "[]"
    if oid == NUMERIC:
        return "VARCHAR" if shape is None else f"DECIMAL({shape[0]},{shape[1]})"
    if is_enum(oid):
        return "VARCHAR"
    if oid not in DUCKDB:
        raise refused(f"type {type_name(oid)}")
    return DUCKDB[oid]


def column(name: str, oid: int, typmod: int, relation: str = "") -> Value:
    """Return a column by its name at the publisher. ``relation``: the relation's name, if any."""
    sql = f"{relation}.{quoted(name)}" if relation else quoted(name)
    shape = precision_and_scale(typmod) if NUMERIC in (oid, element(oid)) else None
    if oid == INT2:  # the column may be Spark's byte
        return Value(f"CAST({sql} AS SMALLINT)", oid)
    return Value(sql, oid, shape)


def constant(text: str | None, oid: int) -> Value:
    """Return a constant from the text of its type's output function."""
    if element(oid):
        return _array_constant(text, oid)
    if oid == NUMERIC:
        return _numeric_constant(text)
    if oid == INTERVAL:  # held as text, like columns of this type
        return Value("CAST(NULL AS VARCHAR)" if text is None else simple_quote_literal(text), oid)
    if text is None:
        return Value(f"CAST(NULL AS {duckdb_type(oid, None)})", oid)
    return Value(f"CAST({_literal(text, oid)} AS {duckdb_type(oid, None)})", oid)


def _array_constant(text: str | None, oid: int) -> Value:
    item = element(oid)
    if text is None:
        shape = (1, 0) if item == NUMERIC else None
        return Value(f"CAST(NULL AS {duckdb_type(oid, shape)})", oid, shape)
    return array([constant(part, item) for part in split_array(text)], oid)


def array(elements: list[Value], oid: int) -> Value:
    """Return an array of values that all have one type."""
    elements, shape = aligned(elements) if elements else ([], (1, 0))
    shape = shape if element(oid) == NUMERIC else None
    body = ", ".join(value.sql for value in elements)
    fails = any(value.fails for value in elements)
    texts = texts_of(elements) if elements else None
    printed = None if texts is None else f"[{', '.join(texts)}]"
    return Value(f"CAST([{body}] AS {duckdb_type(oid, shape)})", oid, shape, fails, printed)


def _numeric_constant(text: str | None) -> Value:
    if text is None:
        return Value("CAST(NULL AS DECIMAL(1,0))", NUMERIC, (1, 0))
    match = _NUMBER.fullmatch(text)
    if match is not None:
        scale = len(match[2] or "")
        precision = max(len(match[1].lstrip("0")) + scale, 1)
        if precision <= MAX_PRECISION:
            sql = f"CAST('{text}' AS DECIMAL({precision},{scale}))"
            return Value(sql, NUMERIC, (precision, scale))
    return Value(f"'{text}'", NUMERIC)


def _literal(text: str, oid: int) -> str:
    if oid == BOOL:
        return "true" if text == "t" else "false"
    if oid == BYTEA:
        return f"from_hex('{text[2:]}')"
    if oid in (DATE, TIMESTAMP, TIMESTAMPTZ):
        return simple_quote_literal(duckdb_date(text, oid))
    if "\0" in text:
        raise refused("a zero byte")
    return simple_quote_literal(text)


def duckdb_date(text: str, oid: int) -> str:
    """Return a date as DuckDB writes it, with (BC) right after the date."""
    if "infinity" in text:
        return text
    year = int(text.split("-")[0])
    if oid != DATE and year > _LAST_TIMESTAMP_YEAR:
        raise refused(f"the timestamp {text}")
    if not text.endswith(" BC"):
        return text
    date, _, clock = text.removesuffix(" BC").partition(" ")
    return f"{date} (BC) {clock}".rstrip()


def integer_shape(oid: int) -> Shape:
    """Return the shape of the DECIMAL that holds every value of an integer type."""
    return _DIGITS[oid], 0


def aligned(values: list[Value]) -> tuple[list[Value], Shape | None]:
    """Return values of one type in one representation: numerics as one DECIMAL, or all as text.

    Values of several scales keep their own text in ``printed``.
    """
    if any(element(value.type) == NUMERIC for value in values):
        return _aligned_lists(values)
    if not any(value.type == NUMERIC for value in values):
        return values, None
    shapes = [value.shape for value in values if value.shape is not None]
    if len(shapes) == len(values):
        scale = max(s for _, s in shapes)
        shape = (max(max(p - s for p, s in shapes) + scale, 1), scale)
        if shape[0] <= MAX_PRECISION:
            several = len({s for _, s in shapes}) > 1 or any(v.printed for v in values)
            return [_as_decimal(value, shape, several) for value in values], shape
    return [Value(as_text(value), NUMERIC, None, value.fails) for value in values], None


def _aligned_lists(values: list[Value]) -> tuple[list[Value], Shape | None]:
    shapes = {value.shape for value in values}
    if len(shapes) == 1 and not any(value.printed for value in values):
        return values, shapes.pop()
    return [Value(list_text(value), value.type, None, value.fails) for value in values], None


def list_text(value: Value) -> str:
    """Return a list of numerics as a list of their texts."""
    if value.printed is not None:
        return value.printed
    if value.shape is None:
        return value.sql
    return f"list_transform({value.sql}, lambda item: {decimal_text('item', value.shape)})"


def _as_decimal(value: Value, shape: Shape, several: bool) -> Value:
    printed = as_text(value) if several else None
    if value.shape == shape:
        return replace(value, printed=printed)
    sql = f"CAST({value.sql} AS DECIMAL({shape[0]},{shape[1]}))"
    return Value(sql, NUMERIC, shape, value.fails, printed)


def texts_of(values: list[Value]) -> list[str] | None:
    """Return the texts of ``aligned`` values; None if all have the same scale."""
    texts = [value.printed for value in values if value.printed is not None]
    return texts if len(texts) == len(values) else None


def as_text(value: Value) -> str:
    """Return SQL for the text of a numeric."""
    if value.printed is not None:
        return value.printed
    return value.sql if value.shape is None else decimal_text(value.sql, value.shape)


def decimal_text(sql: str, shape: Shape) -> str:
    """Print a decimal as numeric_out does.

    DuckDB prints .5 instead of 0.5 if the type has no digits before the point.
    """
    text = f"CAST({sql} AS VARCHAR)"
    precision, scale = shape
    return text if precision > scale else f"regexp_replace({text}, '^(-?)\\.', '\\10.')"


def comparable(left: Value, right: Value) -> tuple[str, str]:
    """Return two values in a form that DuckDB compares as PostgreSQL does."""
    if NUMERIC in (left.type, right.type):
        (left, right), shape = aligned([left, right])
        if shape is None:
            return sort_key(left.sql), sort_key(right.sql)
        return left.sql, right.sql
    if NUMERIC in (element(left.type), element(right.type)):
        return _numeric_list(left), _numeric_list(right)
    if is_enum(left.type):
        return _position(left), _position(right)
    return _trimmed(left), _trimmed(right)


def _position(value: Value) -> str:
    """Return the rank of a label in its enum (enum_cmp); NULL for an unknown label."""
    labels = map(simple_quote_literal, types()[value.type].labels)
    whens = "".join(f" WHEN {label} THEN {n}" for n, label in enumerate(labels, 1))
    return f"CASE {value.sql}{whens} END" if whens else "CAST(NULL AS INTEGER)"


def _trimmed(value: Value) -> str:
    """Return char(n) without trailing blanks, which comparisons ignore."""
    if value.type == BPCHAR:
        return f"rtrim({value.sql}, ' ')"
    if element(value.type) == BPCHAR:
        return f"list_transform({value.sql}, lambda item: rtrim(item, ' '))"
    return value.sql


def _numeric_list(value: Value) -> str:
    item = "item" if value.shape is None else decimal_text("item", value.shape)
    return f"list_transform({value.sql}, lambda item: {sort_key(item)})"


def sort_key(text: str) -> str:
    """Return a string that sorts like the number (numeric_cmp).

    The string has the sign, the number of digits before the point, and the digits; for negative
    numbers their nines' complement. NaN equals NaN and is the greatest.
    """
    positive = f"('2' || {_digits_key(text)})"
    negative = (
        f"('1' || translate({_digits_key(f'substr({text}, 2)')}, '0123456789', '9876543210')"
        " || '~')"
    )
    return (
        f"CASE {text} WHEN 'NaN' THEN '4' WHEN 'Infinity' THEN '3' WHEN '-Infinity' THEN '0'"
        f" ELSE CASE WHEN starts_with({text}, '-') THEN {negative} ELSE {positive} END END"
    )


def _digits_key(text: str) -> str:
    whole = f"ltrim(split_part({text}, '.', 1), '0')"
    return (
        f"lpad(CAST(length({whole}) AS VARCHAR), 6, '0') || {whole}"
        f" || rtrim(split_part({text}, '.', 2), '0')"
    )
