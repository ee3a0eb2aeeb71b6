"""Replication commands: text to values (repl_gram.y).

The parser decides whether a walsender's query is a replication command, and returns the command or
raises PostgreSQL's ``syntax error``. Key words are upper case. All other text is SQL, for the SQL
parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final, TypeVar

from penstock.errors import InvalidParameterValue, PenstockError, SqlSyntaxError
from penstock.guc import def_get_boolean
from penstock.identifiers import fold, truncate
from penstock.lsn import Lsn

# The commands (replnodes.h). Options are kept as written: those of a slot are interpreted here,
# the plugin interprets its own.


class ReplicationKind(Enum):
    """ReplicationKind of replnodes.h."""

    PHYSICAL = auto()
    LOGICAL = auto()


@dataclass(frozen=True, slots=True)
class Option:
    """An option. ``value``: a string, a number, or None if the option has none."""

    name: str
    value: str | int | bool | None = None


@dataclass(frozen=True, slots=True)
class IdentifySystem:
    """IDENTIFY_SYSTEM"""


@dataclass(frozen=True, slots=True)
class ReadReplicationSlot:
    """READ_REPLICATION_SLOT slot_name"""

    slot_name: str


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW name"""

    name: str


@dataclass(frozen=True, slots=True)
class CreateReplicationSlot:
    """CREATE_REPLICATION_SLOT slot_name [TEMPORARY] {PHYSICAL | LOGICAL plugin} [options]

    ``plugin``: None for PHYSICAL.
    """

    slot_name: str
    kind: ReplicationKind
    temporary: bool = False
    plugin: str | None = None
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterReplicationSlot:
    """ALTER_REPLICATION_SLOT slot_name (options)"""

    slot_name: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class DropReplicationSlot:
    """DROP_REPLICATION_SLOT slot_name [WAIT]"""

    slot_name: str
    wait: bool = False


@dataclass(frozen=True, slots=True)
class StartReplication:
    """START_REPLICATION [SLOT slot_name] [PHYSICAL | LOGICAL] start [TIMELINE t | (options)]

    ``timeline``: 0 if none is given. ``options``: of the output plugin; values are strings or None.
    """

    slot_name: str | None
    kind: ReplicationKind
    start: Lsn
    timeline: int = 0
    options: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """TIMELINE_HISTORY timeline"""

    timeline: int


@dataclass(frozen=True, slots=True)
class BaseBackup:
    """BASE_BACKUP [(options)]; recognised, so ``backend`` can refuse it"""

    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadManifest:
    """UPLOAD_MANIFEST; recognised, so ``backend`` can refuse it"""


ReplicationCommand = (
    IdentifySystem
    | ReadReplicationSlot
    | Show
    | CreateReplicationSlot
    | AlterReplicationSlot
    | DropReplicationSlot
    | StartReplication
    | TimelineHistory
    | BaseBackup
    | UploadManifest
)


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
    """Decide by the first token alone (replication_scanner_is_replication_command).

    Raises SqlSyntaxError if that token is a string without an end.
    """
    first = Lexer(text, version).next()
    return first.kind is TokenKind.KEYWORD and first.text in _COMMANDS


def parse_replication_command(
    text: str, version: int = LATEST_VERSION, notice: Callable[[str], None] = lambda _: None
) -> ReplicationCommand:
    """Parse a command. ``version``: major version that the node reports as its own, 14 to 18.
    ``notice`` takes the NOTICE (42622) of each name that is cut.

    Raises SqlSyntaxError (42601).
    """
    parser = _Parser(Lexer(text, version, notice), version)
    command = _COMMANDS.get(parser.keyword(), _syntax_error)(parser)
    parser.accept_character(";")
    parser.expect(TokenKind.END)
    return command


class _Parser:
    """A parser with one token of look-ahead, read no sooner than PostgreSQL's parser reads it."""

    def __init__(self, lexer: Lexer, version: int) -> None:
        self.version = version
        self._lexer = lexer
        self._lookahead: Token | None = None

    def peek(self) -> Token:
        if self._lookahead is None:
            self._lookahead = self._lexer.next()
        return self._lookahead

    def take(self) -> Token:
        token, self._lookahead = self.peek(), None
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
        """Read one or more items with commas between them, in parentheses."""
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
    return CreateReplicationSlot(slot_name, kind, temporary, plugin, options)


def _create_slot_options(parser: _Parser) -> tuple[Option, ...]:
    token = parser.peek()
    if token == Token(TokenKind.CHARACTER, "(") and parser.version >= _LISTED_OPTIONS_SINCE:
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
    return DropReplicationSlot(parser.name(), parser.accept("WAIT"))


def _alter_slot(parser: _Parser) -> ReplicationCommand:
    return AlterReplicationSlot(parser.name(), parser.list_of(_generic_option))


