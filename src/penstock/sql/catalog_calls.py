"""Calls of functions in a catalog query (parse_func.c).

In: a name and its arguments. Out: DuckDB's call, or ``pg__name`` that whoever runs the query
provides. Raises PostgreSQL's error 42883 for a function that does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.catalog_functions import ANY, ARRAY, VARIADIC, Function, TableFunction
from penstock.sql.catalog_scope import Found
from penstock.sql.catalog_typed import Typed, coerce
from penstock.sql.catalog_types import (
    EXPANDED,
    UNKNOWN,
    array_type,
    catalog_type,
    common_type,
    element_type,
    is_string,
)

if TYPE_CHECKING:
    from penstock.sql.catalog_expressions import Expressions

_ZERO_BASED = ("int2vector", "oidvector", "_int2 from 0")


def call(expressions: Expressions, name: str, arguments: list[Any]) -> Typed:
    """Translate ``name(arguments)``."""
    order = ""
    distinct = False
    plain: list[Any] = []
    for argument in arguments:
        if isinstance(argument, exp.Order):
            order = " ORDER BY " + ", ".join(
                ordered(expressions, key) for key in argument.expressions
            )
            argument = argument.this
        if isinstance(argument, exp.Distinct):
            distinct = True
            plain += argument.expressions
        else:
            plain.append(argument)
    if name == "count" and (not plain or isinstance(plain[0], exp.Star)):
        expressions.scope.aggregated = True
        return Typed("count(*)", "int8")
    values = [expressions.translate(argument) for argument in plain]
    if name in ("coalesce", "greatest", "least"):
        return _same(expressions, name, values)
    if name == "_pg_expandarray" and len(values) == 1:
        return _expanded(values[0])
    if name == "json_build_object":
        return _json_object(expressions, values)
    if name == "nullif":
        return _nullif(expressions, values)
    if name in ("array_upper", "array_lower"):
        return _bound(name, values)
    if name in expressions.table_functions and name not in expressions.functions:
        return _set_returning(expressions, name, values)
    function = expressions.functions.get(name)
    if function is None or not _fits(function, len(values)):
        raise no_function(name, values)
    return _apply(expressions, function, values, distinct=distinct, order=order)


def _set_returning(expressions: Expressions, name: str, values: list[Typed]) -> Typed:
    """A function of FROM in a select list: one row per value of its only column."""
    function = expressions.table_functions[name]
    if len(function.columns) != 1:
        raise FeatureNotSupported(f"{name} is supported in FROM only")
    query = table_query(function, values, expressions.found)
    return Typed(f"unnest((SELECT list(o1) FROM ({query})))", function.columns[0][1])


def _fits(function: Function, count: int) -> bool:
    most = len(function.arguments)
    return most - function.optional <= count <= most


def no_function(name: str, values: list[Typed]) -> PenstockError:
    """PostgreSQL's error for a function that there is not."""
    types = ", ".join(_shown(value.type) for value in values)
    return PenstockError(
        f"function {name}({types}) does not exist",
        hint="No function matches the given name and argument types. "
        "You might need to add explicit type casts.",
        sqlstate="42883",
    )


def _shown(kind: str) -> str:
    return {"int4": "integer", "int2": "smallint", "int8": "bigint", "bool": "boolean"}.get(
        kind, kind
    )


def _apply(
    expressions: Expressions, function: Function, values: list[Typed], *, distinct: bool, order: str
) -> Typed:
    found = expressions.found
    cells: list[str] = []
    for kind, value in zip(function.arguments, values, strict=False):
        if kind == ANY:
            sql = (coerce(value, "text", found) if value.type == UNKNOWN else value).sql
            cells.append(sql if function.template else f"CAST({sql} AS VARCHAR)")
        elif kind == ARRAY:
            if value.type == UNKNOWN:
                value = coerce(value, "_text", found)
            if element_type(value.type) is None:
                raise no_function(function.name, values)
            cells.append(value.sql)
        else:
            held = catalog_type(kind).held
            cells.append(f"CAST({coerce(value, kind, found).sql} AS {held})")
    returns = _returns(function, values)
    if function.template is None:
        missing = ["NULL"] * (len(function.arguments) - len(cells))
        found.functions.add(function.name)
        return Typed(f"pg__{function.name}({', '.join([*cells, *missing])})", returns)
    if function.aggregate:
        expressions.scope.aggregated = True
        order = order or _row_order(expressions, function)
    if function.aggregate and cells:
        cells[0] = ("DISTINCT " if distinct else "") + cells[0]
        cells[-1] += order
    if function.optional and len(cells) < len(function.arguments):
        if function.name == "concat":
            cells += ["''"] * (len(function.arguments) - len(cells))
        elif function.name in ("btrim", "ltrim", "rtrim"):
            cells.append("' '")
        else:
            return Typed(f"{function.name}({', '.join(cells)})", returns)
    return Typed(function.template.format(*cells), returns)


