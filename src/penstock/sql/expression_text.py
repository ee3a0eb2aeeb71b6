"""Expressions as they are shown, without the parentheses around them.

In: a text that is kept, as pg_get_expr prints it. Out: it as pg_get_expr prints it with ``pretty``.
"""

from __future__ import annotations

from penstock.sql.query.libpg_query import Token, scan


def without_parentheses(text: str) -> str:
    """As far as the outermost parentheses go: without the two that enclose all of it."""
    tokens, depth = scan(text).tokens, 0
    for number, token in enumerate(tokens, 1):
        depth += (token.kind == Token.ASCII_40) - (token.kind == Token.ASCII_41)
        if not depth:
            return text[1:-1] if number == len(tokens) > 1 else text
    return text
