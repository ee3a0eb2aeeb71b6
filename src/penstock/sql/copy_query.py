"""The queries that a subscriber copies a table with (tablesync.c, copy_table).

In: the text of ``SELECT columns FROM [ONLY] table [WHERE condition]``, where a column may be asked
for as text: ``column::text``, and what a node writes for the output function's text
(``pgtypes.text``). Out: its parts; the condition stays text. Every other query is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.errors import PenstockError
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import lex, tokens_of_statements
from penstock.sql.object_names import RangeVar, relation_expr


class Form(Enum):
    """What of a column is wanted: its value, it cast to text, or what its type prints."""

    VALUE = "value"
    CAST = "cast"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """An item of the list. ``name``: the column's."""

    name: str
    form: Form = Form.VALUE

    @property
    def label(self) -> str:
        """The result column's name (FigureColname)."""
        return "case" if self.form is Form.OUTPUT else self.name


@dataclass(frozen=True, slots=True)
class CopyQuery:
    """``columns`` None: ``*``. ``where`` None: all rows."""

    relation: RangeVar
    columns: tuple[CopyTarget, ...] | None
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
    columns: tuple[CopyTarget, ...] | None = None
    if not cursor.accept_symbol("*"):
        targets = [_target(cursor)]
        while cursor.accept_symbol(","):
            targets.append(_target(cursor))
        columns = tuple(targets)
    cursor.expect("from")
    relation = relation_expr(cursor)
    where = cursor.rest_of_text() if cursor.accept("where") else None
    cursor.expect_end()
    return CopyQuery(relation, columns, where)


def _target(cursor: Cursor) -> CopyTarget:
    if cursor.accept("case"):
        return CopyTarget(_printed(cursor), Form.OUTPUT)
    name = cursor.name()
    if not cursor.accept_symbol("::"):
        return CopyTarget(name)
    _in_catalog(cursor, "text")
    return CopyTarget(name, Form.CAST)


def _printed(cursor: Cursor) -> str:
    """``WHEN num_nulls(c) = 0 THEN format('%s', c) END``"""
    cursor.expect("when")
    _in_catalog(cursor, "num_nulls")
    cursor.expect_symbol("(")
    name = cursor.name()
    cursor.expect_symbol(")")
    cursor.expect_symbol("=")
    if cursor.numeric_only() != 0:
        raise cursor.syntax_error()
    cursor.expect("then")
    _in_catalog(cursor, "format")
    cursor.expect_symbol("(")
    if cursor.string() != "%s":
        raise cursor.syntax_error()
    cursor.expect_symbol(",")
    if cursor.name() != name:
        raise cursor.syntax_error()
    cursor.expect_symbol(")")
    cursor.expect("end")
    return name


def _in_catalog(cursor: Cursor, word: str) -> None:
    if cursor.accept("pg_catalog"):
        cursor.expect_symbol(".")
    cursor.expect(word)