def _row_order(expressions: Expressions, function: Function) -> str:
    """Where rows come in the order of a series, so they are put together (a nested loop)."""
    counted = expressions.scope.counted
    if counted is None or function.name not in ("array_agg", "string_agg"):
        return ""
    return f" ORDER BY {counted}"


def _returns(function: Function, values: list[Typed]) -> str:
    first = values[0].type if values else UNKNOWN
    match function.returns:
        case "same":
            as_text = first == UNKNOWN or (function.aggregate and is_string(first))
            return "text" if as_text else first
        case "anyelement":
            return element_type(first) or "text"
        case "anyarray of":
            return array_type(first)
    return function.returns


def table_query(function: TableFunction, values: list[Typed], found: Found) -> str:
    """A function in FROM as a SELECT with columns o1, o2 ... Raises PenstockError 42883."""
    found.tables |= set(function.tables)
    found.functions |= set(function.functions)
    if function.arguments == (VARIADIC,):
        return function.query.format(_variadic(function, values, found))
    most = len(function.arguments)
    if not most - function.optional <= len(values) <= most:
        raise no_function(function.name, values)
    cells = [
        f"CAST({coerce(value, kind, found).sql} AS {catalog_type(kind).held})"
        for kind, value in zip(function.arguments, values, strict=False)
    ]
    return function.query.format(*cells, *["NULL"] * (most - len(cells)))


def _variadic(function: TableFunction, values: list[Typed], found: Found) -> str:
    """One array, or its elements."""
    if len(values) == 1 and element_type(values[0].type) is not None:
        return values[0].sql
    if not values:
        raise no_function(function.name, values)
    return f"[{', '.join(coerce(value, 'text', found).sql for value in values)}]"


def ordered(expressions: Expressions, node: exp.Ordered) -> str:
    """A key of ORDER BY within a call."""
    direction = "DESC" if node.args.get("desc") else "ASC"
    return f"{expressions.translate(node.this).sql} {direction}"


def _same(expressions: Expressions, name: str, values: list[Typed]) -> Typed:
    kind = common_type([value.type for value in values])
    sql = ", ".join(coerce(value, kind, expressions.found).sql for value in values)
    return Typed(f"{name}({sql})", kind)


def _expanded(array: Typed) -> Typed:
    """information_schema._pg_expandarray: a row for each element."""
    kind = f"{EXPANDED}{element_type(array.type)}"
    if array.type not in ("int2vector", "oidvector"):
        raise FeatureNotSupported("_pg_expandarray is supported for keys of indexes")
    rows = (
        f"list_transform(generate_series(1, len({array.sql})), lambda i: "
        f"{{'x': {array.sql}[i], 'n': CAST(i AS INTEGER)}})"
    )
    return Typed(f"unnest({rows})", kind)


def _json_object(expressions: Expressions, values: list[Typed]) -> Typed:
    """As json_build_object prints it; of values that are numbers, booleans or text."""
    if len(values) % 2:
        raise PenstockError("argument list must have even number of elements", sqlstate="22023")
    pairs = []
    for name, value in zip(values[::2], values[1::2], strict=True):
        key = coerce(name, "text", expressions.found).sql
        shown = coerce(value, "text", expressions.found) if value.type == UNKNOWN else value
        pairs += ["', '", f"to_json({key})::VARCHAR", "' : '"]
        pairs.append(f"coalesce(to_json({shown.sql})::VARCHAR, 'null')")
    return Typed(" || ".join(("('{'", *pairs[1:], "'}')")), "json")


def _nullif(expressions: Expressions, values: list[Typed]) -> Typed:
    if len(values) != 2:
        raise no_function("nullif", values)
    kind = common_type([value.type for value in values])
    left, right = (coerce(value, kind, expressions.found).sql for value in values)
    return Typed(f"nullif({left}, {right})", kind)


def _bound(name: str, values: list[Typed]) -> Typed:
    if len(values) != 2 or element_type(values[0].type) is None:
        raise no_function(name, values)
    array = values[0]
    first = 0 if array.type in _ZERO_BASED else 1
    if name == "array_lower":
        return Typed(f"CASE WHEN len({array.sql}) > 0 THEN {first} END", "int4")
    last = "" if first else " - 1"
    return Typed(f"CAST(nullif(len({array.sql}), 0){last} AS INTEGER)", "int4")
