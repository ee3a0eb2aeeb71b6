"""Expressions whose text is kept, to be read again with the table's columns.

In: the cursor of a statement, or a text that is kept. Out: the text without the parentheses around.
"""

from __future__ import annotations

from penstock.errors import PenstockError, SqlSyntaxError
from penstock.sql.cursor import Cursor
from penstock.sql.expression_grammar import ExpressionGrammar
from penstock.sql.lexer import Kind, lex


def expression_text(cursor: Cursor) -> str:
    """``'(' a_expr ')'``. Raises SqlSyntaxError.

    The expression is read for its mistakes only. What its grammar refuses to know (0A000) is still
    a text with balanced parentheses, so that whoever compiles it says it at its time.
    """
    if not cursor.at_symbol("("):
        raise cursor.syntax_error()
    reader = cursor.copy()
    reader.expect_symbol("(")
    try:
        ExpressionGrammar(reader).a_expr()
        reader.expect_symbol(")")
    except SqlSyntaxError:
        raise
    except PenstockError:
        pass
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
