"""Function calls to typed nodes (ParseFuncOrColumn of parse_func.c).

In: a raw call and its typed arguments. Out: a FuncExpr, or a coercion where the name is a type's.
Aggregates, window functions and functions that return sets are refused.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.builtin import Function, functions, functions_by_name
from penstock.sql.candidates import find_function
from penstock.sql.coercion import Path, coerce, pathway
from penstock.sql.expressions import FuncCall
from penstock.sql.operator_analysis import coerced
from penstock.sql.primnodes import UNKNOWN, Const, Form, FuncExpr, Node
from penstock.sql.quoting import type_name
from penstock.sql.type_cache import named_type

_HINT: Final = (
    "No function matches the given name and argument types. "
    "You might need to add explicit type casts."
)


def call(raw: FuncCall, arguments: list[Node], clause: str = "WHERE") -> Node:
    """The typed call. ``clause``: where it stands. Raises 42883, 42725, 42803, 42P20, 0A000."""
    if len(raw.name) > 1:
        raise PenstockError(f'schema "{raw.name[0]}" does not exist', sqlstate="3F000")
    (name,) = raw.name
    if raw.window:
        raise PenstockError(f"window functions are not allowed in {clause}", sqlstate="42P20")
    kinds = {function.kind for function in functions_by_name().get(name, ())}
    if raw.star or raw.decorated:
        _refuse_decorated(raw, kinds, clause)
    wanted = [argument.type for argument in arguments]
    exact = _exact(name, wanted)
    if exact is None and len(arguments) == 1:
        coercion = _as_coercion(name, arguments[0])
        if coercion is not None:
            return coercion
    found = find_function(name, wanted)
    if found is None:
        shown = ", ".join(type_name(oid) for oid in wanted)
        raise PenstockError(
            f"function {name}({shown}) does not exist", hint=_HINT, sqlstate="42883"
        )
    function = functions()[found.row.oid]
    _refuse_kind(function, clause)
    nodes, result = coerced(tuple(arguments), found.arguments, function.result)
    form = Form.SQL if raw.sql_syntax else Form.CALL
    return FuncExpr(result, function.oid, name, nodes, form)


def _exact(name: str, wanted: list[int]) -> Function | None:
    for function in functions_by_name().get(name, ()):
        if function.arguments == tuple(wanted):
            return function
    return None


def _as_coercion(name: str, argument: Node) -> Node | None:
    """func_get_detail: ``int8(x)`` is a cast where there is no such function."""
    type_ = named_type(name)
    if type_ is None:
        return None
    if isinstance(argument, Const) and argument.type == UNKNOWN:
        return coerce(argument, type_.oid, "e", Form.EXPLICIT)
    if pathway(type_.oid, argument.type, "e")[0] is Path.RELABEL:
        return coerce(argument, type_.oid, "e", Form.EXPLICIT)
    return None


def _no_aggregates(clause: str) -> PenstockError:
    return PenstockError(f"aggregate functions are not allowed in {clause}", sqlstate="42803")


def _refuse_decorated(raw: FuncCall, kinds: set[str], clause: str) -> None:
    if "a" in kinds:
        raise _no_aggregates(clause)
    if raw.star:
        raise PenstockError(
            f"{raw.name[-1]}(*) specified, but {raw.name[-1]} is not an aggregate function",
            sqlstate="42809",
        )
    raise FeatureNotSupported("DISTINCT, VARIADIC and FILTER are not supported in expressions")


def _refuse_kind(function: Function, clause: str) -> None:
    if function.kind == "a":
        raise _no_aggregates(clause)
    if function.kind == "w":
        raise PenstockError(
            f"window function {function.name} requires an OVER clause", sqlstate="42809"
        )
    if function.returns_set:
        raise PenstockError(
            f"set-returning functions are not allowed in {clause}", sqlstate="0A000"
        )
