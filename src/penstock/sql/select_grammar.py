"""The little of SELECT that reads our views: columns of one relation.

In: a cursor behind the word SELECT. Out: a ``Select``. Whatever else PostgreSQL allows here raises
FeatureNotSupported; which relations and columns there are is left to ``penstock.commands``.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.lexer import Kind
from penstock.sql.statements import Select


def select(cursor: Cursor) -> Select:
    """``* | name [, ...] FROM [pg_catalog.]name``"""
    columns = None if cursor.accept_symbol("*") else _columns(cursor)
    if cursor.word() != "from":
        raise refusal(cursor)
    cursor.take()
    relation = cursor.name()
    if relation == "pg_catalog" and cursor.accept_symbol("."):
        relation = cursor.name()
    if cursor.token.kind is not Kind.END:
        raise refusal(cursor)
    return Select(relation, columns, notices=cursor.notices)


def _columns(cursor: Cursor) -> tuple[str, ...]:
    columns = []
    while True:
        if cursor.token.kind not in (Kind.WORD, Kind.QUOTED):
            raise refusal(cursor)
        columns.append(cursor.name())
        if not cursor.accept_symbol(","):
            return tuple(columns)


def refusal(cursor: Cursor) -> PenstockError:
    """The error for whatever else may come in a SELECT; to be raised."""
    if cursor.token.kind is Kind.END:
        return cursor.syntax_error()
    return not_supported("this form of SELECT")
