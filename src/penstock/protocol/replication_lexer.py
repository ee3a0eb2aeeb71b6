"""Text of a replication command to tokens, one at a time (repl_scanner.l).

In: the text. Out: tokens as PostgreSQL's scanner cuts them: key words in upper case only, names
folded and cut, the longest match first. Tokens are read when they are asked for, since PostgreSQL
never looks behind the first one of an SQL statement, nor behind an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from penstock.errors import SqlSyntaxError
from penstock.identifiers import fold, truncated
from penstock.lsn import Lsn


class TokenKind(Enum):
    """What a token is to the grammar."""

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
"""Key word -> major version that has it first."""

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
    """``version``: major version of the server that is played, since key words grew."""

    def __init__(self, text: str, version: int) -> None:
        self._text = text
        self._at = 0
        self._version = version

    def next(self) -> Token:
        """The next token, END at the end. Raises SqlSyntaxError for a string without an end."""
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
                return Token(TokenKind.IDENT, truncated(match["quoted"].replace('""', '"')))
            case _:
                return Token(TokenKind.CHARACTER, match[0])

    def _word(self, word: str) -> Token:
        if KEYWORDS.get(word, self._version + 1) <= self._version:
            return Token(TokenKind.KEYWORD, word)
        return Token(TokenKind.IDENT, truncated(fold(word)))


def _uint32(digits: str, base: int) -> int:
    """As strtoul and sscanf leave a number in 32 bits: saturated at 64 bits, then cut."""
    # More than 64 bits in any base here; Python refuses to read thousands of decimal digits.
    if len(digits.lstrip("0")) > 20:
        return _UINT32
    return min(int(digits, base), _ULONG_MAX) & _UINT32
