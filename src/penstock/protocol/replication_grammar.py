"""Replication commands: text to values (repl_gram.y).

In: what a walsender's client sent as a query. Out: whether it is a replication command at all, and
the command, or PostgreSQL's ``syntax error``. Key words are upper case; anything else is SQL and is
left to the SQL parser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.errors import SqlSyntaxError
from penstock.lsn import Lsn
from penstock.protocol import replication_commands as c
from penstock.protocol.replication_commands import Option, ReplicationCommand, ReplicationKind
from penstock.protocol.replication_lexer import Lexer, Token, TokenKind

LATEST_VERSION: Final = 18
_LISTED_OPTIONS_SINCE: Final = 15
_LEGACY_OPTIONS: Final = {
    "EXPORT_SNAPSHOT": Option("snapshot", "export"),
    "NOEXPORT_SNAPSHOT": Option("snapshot", "nothing"),
    "USE_SNAPSHOT": Option("snapshot", "use"),
    "RESERVE_WAL": Option("reserve_wal", True),
    "TWO_PHASE": Option("two_phase", True),
}
_Item = TypeVar("_Item")


def is_replication_command(text: str, version: int = LATEST_VERSION) -> bool:
    """By the first token alone (replication_scanner_is_replication_command).

    Raises SqlSyntaxError where that is a string without an end.
    """
    first = Lexer(text, version).next()
    return first.kind is TokenKind.KEYWORD and first.text in _COMMANDS


def parse_replication_command(text: str, version: int = LATEST_VERSION) -> ReplicationCommand:
    """``version``: major version of the server that is played, 14 to 18.

    Raises SqlSyntaxError (42601).
    """
    parser = _Parser(text, version)
    command = _COMMANDS.get(parser.keyword(), _syntax_error)(parser)
    parser.accept_character(";")
    parser.expect(TokenKind.END)
    return command


class _Parser:
    """One token of look-ahead, read no sooner than PostgreSQL's parser reads it."""

    def __init__(self, text: str, version: int) -> None:
        self.version = version
        self._lexer = Lexer(text, version)
        self._ahead: Token | None = None

    def peek(self) -> Token:
        if self._ahead is None:
            self._ahead = self._lexer.next()
        return self._ahead

    def take(self) -> Token:
        token, self._ahead = self.peek(), None
        return token

    def accept(self, keyword: str) -> bool:
        return self._accept(TokenKind.KEYWORD, keyword)

    def accept_character(self, character: str) -> bool:
        return self._accept(TokenKind.CHARACTER, character)

    def expect(self, kind: TokenKind) -> Token:
        token = self.take()
        if token.kind is not kind:
            raise SqlSyntaxError("syntax error")
        return token

    def expect_character(self, character: str) -> None:
        if not self.accept_character(character):
            raise SqlSyntaxError("syntax error")

    def keyword(self) -> str:
        return self.expect(TokenKind.KEYWORD).text

    def name(self) -> str:
        return self.expect(TokenKind.IDENT).text

    def list_of(self, item: Callable[[_Parser], _Item]) -> tuple[_Item, ...]:
        """One or more items with commas between them, in parentheses."""
        self.expect_character("(")
        items = [item(self)]
        while self.accept_character(","):
            items.append(item(self))
        self.expect_character(")")
        return tuple(items)

    def _accept(self, kind: TokenKind, text: str) -> bool:
        token = self.peek()
        if token.kind is not kind or token.text != text:
            return False
        self.take()
        return True


def _syntax_error(parser: _Parser) -> ReplicationCommand:
    raise SqlSyntaxError("syntax error")


def _variable_name(parser: _Parser) -> str:
    name = parser.name()
    while parser.accept_character("."):
        name = f"{name}.{parser.name()}"
    return name


def _create_slot(parser: _Parser) -> ReplicationCommand:
    slot_name = parser.name()
    temporary = parser.accept("TEMPORARY")
    plugin = None
    if parser.accept("LOGICAL"):
        kind, plugin = ReplicationKind.LOGICAL, parser.name()
    elif parser.accept("PHYSICAL"):
        kind = ReplicationKind.PHYSICAL
    else:
        raise SqlSyntaxError("syntax error")
    options = _create_slot_options(parser)
    return c.CreateReplicationSlot(slot_name, kind, temporary, plugin, options)


