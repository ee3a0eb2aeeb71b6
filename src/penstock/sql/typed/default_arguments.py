"""Arguments that a call leaves out (add_function_defaults of clauses.c).

In: a function, a call of it. Out: the default values of pg_proc, typed; each is a constant.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.pgtypes.pg_type import UNKNOWN
from penstock.sql.builtin import Function, functions
from penstock.sql.typed.coercion import coerce
from penstock.sql.typed.primnodes import Const, Form, FuncExpr, Node


def default_argument(function: Function, place: int) -> Node:
    """Return the value of an argument that has a default."""
    first = len(function.arguments) - function.defaults
    text = function.default_values[place - first].partition("::")[0]
    value = None if text == "NULL" else text.strip("'")
    return coerce(Const(UNKNOWN, value), function.arguments[place], "i", Form.IMPLICIT)


def with_defaults(call: FuncExpr) -> FuncExpr:
    """Return the call with every argument of its function."""
    function = functions().get(call.oid)
    given = len(call.arguments)
    if function is None or not function.defaults or function.variadic:
        return call
    added = (default_argument(function, n) for n in range(given, len(function.arguments)))
    return replace(call, arguments=(*call.arguments, *added))
