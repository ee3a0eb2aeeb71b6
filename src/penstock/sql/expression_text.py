"""Expressions whose text is kept, to be read again with the table's columns.

In: the cursor of a statement, or a text that is kept. Out: the text without the parentheses around.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import Kind, lex
from penstock.sql.query.libpg_query import parse_tree
from penstock.sql.query.parse_expression import check_syntax


def expression_text(cursor: Cursor) -> str:
    """``'(' a_expr ')'``. Raises SqlSyntaxError, PenstockError (54001).

    Only its mistakes are looked for: what is known of expressions, whoever compiles it says.
    """
    if not cursor.at_symbol("("):
        raise cursor.syntax_error()
    try:
        check_syntax(cursor.copy().parenthesized_text())
    except PenstockError:
        # There may be an earlier mistake in what comes from here on.
        parse_tree(f"CREATE PUBLICATION p FOR TABLE t WHERE {cursor.source_text()}")
        raise
    return cursor.parenthesized_text()


def without_parentheses(text: str) -> str:
    """An expression as pg_get_expr prints it with ``pretty``, as far as the outermost parentheses
    go: without the two that enclose all of it."""
    *tokens, _ = lex(text)
    depth = 0
    for number, token in enumerate(tokens, 1):
        if token.kind is Kind.SYMBOL:
            depth += (token.value == "(") - (token.value == ")")
        if not depth:
            return text[1:-1] if number == len(tokens) > 1 else text
    return text
