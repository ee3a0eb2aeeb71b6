"""Parse SQL text into statements with PostgreSQL 18's own grammar (parser.c, raw_parser).

A text with one or several statements becomes frozen statements in order. Commands that PostgreSQL
has and Penstock does not have raise FeatureNotSupported (0A000), which names the command. Text that
PostgreSQL cannot parse raises PostgreSQL's syntax error (42601).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.errors import SqlSyntaxError
from penstock.sql.grammar import (
    alter_table,
    copy,
    publication,
    raw_statements,
    role,
    session,
    subscription,
    table,
    type,
    vacuum,
)
from penstock.sql.grammar.libpg_query import (
    Scanned,
    Token,
    parse_scanned,
    parse_tree,
    scan,
    take_any,
)
from penstock.sql.grammar.names import Readers, any_name, any_names, not_supported
from penstock.sql.grammar.parsenodes import RangeVar, Statement
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.source import START, Source
from penstock.sql.grammar.subscription import AlterSubscriptionRefreshTables

# Parse forms that PostgreSQL's grammar lacks: REPLICA IDENTITY USING KEY (columns) of ALTER TABLE,
# and ALTER SUBSCRIPTION name REFRESH TABLE tables.
#
# In the rewritten text, which has the same length, a similar form that PostgreSQL's parser accepts
# stands in place of each form of ours; ``Extensions`` notes what it stands for. PostgreSQL's parser
# reads the rest of the statement, so a mistake there is a syntax error as usual.

_KEY: Final = (Token.REPLICA, Token.IDENTITY_P, Token.USING, Token.KEY, Token.ASCII_40)
_NOTHING: Final = (Token.REPLICA, Token.IDENTITY_P, Token.NOTHING)
_REFRESH: Final = (Token.REFRESH, Token.TABLE)
_ENDS: Final = (Token.ASCII_40, Token.ASCII_59)


@dataclass
class Extensions:
    """The forms in a text that only Penstock has.

    ``keys``: for each REPLICA IDENTITY NOTHING of the rewritten text, in order: the columns if it
    stands for USING KEY, else None. ``refreshed``: the subscriptions of REFRESH TABLE, by the
    statement's byte offset.
    """

    keys: list[list[Json] | None] = field(default_factory=list)
    refreshed: dict[int, str] = field(default_factory=dict)

    def restore(self, node: dict[str, Any], source: Source) -> Json:
        """Put our own nodes back into a statement, in place of the nodes that stood for them."""
        name = self.refreshed.get(source.tokens[0].start)
        if name is not None:
            if source.tokens[-1].kind == Token.RESTRICT and _is_behavior(source):
                raise SqlSyntaxError(f'syntax error at or near "{source.last}"')
            return {"RefreshTables": {**node["DropStmt"], "subname": name}}
        for command in node.get("AlterTableStmt", {}).get("cmds", ()):
            identity = command["AlterTableCmd"].get("def", {}).get("ReplicaIdentityStmt", {})
            if self.keys and identity.get("identity_type") == "n":
                columns = self.keys.pop(0)
                if columns is not None:
                    identity.update(identity_type="i", columns=columns)
        return node


def rewrite(scanned: Scanned) -> tuple[Scanned, Extensions]:
    """Return a text that PostgreSQL's parser accepts. Raises SqlSyntaxError within our forms."""
    found, tokens = Extensions(), scanned.tokens
    kinds = tuple(token.kind for token in tokens)
    if Token.KEY not in kinds and Token.REFRESH not in kinds:
        return scanned, found
    data = bytearray(scanned.text.encode())
    for at in range(len(tokens)):
        if kinds[at : at + 5] == _KEY and (last := _closing(kinds, at + 5)):
            columns = data[tokens[at + 4].start : tokens[last].end].decode()
            (grant,) = parse_tree(f"GRANT SELECT {columns} ON t TO r")
            found.keys.append(grant["GrantStmt"]["privileges"][0]["AccessPriv"]["cols"])
            _replace(data, tokens[at + 2].start, tokens[last].end, b"NOTHING")
        elif kinds[at : at + 3] == _NOTHING:
            found.keys.append(None)
        elif kinds[at : at + 2] == (Token.ALTER, Token.SUBSCRIPTION) and (
            kinds[at + 3 : at + 5] == _REFRESH and (not at or kinds[at - 1] == Token.ASCII_59)
        ):
            name = data[tokens[at + 2].start : tokens[at + 2].end].decode()
            (enable,) = parse_tree(f"ALTER SUBSCRIPTION {name} ENABLE")
            found.refreshed[tokens[at].start] = enable["AlterSubscriptionStmt"]["subname"]
            _replace(data, tokens[at].start, tokens[at + 4].end, b"DROP TABLE")
    return replace(scanned, text=data.decode()), found