def _create_slot_options(parser: _Parser) -> tuple[Option, ...]:
    ahead = parser.peek()
    if ahead == Token(TokenKind.CHARACTER, "(") and parser.version >= _LISTED_OPTIONS_SINCE:
        return parser.list_of(_generic_option)
    options = []
    while (token := parser.peek()).kind is TokenKind.KEYWORD and token.text in _LEGACY_OPTIONS:
        options.append(_LEGACY_OPTIONS[parser.take().text])
    return tuple(options)


def _generic_option(parser: _Parser) -> Option:
    token = parser.take()
    if token.kind not in (TokenKind.IDENT, TokenKind.KEYWORD):
        raise SqlSyntaxError("syntax error")
    name = token.text.lower() if token.kind is TokenKind.KEYWORD else token.text
    value = parser.peek()
    if value.kind in (TokenKind.IDENT, TokenKind.SCONST):
        return Option(name, parser.take().text)
    if value.kind is TokenKind.UCONST:
        number = parser.take().number
        return Option(name, number - 2**32 if number >= 2**31 else number)  # makeInteger: int32
    return Option(name)


def _plugin_option(parser: _Parser) -> tuple[str, str | None]:
    name = parser.name()
    return name, parser.take().text if parser.peek().kind is TokenKind.SCONST else None


def _drop_slot(parser: _Parser) -> ReplicationCommand:
    return c.DropReplicationSlot(parser.name(), parser.accept("WAIT"))


def _alter_slot(parser: _Parser) -> ReplicationCommand:
    return c.AlterReplicationSlot(parser.name(), parser.list_of(_generic_option))


def _start_replication(parser: _Parser) -> ReplicationCommand:
    slot_name = parser.name() if parser.accept("SLOT") else None
    if slot_name is not None and parser.accept("LOGICAL"):
        start = Lsn(parser.expect(TokenKind.RECPTR).number)
        listed = parser.peek() == Token(TokenKind.CHARACTER, "(")
        options = parser.list_of(_plugin_option) if listed else ()
        return c.StartReplication(slot_name, ReplicationKind.LOGICAL, start, options=options)
    parser.accept("PHYSICAL")
    start = Lsn(parser.expect(TokenKind.RECPTR).number)
    timeline = _timeline(parser) if parser.accept("TIMELINE") else 0
    return c.StartReplication(slot_name, ReplicationKind.PHYSICAL, start, timeline)


def _timeline(parser: _Parser) -> int:
    timeline = parser.expect(TokenKind.UCONST).number
    if timeline == 0:
        raise SqlSyntaxError(f"invalid timeline {timeline}")
    return timeline


def _base_backup(parser: _Parser) -> ReplicationCommand:
    if parser.version < _LISTED_OPTIONS_SINCE:
        # Its options are a list of words there, of no interest to who refuses the command.
        while parser.peek().kind in (TokenKind.IDENT, TokenKind.SCONST, TokenKind.UCONST):
            parser.take()
        return c.BaseBackup()
    listed = parser.peek() == Token(TokenKind.CHARACTER, "(")
    return c.BaseBackup(parser.list_of(_generic_option) if listed else ())


_COMMANDS: Final[dict[str, Callable[[_Parser], ReplicationCommand]]] = {
    "IDENTIFY_SYSTEM": lambda parser: c.IdentifySystem(),
    "READ_REPLICATION_SLOT": lambda parser: c.ReadReplicationSlot(_variable_name(parser)),
    "SHOW": lambda parser: c.Show(_variable_name(parser)),
    "CREATE_REPLICATION_SLOT": _create_slot,
    "DROP_REPLICATION_SLOT": _drop_slot,
    "ALTER_REPLICATION_SLOT": _alter_slot,
    "START_REPLICATION": _start_replication,
    "TIMELINE_HISTORY": lambda parser: c.TimelineHistory(_timeline(parser)),
    "BASE_BACKUP": _base_backup,
    "UPLOAD_MANIFEST": lambda parser: c.UploadManifest(),
}
