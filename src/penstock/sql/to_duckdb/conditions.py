"""Conditions of WHERE that concern one table alone (clausesel.c, distribute_qual_to_rels).

In: parts of a typed query. Out: its conditions one by one, and which relations each is about. What
is made of them is left to ``duckdb_query``.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sql.grammar.expressions import BoolOp
from penstock.sql.grammar.parsenodes import JoinType
from penstock.sql.typed.primnodes import BoolExpr, Node, Var, children
from penstock.sql.typed.query_nodes import FromNode, Join, SubLink, TableScan


def always_there(node: FromNode) -> Iterator[TableScan]:
    """Tables that no outer join fills up with NULLs."""
    if isinstance(node, TableScan):
        yield node
    elif isinstance(node, Join) and node.type is JoinType.INNER:
        yield from always_there(node.left)
        yield from always_there(node.right)


def conjuncts(node: Node | None) -> Iterator[Node]:
    """What is joined by AND."""
    if isinstance(node, BoolExpr) and node.operator is BoolOp.AND:
        for argument in node.arguments:
            yield from conjuncts(argument)
    elif node is not None:
        yield node


def relations(node: Node) -> set[str] | None:
    """Those whose columns are in it; None where a subquery is."""
    if isinstance(node, SubLink):
        return None
    found = {node.relation} if isinstance(node, Var) else set()
    for child in children(node):
        below = relations(child)
        if below is None:
            return None
        found |= below
    return found
