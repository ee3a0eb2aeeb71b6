"""Queries and changes of rows, which are kept as text (gram.y, PreparableStmt).

In: a cursor in front of the statement. Out: ``Query``. Only quotes and parentheses are checked; the
rest of the grammar is left to whoever runs the text.
"""

from __future__ import annotations

from penstock.sql.cursor import Cursor
from penstock.sql.session_statements import Query


def query(cursor: Cursor) -> Query:
    """Whatever begins with ( or one of the words of queries."""
    word = cursor.word()
    text = cursor.rest_of_text()
    kind = "select" if word is None or word == "table" else word
    return Query(text, kind, notices=cursor.notices)
