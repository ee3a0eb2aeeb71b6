"""Functions of catalog queries that DuckDB's own functions can compute, by name.

A call becomes a ``Value``, or None if ``text_functions`` or ``duckdb_functions`` has the function.
Lower and upper case follow Unicode in every collation. Overflow is not checked: values in catalogs
are too small for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidParameterValue
from penstock.pgtypes.pg_type import (
    BOOL,
    DATE,
    FLOATS,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
)
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.duckdb_patterns import regular_replacement
from penstock.sql.to_duckdb.duckdb_predicate import stripped
from penstock.sql.to_duckdb.duckdb_values import (
    STRINGS,
    Value,
    as_text,
    duckdb_type,
    list_text,
    refused,
)
from penstock.sql.to_duckdb.text_functions import BY_PROC, STRING_TO_ARRAY
from penstock.sql.typed.coercion import element
from penstock.sql.typed.primnodes import Const, FuncExpr

LONGEST_SERIES: Final = 1_000_000
SERIES_TOO_LONG: Final = "generate_series of more than a million numbers is not supported"
_LENGTH: Final = "CASE WHEN {1} = 1 THEN len({0}) END"
"""array_length: arrays have one dimension."""
_PLAIN: Final = "CAST({0} AS VARCHAR)"
_IN_UTC: Final = (
    "CASE WHEN isinf({0}) THEN CAST(CAST({0} AS TIMESTAMP) AS VARCHAR)"
    " ELSE CAST(make_timestamp(epoch_us({0})) AS VARCHAR) || '+00' END"
)
_ERA: Final = "replace({0}, ' (BC)', '') || CASE WHEN {0} LIKE '% (BC)%' THEN ' BC' ELSE '' END"
_CALENDAR: Final = {DATE: _PLAIN, TIMESTAMP: _PLAIN, TIMESTAMPTZ: _IN_UTC}
THROUGH_TEXT: Final = frozenset({*_CALENDAR, *FLOATS})
"""Types with values that a Python function cannot pass to DuckDB: infinity, years BC, NaN."""
_TEMPLATES: Final = {
    ("lower", 1): "lower({0})",
    ("upper", 1): "upper({0})",
    ("generate_subscripts", 2): f"unnest(CAST(generate_series(1, {_LENGTH}) AS INTEGER[]))",
    ("generate_subscripts from 0", 2): (
        f"unnest(CAST(generate_series(0, {_LENGTH} - 1) AS INTEGER[]))"
    ),
    ("array_length", 2): f"CAST(nullif({_LENGTH}, 0) AS INTEGER)",
    ("array_upper", 2): f"CAST(nullif({_LENGTH}, 0) AS INTEGER)",
    ("array_length from 0", 2): f"CAST({_LENGTH} AS INTEGER)",
    ("array_upper from 0", 2): f"CAST({_LENGTH} - 1 AS INTEGER)",
    ("array_lower", 2): f"CASE WHEN {_LENGTH} > 0 THEN 1 END",
    ("array_lower from 0", 2): f"CASE WHEN {_LENGTH} >= 0 THEN 0 END",
    ("unnest", 1): "unnest({0})",
    ("array_append", 2): "list_append({0}, {1})",
    ("array_prepend", 2): "list_prepend({0}, {1})",
    ("array_cat", 2): "list_concat({0}, {1})",
    ("array_remove", 2): "list_filter({0}, lambda x: x IS DISTINCT FROM {1})",
    ("array_position", 2): "CAST(nullif(list_position({0}, {1}), 0) AS INTEGER)",
}

_OTHERS: Final = frozenset(
    [
        "abs",
        "array_agg",
        "bool_and",
        "bool_or",
        "btrim",
        "cardinality",
        "char_length",
        "concat",
        "concat_ws",
        "count",
        "dense_rank",
        "every",
        "generate_series",
        "json_build_object",
        "length",
        "ltrim",
        "max",
        "md5",
        "min",
        "rank",
        "replace",
        "row_number",
        "rtrim",
        "sha256",
        "starts_with",
        "string_agg",
        "strpos",
        "sum",
        "_pg_expandarray",
    ]
)
KNOWN_FUNCTIONS: Final = (
    _OTHERS
    | {name for name, _ in _TEMPLATES}
    | {name for name, _ in BY_PROC}
    | {"array_to_string", "regexp_replace", STRING_TO_ARRAY.name}
)
"""Known functions; a query without tables runs on the catalogs if it calls no others."""


def template(name: str, values: Sequence[Value], type_: int) -> Value | None:
    """Compile a call. Raises FeatureNotSupported, PenstockError (22023)."""
    if name == "json_build_object":
        return Value(_json_object(values), type_)
    found = _TEMPLATES.get((name, len(values)))
    if found is None:
        return None
    return Value(found.format(*(value.sql for value in values)), type_, values[0].shape)


def table_column(value: Value, column: str) -> str:
    """Return SQL that prints a result column as text; "" if Python can hold all of its values."""
    text = _CALENDAR.get(element(value.type) or value.type)
    if text is None:
        return ""
    printed = _ERA.replace("{0}", text)
    if element(value.type):
        return f"list_transform({column}, lambda x: {printed.replace('{0}', 'x')})"
    return printed.replace("{0}", column)


def shown(value: Value) -> str:
    """Return the value as text, as its output function prints it."""
    if value.type == BOOL:
        return f"CASE WHEN {value.sql} THEN 't' WHEN NOT {value.sql} THEN 'f' END"
    if element(value.type):
        raise refused("concat of arrays")
    if value.type == NUMERIC:
        return as_text(value)
    return value.sql if value.type in STRINGS else f"CAST({value.sql} AS VARCHAR)"


def _json_object(values: Sequence[Value]) -> str:
    """Compile json_build_object with numbers, booleans and text as values."""
    if len(values) % 2:
        raise InvalidParameterValue("argument list must have even number of elements")
    pairs: list[str] = []
    for name, value in zip(values[::2], values[1::2], strict=True):
        pairs += ["', '", f"to_json({shown(name)})::VARCHAR", "' : '"]
        pairs.append(f"coalesce(to_json({value.sql})::VARCHAR, 'null')")
    return " || ".join(("('{'", *pairs[1:], "'}')"))


def texts(value: Value) -> Value:
    """Return an array with each element as text, as its output function prints it."""
    item = element(value.type)
    if item == BOOL:
        text = "CASE WHEN x THEN 't' WHEN NOT x THEN 'f' END"
        return Value(f"list_transform({value.sql}, lambda x: {text})", TEXT)
    if item == NUMERIC:
        return Value(list_text(value), TEXT)
    if item in STRINGS | INTEGERS:
        return Value(f"CAST({value.sql} AS VARCHAR[])", TEXT)
    raise refused(f"array_to_string of {type_name(value.type)}")


def regexp_replace(node: FuncExpr, values: Sequence[Value]) -> Value:
    """Compile regexp_replace with constant patterns that both engines read alike."""
    _, pattern, by, *rest = node.arguments
    flags = rest[0] if rest else Const(TEXT, "")
    constants = [stripped(each) for each in (pattern, by, flags)]
    found = [each.text for each in constants if isinstance(each, Const) and each.type == TEXT]
    if len(rest) > 1 or len(found) != len(constants) or None in found:
        raise refused("regexp_replace with these arguments")
    expression, replacement, options = map(str, found)
    sql = regular_replacement(values[0].sql, expression, replacement, options)
    return Value(sql, node.type)


def series(values: Sequence[Value]) -> str:
    """Return a list of numbers of limited length: DuckDB builds it outside its memory limit."""
    start, stop, step = (*(value.sql for value in values), "1")[:3]
    if any(value.type not in (INT4, INT8) for value in values):
        raise refused("generate_series of these types")
    long = f"abs(CAST({stop} AS BIGINT)-{start})>{LONGEST_SERIES}"
    stop = f"CASE WHEN {long} THEN error('{SERIES_TOO_LONG}') ELSE {stop} END"
    held = duckdb_type(values[0].type, None)
    return f"CAST(generate_series({start}, {stop}, {step}) AS {held}[])"
