"""Functions of catalog queries that DuckDB has, by name.

In: a function's name and its arguments as values. Out: a ``Value``, or None for what is left to
``duckdb_functions``. They are less exact than those of lake queries: names are short, of one line,
and nothing in catalogs is as large as to overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidParameterValue
from penstock.pgtypes.pg_type import BOOL
from penstock.sql.to_duckdb.duckdb_values import (
    STRINGS,
    Value,
    refused,
)
from penstock.sql.typed.coercion import element

_TEMPLATES: Final = {
    ("split_part", 3): "split_part({0}, {1}, {2})",
    ("left", 2): "left({0}, {1})",
    ("right", 2): "right({0}, {1})",
    ("lower", 1): "lower({0})",
    ("upper", 1): "upper({0})",
    ("substring", 2): "substring({0}, {1})",
    ("substring", 3): "substring({0}, {1}, {2})",
    ("substr", 2): "substring({0}, {1})",
    ("substr", 3): "substring({0}, {1}, {2})",
    ("repeat", 2): "repeat({0}, {1})",
    ("quote_literal", 1): "('''' || replace({0}, '''', '''''') || '''')",
    ("regexp_replace", 3): "regexp_replace({0}, {1}, {2})",
    ("regexp_replace", 4): "regexp_replace({0}, {1}, {2}, {3})",
    ("abs", 1): "abs({0})",
    ("generate_subscripts", 2): "unnest(CAST(generate_series(1, len({0})) AS INTEGER[]))",
    ("array_to_string", 2): "array_to_string(list_filter({0}, lambda x: x IS NOT NULL), {1})",
    ("array_length", 2): "CAST(nullif(len({0}), 0) AS INTEGER)",
    ("array_upper", 2): "CAST(nullif(len({0}), 0) AS INTEGER)",
    ("array_upper from 0", 2): "CAST(nullif(len({0}), 0) - 1 AS INTEGER)",
    ("array_lower", 2): "CASE WHEN len({0}) > 0 THEN 1 END",
    ("array_lower from 0", 2): "CASE WHEN len({0}) > 0 THEN 0 END",
    ("unnest", 1): "unnest({0})",
    ("array_append", 2): "list_append({0}, {1})",
    ("array_prepend", 2): "list_prepend({0}, {1})",
    ("array_cat", 2): "list_concat({0}, {1})",
    ("array_remove", 2): "list_filter({0}, lambda x: x IS DISTINCT FROM {1})",
    ("array_position", 2): "CAST(nullif(list_position({0}, {1}), 0) AS INTEGER)",
    ("string_to_array", 2): "string_split({0}, {1})",
}

_OTHERS: Final = frozenset(
    [
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
        "starts_with",
        "string_agg",
        "strpos",
        "sum",
        "_pg_expandarray",
    ]
)
KNOWN_FUNCTIONS: Final = _OTHERS | {name for name, _ in _TEMPLATES}
"""What a query without tables may call and is for the catalogs."""


def template(name: str, values: Sequence[Value], type_: int) -> Value | None:
    """A call. Raises FeatureNotSupported, PenstockError (22023)."""
    if name == "json_build_object":
        return Value(_json_object(values), type_)
    if name in ("concat", "concat_ws"):
        return Value(f"{name}({', '.join(map(_shown, values))})", type_)
    found = _TEMPLATES.get((name, len(values)))
    if found is None:
        return None
    return Value(found.format(*(value.sql for value in values)), type_, values[0].shape)


def _shown(value: Value) -> str:
    """The output function's text."""
    if value.type == BOOL:
        return f"CASE WHEN {value.sql} THEN 't' WHEN NOT {value.sql} THEN 'f' END"
    if element(value.type):
        raise refused("concat of arrays")
    return value.sql if value.type in STRINGS else f"CAST({value.sql} AS VARCHAR)"


def _json_object(values: Sequence[Value]) -> str:
    """As json_build_object prints it; of values that are numbers, booleans or text."""
    if len(values) % 2:
        raise InvalidParameterValue("argument list must have even number of elements")
    pairs: list[str] = []
    for name, value in zip(values[::2], values[1::2], strict=True):
        pairs += ["', '", f"to_json({_shown(name)})::VARCHAR", "' : '"]
        pairs.append(f"coalesce(to_json({value.sql})::VARCHAR, 'null')")
    return " || ".join(("('{'", *pairs[1:], "'}')"))
