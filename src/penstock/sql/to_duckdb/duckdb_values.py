"""PostgreSQL values as DuckDB holds them: types, constants, the order of numerics and enums.

A ``Value`` is SQL text with facts that DuckDB's own types lack. Columns are held in the types of
``penstock.pgtypes.arrow_type``: numeric(p,s) is a DECIMAL, a numeric without precision is held as
text, an enum as its label. To compare them, ``comparable`` turns the text of a numeric into a
string that sorts like the number, and a label into its rank in the enum.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
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
    JSON,
    JSONB,
    NAME,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
)
from penstock.sql.builtin.type_cache import is_enum, types
from penstock.sql.text.array_literals import split_array
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.coercion import element
from penstock.sql.typed.literals import SUBTYPES

STRINGS: Final = frozenset({TEXT, VARCHAR, BPCHAR, NAME})
MAX_PRECISION: Final = 38
_DIGITS: Final = {INT2: 5, INT4: 10, INT8: 19}
_LAST_TIMESTAMP_YEAR: Final = 294_246
_NULL_NUMERIC: Final = "CAST(NULL AS DECIMAL(1,0))"
READS: Final = "pg_text('input'"
"""A call of an input function, which may return an infinite date."""
INFINITE: Final = " /* infinity */"
"""Marks SQL that does not show that its value may be infinite, for ``may_be_infinite``."""
_NUMBER: Final = re.compile(r"-?(\d+)(?:\.(\d+))?")
EACH: Final = "each".ljust(64, "_")
"""The parameter of a lambda. It is longer than a column's name can be (NAMEDATALEN): DuckDB would
take a column of this name, in upper or lower case, for the parameter."""
_NUMBERS: Final = re.compile(r"-?[0-9]++(?:\.[0-9]++)?(?:\n-?[0-9]++(?:\.[0-9]++)?)*+")

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

LISTED: Final = frozenset({*DUCKDB, NUMERIC, JSON, JSONB})
"""The types whose arrays are lists. Arrays of other types are held as text."""
_KEPT_AS_TEXT: Final = "brm"
"""pg_type.typtype of types that are held as text, if DuckDB has no such type."""
Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Value:
    """A value as SQL. ``type``: pg_type oid; ``shape``: precision and scale of a DECIMAL (or of an
    array's elements), None for numerics held as text; ``fails``: evaluation may raise an error.
    """

    sql: str
    type: int
    shape: Shape | None = None
    fails: bool = False


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
        return duckdb_type(item, shape) + "[]" if item in LISTED else "VARCHAR"
    if oid == NUMERIC:
        return "VARCHAR" if shape is None else f"DECIMAL({shape[0]},{shape[1]})"
    if is_enum(oid):
        return "VARCHAR"
    if oid in DUCKDB:
        return DUCKDB[oid]
    if oid not in types() or types()[oid].kind not in _KEPT_AS_TEXT:
        raise refused(f"type {type_name(oid)}")
    return "VARCHAR"


def column(name: str, oid: int, typmod: int, relation: str = "") -> Value:
    """Return a column by its name at the publisher. ``relation``: the relation's name, if any."""
    sql = f"{relation}.{quoted(name)}" if relation else quoted(name)
    shape = precision_and_scale(typmod) if NUMERIC in (oid, element(oid)) else None
    if oid == INT2:  # the column may be Spark's byte
        return Value(f"CAST({sql} AS SMALLINT)", oid)
    return Value(f"{sql}{INFINITE}" if oid == INTERVAL else sql, oid, shape)


def may_be_infinite(sql: str) -> bool:
    """Tell whether a date or interval may be infinite. The lake's columns of dates are finite."""
    return "infinity" in sql or READS in sql


def exposed(value: Value, sql: str) -> Value:
    """Return a column that has a subquery's value."""
    return Value(f"{sql}{INFINITE}" if may_be_infinite(value.sql) else sql, value.type, value.shape)


def constant(text: str | None, oid: int) -> Value:
    """Return a constant from the text of its type's output function."""
    if element(oid) in LISTED:
        return _array_constant(text, oid)
    if oid == NUMERIC:
        return _numeric_constant(text)
    if text is None:
        return Value(f"CAST(NULL AS {duckdb_type(oid, None)})", oid)
    return Value(f"CAST({_literal(text, oid)} AS {duckdb_type(oid, None)})", oid)


MANY: Final = 100
"""So many constants are written as one literal."""


def listed(texts: Sequence[str | None], oid: int) -> str:
    """Return SQL of rows with the texts of constants, in order, for ``constants_of``."""
    known = texts
    if oid in (BYTEA, DATE, TIMESTAMP, TIMESTAMPTZ):
        known = [text if text is None else _held(text, oid) for text in texts]
    used = set("".join(text for text in known if text is not None))
    if "\0" in used:
        raise refused("a zero byte")
    # One unused character separates the texts, and another one stands for NULL.
    between, null = islice((each for each in map(chr, count(1)) if each not in used), 2)
    joined = between.join(null if text is None else text for text in known)
    rows = f"unnest(string_split({simple_quote_literal(joined)}, {simple_quote_literal(between)}))"
    return f"nullif({rows}, {simple_quote_literal(null)})" if None in known else rows


def constants_of(sql: str, oid: int, texts: Sequence[str | None]) -> Value:
    """Return the constants whose texts are in a column that ``listed`` made."""
    if oid == NUMERIC:
        shape = _shape_of([text for text in texts if text is not None])
        held = sql if shape is None else f"CAST({sql} AS {duckdb_type(oid, shape)})"
        return Value(held, oid, shape)
    if oid == BYTEA:
        return Value(f"from_hex({sql})", oid)
    mark = INFINITE if any("infinity" in (text or "") for text in texts) else ""
    return Value(f"CAST({sql} AS {duckdb_type(oid, None)}){mark}", oid)


def _shape_of(texts: Sequence[str]) -> Shape | None:
    """Return the shape of numerics that all have one scale; None if they are held as text."""
    scales = {len(text.partition(".")[2]) for text in texts}
    if len(scales) != 1 or not _NUMBERS.fullmatch("\n".join(texts)):
        return None
    (scale,) = scales
    precision = max(map(len, texts)) - bool(scale)  # perhaps more than needed
    return (precision, scale) if precision <= MAX_PRECISION else None


def _held(text: str, oid: int) -> str:
    """Return the text that ``constants_of`` reads."""
    if oid == BYTEA:
        return text[2:]
    return duckdb_date(text, oid)


def _array_constant(text: str | None, oid: int) -> Value:
    item = element(oid)
    if text is None:
        shape = (1, 0) if item == NUMERIC else None
        return Value(f"CAST(NULL AS {duckdb_type(oid, shape)})", oid, shape)
    return array([constant(part, item) for part in split_array(text)], oid)


def array(elements: list[Value], oid: int) -> Value:
    """Return an array of values that all have one type. Raises FeatureNotSupported."""
    if element(oid) not in LISTED:
        raise refused(f"a value of type {type_name(oid)}")
    elements, shape = aligned(elements) if elements else ([], (1, 0))
    shape = shape if element(oid) == NUMERIC else None
    body = ", ".join(value.sql for value in elements)
    fails = any(value.fails for value in elements)
    return Value(f"CAST([{body}] AS {duckdb_type(oid, shape)})", oid, shape, fails)


def _numeric_constant(text: str | None) -> Value:
    if text is None:
        return Value(_NULL_NUMERIC, NUMERIC, (1, 0))
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
    """Return values of one type in one representation: numerics of one scale as one DECIMAL, others
    as text, so that each keeps its own scale."""
    if any(element(value.type) == NUMERIC for value in values):
        shapes = {value.shape for value in values}
        if len(shapes) == 1:
            return values, shapes.pop()
        return [replace(value, sql=list_text(value), shape=None) for value in values], None
    if not any(value.type == NUMERIC for value in values):
        return values, None
    known = {value.shape and value.shape[1] for value in values if value.sql != _NULL_NUMERIC}
    if len(known) > 1:
        return [replace(value, sql=as_text(value), shape=None) for value in values], None
    return aligned_decimals(values)


def aligned_decimals(values: list[Value]) -> tuple[list[Value], Shape | None]:
    """Return numerics as one DECIMAL that holds all of them; as text if there is none."""
    if not any(value.type == NUMERIC for value in values):
        return aligned(values)
    shapes = [value.shape for value in values if value.shape is not None]
    scale = max((s for _, s in shapes), default=0)
    shape = (max([1, *(p - s + scale for p, s in shapes)]), scale)
    if len(shapes) < len(values) or shape[0] > MAX_PRECISION:
        return [replace(value, sql=as_text(value), shape=None) for value in values], None
    held = f"DECIMAL({shape[0]},{shape[1]})"
    return [
        value
        if value.shape == shape
        else replace(value, sql=f"CAST({value.sql} AS {held})", shape=shape)
        for value in values
    ], shape


def list_text(value: Value) -> str:
    """Return a list of numerics as a list of their texts."""
    if value.shape is None:
        return value.sql
    return f"list_transform({value.sql}, lambda {EACH}: {decimal_text(EACH, value.shape)})"


def as_text(value: Value) -> str:
    """Return SQL for the text of a numeric."""
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
        (left, right), shape = aligned_decimals([left, right])
        if shape is None:
            return sort_key(left.sql), sort_key(right.sql)
        return left.sql, right.sql
    if NUMERIC in (element(left.type), element(right.type)):
        return _numeric_list(left), _numeric_list(right)
    if is_enum(left.type):
        return _position(left), _position(right)
    if left.type in SUBTYPES:
        return range_key(left.sql, left.type), range_key(right.sql, right.type)
    if left.type == INTERVAL:
        first, second = (
            f"CAST(pg_text('interval_key', {v.sql}) AS HUGEINT)" for v in (left, right)
        )
        return first, second
    if TIMESTAMPTZ in (left.type, right.type) and left.type != right.type:
        return in_utc(left), in_utc(right)
    return _trimmed(left), _trimmed(right)


def in_utc(moment: Value) -> str:
    """Return a date or timestamp as a timestamp in UTC."""
    if moment.type != TIMESTAMPTZ:
        return f"CAST({moment.sql} AS TIMESTAMP)" if moment.type == DATE else moment.sql
    utc = f"make_timestamp(epoch_us({moment.sql}))"
    return f"CASE WHEN isinf({moment.sql}) THEN CAST({moment.sql} AS TIMESTAMP) ELSE {utc} END"


def group_key(value: Value) -> str:
    """Return SQL that is the same for values that are equal in PostgreSQL.

    Raises FeatureNotSupported for types whose equality is not known.
    """
    known = value.type in DUCKDB or value.type in (NUMERIC, INTERVAL, TIME, *SUBTYPES)
    item = element(value.type)
    if is_enum(value.type) or (item in DUCKDB and item != BPCHAR):
        return value.sql
    if not known:
        raise refused(f"grouping by {type_name(value.type)}")
    return comparable(value, value)[0]


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
        return f"list_transform({value.sql}, lambda {EACH}: rtrim({EACH}, ' '))"
    return value.sql


def _numeric_list(value: Value) -> str:
    item = EACH if value.shape is None else decimal_text(EACH, value.shape)
    return f"list_transform({value.sql}, lambda {EACH}: {sort_key(item)})"


def sort_key(text: str) -> str:
    """Return a string that sorts like the number (numeric_cmp); equal numbers have one string."""
    return f"pg_text('numeric_key', {text})"


# Sort ranges (rangetypes.c, range_cmp), which are held as text.
#
# SQL of a range's text, as ``range_out`` prints it, becomes SQL of a value that DuckDB sorts the
# same way: the empty range first, then by lower bound, then by upper bound. A missing bound is
# beyond every value.

_BOUND: Final = '"?([^",]*)"?'
_PARTS: Final = simple_quote_literal(rf"([\[(]){_BOUND},{_BOUND}([\])])")
_LOWER: Final = 2
_UPPER: Final = 3


def range_key(text: str, range_type: int) -> str:
    """Return a struct, which DuckDB sorts field by field.

    All missing bounds are equal, so the values of their fields do not matter.
    """
    subtype = SUBTYPES[range_type]
    lower, upper = _part(text, _LOWER), _part(text, _UPPER)
    fields = {
        "full": f"{text} <> 'empty'",
        "bounded_below": f"{lower} <> ''",
        "lower_value": _bound_value(lower, subtype),
        "beyond_lower": f"starts_with({text}, '(')",
        "unbounded_above": f"{upper} = ''",
        "upper_value": _bound_value(upper, subtype),
        "with_upper": f"ends_with({text}, ']')",
    }
    body = ", ".join(f"{name} := {sql}" for name, sql in fields.items())
    return f"CASE WHEN {text} IS NOT NULL THEN struct_pack({body}) END"


def _part(text: str, group: int) -> str:
    return f"regexp_extract({text}, {_PARTS}, {group})"


def _bound_value(bound: str, subtype: int) -> str:
    given = f"nullif({bound}, '')"
    if subtype == NUMERIC:
        return sort_key(given)
    if subtype in (DATE, TIMESTAMP, TIMESTAMPTZ):
        # DuckDB expects (BC) right after the date.
        given = rf"regexp_replace({given}, '^(\S+)(.*) BC$', '\1 (BC)\2')"
    return f"CAST({given} AS {DUCKDB[subtype]})"
