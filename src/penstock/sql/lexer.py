"""SQL text to tokens (scan.l), on sqlglot's PostgreSQL tokenizer.

In: text. Out: tokens as PostgreSQL's lexer cuts them, names folded and strings decoded. sqlglot
finds where words, quotes and comments begin and end; what PostgreSQL does its own way (runs of
operator characters, numbers with junk behind them, escapes, continued strings) is read from the
source. An error is a token of its own, since PostgreSQL reports a syntax error in front of it
first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import pairwise
from typing import Any, ClassVar, Final

from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import TokenError

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.identifiers import fold, truncate
from penstock.sql.comments import scan
from penstock.sql.strings import decode_escapes, decode_unicode


class Kind(Enum):
    """What a token is to the grammar."""

    WORD = auto()
    QUOTED = auto()
    STRING = auto()
    INTEGER = auto()
    FLOAT = auto()
    SYMBOL = auto()
    OTHER = auto()
    ERROR = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """``value``: folded name, decoded string, or the source; ``start``: offset in the text."""

    kind: Kind
    value: str = field(repr=False)
    source: str = field(repr=False)
    start: int
    error: PenstockError | None = None
    notice: str | None = None


class _Tokenizer(Postgres.Tokenizer):
    """Without key words: every word is a word, and no statement is swallowed as a command.

    Without bit strings, since sqlglot looks into them.
    """

    KEYWORDS: ClassVar[dict[str, Any]] = {}
    COMMANDS: ClassVar[set[Any]] = set()
    BIT_STRINGS: ClassVar[list[Any]] = []
    HEX_STRINGS: ClassVar[list[Any]] = []


_DIGITS: Final = r"\d(?:_?\d)*"
_NUMBER: Final = re.compile(
    rf"""(?: (?P<radix> 0[xX](?:_?[0-9A-Fa-f])+ | 0[oO](?:_?[0-7])+ | 0[bB](?:_?[01])+ )
          | (?P<float> {_DIGITS}\.(?!\.)(?:{_DIGITS})? (?:[eE][+-]?{_DIGITS})?
                     | \.{_DIGITS} (?:[eE][+-]?{_DIGITS})?
                     | {_DIGITS}[eE][+-]?{_DIGITS} )
          | (?P<integer> {_DIGITS} )
          | (?P<parameter> \$\d+ ) )
        (?P<junk> [A-Za-z_\x80-\U0010ffff][\w$]* )?""",
    re.VERBOSE | re.ASCII,
)
_PARAMETER: Final = re.compile(r"(?<![\w$])\$(?=\d)")
"""In ``$1,$2`` sqlglot would look for the end of a string; only where tokens end matters."""
_OPERATOR: Final = re.compile(r"(?:(?!--|/\*)[~!@#^&|`?+\-*/%<>=])+")
_LONGER: Final = re.compile(
    rf"""{_NUMBER.pattern} | [uU]&"(?:[^"]|"")*" | [bBxX]'(?:[^']|'')*' | :: | := | \.\.""",
    _NUMBER.flags,
)
_CONTINUED: Final = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:\s|--[^\n\r]*[\n\r])*\Z")
_FIXED: Final = frozenset([*"()[],.;:", "::", ":=", ".."])
_KEEPS_SIGN: Final = frozenset("~!@#^&|`?%")
_PARAMETER_DIGITS: Final = 11
MAX_DIGITS: Final = 3500
"""Of a number. Python refuses to read or write more than 4300 digits of one, be it hexadecimal."""
_RADIX_NAMES: Final = {"0x": "hexadecimal", "0o": "octal", "0b": "binary"}


def lex(text: str) -> list[Token]:
    """All tokens of ``text``; the last is of kind END, or ERROR where the text cannot go on."""
    scanned = scan(text)
    cuts = _tokenize(scanned.text[: scanned.end])
    last = Token(Kind.END, "", "", len(text))
    if scanned.unterminated:
        last = _wrong(scanned.unterminated, text[scanned.end :], scanned.end)
    tokens: list[Token] = []
    end = 0
    for cut in cuts:
        if cut.start < end:
            continue
        previous_end, end = end, _token_end(text, cut.start, cut.end + 1)
        start = cut.start
        if text[start : start + 2] in ("n'", "N'") and end > start + 1:
            tokens.append(Token(Kind.WORD, "nchar", text[start], start))
            start += 1
        token = _token(text[start:end], start)
        if tokens and _continues(tokens[-1], text[previous_end:start], token):
            tokens[-1] = _concatenated(tokens[-1], token)
        else:
            tokens.append(token)
    return _looked_ahead(tokens, last)


def _looked_ahead(tokens: list[Token], last: Token) -> list[Token]:
    """base_yylex reads the token after a U& one, for UESCAPE, before it reads the escapes: of two
    errors the later one is told."""
    return [
        following
        if _wrongly_escaped(token)
        and following.kind is Kind.ERROR
        and (following is last or not _wrongly_escaped(following))
        else token
        for token, following in pairwise([*tokens, last])
    ] + [last]


