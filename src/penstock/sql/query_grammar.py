"""Queries and changes of rows, which are kept as text (gram.y, PreparableStmt).

In: a cursor in front of the statement. Out: ``Query``, or a ``Select`` where it is the simple form
that the node answers itself. Only quotes and parentheses are checked; the rest of the grammar is
left to whoever runs the text.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.sql.cursor import Cursor
from penstock.sql.select_grammar import select
from penstock.sql.session_statements import Query
from penstock.sql.statements import Statement


def query(cursor: Cursor) -> Statement:
    """Whatever begins with ( or one of the words of queries."""
    word = cursor.word()
    if word == "select":
        simple = _simple_select(cursor.copy())
        if simple is not None:
            return simple
    text = cursor.rest_of_text()
    kind = "select" if word is None or word == "table" else word
    return Query(text, kind, notices=cursor.notices)


def _simple_select(cursor: Cursor) -> Statement | None:
    cursor.take()
    try:
        return select(cursor)
    except PenstockError:
        return None