def _start_replication(parser: _Parser) -> ReplicationCommand:
    slot_name = parser.name() if parser.accept("SLOT") else None
    if slot_name is not None and parser.accept("LOGICAL"):
        start = Lsn(parser.expect(TokenKind.RECPTR).number)
        listed = parser.peek() == Token(TokenKind.CHARACTER, "(")
        options = parser.list_of(_plugin_option) if listed else ()
        return StartReplication(slot_name, ReplicationKind.LOGICAL, start, options=options)
    parser.accept("PHYSICAL")
    start = Lsn(parser.expect(TokenKind.RECPTR).number)
    timeline = _timeline(parser) if parser.accept("TIMELINE") else 0
    return StartReplication(slot_name, ReplicationKind.PHYSICAL, start, timeline)


def _timeline(parser: _Parser) -> int:
    timeline = parser.expect(TokenKind.UCONST).number
    if timeline == 0:
        raise SqlSyntaxError(f"invalid timeline {timeline}")
    return timeline


def _base_backup(parser: _Parser) -> ReplicationCommand:
    if parser.version < _LISTED_OPTIONS_SINCE:
        # In these versions the options are a list of words. They are ignored, since the command is
        # refused.
        while parser.peek().kind in (TokenKind.IDENT, TokenKind.SCONST, TokenKind.UCONST):
            parser.take()
        return BaseBackup()
    listed = parser.peek() == Token(TokenKind.CHARACTER, "(")
    return BaseBackup(parser.list_of(_generic_option) if listed else ())


_COMMANDS: Final[dict[str, Callable[[_Parser], ReplicationCommand]]] = {
    "IDENTIFY_SYSTEM": lambda parser: IdentifySystem(),
    "READ_REPLICATION_SLOT": lambda parser: ReadReplicationSlot(_variable_name(parser)),
    "SHOW": lambda parser: Show(_variable_name(parser)),
    "CREATE_REPLICATION_SLOT": _create_slot,
    "DROP_REPLICATION_SLOT": _drop_slot,
    "ALTER_REPLICATION_SLOT": _alter_slot,
    "START_REPLICATION": _start_replication,
    "TIMELINE_HISTORY": lambda parser: TimelineHistory(_timeline(parser)),
    "BASE_BACKUP": _base_backup,
    "UPLOAD_MANIFEST": lambda parser: UploadManifest(),
}


# Cut the text of a replication command into tokens, one at a time (repl_scanner.l).
#
# Tokens are those of PostgreSQL's scanner: key words in upper case only, names folded and
# truncated, the longest match first. A token is read only when it is needed, since PostgreSQL reads
# only the first token of an SQL statement, and none after an error.


class TokenKind(Enum):
    """The kind of a token in the grammar."""

    KEYWORD = auto()
    IDENT = auto()
    SCONST = auto()
    UCONST = auto()
    RECPTR = auto()
    CHARACTER = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """``text``: key word, name, decoded string or character; ``number``: of UCONST and RECPTR."""

    kind: TokenKind
    text: str = field(default="", repr=False)
    number: int = 0


KEYWORDS: Final = {
    word: since
    for since, words in {
        14: (
            "BASE_BACKUP IDENTIFY_SYSTEM SHOW TIMELINE START_REPLICATION CREATE_REPLICATION_SLOT"
            " DROP_REPLICATION_SLOT TIMELINE_HISTORY PHYSICAL RESERVE_WAL LOGICAL SLOT TEMPORARY"
            " EXPORT_SNAPSHOT NOEXPORT_SNAPSHOT USE_SNAPSHOT WAIT"
        ),
        15: "READ_REPLICATION_SLOT TWO_PHASE",
        17: "ALTER_REPLICATION_SLOT UPLOAD_MANIFEST",
    }.items()
    for word in words.split()
}
"""Key words -> the major version that has each first."""

_UINT32: Final = 0xFFFFFFFF
_ULONG_MAX: Final = (1 << 64) - 1
_TOKEN: Final = re.compile(
    r"""(?P<recptr> (?P<high>[0-9A-Fa-f]+)/(?P<low>[0-9A-Fa-f]+) )
      | (?P<digits> [0-9]+ )
      | (?P<word> [A-Za-z_\x80-\U0010ffff][A-Za-z_\x80-\U0010ffff0-9$]* )
      | '(?P<string> (?:[^']|'')*+ )'
      | "(?P<quoted> (?:[^"]|"")*+ )"
      | (?P<open> ['"] )
      | (?P<character> . )""",
    re.VERBOSE | re.DOTALL,
)
_SPACE: Final = re.compile(r"[ \t\n\r\f\v]*")


