"""Volatility: find expressions whose value for a row may change (clauses.c,
contain_mutable_functions).

pg_proc tells the volatility of each function in the expression.
"""

from __future__ import annotations

from typing import Final

from penstock.sql.builtin import functions, functions_by_name, types
from penstock.sql.typed.primnodes import (
    CoerceViaIO,
    FuncExpr,
    Node,
    OperatorCall,
    OtherNode,
    children,
)

_IMMUTABLE: Final = "i"
_READ_BY_SETTINGS: Final = frozenset("DTA")
"""Type categories (dates and times, intervals, arrays) whose input functions are stable."""


def calls_mutable_function(node: Node) -> bool:
    """Tell whether this node itself calls a function or operator that is not immutable."""
    match node:
        case FuncExpr(oid=function) | OperatorCall(function=function):
            called = functions().get(function)
            return called is None or called.volatility != _IMMUTABLE
    return False


def contains_mutable(node: Node) -> bool:
    """Tell whether the expression depends on the session, the time or chance."""
    if isinstance(node, OtherNode) and node.mutable:
        return True
    if isinstance(node, CoerceViaIO) and not _immutable_text(node.argument.type, node.type):
        return True
    return calls_mutable_function(node) or any(map(contains_mutable, children(node)))


def _immutable_text(source: int, target: int) -> bool:
    """Tell whether both functions of a cast through text, output and input, are immutable."""
    name = types()[source].name
    known = functions_by_name()
    found = [*known.get(f"{name}out", ()), *known.get(f"{name}_out", ())]
    printed = bool(found) and all(function.volatility == _IMMUTABLE for function in found)
    return printed and types()[target].category not in _READ_BY_SETTINGS
