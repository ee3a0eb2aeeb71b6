"""Rows that functions in FROM count: in which order they come.

In: items of FROM, nodes of a query. Out: a sort key; whether a node returns sets.
"""

from __future__ import annotations

from typing import Final

from penstock.pgtypes.pg_type import INTEGERS
from penstock.sql.builtin import functions
from penstock.sql.to_duckdb.duckdb_predicate import stripped
from penstock.sql.to_duckdb.duckdb_values import refused
from penstock.sql.typed.primnodes import Const, FuncExpr, Node, children
from penstock.sql.typed.query_nodes import FromNode, FunctionScan, SeriesScan
from penstock.sql.typed.set_returning import SERIES


def counting(node: FromNode) -> str:
    """How the rows of a function are sorted that counts; "" for any other."""
    if isinstance(node, SeriesScan):
        return f"{node.name}.c1{' DESC' if node.step < 0 else ''}"
    if not isinstance(node, FunctionScan) or node.function not in _COUNTED:
        return ""
    step = getattr(node.call, "arguments", ())[2:]
    if not step:
        return f"{node.name}.c1"
    constant = stripped(step[0])
    if not isinstance(constant, Const) or constant.text is None or constant.type not in INTEGERS:
        raise refused(f"{node.function} with a computed step")
    return f"{node.name}.c1{' DESC' if int(constant.text) < 0 else ''}"


_COUNTED: Final = frozenset({SERIES, "generate_subscripts"})


def has_set(node: Node) -> bool:
    """Whether it, or a node below it, returns a set."""
    if isinstance(node, FuncExpr) and node.oid and functions()[node.oid].returns_set:
        return True
    return any(map(has_set, children(node)))
