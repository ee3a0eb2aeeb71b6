"""SQL text to statements (parser.c, raw_parser; gram.y, stmtmulti).

In: text with one statement or several. Out: frozen statements in order. Commands that PostgreSQL
has and Penstock has not raise FeatureNotSupported (0A000) by name; anything else is PostgreSQL's
syntax error (42601).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import SqlSyntaxError
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.keywords import words
from penstock.sql.lexer import lex, tokens_of_statements
from penstock.sql.select_grammar import refusal, select
from penstock.sql.statements import Statement
from penstock.sql.subscription_grammar import (
    alter_subscription,
    create_subscription,
    drop_subscription,
)

_OBJECTS: Final[dict[tuple[str, str], Callable[[Cursor], Statement]]] = {
    ("create", "subscription"): create_subscription,
    ("alter", "subscription"): alter_subscription,
    ("drop", "subscription"): drop_subscription,
}

_OTHER_OBJECTS: Final = words(
    """
    access aggregate cast collation conversion database default domain event extension foreign
    function group index language large materialized operator or owned policy procedural procedure
    publication recursive role routine rule schema sequence server statistics system table
    tablespace temp temporary text transform trigger trusted type unique unlogged user view
    """
)

_OTHER_COMMANDS: Final = words(
    """
    abort analyse analyze begin call checkpoint close cluster comment commit copy deallocate declare
    delete discard do end execute explain fetch grant import insert listen load lock merge move
    notify prepare reassign refresh reindex release reset revoke rollback savepoint security set
    show start table truncate unlisten update vacuum values with
    """
)


def parse(text: str) -> Statement:
    """One statement; a semicolon may end it.

    Raises SqlSyntaxError, FeatureNotSupported; also SqlSyntaxError when there is none, or more than
    one (as PostgreSQL's extended query protocol does).
    """
    statements = parse_script(text)
    if not statements:
        raise SqlSyntaxError("syntax error at end of input")
    if len(statements) > 1:
        raise SqlSyntaxError("cannot insert multiple commands into a prepared statement")
    return statements[0]


def parse_script(text: str) -> list[Statement]:
    """All statements of a text, separated by semicolons; the first mistake anywhere raises."""
    return [_statement(Cursor(tokens)) for tokens in tokens_of_statements(lex(text))]


def _statement(cursor: Cursor) -> Statement:
    if cursor.accept_symbol("("):
        raise refusal(cursor)
    verb = cursor.word()
    if verb == "select":
        cursor.take()
        return select(cursor)
    if verb in _OTHER_COMMANDS:
        raise not_supported(verb.upper())
    if verb not in ("create", "alter", "drop"):
        raise cursor.syntax_error()
    cursor.take()
    what = cursor.word() or ""
    rule = _OBJECTS.get((verb, what))
    if rule is not None:
        cursor.take()
        return rule(cursor)
    if what in _OTHER_OBJECTS:
        raise not_supported(f"{verb} {what}".upper())
    raise cursor.syntax_error()
