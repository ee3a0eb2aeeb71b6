"""PostgreSQL 18's own grammar, by libpg_query. The only importer of postgast, which ships it.

In: the text of statements. Out: PostgreSQL's raw parse tree as JSON has it: dicts by the names of
parsenodes.h, without fields that are zero, or PostgreSQL's syntax error. The JSON form is read, not
the Protobuf that postgast's own functions give: Protobuf's readers end at 100 levels.
"""

from __future__ import annotations

import json
import re
from ctypes import c_char_p
from typing import Any, Final

import postgast
from postgast import native
from postgast.pg_query_pb2 import Token

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.sql.lexer import near
from penstock.sql.nesting import limited_depth

_MAX_CHAIN: Final = 2_000
"""Tokens of an expression whose nodes may lie above one another. The parser builds chains such as
``1 + 1 + ...`` without bounds, and what prints them runs on the thread's stack."""
_OPENING: Final = frozenset({Token.ASCII_40, Token.ASCII_91})
_CLOSING: Final = frozenset({Token.ASCII_41, Token.ASCII_93})
_SIDE_BY_SIDE: Final = frozenset({Token.ASCII_44, Token.ASCII_59, Token.AND, Token.OR})
"""What they separate lies in one list; so do all operands of AND and OR."""
_LEFT_DEEP: Final = frozenset({Token.JOIN, Token.UNION, Token.INTERSECT, Token.EXCEPT})
_MEMORY: Final = "memory exhausted"
_LEXER: Final = "core_yylex"
_E_ESCAPES: Final = r"Unicode escapes must be \uXXXX or \UXXXXXXXX."
_U_ESCAPES: Final = r"Unicode escapes must be \XXXX or \+XXXXXX."
_OTHER_STATES: Final = {
    "invalid byte sequence for encoding": "22021",
    "precision for type float": "22023",
    "frame start": "42P20",
    "frame end": "42P20",
    "frame starting": "42P20",
}
"""Errors of scan.l and gram.y that are no 42601."""
_NEAR: Final = re.compile(r'(?<= at or near ").*(?="\Z)', re.DOTALL)

_library: Final = native.lib
_library.pg_query_parse.argtypes = [c_char_p]
_library.pg_query_parse.restype = native.PgQueryParseResult


def parse_tree(text: str) -> list[dict[str, Any]]:
    """The statements of a query string, each a dict of one node (RawStmt.stmt).

    Raises SqlSyntaxError (42601), PenstockError (54001) where it is nested too deeply.
    """
    if "\0" in text:
        raise PenstockError('invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021")
    _check_depth(text)
    result = _library.pg_query_parse(text.encode())
    try:
        if result.error:
            error = result.error.contents
            raise _error(error.message.decode(), error.funcname.decode())
        with limited_depth():
            tree: dict[str, Any] = json.loads(result.parse_tree)
    finally:
        _library.pg_query_free_parse_result(result)
    return [statement["stmt"] for statement in tree.get("stmts", [])]


def _error(message: str, function: str) -> PenstockError:
    """libpg_query gives neither SQLSTATE nor HINT; a password may not be shown (law 9)."""
    if message.startswith(_MEMORY):
        return _too_deep()
    if message == "invalid Unicode escape":
        if function == _LEXER:
            return PenstockError(message, hint=_E_ESCAPES, sqlstate="22025")
        return SqlSyntaxError(message, hint=_U_ESCAPES)
    for beginning, sqlstate in _OTHER_STATES.items():
        if message.startswith(beginning):
            return PenstockError(message, sqlstate=sqlstate)
    if message.endswith("not yet implemented"):
        return FeatureNotSupported(message)
    return SqlSyntaxError(_NEAR.sub(lambda found: near(found[0]), message))


def _too_deep() -> PenstockError:
    return PenstockError(
        "stack depth limit exceeded", hint="Write it with fewer levels.", sqlstate="54001"
    )


def _check_depth(text: str) -> None:
    """Bound the depth of the tree by what stands between separators, bracket by bracket."""
    above, here, left_deep = [0], 0, 0
    for token in _tokens(text):
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
            raise _too_deep()


def _tokens(text: str) -> list[int]:
    """None of a text with a token that cannot be read: no tree comes of it, and the parser says
    what is wrong, which may be something before."""
    try:
        return [token.token for token in postgast.scan(text).tokens]
    except postgast.PgQueryError:
        return []
