"""ORDER BY, DISTINCT ON and what their items mean (findTargetlistEntrySQL92 of parse_clause.c).

In: raw items, the columns and values of a SELECT list, who analyzes expressions. Out: typed keys.
"""

from __future__ import annotations

import itertools

from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.pgtypes.pg_type import TEXT, UNKNOWN
from penstock.sql.grammar.expressions import AConst, ColumnRef, ConstKind, Expression, SortBy
from penstock.sql.typed.coercion import to_common_type
from penstock.sql.typed.grouping import contains_subquery
from penstock.sql.typed.primnodes import (
    Node,
)
from penstock.sql.typed.query_expression import QueryExpressions, sort_key
from penstock.sql.typed.query_nodes import OutputColumn, SetOperationScan, SortKey
from penstock.sql.typed.scope import Scope
from penstock.sqlstate import AmbiguousColumn, InvalidColumnReference


def sort_clause(
    order: tuple[SortBy, ...],
    columns: tuple[OutputColumn, ...],
    targets: tuple[Node, ...],
    expressions: QueryExpressions,
) -> tuple[SortKey, ...]:
    return tuple(
        sort_key(item, _sql92(item.expression, "ORDER BY", columns, targets, expressions))
        for item in order
    )


def _sql92(
    raw: Expression,
    clause: str,
    columns: tuple[OutputColumn, ...],
    targets: tuple[Node, ...],
    expressions: QueryExpressions,
) -> Node:
    """A number or a bare name that is an alias means a target (SQL:92), else an expression."""
    position = target_position(raw, clause, len(targets))
    node = None if position is None else targets[position]
    if node is None and isinstance(raw, ColumnRef):
        node = target_by_name(raw, columns, targets, clause)
    if node is None:
        node = expressions.transform(raw)
    # addTargetToSortList: what has no type is text
    return to_common_type(node, TEXT, clause) if node.type == UNKNOWN else node


def distinct_keys(
    raw: tuple[Expression, ...],
    columns: tuple[OutputColumn, ...],
    targets: tuple[Node, ...],
    sort: tuple[SortKey, ...],
    expressions: QueryExpressions,
) -> tuple[Node, ...]:
    """transformDistinctOnClause: rows are sorted by these first of all."""
    nodes = tuple(_sql92(item, "DISTINCT ON", columns, targets, expressions) for item in raw)
    order = [key.node for n, key in enumerate(sort) if key.node not in [k.node for k in sort[:n]]]
    leading = list(itertools.takewhile(nodes.__contains__, order))
    others = order[len(leading) :]
    if nodes and others and any(n not in leading for n in nodes):
        if any(map(contains_subquery, nodes)):  # two of one text are not known to be the same
            raise FeatureNotSupported("a subquery in DISTINCT ON beside ORDER BY is not supported")
        raise InvalidColumnReference(
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
        )
    return nodes


def sort_of_set(key: SortBy, scan: SetOperationScan, targets: tuple[Node, ...]) -> SortKey:
    position = target_position(key.expression, "ORDER BY", len(targets))
    node = None if position is None else targets[position]
    if node is None and isinstance(key.expression, ColumnRef):
        node = target_by_name(key.expression, scan.columns, targets, "ORDER BY")
    if node is None:
        raise FeatureNotSupported(
            "invalid UNION/INTERSECT/EXCEPT ORDER BY clause",
            detail="Only result column names can be used, not expressions or functions.",
            hint="Add the expression/function to every SELECT, or move the UNION into a FROM "
            "clause.",
        )
    return sort_key(key, node)


def target_position(raw: Expression, clause: str, length: int) -> int | None:
    if not isinstance(raw, AConst):
        return None
    if raw.kind is not ConstKind.INTEGER:
        raise SqlSyntaxError(f"non-integer constant in {clause}")
    if not 1 <= int(raw.value) <= length:
        raise InvalidColumnReference(f"{clause} position {raw.value} is not in select list")
    return int(raw.value) - 1


def target_by_name(
    raw: ColumnRef, columns: tuple[OutputColumn, ...], targets: tuple[Node, ...], clause: str
) -> Node | None:
    if len(raw.fields) > 1:
        return None
    found = [t for c, t in zip(columns, targets, strict=True) if c.name == raw.fields[0]]
    if any(node != found[0] for node in found):
        raise AmbiguousColumn(f'{clause} "{raw.fields[0]}" is ambiguous')
    return found[0] if found else None


def is_column(raw: ColumnRef, scope: Scope) -> bool:
    return len(raw.fields) == 1 and any(
        name == raw.fields[0] for name, _ in scope.namespace.columns
    )
