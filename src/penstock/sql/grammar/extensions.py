"""What PostgreSQL's grammar has not: REPLICA IDENTITY USING KEY (columns) of ALTER TABLE, and ALTER
SUBSCRIPTION name REFRESH TABLE tables.

In: a text as PostgreSQL's scanner has cut it. Out: a text of the same length that its parser takes,
where each form of ours stands as another that is like it, and what to make of the nodes of those.
Whatever is written around them is PostgreSQL's, so that each is read whole or is a syntax error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import SqlSyntaxError
from penstock.sql.grammar.libpg_query import Scanned, Token, parse_tree
from penstock.sql.grammar.names import Readers, any_names
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.source import Source
from penstock.sql.grammar.subscription import AlterSubscriptionRefreshTables

_KEY: Final = (Token.REPLICA, Token.IDENTITY_P, Token.USING, Token.KEY, Token.ASCII_40)
_NOTHING: Final = (Token.REPLICA, Token.IDENTITY_P, Token.NOTHING)
_REFRESH: Final = (Token.REFRESH, Token.TABLE)
_ENDS: Final = (Token.ASCII_40, Token.ASCII_59)


@dataclass
class Extensions:
    """``keys``: for each REPLICA IDENTITY NOTHING of the text, in order, the columns that stood
    there; ``refreshed``: subscriptions, by the place where the statement begins."""

    keys: list[list[Json] | None] = field(default_factory=list)
    refreshed: dict[int, str] = field(default_factory=dict)

    def restore(self, node: dict[str, Any], source: Source) -> Json:
        """A statement with its own nodes in place of those that stood for them."""
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
    """The text that PostgreSQL's parser takes. Raises SqlSyntaxError for columns and names."""
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
    return Scanned(data.decode(), tokens), found


def _closing(kinds: Sequence[int], start: int) -> int | None:
    """The parenthesis that ends a list of names; None where something else comes before it."""
    for at in range(start, len(kinds)):
        if kinds[at] == Token.ASCII_41:
            return at
        if kinds[at] in _ENDS:
            break
    return None


def _replace(data: bytearray, start: int, end: int, by: bytes) -> None:
    data[start:end] = by.ljust(end - start)


def _is_behavior(source: Source) -> bool:
    """Whether the last word comes after a name, and so is none itself."""
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
