"""Aggregates and window functions in DuckDB's SQL with PostgreSQL's results (pg_aggregate.dat).

In: an aggregate's name and its arguments as values. Out: a ``Value``. What is not here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import PenstockError
from penstock.pgtypes.pg_type import BOOL, FLOAT8, INT2, INT4, INT8, NUMERIC, TEXT
from penstock.sql.builtin.type_cache import is_enum
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.duckdb_operators import OVERFLOW, PLAIN
from penstock.sql.to_duckdb.duckdb_values import (
    MAX_PRECISION,
    Value,
    comparable,
    duckdb_type,
    refused,
)
from penstock.sql.to_duckdb.numeric_functions import DIVISION
from penstock.sql.typed.coercion import element
from penstock.sql.typed.primnodes import Const, Node
from penstock.sql.typed.query_nodes import Aggref

_RANKS: Final = {
    "row_number": "BIGINT",
    "rank": "BIGINT",
    "dense_rank": "BIGINT",
    "percent_rank": "DOUBLE",
    "cume_dist": "DOUBLE",
}
_VALUES: Final = frozenset({"first_value", "last_value"})
_NEIGHBOURS: Final = frozenset({"lag", "lead", "nth_value"})
_EXTREMES: Final = {"min": "arg_min", "max": "arg_max"}


def aggregate(node: Aggref, values: Sequence[Value], order: str, filter_: str, over: str) -> Value:
    """``order``, ``filter_``, ``over``: the clauses, or "". Raises FeatureNotSupported."""
    distinct = "DISTINCT " if node.distinct else ""
    tail = f"{filter_}{over}"
    if not values:
        if node.name != "count":
            raise _refused(node, values)
        return Value(f"count(*){tail}", INT8)
    first = values[0]
    if distinct:
        check_groupable(first)

    def call(name: str, *more: str) -> str:
        return f"{name}({distinct}{', '.join((first.sql, *more))}{order}){tail}"

    fails = any(value.fails for value in values)
    match node.name:
        case "count":
            return Value(call("count"), INT8, None, fails)
        case "sum":
            return _sum(node, first, call, fails)
        case "avg":
            return _average(node, first, call, fails)
        case "min" | "max":
            return _extreme(node, first, call(node.name), tail, fails)
        case "bool_and" | "every":
            return Value(call("bool_and"), BOOL, None, fails)
        case "bool_or":
            return Value(call("bool_or"), BOOL, None, fails)
        case "string_agg" if node.type == TEXT and isinstance(node.arguments[1], Const):
            # What is distinct comes sorted (nodeAgg.c).
            order = order or (f" ORDER BY {first.sql}" if distinct else "")
            return Value(call("string_agg", values[1].sql), TEXT, None, fails)
        case "array_agg" if not element(first.type):
            order = order or (f" ORDER BY {first.sql} NULLS LAST" if distinct else "")
            texts = None
            if first.printed is not None and not distinct:
                texts = f"list({first.printed}{order}){tail}"
            return Value(call("list"), node.type, first.shape, fails, texts)
    raise _refused(node, values)


def _sum(node: Aggref, value: Value, call: Callable[[str], str], fails: bool) -> Value:
    sql = call("sum")
    if value.type in (INT2, INT4):
        return Value(f"CAST({sql} AS BIGINT)", INT8, None, True)
    if value.type == INT8:
        shape = (MAX_PRECISION, 0)
    elif value.type == NUMERIC and value.shape is not None:
        shape = (MAX_PRECISION, value.shape[1])
    elif value.type == FLOAT8:
        return _in_range(f"CAST({sql} AS DOUBLE)", f"NOT isfinite({sql})", call)
    else:
        raise _refused(node, [value])
    return Value(f"CAST({sql} AS {duckdb_type(NUMERIC, shape)})", NUMERIC, shape, True)


def _average(node: Aggref, value: Value, call: Callable[[str], str], fails: bool) -> Value:
    total, count = call("sum"), call("count")
    if value.type == FLOAT8:
        # float8_accum keeps the sum of squares of the distances, too, and fails when that one is
        # out of range; the square of the greatest distance is a part of it in every order.
        distance = f"({call('max')} - {call('min')})"
        too_great = f"NOT isfinite({total}) OR isinf({distance} * {distance})"
        return _in_range(f"({total} / {count})", too_great, call)
    if value.type not in (INT2, INT4, INT8) and value.shape is None:
        raise _refused(node, [value])
    texts = f"CAST({total} AS VARCHAR), CAST({count} AS VARCHAR)"
    return Value(f"{DIVISION}({texts})", NUMERIC, None, fails)


def _in_range(sql: str, too_great: str, call: Callable[[str], str]) -> Value:
    """float8pl, float8_accum: what is not finite is an error if all of the numbers are."""
    finite = f"isfinite({call('min')}) AND isfinite({call('max')})"
    checked = f"CASE WHEN {finite} AND ({too_great}) THEN CAST({OVERFLOW} AS DOUBLE) ELSE {sql} END"
    return Value(checked, FLOAT8, None, True)


def _extreme(node: Aggref, value: Value, sql: str, tail: str, fails: bool) -> Value:
    if value.type in PLAIN or value.shape is not None:
        printed = None
        if value.printed is not None:
            printed = f"{_EXTREMES[node.name]}({value.printed}, {value.sql}){tail}"
        return Value(sql, node.type, value.shape, fails, printed)
    if (value.type == NUMERIC or is_enum(value.type)) and not node.distinct:
        key = comparable(value, value)[0]
        return Value(f"{_EXTREMES[node.name]}({value.sql}, {key}){tail}", node.type, None, fails)
    raise _refused(node, [value])


def window_function(node: Aggref, values: Sequence[Value], over: str) -> Value:
    """What is only there with OVER. Raises FeatureNotSupported."""
    name, fails = node.name, any(value.fails for value in values)
    if name in _RANKS:
        return Value(f"CAST({name}(){over} AS {_RANKS[name]})", node.type)
    if name == "ntile" and isinstance(node.arguments[0], Const):
        _check_positive(node.arguments[0], "argument of ntile must be greater than zero", "22014")
        return Value(f"CAST(ntile({values[0].sql}){over} AS INTEGER)", node.type)
    if name in _VALUES:
        return _of_window(name, node, values, over, fails)
    constant = all(isinstance(argument, Const) for argument in node.arguments[1:2])
    if name in _NEIGHBOURS and constant and len(values) < 3:
        if name == "nth_value":
            _check_positive(
                node.arguments[1], "argument of nth_value must be greater than zero", "22016"
            )
        return _of_window(name, node, values, over, fails)
    raise _refused(node, values)


def _of_window(name: str, node: Aggref, values: Sequence[Value], over: str, fails: bool) -> Value:
    """A value of another row."""
    first, *more = values
    after = "".join(f", {value.sql}" for value in more)
    printed = None if first.printed is None else f"{name}({first.printed}{after}){over}"
    return Value(f"{name}({first.sql}{after}){over}", node.type, first.shape, fails, printed)


def _check_positive(node: Node, message: str, sqlstate: str) -> None:
    if isinstance(node, Const) and node.text is not None and int(node.text) <= 0:
        raise PenstockError(message, sqlstate=sqlstate)


def check_groupable(value: Value) -> None:
    """Values that are equal in PostgreSQL are one value in DuckDB. Raises FeatureNotSupported."""
    if (
        value.type in PLAIN
        or element(value.type) in PLAIN
        or (value.type == NUMERIC and value.shape is not None)
    ):
        return
    if is_enum(value.type):
        return
    raise refused(f"grouping by {type_name(value.type)}")


def _refused(node: Aggref, values: Sequence[Value]) -> Exception:
    shown = ", ".join(type_name(value.type) for value in values) or "*"
    return refused(f"function {node.name}({shown})")
