"""Conditions of WHERE that concern one table alone (clausesel.c, distribute_qual_to_rels).

``duckdb_query`` uses them to read fewer rows of the table. This file splits WHERE into conditions,
and finds the relations that each one uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.attribute import Attribute
from penstock.pgtypes.pg_type import INT2, INT4, INT8, TEXT, VARCHAR
from penstock.sql.grammar.parsenodes import BoolOp, JoinType
from penstock.sql.typed.primnodes import (
    BoolExpr,
    Const,
    Node,
    OpExpr,
    RelabelType,
    Var,
    children,
)
from penstock.sql.typed.query_nodes import FromNode, Join, SubLink, TableScan

_COMPARED: Final = ({INT2, INT4, INT8}, {TEXT, VARCHAR})
"""Groups of types in which two values are equal if and only if their texts are equal."""


def always_there(node: FromNode) -> Iterator[TableScan]:
    """Yield the tables whose rows no outer join can replace by NULLs."""
    if isinstance(node, TableScan):
        yield node
    elif isinstance(node, Join) and node.type is JoinType.INNER:
        yield from always_there(node.left)
        yield from always_there(node.right)


def conjuncts(node: Node | None) -> Iterator[Node]:
    """Yield the operands of AND, at any depth."""
    if isinstance(node, BoolExpr) and node.operator is BoolOp.AND:
        yield from operands(node)
    elif node is not None:
        yield node


def operands(node: BoolExpr) -> Iterator[Node]:
    """Yield the operands of AND or OR, at any depth (pull_ands, pull_ors), or the one of NOT."""
    waiting = list(reversed(node.arguments))
    while waiting:
        each = waiting.pop()
        same = isinstance(each, BoolExpr) and each.operator is node.operator is not BoolOp.NOT
        if isinstance(each, BoolExpr) and same:
            waiting += reversed(each.arguments)
        else:
            yield each


def relations(node: Node) -> set[str] | None:
    """Return the relations whose columns the node uses; None if it has a subquery."""
    if isinstance(node, SubLink):
        return None
    found = {node.relation} if isinstance(node, Var) else set()
    for child in children(node):
        below = relations(child)
        if below is None:
            return None
        found |= below
    return found


def equal_to(
    columns: Sequence[Attribute], conditions: Iterable[Node]
) -> tuple[tuple[str, str], ...]:
    """Return (column name, text) for each condition ``column = constant`` on columns c1 ..."""
    found: dict[str, str] = {}
    for condition in conditions:
        pair = _equality(condition)
        if pair is not None:
            variable, text = pair
            found.setdefault(columns[int(variable.name[1:]) - 1].name, text)
    return tuple(found.items())


def _equality(node: Node) -> tuple[Var, str] | None:
    """Return the column and the constant's text of ``column = constant``.

    Return None for anything else, and for types other than integers, text and varchar.
    """
    if not (isinstance(node, OpExpr) and node.name == "=" and len(node.arguments) == 2):
        return None
    sides = [_as_it_is(argument) for argument in node.arguments]
    for left, right in (sides, sides[::-1]):
        if not (isinstance(left, Var) and isinstance(right, Const)) or left.system:
            continue
        compared = {left.type, right.type, *(argument.type for argument in node.arguments)}
        kinds = [kind for kind in _COMPARED if compared <= kind]
        if kinds and right.text is not None:
            return left, right.text
    return None


def _as_it_is(node: Node) -> Node:
    return node.argument if isinstance(node, RelabelType) else node
