"""Expressions whose text is kept, to be read again with the table's columns.

In: the cursor of a statement. Out: the text without the parentheses around.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.sql.cursor import Cursor
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
