"""PostgreSQL 18's own grammar, by libpg_query. Only this file imports postgast, which ships it.

libpg_query returns PostgreSQL's raw parse tree as JSON: dicts with the names of parsenodes.h,
without fields that are zero. This file raises PostgreSQL's syntax errors. postgast's own functions
return Protobuf, which we do not use because its readers allow only 100 levels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_char_p
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import postgast
from postgast import native
from postgast.pg_query_pb2 import Token as Token

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.interrupts import check_for_interrupts
from penstock.kernel import BYTES, kernel
from penstock.sql.grammar import literal_lists
from penstock.sql.grammar.parsenodes import ALiterals
from penstock.sql.text.limits import limited_depth, too_deep
from penstock.sqlstate import CharacterNotInRepertoire

_MAX_CHAIN: Final = 2_500
"""The most tokens of an expression that may nest in one another in the tree.

The parser builds chains such as ``1 + 1 + ...`` of any length, and the code that prints them
recurses, so a longer chain could overflow the thread's stack.
"""
_OPENING: Final = frozenset({Token.ASCII_40, Token.ASCII_91, Token.CASE})
_CLOSING: Final = frozenset({Token.ASCII_41, Token.ASCII_93, Token.END_P})
_SIDE_BY_SIDE: Final = frozenset(
    {
        Token.ASCII_44,
        Token.ASCII_59,
        Token.AND,
        Token.OR,
        Token.WHEN,
        Token.THEN,
        Token.ELSE,
    }
)
"""Tokens whose operands are siblings in one list and do not deepen the tree, such as AND."""
_LEFT_DEEP: Final = frozenset({Token.JOIN, Token.UNION, Token.INTERSECT, Token.EXCEPT})
_COMMENTS: Final = frozenset({Token.SQL_COMMENT, Token.C_COMMENT})
_SQL_COMMENT: Final = Token.SQL_COMMENT
_PARAM: Final = Token.PARAM
"""Constants, since looking a token up by its name takes microseconds."""
_MEMORY: Final = "memory exhausted"
_JUNK: Final = re.compile(r"\$[0-9]+[A-Za-z_\x80-\U0010ffff][\w$]*")
_STRING: Final = re.compile(r"[eEnN]?'|[uU]&'|\$[^$]*\$")
_PASSWORD: Final = re.compile("password|encrypted", re.IGNORECASE)
_HIDDEN: Final = "'***'"
_UNICODE: Final = b"str_udeescape"
_NEAR: Final = re.compile('(.* at or near )"(.*)"', re.DOTALL)
_MORE: Final[tuple[tuple[str, str, str | None, str | None], ...]] = (
    ('role name "(public|none)" is reserved', "42939", None, None),
    (".* cannot be used as a role name here", "42939", None, None),
    ("precision for type float must be", "22023", None, None),
    ("unrecognized partitioning strategy", "22023", None, None),
    (".* for hash partition provided more than once", "42710", None, None),
    ("current database cannot be changed", "0A000", None, None),
    (".* constraints cannot be marked", "0A000", None, None),
    (".* not yet implemented", "0A000", None, None),
    (
        "UNENCRYPTED PASSWORD is no longer supported",
        "0A000",
        None,
        "Remove UNENCRYPTED to store the password in encrypted form instead.",
    ),
    (
        "invalid publication object list",
        "42601",
        "One of TABLE or TABLES IN SCHEMA must be specified before a standalone table or schema "
        "name.",
        None,
    ),
    (
        "LIMIT #,# syntax is not supported",
        "42601",
        None,
        "Use separate LIMIT and OFFSET clauses.",
    ),
    ("frame (start|end)|.*frame cannot", "42P20", None, None),
    ("invalid Unicode escape$", "22025", None, r"Unicode escapes must be \uXXXX or \UXXXXXXXX."),
    ("invalid byte sequence", "22021", None, None),
)
"""Beginnings of messages of gram.y and scan.l, with their SQLSTATE, detail and hint."""

_PARTS: Final = attrgetter("token", "start", "end")
_PIECE: Final = 1 << 16
"""The bytes of JSON that are read at once."""
_LEVELS: Final = 64
"""Nested values that are looked for pieces: one level after another reads all that is below it."""
_TOKEN_BYTES: Final = 160
_NODE_BYTES: Final = 256
"""The memory of Python's objects for a token, and for a dict of the tree."""
_TOKENS: Final = 1_000
"""The tokens after which a cancel request is looked for."""
_Token = TypeVar("_Token")
_Hook = Callable[[dict[str, Any]], dict[str, Any]]

_library: Final = native.lib
_library.pg_query_parse.argtypes = [c_char_p]
_library.pg_query_parse.restype = native.PgQueryParseResult


