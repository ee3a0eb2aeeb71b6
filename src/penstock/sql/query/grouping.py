"""Whether every column of a grouped query is grouped (parse_agg.c, check_ungrouped_columns).

In: what is shown for each group, and by what rows are grouped. Out: nothing, or 42803. That a key
determines the other columns of its table is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import PenstockError
from penstock.sql.primnodes import Node, Var, children
from penstock.sql.query.primnodes import Aggref, SubLink, WindowFunc
from penstock.sql.query.scope import Namespace


def check_grouping(shown: tuple[Node, ...], group: tuple[Node, ...], names: Namespace) -> None:
    """Raises PenstockError (42803)."""
    own = {
        (node.relation, node.name): f"{relation.name}.{name}"
        for relation in names.relations
        for name, node in relation.columns
        if isinstance(node, Var)
    }
    for node in shown:
        for var in _ungrouped(node, group):
            column = own.get((var.relation, var.name))
            if column is not None:
                raise PenstockError(
                    f'column "{column}" must appear in the GROUP BY clause or be used in an '
                    "aggregate function",
                    sqlstate="42803",
                )


def _ungrouped(node: Node, group: tuple[Node, ...]) -> Iterator[Var]:
    if node in group or isinstance(node, Aggref):
        return
    if isinstance(node, Var):
        yield node
        return
    if isinstance(node, WindowFunc):
        inner = node.aggregate
        below: tuple[Node, ...] = (*inner.arguments, *node.partition, *(k.node for k in node.order))
    elif isinstance(node, SubLink):
        below = () if node.test is None else (node.test,)
    else:
        below = children(node)
    for child in below:
        yield from _ungrouped(child, group)


def contains_subquery(node: Node) -> bool:
    """Such expressions cannot be told to be the same."""
    return isinstance(node, SubLink) or any(contains_subquery(child) for child in children(node))
