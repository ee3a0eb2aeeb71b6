"""Expressions outside of queries: row filters, generated columns (a_expr of gram.y).

In: a text, or a node of the raw parse tree of a statement. Out: raw expressions
(``penstock.sql.grammar.parsenodes``). The analysis decides which expressions a clause allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import PenstockError, SqlSyntaxError
from penstock.sql.grammar.libpg_query import parse_tree
from penstock.sql.grammar.parsenodes import Expression
from penstock.sql.grammar.raw_node import Json
from penstock.sql.grammar.raw_statements import read_expression
from penstock.sql.text.limits import limited_depth

_BEFORE: Final = "CREATE PUBLICATION p FOR TABLE t WHERE ("
_AFTER: Final = "\n)"
"""The text after the expression, on a line of its own: the expression may end with a comment."""


def parse_expression(text: str) -> Expression:
    """Parse a text that is one expression.

    Raises SqlSyntaxError, FeatureNotSupported, PenstockError (54001).
    """
    return expression_of(check_syntax(text))


def check_syntax(text: str) -> Json:
    """Return the node of an expression, supported or not.

    The text is parsed between parentheses, where PostgreSQL has it, so that errors are the same.
    Raises SqlSyntaxError, PenstockError (54001).
    """
    try:
        where = _where(parse_tree(f"{_BEFORE}{text}{_AFTER}"))
    except SqlSyntaxError as error:
        if not error.message.endswith(f'{_AFTER}"'):
            raise
        # The error shows a quote without an end up to the end of the parsed text.
        raise SqlSyntaxError(error.message.removesuffix(f'{_AFTER}"') + '"') from None
    if where is None:
        raise SqlSyntaxError('syntax error at or near ")"')
    return where


def _where(statements: Sequence[Json]) -> Json | None:
    """Return the WHERE of our statement; None if the text has ended the parenthesis."""
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
    """Read a node's JSON, such as ``{"A_Expr": {...}}``. Raises FeatureNotSupported, 54001."""
    with limited_depth():
        return read_expression(node)


def without_parentheses(text: str) -> str:
    """Drop two parentheses around the whole expression, as pg_get_expr with ``pretty``."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    try:
        check_syntax(text[1:-1])
    except PenstockError:
        return text
    return text[1:-1]