class ScanToken(NamedTuple):
    """A token. ``kind``: a number of ``Token``; ``start`` and ``end`` count bytes."""

    kind: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scanned:
    """A text and its ``tokens``. Comments are blanks in ``text``, so byte offsets stay the same.

    ``lists``: what its parameters from ``literal_lists.FIRST`` on stand for.
    """

    text: str
    tokens: Sequence[ScanToken]
    lists: Sequence[Sequence[ALiterals]] = ()


def take_any(_: int) -> None:
    """Allow any memory."""


def parse_tree(text: str) -> list[dict[str, Any]]:
    """Return the statements of a query string, each a dict of one node (RawStmt.stmt).

    Raises SqlSyntaxError (42601); PenstockError (54001) if a statement is nested too deeply.
    """
    return [statement["stmt"] for statement in parse_scanned(scan(text))]


def scan(text: str) -> Scanned:
    """Cut a text into tokens as PostgreSQL's scanner does. Raises PenstockError (22021).

    If one token cannot be read, no tokens are returned: the parser will reject the text, and
    perhaps for an earlier error. Comments become blanks, because libpg_query does not see that a
    string continues on the next line if a comment stands between its parts.
    """
    _encoded(text)
    text, lists = literal_lists.without_lists(text)
    try:
        scanned = postgast.scan(text).tokens
    except (postgast.PgQueryError, UnicodeDecodeError):  # the message may be cut within a character
        return Scanned(text, (), lists)
    tokens, comments = list[ScanToken](), list[ScanToken]()
    for some in _some(scanned):
        found = list(map(ScanToken._make, map(_PARTS, some)))
        tokens += [token for token in found if token.kind not in _COMMENTS]
        comments += [token for token in found if token.kind == _SQL_COMMENT]
    if not comments:
        return Scanned(text, tokens, lists)
    blanked = bytearray(text.encode())
    for _, start, end in comments:
        blanked[start:end] = b" " * (end - start)
    return Scanned(blanked.decode(), tokens, lists)


