"""Row filters: the WHERE of a publication's table (publicationcmds.c, TransformPubWhereClauses).

In: what stands between the parentheses, and the table's columns. Out: a ``RowFilter``: the text as
PostgreSQL's catalog would show it, the columns it uses and the predicate for DuckDB. Raises
PostgreSQL's errors for what it refuses, and 0A000 for what it takes and Penstock does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.publication.members import Operation
from penstock.relation import AttGenerated, TableColumn
from penstock.sql.grammar.parse_expression import parse_expression
from penstock.sql.text.limits import limited_depth
from penstock.sql.to_duckdb.duckdb_predicate import predicate
from penstock.sql.typed.coercion import to_boolean
from penstock.sql.typed.deparse import deparse
from penstock.sql.typed.expression_analysis import ExpressionAnalysis
from penstock.sql.typed.generated_column import analyze_generation
from penstock.sql.typed.primnodes import (
    ArrayCoerceExpr,
    CaseWhen,
    CoerceViaIO,
    Node,
    OtherNode,
    Var,
    children,
    column_names,
    substituted,
)
from penstock.sql.typed.query_nodes import OutputColumn
from penstock.sql.typed.volatility import calls_mutable_function

FIRST_NORMAL_OBJECT_ID: Final = 16384
_ONLY_SIMPLE: Final = (
    "Only columns, constants, built-in operators, built-in data types, built-in collations, and"
    " immutable built-in functions are allowed."
)

TRANSFORMATIONS: Final[Mapping[tuple[bool, bool], Operation | None]] = {
    (False, False): None,
    (False, True): Operation.INSERT,
    (True, False): Operation.DELETE,
    (True, True): Operation.UPDATE,
}
"""What an UPDATE is published as, by whether its old and its new row match the filter
(pgoutput_row_filter)."""


@dataclass(frozen=True)
class RowFilter:
    """``text``: as pg_get_expr prints it; ``columns``: names used; ``predicate``: DuckDB SQL,
    boolean or NULL (as false), over columns quoted by their names at the publisher.
    ``may_fail``: evaluating it may raise an error, as it would in PostgreSQL."""

    text: str
    columns: frozenset[str]
    predicate: str
    may_fail: bool = False


def compile_row_filter(text: str, columns: Sequence[TableColumn], *, table: str) -> RowFilter:
    """The filter of a table. ``text``: as written or as stored; ``table``: ``[schema.]name``."""
    with limited_depth():
        return _compiled(text, columns, table)


def _compiled(text: str, columns: Sequence[TableColumn], table: str) -> RowFilter:
    analysis = ExpressionAnalysis({c.name: (c.type_oid, c.typmod) for c in columns}, table)
    node = to_boolean(analysis.transform(parse_expression(text)), "PUBLICATION WHERE")
    node = _expanded(node, columns, table)
    check_row_filter(node)
    used = column_names(node)
    for column in columns:
        if column.name in used and column.collation not in ("default", "C", "POSIX"):
            raise FeatureNotSupported(
                f'collation "{column.collation}" of column "{column.name}" is not supported'
                " in row filters"
            )
    compiled = predicate(node)
    return RowFilter(deparse(node), used, compiled.sql, compiled.fails)


def _expanded(node: Node, columns: Sequence[TableColumn], table: str) -> Node:
    """expand_generated_columns_in_expr: what virtual columns are made of, in their places."""
    virtual = {column.name for column in columns if column.generated is AttGenerated.VIRTUAL}
    if not virtual & column_names(node):
        return node
    known = [OutputColumn(c.name, c.type_oid, c.typmod, generation=c.generation) for c in columns]
    values = {
        column.name: analyze_generation(column, known, table)
        if column.name in virtual
        else Var(column.type, column.name, column.typmod)
        for column in known
    }
    return substituted(node, values)


def check_row_filter(node: Node) -> None:
    """Refuse what PostgreSQL refuses (check_simple_rowfilter_expr_walker), outermost first."""
    detail = _objection(node)
    if detail is not None:
        raise FeatureNotSupported("invalid publication WHERE expression", detail=detail)
    for child in children(node):
        check_row_filter(child)


def _objection(node: Node) -> str | None:
    if isinstance(node, CaseWhen):
        return None
    if isinstance(node, Var) and node.system:
        return "System columns are not allowed."
    if isinstance(node, OtherNode | CoerceViaIO | ArrayCoerceExpr):
        return _ONLY_SIMPLE
    if node.type >= FIRST_NORMAL_OBJECT_ID:
        return "User-defined types are not allowed."
    if calls_mutable_function(node):
        return "User-defined or built-in mutable functions are not allowed."
    return None


def matches(predicate: str | None) -> str:
    """DuckDB's SQL for whether a row matches, never NULL: a filter's NULL counts as no match."""
    return "true" if predicate is None else f"coalesce(({predicate}), false)"


def published_as(operation: Operation, old: str, new: str) -> str:
    """DuckDB's SQL for whether an UPDATE is published as ``operation``. ``old``, ``new``: SQL for
    whether its rows match."""
    cases = (
        f"{old if was else f'NOT {old}'} AND {new if is_ else f'NOT {new}'}"
        for (was, is_), becomes in TRANSFORMATIONS.items()
        if becomes is operation
    )
    return " OR ".join(f"({case})" for case in cases)
