"""Row filters: the WHERE of a publication's table (publicationcmds.c, TransformPubWhereClauses).

A ``RowFilter`` is made from the text between the parentheses and the table's columns: the text as
PostgreSQL's catalog would show it, the columns it uses, and the predicate for DuckDB. Filters that
PostgreSQL refuses raise its errors; those that only Penstock does not support raise 0A000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import FeatureNotSupported
from penstock.pgoutput.messages import TRANSFORMATIONS, RowMessage
from penstock.sql.grammar.parsenodes import Expression
from penstock.sql.grammar.raw_statements import parse_expression
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
from penstock.sql.typed.volatility import calls_mutable_function

FIRST_NORMAL_OBJECT_ID: Final = 16384
_ONLY_SIMPLE: Final = (
    "Only columns, constants, built-in operators, built-in data types, built-in collations, and"
    " immutable built-in functions are allowed."
)


@dataclass(frozen=True)
class RowFilter:
    """A compiled row filter. ``text`` is as pg_get_expr prints it; ``columns`` are the names it
    uses. ``predicate`` is SQL for DuckDB over columns quoted by their names at the publisher; it
    gives a boolean, or NULL, which counts as false. ``may_fail``: evaluating it may raise an error,
    as in PostgreSQL."""

    text: str
    columns: frozenset[str]
    predicate: str
    may_fail: bool = False


def compile_row_filter(text: str, columns: Sequence[Attribute], *, table: str) -> RowFilter:
    """Compile a table's filter, as written or as stored; ``table`` is ``[schema.]name``."""
    return compile_condition(parse_expression(text), columns, table=table)


def compile_condition(where: Expression, columns: Sequence[Attribute], *, table: str) -> RowFilter:
    """Compile a condition that has been parsed, as ``compile_row_filter`` does."""
    with limited_depth():
        return _compiled(where, columns, table)


def _compiled(where: Expression, columns: Sequence[Attribute], table: str) -> RowFilter:
    analysis = ExpressionAnalysis({c.name: (c.type_oid, c.typmod) for c in columns}, table)
    node = to_boolean(analysis.transform(where), "PUBLICATION WHERE")
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


def _expanded(node: Node, columns: Sequence[Attribute], table: str) -> Node:
    """Replace virtual columns by their expressions (expand_generated_columns_in_expr)."""
    virtual = {column.name for column in columns if column.generated is AttGenerated.VIRTUAL}
    if not virtual & column_names(node):
        return node
    values = {
        column.name: analyze_generation(column, columns, table)
        if column.name in virtual
        else Var(column.type_oid, column.name, column.typmod)
        for column in columns
    }
    return substituted(node, values)


def check_row_filter(node: Node) -> None:
    """Raise FeatureNotSupported for the outermost node that PostgreSQL refuses
    (check_simple_rowfilter_expr_walker)."""
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
    """Return SQL for DuckDB that tells whether a row matches; NULL counts as no match."""
    return "true" if predicate is None else f"coalesce(({predicate}), false)"


def published_as(message: type[RowMessage], old: str, new: str) -> str:
    """Return SQL for DuckDB that tells whether an UPDATE is published as a ``message``. ``old`` and
    ``new`` are SQL that tells whether its old and its new row match."""
    cases = (
        f"{old if was else f'NOT {old}'} AND {new if is_ else f'NOT {new}'}"
        for (was, is_), becomes in TRANSFORMATIONS.items()
        if becomes is message
    )
    return " OR ".join(f"({case})" for case in cases)
