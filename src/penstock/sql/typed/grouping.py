"""Check that every column of a grouped query is grouped (parse_agg.c, check_ungrouped_columns).

The check raises 42803. It compares the expressions shown for each group with those in GROUP BY.
Unlike PostgreSQL, it does not accept other columns of a table whose primary key is grouped.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sql.typed.primnodes import Node, Var, children
from penstock.sql.typed.query_nodes import (
    Aggref,
    FromNode,
    FunctionScan,
    Join,
    Query,
    SetOperationScan,
    SubLink,
    SubqueryScan,
    ValuesScan,
    WindowFunc,
)
from penstock.sql.typed.scope import ParseNamespace
from penstock.sqlstate import GroupingError


def check_grouping(shown: tuple[Node, ...], group: tuple[Node, ...], names: ParseNamespace) -> None:
    """Raise PenstockError (42803) for an ungrouped column."""
    own = {
        (node.relation, node.name): f"{relation.name}.{name}"
        for relation in names.relations
        for name, node in (*relation.columns, *relation.system)
        if isinstance(node, Var)
    }
    for node in shown:
        for var, inside in _ungrouped(node, group):
            column = own.get((var.relation, var.name))
            if column is None:
                continue
            message = (
                f'subquery uses ungrouped column "{column}" from outer query'
                if inside
                else f'column "{column}" must appear in the GROUP BY clause or be used in an '
                "aggregate function"
            )
            raise GroupingError(message)


def _ungrouped(
    node: Node, group: tuple[Node, ...], inside: bool = False
) -> Iterator[tuple[Var, bool]]:
    """Yield each ungrouped column, and whether it is used in a subquery."""
    if node in group or (isinstance(node, Aggref) and not inside):
        return
    if isinstance(node, Var):
        yield node, inside
    for child in below(node):
        yield from _ungrouped(child, group, inside)
    if isinstance(node, SubLink):
        for child in nodes_of(node.query):
            yield from _ungrouped(child, group, True)


def below(node: Node) -> tuple[Node, ...]:
    """Return the child nodes, without those of subqueries."""
    if isinstance(node, WindowFunc):
        inner = node.aggregate
        return (*inner.arguments, *node.partition, *(key.node for key in node.order))
    if isinstance(node, Aggref):
        filter_ = () if node.filter is None else (node.filter,)
        return (*node.arguments, *(key.node for key in node.order), *filter_)
    return children(node)


def nodes_of(query: Query) -> Iterator[Node]:
    """Yield every expression of a query and of the queries in its FROM and WITH."""
    yield from query.targets
    yield from query.group
    yield from (key.node for key in query.sort)
    yield from (node for node in (query.where, query.having) if node is not None)
    for cte in query.ctes:
        yield from nodes_of(cte.query)
        if cte.again is not None:
            yield from nodes_of(cte.again)
    for item in query.from_:
        yield from _nodes_of_from(item)


def _nodes_of_from(item: FromNode) -> Iterator[Node]:
    match item:
        case Join():
            yield from _nodes_of_from(item.left)
            yield from _nodes_of_from(item.right)
            if item.condition is not None:
                yield item.condition
        case SubqueryScan():
            yield from nodes_of(item.query)
        case FunctionScan():
            yield item.call
        case SetOperationScan():
            yield from nodes_of(item.left)
            yield from nodes_of(item.right)
        case ValuesScan():
            for row in item.rows:
                yield from row


def contains_subquery(node: Node) -> bool:
    """Tell whether a node contains a subquery, and so cannot be compared with other nodes."""
    return isinstance(node, SubLink) or any(contains_subquery(child) for child in children(node))


def relations_of(node: Node) -> Iterator[str]:
    """Yield the names of the relations whose columns the node uses, in its subqueries too."""
    if isinstance(node, Var):
        yield node.relation
    for child in below(node):
        yield from relations_of(child)
    if isinstance(node, SubLink):
        for child in nodes_of(node.query):
            yield from relations_of(child)
