"""SQL text to statements (parser.c, raw_parser; gram.y, stmtmulti).

In: text with one statement or several. Out: frozen statements in order. Commands that PostgreSQL
has and Penstock has not raise FeatureNotSupported (0A000) by name; anything else is PostgreSQL's
syntax error (42601).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from penstock.errors import SqlSyntaxError
from penstock.sql import (
    copy_grammar,
    index_grammar,
    publication_grammar,
    role_grammar,
    session_grammar,
    subscription_grammar,
    table_grammar,
    transaction_grammar,
    type_grammar,
)
from penstock.sql.alter_table_grammar import alter_table
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.keywords import words
from penstock.sql.lexer import lex, tokens_of_statements
from penstock.sql.nesting import limited_depth
from penstock.sql.query_grammar import query
from penstock.sql.statements import Statement

Rule = Callable[[Cursor], Statement]

_OBJECTS: Final[dict[tuple[str, str], Rule]] = {
    ("create", "subscription"): subscription_grammar.create_subscription,
    ("alter", "subscription"): subscription_grammar.alter_subscription,
    ("drop", "subscription"): subscription_grammar.drop_subscription,
    ("create", "publication"): publication_grammar.create_publication,
    ("alter", "publication"): publication_grammar.alter_publication,
    ("drop", "publication"): publication_grammar.drop_publication,
    ("create", "role"): role_grammar.create_role,
    ("create", "group"): role_grammar.create_role,
    ("create", "user"): role_grammar.create_user,
    ("alter", "role"): role_grammar.alter_role,
    ("alter", "user"): role_grammar.alter_role,
    ("drop", "role"): role_grammar.drop_role,
    ("drop", "group"): role_grammar.drop_role,
    ("drop", "user"): role_grammar.drop_role,
    ("create", "table"): table_grammar.create_table,
    ("alter", "table"): alter_table,
    ("drop", "table"): table_grammar.drop_table,
    ("create", "unique"): index_grammar.create_unique_index,
    ("drop", "index"): index_grammar.drop_index,
    ("create", "schema"): table_grammar.create_schema,
    ("drop", "schema"): table_grammar.drop_schema,
    ("create", "type"): type_grammar.create_type,
    ("alter", "type"): type_grammar.alter_type,
    ("drop", "type"): type_grammar.drop_type,
}

_COMMANDS: Final[dict[str, Rule]] = {
    "grant": role_grammar.grant,
    "revoke": role_grammar.revoke,
    "set": session_grammar.set_statement,
    "reset": session_grammar.reset,
    "show": session_grammar.show,
    "discard": session_grammar.discard,
    "deallocate": session_grammar.deallocate,
    "close": session_grammar.close,
    "unlisten": session_grammar.unlisten,
    "begin": transaction_grammar.begin,
    "start": transaction_grammar.start,
    "commit": transaction_grammar.commit,
    "end": transaction_grammar.end,
    "rollback": transaction_grammar.rollback,
    "abort": transaction_grammar.abort,
    "copy": copy_grammar.copy,
    "truncate": copy_grammar.truncate,
}

_QUERIES: Final = words("select insert update delete merge values with explain table")

_OTHER_OBJECTS: Final = words(
    """
    access aggregate cast collation conversion database default domain event extension foreign
    function group index language large materialized operator or owned policy procedural procedure
    recursive routine rule schema sequence server statistics system tablespace temp temporary text
    transform trigger trusted unlogged view local global constraint
    """
)

_OTHER_COMMANDS: Final = words(
    """
    analyse analyze call checkpoint cluster comment declare do execute fetch import listen
    load lock move notify prepare reassign refresh reindex release savepoint security
    vacuum
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
    found = []
    for tokens in tokens_of_statements(lex(text)):
        statement = _limited(Cursor(tokens, text))
        start, end = tokens[0].start, tokens[-1].start
        found.append(replace(statement, span=(start, start + len(text[start:end].rstrip()))))
    return found


def _limited(cursor: Cursor) -> Statement:
    with limited_depth():
        return _statement(cursor)


def _statement(cursor: Cursor) -> Statement:
    if cursor.at_symbol("("):
        return query(cursor)
    verb = cursor.word()
    if verb in _QUERIES:
        return query(cursor)
    if verb in _COMMANDS:
        cursor.take()
        return _COMMANDS[verb](cursor)
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