def _wrongly_escaped(token: Token) -> bool:
    escaped = token.kind is Kind.ERROR and token.source[:2].lower() == "u&"
    return escaped and len(token.source) != len('u&""')


def _tokenize(text: str) -> list[Any]:
    """sqlglot's tokens of a text without comments, in which every quote ends."""
    try:
        return _Tokenizer().tokenize(_PARAMETER.sub("_", text))
    except TokenError as error:
        raise SqlSyntaxError("syntax error") from error


def near(source: str) -> str:
    """A piece of source as a message may show it: a string may hold a password (law 9)."""
    return "'***'" if re.search(r"pass(word|file)|://", source, re.IGNORECASE) else source


def _token_end(text: str, start: int, end: int) -> int:
    """Where PostgreSQL ends the token that sqlglot ends at ``end``."""
    if operator := _OPERATOR.match(text, start):
        return start + len(_operator(operator[0]))
    longer = _LONGER.match(text, start)
    return longer.end() if longer else end


def _operator(run: str) -> str:
    """A run of operator characters without the signs behind it that are none of it."""
    if set(run) & _KEEPS_SIGN:
        return run
    return run[0] + run[1:].rstrip("+-")


def _token(source: str, start: int) -> Token:
    try:
        return _classified(source, start)
    except PenstockError as error:
        return Token(Kind.ERROR, "", source, start, error=error)


def _classified(source: str, start: int) -> Token:
    prefix = source[:3].lower()
    if prefix == 'u&"':
        return _quoted_name(decode_unicode(source[3:-1].replace('""', '"')), source, start)
    if prefix == "u&'":
        return Token(Kind.STRING, decode_unicode(source[3:-1]), source, start)
    if source[0] == '"':
        return _quoted_name(source[1:-1].replace('""', '"'), source, start)
    if source[0] == "'":
        return Token(Kind.STRING, source[1:-1].replace("''", "'"), source, start)
    if prefix[:2] == "e'":
        return Token(Kind.STRING, decode_escapes(source[2:-1]), source, start)
    if source[0] == "$" and source[-1] == "$" and len(source) > 1:
        tag = source.index("$", 1) + 1
        return Token(Kind.STRING, source[tag:-tag], source, start)
    if number := _NUMBER.fullmatch(source):
        return _number(number, start)
    if (source[0].isalpha() or source[0] == "_" or source[0] > "\x7f") and "'" not in source:
        name, notice = truncate(fold(source))
        return Token(Kind.WORD, name, source, start, notice=notice)
    known = source in _FIXED or _OPERATOR.fullmatch(source) is not None
    return Token(Kind.SYMBOL if known else Kind.OTHER, source, source, start)


def _quoted_name(name: str, source: str, start: int) -> Token:
    if not name:
        return _wrong("zero-length delimited identifier", source, start)
    name, notice = truncate(name)
    return Token(Kind.QUOTED, name, source, start, notice=notice)


def _number(match: re.Match[str], start: int) -> Token:
    source, radix = match[0], match["radix"]
    if match["parameter"]:
        if match["junk"]:
            return _wrong("trailing junk after parameter", source, start)
        if int(source[1:].lstrip("0")[:_PARAMETER_DIGITS] or 0) > 0x7FFFFFFF:
            return _wrong("parameter number too large", source, start)
        return Token(Kind.OTHER, source, source, start)
    if source.lower() in _RADIX_NAMES:
        return _wrong(f"invalid {_RADIX_NAMES[source.lower()]} integer", source, start)
    if match["junk"]:
        return _wrong("trailing junk after numeric literal", source, start)
    if len(source) > MAX_DIGITS:
        raise FeatureNotSupported(f"numbers of more than {MAX_DIGITS} digits are not supported")
    if match["float"]:
        return Token(Kind.FLOAT, source, source, start)
    number = int(source, 0) if radix else int(source)
    if number > 0x7FFFFFFF:  # process_integer_literal: text, since it does not fit an int
        return Token(Kind.FLOAT, source, source, start)
    return Token(Kind.INTEGER, str(number), source, start)


def _wrong(what: str, source: str, start: int) -> Token:
    error = SqlSyntaxError(f'{what} at or near "{near(source)}"')
    return Token(Kind.ERROR, "", source, start, error=error)


def _continues(previous: Token, gap: str, token: Token) -> bool:
    """Whether two strings are one, as SQL has it for strings with a line break between them."""
    strings = previous.kind is Kind.STRING and token.kind is Kind.STRING
    if not strings or previous.source[0] == "$" or token.source[0] != "'":
        return False
    return _CONTINUED.match(gap) is not None


def _concatenated(first: Token, second: Token) -> Token:
    value = second.value
    if first.source[0] in "eE":
        value = decode_escapes(second.source[1:-1])
    elif first.source[0] in "uU":
        raise FeatureNotSupported("a U&'...' string that continues on the next line")
    return replace(first, value=first.value + value, source=f"{first.source}\n{second.source}")