class Lexer:
    """The scanner. ``version``: the major version that the node reports; key words depend on it."""

    def __init__(
        self, text: str, version: int, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self._text = text
        self._at = 0
        self._version = version
        self._notice = notice

    def next(self) -> Token:
        """Return the next token, END at the end. Raises SqlSyntaxError if a string has no end."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            return Token(TokenKind.END)
        if match["open"]:
            raise SqlSyntaxError("unterminated quoted string")
        self._at = match.end()
        return self._token(match)

    def _token(self, match: re.Match[str]) -> Token:
        match match.lastgroup:
            case "recptr":
                high, low = _uint32(match["high"], 16), _uint32(match["low"], 16)
                return Token(TokenKind.RECPTR, match[0], Lsn(high << 32 | low))
            case "digits":
                return Token(TokenKind.UCONST, match[0], _uint32(match[0], 10))
            case "word":
                return self._word(match[0])
            case "string":
                return Token(TokenKind.SCONST, match["string"].replace("''", "'"))
            case "quoted":
                return self._name(match["quoted"].replace('""', '"'))
            case _:
                return Token(TokenKind.CHARACTER, match[0])

    def _word(self, word: str) -> Token:
        if KEYWORDS.get(word, self._version + 1) <= self._version:
            return Token(TokenKind.KEYWORD, word)
        return self._name(fold(word))

    def _name(self, text: str) -> Token:
        name, notice = truncate(text)
        if notice is not None:
            self._notice(notice)
        return Token(TokenKind.IDENT, name)


def _uint32(digits: str, base: int) -> int:
    """Read a number into 32 bits as strtoul and sscanf do: saturated at 64 bits, then cut."""
    # More than 20 digits are more than 64 bits in any base here, and Python refuses to read
    # thousands of decimal digits.
    if len(digits.lstrip("0")) > 20:
        return _UINT32
    return min(int(digits, base), _ULONG_MAX) & _UINT32


# Interpret the options of slot commands (walsender.c, parseCreateReplSlotOptions; define.c).
#
# The walsender checks whether the slot exists and whether a snapshot can be exported.

_FAILOVER_SINCE: Final = 17
_ALTER_TWO_PHASE_SINCE: Final = 18


class SnapshotAction(StrEnum):
    """The use of the snapshot at the slot's consistent point (CRSSnapshotAction)."""

    EXPORT = "export"
    NOTHING = "nothing"
    USE = "use"


@dataclass(frozen=True, slots=True)
class CreateSlotOptions:
    """Options of CREATE_REPLICATION_SLOT with their defaults."""

    snapshot: SnapshotAction = SnapshotAction.EXPORT
    reserve_wal: bool = False
    two_phase: bool = False
    failover: bool = False


@dataclass(frozen=True, slots=True)
class AlterSlotOptions:
    """Options of ALTER_REPLICATION_SLOT; None leaves an option as it is."""

    failover: bool | None = None
    two_phase: bool | None = None


def create_slot_options(
    command: CreateReplicationSlot, version: int = LATEST_VERSION
) -> CreateSlotOptions:
    """Return the checked options of CREATE_REPLICATION_SLOT.

    Raises SqlSyntaxError (42601), InvalidParameterValue (22023), PenstockError (XX000).
    """
    logical = command.kind is ReplicationKind.LOGICAL
    fitting = {"snapshot": logical, "reserve_wal": not logical, "two_phase": logical}
    if version >= _FAILOVER_SINCE:
        fitting["failover"] = logical
    snapshot = SnapshotAction.EXPORT
    flags: dict[str, bool] = {}
    for option in _without_duplicates(command.options, fitting):
        if not fitting[option.name]:
            raise _conflicting()
        if option.name == "snapshot":
            snapshot = _snapshot_action(option)
        else:
            flags[option.name] = def_get_boolean(option.name, option.value)
    return CreateSlotOptions(snapshot, **flags)


def alter_slot_options(
    command: AlterReplicationSlot, version: int = LATEST_VERSION
) -> AlterSlotOptions:
    """Return the checked options of ALTER_REPLICATION_SLOT.

    Raises SqlSyntaxError (42601), PenstockError (XX000).
    """
    known = {"failover", "two_phase"} if version >= _ALTER_TWO_PHASE_SINCE else {"failover"}
    options = _without_duplicates(command.options, known)
    return AlterSlotOptions(
        **{option.name: def_get_boolean(option.name, option.value) for option in options}
    )


def _snapshot_action(option: Option) -> SnapshotAction:
    if option.value is None:
        raise SqlSyntaxError(f"{option.name} requires a parameter")
    try:
        return SnapshotAction(str(option.value))
    except ValueError:
        raise InvalidParameterValue(
            f"unrecognized value for CREATE_REPLICATION_SLOT option"
            f' "{option.name}": "{option.value}"'
        ) from None


def _without_duplicates(options: Iterable[Option], known: Iterable[str]) -> Iterable[Option]:
    """Yield options in order, so the first error in the text is reported."""
    seen: set[str] = set()
    for option in options:
        if option.name not in known:
            raise PenstockError(f"unrecognized option: {option.name}")
        if option.name in seen:
            raise _conflicting()
        seen.add(option.name)
        yield option


def _conflicting() -> SqlSyntaxError:
    return SqlSyntaxError("conflicting or redundant options")
