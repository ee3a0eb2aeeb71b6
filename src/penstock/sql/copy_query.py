"""The queries that a subscriber copies a table with (tablesync.c, copy_table).

In: the text of ``SELECT columns FROM [ONLY] table [WHERE condition]``. Out: its parts; the
condition stays text. Every other query is None.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import lex, tokens_of_statements
from penstock.sql.object_names import RangeVar, relation_expr


@dataclass(frozen=True, slots=True)
class CopyQuery:
    """``columns`` None: ``*``. ``where`` None: all rows."""

    relation: RangeVar
    columns: tuple[str, ...] | None
    where: str | None


def parse_copy_query(text: str) -> CopyQuery | None:
    """The query's parts; None where it is of another form."""
    try:
        (tokens,) = tokens_of_statements(lex(text))
        return _query(Cursor(tokens, text))
    except (PenstockError, ValueError):
        return None


def _query(cursor: Cursor) -> CopyQuery:
    cursor.expect("select")
    columns: tuple[str, ...] | None = None
    if not cursor.accept_symbol("*"):
        names = [cursor.name()]
        while cursor.accept_symbol(","):
            names.append(cursor.name())
        columns = tuple(names)
    cursor.expect("from")
    relation = relation_expr(cursor)
    where = cursor.rest_of_text() if cursor.accept("where") else None
    cursor.expect_end()
    return CopyQuery(relation, columns, where)