def _closing(kinds: Sequence[int], start: int) -> int | None:
    """Return the token ")" that ends a list of names; None if the list has other tokens."""
    for at in range(start, len(kinds)):
        if kinds[at] == Token.ASCII_41:
            return at
        if kinds[at] in _ENDS:
            break
    return None


def _replace(data: bytearray, start: int, end: int, by: bytes) -> None:
    data[start:end] = by.ljust(end - start)


def _is_behavior(source: Source) -> bool:
    """Tell whether the last word, RESTRICT, follows a name, so that it is not a name itself."""
    before = source.tokens[-2].kind
    return before not in (Token.ASCII_44, Token.ASCII_46, Token.TABLE)


def _refresh_tables(raw: RawNode, _source: Source) -> AlterSubscriptionRefreshTables:
    name, tables = raw.take("subname"), any_names(raw, "objects")
    raw.ignore("removeType")
    if raw.take("missing_ok"):
        raise SqlSyntaxError('syntax error at or near "EXISTS"')
    if raw.take("behavior") != "DROP_RESTRICT":
        raise SqlSyntaxError('syntax error at or near "CASCADE"')
    return AlterSubscriptionRefreshTables(name, tables)


READERS: Final[Readers] = {"RefreshTables": _refresh_tables}


_READERS: Final[Readers] = {
    **alter_table.READERS,
    **copy.READERS,
    **READERS,
    **publication.READERS,
    **raw_statements.READERS,
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
"""Statements that serve several kinds of object, and the field that holds the kind of object."""
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
"""Words that name a statement only together with the next word."""


def parse(text: str, take: Callable[[int], None] = take_any) -> Statement:
    """Parse one statement; a semicolon may end it. ``take``: as in ``parse_scanned``.

    Raises FeatureNotSupported, SqlSyntaxError. No statement, or more than one, is a syntax error,
    as in PostgreSQL's extended query protocol.
    """
    statements = parse_script(text, take)
    if not statements:
        raise SqlSyntaxError("syntax error at end of input")
    if len(statements) > 1:
        raise SqlSyntaxError("cannot insert multiple commands into a prepared statement")
    return statements[0]


def parse_script(text: str, take: Callable[[int], None] = take_any) -> list[Statement]:
    """Parse all statements of a text, separated by semicolons; raise the first error. ``take``: as
    in ``parse_scanned``."""
    return [_statement(node, source) for node, source in _parsed(text, take)]


def parse_table_name(text: str) -> RangeVar:
    """Parse a table's name and nothing else. Raises SqlSyntaxError."""
    found = list(_parsed(f"DROP TABLE {text}"))
    match found:
        case [({"DropStmt": {"objects": [{"List": name}]}}, source)]:
            parts = RawNode("List", name).names("items")
            if len(source.tokens) == 2 * len(parts) + 1:
                return any_name(parts)
            raise SqlSyntaxError(f'syntax error at or near "{source.last}"')
    raise SqlSyntaxError("a table's name was expected")


def _parsed(text: str, take: Callable[[int], None] = take_any) -> Iterator[tuple[Json, Source]]:
    """Yield the node and the text of each statement."""
    plain, found = rewrite(scan(text))
    tokens = plain.tokens
    data = (plain.text if plain.lists else text).encode()
    for statement in parse_scanned(plain, take):
        first = statement.get("stmt_location", 0)
        length = statement.get("stmt_len", 0)
        end = first + length if length else len(data)
        own = tokens[bisect_left(tokens, first, key=START) : bisect_left(tokens, end, key=START)]
        source = Source(data, own)
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
    return replace(found, notices=source.notices)


def _name(kind: str, source: Source) -> str:
    """Return the statement's name for the error that refuses it."""
    if kind in _OTHERS:
        return _OTHERS[kind]
    words = [source.word(number) for number in range(4)]
    if words[1:3] == ["or", "replace"]:
        del words[1:3]
    name = " ".join(words[: 2 if words[0] in _VERBS else 1]).upper()
    return f"{name} ... {_CHANGES[kind]}" if kind in _CHANGES else name
