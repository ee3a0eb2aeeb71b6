"""Expressions outside of queries: row filters, generated columns (a_expr of gram.y).

In: a text, or a node of the raw parse tree of a statement. Out: raw expressions
(``penstock.sql.grammar.expressions``). What may stand where is left to the analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import PenstockError, SqlSyntaxError
from penstock.sql.grammar.expressions import Expression
from penstock.sql.grammar.libpg_query import parse_tree
from penstock.sql.grammar.raw_node import Json
from penstock.sql.grammar.raw_statements import read_expression
from penstock.sql.text.limits import limited_depth

_BEFORE: Final = "CREATE PUBLICATION p FOR TABLE t WHERE ("
_AFTER: Final = "\n)"
"""On a line of its own: the expression may end with a comment."""


def parse_expression(text: str) -> Expression:
    """The expression that is the whole text.

    Raises SqlSyntaxError, FeatureNotSupported, PenstockError (54001).
    """
    return expression_of(check_syntax(text))


def check_syntax(text: str) -> Json:
    """The node of an expression, whether or not it is one that is supported.

    It is read where PostgreSQL has it, between parentheses, so what is wrong is said as there.
    Raises SqlSyntaxError, PenstockError (54001).
    """
    try:
        where = _where(parse_tree(f"{_BEFORE}{text}{_AFTER}"))
    except SqlSyntaxError as error:
        if not error.message.endswith(f'{_AFTER}"'):
            raise
        # A quote without an end is shown up to the end of what was parsed.
        raise SqlSyntaxError(error.message.removesuffix(f'{_AFTER}"') + '"') from None
    if where is None:
        raise SqlSyntaxError('syntax error at or near ")"')
    return where


def _where(statements: Sequence[Json]) -> Json | None:
    """None where a parenthesis of the text has ended the expression."""
    match statements:
        case [
            {
                "CreatePublicationStmt": {
                    "pubobjects": [{"PublicationObjSpec": {"pubtable": {"whereClause": found}}}],
                    **more,
                }
            }
        ] if more.keys() == {"pubname"}:
            where: Json = found
            return where
    return None


def expression_of(node: Json) -> Expression:
    """Of the tree's JSON, such as ``{"A_Expr": {...}}``. Raises FeatureNotSupported, 54001."""
    with limited_depth():
        return read_expression(node)


def without_parentheses(text: str) -> str:
    """An expression as pg_get_expr prints it with ``pretty``, as far as the outermost parentheses
    go: without the two that enclose all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    try:
        check_syntax(text[1:-1])
    except PenstockError:
        return text
    return text[1:-1]
