"""SQL text to statements (parser.c, raw_parser), by PostgreSQL 18's own grammar.

In: text with one statement or several. Out: frozen statements in order. Commands that PostgreSQL
has and Penstock has not raise FeatureNotSupported (0A000) by name; anything else is PostgreSQL's
syntax error (42601).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from penstock.errors import SqlSyntaxError
from penstock.sql.grammar import (
    alter_table,
    copy,
    extensions,
    publication,
    role,
    session,
    subscription,
    table,
    type,
    vacuum,
)
from penstock.sql.grammar.libpg_query import parse_scanned, scan
from penstock.sql.grammar.names import Readers, any_name, not_supported
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.source import Source
from penstock.sql.grammar.statements import Statement
from penstock.sql.text.object_names import RangeVar

_READERS: Final[Readers] = {
    **alter_table.READERS,
    **copy.READERS,
    **extensions.READERS,
    **publication.READERS,
    **role.READERS,
    **session.READERS,
    **subscription.READERS,
    **table.READERS,
    **type.READERS,
    **vacuum.READERS,
}
_OBJECTS: Final = {
    "AlterObjectSchemaStmt": "objectType",
    "AlterOwnerStmt": "objectType",
    "AlterTableStmt": "objtype",
    "CreateTableAsStmt": "objtype",
    "DropStmt": "removeType",
    "RenameStmt": "renameType",
}
"""Statements about objects of any kind, and the field that says which."""
_CHANGES: Final = {
    "AlterObjectSchemaStmt": "SET SCHEMA",
    "AlterOwnerStmt": "OWNER TO",
    "RenameStmt": "RENAME",
}
_OTHERS: Final = {
    "CompositeTypeStmt": "CREATE TYPE of a composite type",
    "CreateRangeStmt": "CREATE TYPE ... AS RANGE",
    "CreateUserMappingStmt": "CREATE USER MAPPING",
    "AlterUserMappingStmt": "ALTER USER MAPPING",
    "DropUserMappingStmt": "DROP USER MAPPING",
}
_VERBS: Final = ("create", "alter", "drop", "set")
"""Words that say nothing without the one after them."""


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
    return [_statement(node, source) for node, source in _parsed(text)]


def parse_table_name(text: str) -> RangeVar:
    """A table's name and nothing else. Raises SqlSyntaxError."""
    found = list(_parsed(f"DROP TABLE {text}"))
    match found:
        case [({"DropStmt": {"objects": [{"List": name}]}}, source)]:
            parts = RawNode("List", name).names("items")
            if len(source.tokens) == 2 * len(parts) + 1:
                return any_name(parts)
            raise SqlSyntaxError(f'syntax error at or near "{source.last}"')
    raise SqlSyntaxError("a table's name was expected")


def _parsed(text: str) -> Iterator[tuple[Json, Source]]:
    """The nodes of the statements, and their text."""
    plain, found = extensions.rewrite(scan(text))
    tokens = plain.tokens
    data = text.encode()
    starts = [token.start for token in tokens]
    for statement in parse_scanned(plain):
        first = statement.get("stmt_location", 0)
        length = statement.get("stmt_len", 0)
        end = first + length if length else len(data)
        own = tokens[bisect_left(starts, first) : bisect_left(starts, end)]
        source = Source(data, own, end)
        yield found.restore(statement["stmt"], source), source


def _statement(node: Json, source: Source) -> Statement:
    raw = RawNode.of(node)
    kind = raw.kind
    if kind in _OBJECTS:
        kind += f" {raw.take(_OBJECTS[kind])}"
    reader = _READERS.get(kind)
    if reader is None:
        raise not_supported(_name(raw.kind, source))
    found = reader(raw, source)
    raw.done()
    return replace(found, notices=source.notices, span=source.span)


def _name(kind: str, source: Source) -> str:
    """The statement's name in a refusal."""
    if kind in _OTHERS:
        return _OTHERS[kind]
    words = [source.word(number) for number in range(4)]
    if words[1:3] == ["or", "replace"]:
        del words[1:3]
    name = " ".join(words[: 2 if words[0] in _VERBS else 1]).upper()
    return f"{name} ... {_CHANGES[kind]}" if kind in _CHANGES else name
