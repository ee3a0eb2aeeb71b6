"""Turn function calls into typed nodes (ParseFuncOrColumn of parse_func.c).

A raw call with typed arguments becomes a FuncExpr, or a coercion if it is the name of a type. This
file looks up functions of every kind; ``query_expression`` decides which clauses allow aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError, WrongObjectType
from penstock.pgtypes.pg_type import UNKNOWN
from penstock.sql.builtin import Function, functions, functions_by_name
from penstock.sql.builtin.type_cache import named_type
from penstock.sql.grammar.parsenodes import FuncCall, NamedArg
from penstock.sql.typed.candidates import Candidate, find_function, signature
from penstock.sql.typed.coercion import Path, coerce, pathway
from penstock.sql.typed.operator_analysis import coerced
from penstock.sql.typed.primnodes import (
    Const,
    Form,
    FuncExpr,
    Node,
    children,
)
from penstock.sqlstate import GroupingError, InvalidSchemaName, UndefinedFunction, WindowingError

FUNCTION, AGGREGATE, WINDOW = "f", "a", "w"
_HINT: Final = (
    "No function matches the given name and argument types. "
    "You might need to add explicit type casts."
)


def call(
    raw: FuncCall, arguments: Sequence[Node], clause: str = "WHERE", *, sets: bool = False
) -> Node:
    """Return the typed call of a plain function.

    ``clause``: the clause that contains the call, for the errors about aggregates. ``sets``: the
    function may return a set. Raises 42883, 42725, 42803, 42809, 42P20, 0A000.
    """
    name = function_name(raw)
    plain = len(arguments) == 1 and not names_of(raw)
    if plain and _exact(name, [arguments[0].type]) is None:
        coercion = _as_coercion(name, arguments[0])
        if coercion is not None:
            _check_decorations(raw, name, FUNCTION)
            return coercion
    function, nodes, result = found_function(raw, arguments)
    if function.kind in (AGGREGATE, WINDOW):
        raise not_allowed(raw, clause)
    if function.returns_set and not sets:
        raise FeatureNotSupported(f"set-returning functions are not allowed in {clause}")
    form = Form.SQL if raw.sql_syntax else Form.CALL
    return FuncExpr(result, function.oid, name, nodes, form)


def function_name(raw: FuncCall) -> str:
    """Return the function's name. Any schema but pg_catalog raises PenstockError (3F000)."""
    if len(raw.name) > 1:
        raise InvalidSchemaName(f'schema "{raw.name[0]}" does not exist')
    return raw.name[0]


def found_function(
    raw: FuncCall, arguments: Sequence[Node]
) -> tuple[Function, tuple[Node, ...], int]:
    """Return a function of any kind, its coerced arguments in order, and its result type.

    Follows func_get_detail. Raises PenstockError (42601, 42883, 42725, 42809).
    """
    name, names = function_name(raw), names_of(raw)
    wanted = [argument.type for argument in arguments]
    found = find_function(name, wanted, variadic=raw.variadic, names=names)
    if found is None:
        shown = signature(name, wanted, names)
        raise UndefinedFunction(f"function {shown} does not exist", hint=_HINT)
    function = functions()[found.row.oid]
    _check_decorations(raw, name, function.kind)
    if names and function.kind in (AGGREGATE, WINDOW):
        kind = "aggregates" if function.kind == AGGREGATE else "window functions"
        raise FeatureNotSupported(f"{kind} cannot use named arguments")
    if function.kind == AGGREGATE and not arguments and not raw.star:
        raise WrongObjectType(f"{name}(*) must be used to call a parameterless aggregate function")
    nodes, result = coerced(tuple(arguments), found.arguments, function.result)
    return function, _in_order(function, found, nodes), result


def has_set(node: Node) -> bool:
    """Tell whether the node, or a node below it, returns a set (expression_returns_set)."""
    if isinstance(node, FuncExpr) and node.oid and functions()[node.oid].returns_set:
        return True
    return any(map(has_set, children(node)))


def names_of(raw: FuncCall) -> tuple[str, ...]:
    """Return the names of the named arguments, which come last.

    Raises SqlSyntaxError (42601) if a name is repeated, or an unnamed argument follows.
    """
    names: list[str] = []
    for argument in raw.arguments:
        if not isinstance(argument, NamedArg):
            if names:
                raise SqlSyntaxError("positional argument cannot follow named argument")
        elif argument.name in names:
            raise SqlSyntaxError(f'argument name "{argument.name}" used more than once')
        else:
            names.append(argument.name)
    return tuple(names)


def _in_order(function: Function, found: Candidate, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Order the arguments and fill gaps with defaults (reorder_function_arguments)."""
    if not found.places:
        return nodes
    given = dict(zip(found.places, nodes, strict=True))
    return tuple(
        given[n] if n in given else default_argument(function, n) for n in range(max(given) + 1)
    )


def not_allowed(raw: FuncCall, clause: str) -> PenstockError:
    """Return the error for an aggregate or window function in a clause that allows none."""
    if raw.over is None:
        return GroupingError(f"aggregate functions are not allowed in {clause}")
    return WindowingError(f"window functions are not allowed in {clause}")


def kinds(name: str) -> frozenset[str]:
    """Return the kinds (prokind) of the functions with this name."""
    return frozenset(function.kind for function in functions_by_name().get(name, ()))


def _exact(name: str, wanted: list[int]) -> Function | None:
    for function in functions_by_name().get(name, ()):
        if function.arguments == tuple(wanted):
            return function
    return None


def _as_coercion(name: str, argument: Node) -> Node | None:
    """Read ``int8(x)`` as a cast if no such function exists (func_get_detail)."""
    type_ = named_type(name)
    if type_ is None:
        return None
    if isinstance(argument, Const) and argument.type == UNKNOWN:
        return coerce(argument, type_.oid, "e", Form.EXPLICIT)
    if pathway(type_.oid, argument.type, "e")[0] in (Path.RELABEL, Path.IO):
        return coerce(argument, type_.oid, "e", Form.EXPLICIT)
    return None


def _check_decorations(raw: FuncCall, name: str, kind: str) -> None:
    """Refuse syntax that only aggregates and window functions allow."""
    if kind == WINDOW and raw.over is None:
        raise WrongObjectType(f"window function {name} requires an OVER clause")
    if kind in (AGGREGATE, WINDOW):
        return
    for given, word, what in (
        (raw.star, f"{name}(*)", "an aggregate function"),
        (raw.distinct, "DISTINCT", "an aggregate function"),
        (raw.order, "ORDER BY", "an aggregate function"),
        (raw.filter, "FILTER", "an aggregate function"),
        (raw.over, "OVER", "a window function nor an aggregate function"),
    ):
        if given:
            raise WrongObjectType(f"{word} specified, but {name} is not {what}")


def default_argument(function: Function, place: int) -> Node:
    """Return the default value of a parameter."""
    first = len(function.arguments) - function.defaults
    text = function.default_values[place - first].partition("::")[0]
    value = None if text == "NULL" else text.strip("'")
    return coerce(Const(UNKNOWN, value), function.arguments[place], "i", Form.IMPLICIT)


def with_defaults(call: FuncExpr) -> FuncExpr:
    """Return the call with defaults added for all omitted arguments."""
    function = functions().get(call.oid)
    given = len(call.arguments)
    if function is None or not function.defaults or function.variadic:
        return call
    added = (default_argument(function, n) for n in range(given, len(function.arguments)))
    return replace(call, arguments=(*call.arguments, *added))