def _some(tokens: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    """Yield the tokens, some at a time. Raises PenstockError (57014)."""
    for at in range(0, len(tokens), _TOKENS):
        check_for_interrupts()
        yield tokens[at : at + _TOKENS]


def parse_scanned(scanned: Scanned, take: Callable[[int], None] = take_any) -> list[dict[str, Any]]:
    """Return the statements, each a RawStmt with ``stmt_location`` and ``stmt_len`` in bytes.
    ``take`` is told of memory before it is needed, in bytes, and may raise to refuse it."""
    take(len(scanned.tokens) * _TOKEN_BYTES)
    _check_depth(scanned.tokens)
    check_for_interrupts()
    _check_parameters(scanned)
    check_for_interrupts()
    result = _library.pg_query_parse(scanned.text.encode())
    try:
        if result.error:
            error = result.error.contents
            message = error.message.decode(errors="replace")
            raise _error(_masked(message, scanned.text), error.funcname == _UNICODE)
        check_for_interrupts()
        printed: bytes = result.parse_tree
        take(printed.count(b"{") * _NODE_BYTES + len(printed))
        with limited_depth():
            hook = _listed(scanned.lists) if scanned.lists else None
            tree: dict[str, Any] = _Json(printed, hook).value(0, len(printed))
    finally:
        _library.pg_query_free_parse_result(result)
    found: list[dict[str, Any]] = tree.get("stmts", [])
    return found


class _Json:
    """A large JSON text, read in pieces so that other threads run in between: ``json.loads`` lets
    none run until it is done. ``hook``: as ``object_hook`` there."""

    def __init__(self, text: bytes, hook: _Hook | None) -> None:
        self._text = text
        self._bytes = np.frombuffer(text, np.uint8)
        self._hook = hook

    def value(self, at: int, end: int, level: int = 0) -> Any:
        """Return the value that is printed from ``at`` to ``end``. Raises PenstockError (57014)."""
        check_for_interrupts()
        text, kind = self._text, self._text[at : at + 1]
        if end - at <= _PIECE or level == _LEVELS or kind not in (b"[", b"{"):
            return self._loaded(text[at:end])
        if kind == b"[":
            found: list[Any] = []
            for start, stop in self._pieces(at, end):
                if stop - start <= _PIECE:
                    found += self._loaded(b"[" + text[start:stop] + b"]")
                else:  # it is one value
                    found.append(self.value(start, stop, level + 1))
            return found
        members: dict[str, Any] = {}
        for start, stop in self._pieces(at, end):
            if stop - start <= _PIECE:
                members |= self._loaded(b"{" + text[start:stop] + b"}")
            else:
                colon = text.index(b":", start)
                name = json.loads(text[start:colon])
                members[name] = self.value(colon + 1, stop, level + 1)
        return members

    def _loaded(self, text: bytes) -> Any:
        return json.loads(text, object_hook=self._hook)

    def _pieces(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        commas = np.empty(2 * (end - at) // _PIECE + 2, np.int64)
        count = _commas(self._bytes, at + 1, end - 1, _PIECE, commas)
        start = at + 1
        for comma in commas[:count].tolist():
            yield start, comma
            start = comma + 1
        yield start, end - 1


@kernel(f"int64({BYTES}, int64, int64, int64, int64[::1])")
def _commas(
    text: npt.NDArray[np.uint8], at: int, end: int, size: int, found: npt.NDArray[np.int64]
) -> int:
    """Cut the inside of a JSON array or object at commas between its members, into pieces of at
    most ``size`` bytes, or of one member. Return the number of commas that were put into
    ``found``, which must have room for two in ``size`` bytes, and two more."""
    count, start, comma, depth, quoted = 0, at, -1, 0, False
    i = at
    while i <= end:
        byte = text[i] if i < end else 44
        if quoted:
            if byte == 92:
                i += 1
            elif byte == 34:
                quoted = False
        elif byte == 34:
            quoted = True
        elif byte == 91 or byte == 123:
            depth += 1
        elif byte == 93 or byte == 125:
            depth -= 1
        elif byte == 44 and depth == 0:
            if i - start > size and comma >= start:
                found[count] = comma
                count += 1
                start = comma + 1
            if i - start > size and i < end:
                found[count] = i
                count += 1
                start = i + 1
            comma = i
        i += 1
    return count


def _listed(lists: Sequence[Sequence[ALiterals]]) -> _Hook:
    """Return a function that puts literals in the place of the parameters that stand for them."""

    def hook(node: dict[str, Any]) -> dict[str, Any]:
        number = node["ParamRef"].get("number", 0) if "ParamRef" in node else 0
        if number < literal_lists.FIRST:
            return node
        return {"Literals": {"columns": lists[number - literal_lists.FIRST]}}

    return hook


def _check_parameters(scanned: Scanned) -> None:
    """Refuse ``$1a``, which libpg_query's scanner would read as a parameter and a name."""
    for number, (token, after) in enumerate(pairwise(scanned.tokens)):
        if token.kind != _PARAM or token.end != after.start:
            continue
        data = scanned.text.encode()
        junk = _JUNK.match(data[token.start :].decode())
        if junk is None:
            continue
        try:
            parse_scanned(Scanned(data[: token.start].decode(), scanned.tokens[:number]))
        except SqlSyntaxError as error:
            if not error.message.endswith("end of input"):
                raise
        raise SqlSyntaxError(f'trailing junk after parameter at or near "{junk[0]}"')


def _encoded(text: str) -> bytes:
    if "\0" in text:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8": 0x00')
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8"') from None


def _error(message: str, in_unicode: bool) -> PenstockError:
    """Return the parser's error with the fields that libpg_query leaves out.

    ``in_unicode``: the error is about a U&'...' string.
    """
    if message.startswith(_MEMORY):
        return too_deep()
    if in_unicode and message == "invalid Unicode escape":
        return SqlSyntaxError(message, hint=r"Unicode escapes must be \XXXX or \+XXXXXX.")
    for begin, sqlstate, detail, hint in _MORE:
        if re.match(begin, message):
            error = FeatureNotSupported if sqlstate == "0A000" else SqlSyntaxError
            return error(message, detail=detail, hint=hint, sqlstate=sqlstate)
    return SqlSyntaxError(message)


def _masked(message: str, text: str) -> str:
    """Hide the text that a syntax error quotes if it may be a password."""
    place = _NEAR.fullmatch(message)
    if place is None:
        return message
    secret = _STRING.match(place[2]) and _PASSWORD.search(text)
    return f'{place[1]}"{_HIDDEN if secret else _near(place[2])}"'


def _near(source: str) -> str:
    """Return a piece of SQL text for a message; hide it if it may hold a password."""
    return "'***'" if re.search(r"pass(word|file)|://", source, re.IGNORECASE) else source


def _check_depth(tokens: Sequence[ScanToken]) -> None:
    """Bound the tree's depth by the number of tokens between separators, bracket by bracket."""
    above, here, left_deep = [0], 0, 0
    for token, _, _ in chain.from_iterable(_some(tokens)):
        left_deep += token in _LEFT_DEEP
        if token in _SIDE_BY_SIDE:
            here = above[-1]
        elif token in _CLOSING and len(above) > 1:
            here = above.pop()
        else:
            here += 1
            if token in _OPENING:
                above.append(here)
        if here + left_deep > _MAX_CHAIN:
            raise too_deep()
