"""Escapes in string constants (scan.l, states xe and xus).

In: what stands between the quotes, doubled quotes included. Out: the string. Raises PostgreSQL's
errors: 22025 for a malformed escape, 22021 for bytes that are not UTF-8, 42601 for half a surrogate
pair. sqlglot decodes escapes as well, but not all as PostgreSQL does, so the source is read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from penstock.errors import InvalidParameterValue, SqlSyntaxError

_ESCAPE: Final = re.compile(
    r"''|\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))", re.DOTALL
)
_UNICODE: Final = re.compile(r"''|\\(?:\+([0-9A-Fa-f]{6})|([0-9A-Fa-f]{4})|(\\)|)", re.DOTALL)
_PLAIN: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def decode_escapes(body: str) -> str:
    """The string of ``E'body'``."""

    def replace(match: re.Match[str]) -> bytes:
        if match[0] == "''":
            return b"'"
        if match[1] or match[2]:
            return _code_point(match[1] or match[2], f' at or near "{match[0]}"')
        if match[3] or match[4]:
            return bytes([int(match[3], 16) if match[3] else int(match[4], 8) & 0xFF])
        if match[5] in "uU":
            raise InvalidParameterValue(
                "invalid Unicode escape",
                hint=r"Unicode escapes must be \uXXXX or \UXXXXXXXX.",
                sqlstate="22025",
            )
        return _PLAIN.get(match[5], match[5]).encode()

    return _text(_rewrite(_ESCAPE, body, replace))


def decode_unicode(body: str) -> str:
    r"""The string of ``U&'body'`` with the default escape character ``\``."""

    def replace(match: re.Match[str]) -> bytes:
        if match[0] == "''":
            return b"'"
        if match[3]:
            return b"\\"
        if match[1] or match[2]:
            return _code_point(match[1] or match[2])
        raise SqlSyntaxError(
            "invalid Unicode escape", hint=r"Unicode escapes must be \XXXX or \+XXXXXX."
        )

    return _text(_rewrite(_UNICODE, body, replace))


def _rewrite(
    pattern: re.Pattern[str], body: str, replace: Callable[[re.Match[str]], bytes]
) -> bytes:
    parts, at = [], 0
    for match in pattern.finditer(body):
        parts += [body[at : match.start()].encode(), replace(match)]
        at = match.end()
    return b"".join([*parts, body[at:].encode()])


def _code_point(digits: str, place: str = "") -> bytes:
    number = int(digits, 16)
    if not 0 < number <= 0x10FFFF:
        raise SqlSyntaxError(f"invalid Unicode escape value{place}")
    return chr(number).encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    if 0 in data:
        raise _not_utf8(b"\0")
    try:
        text = data.decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        if error.encoding.startswith("utf-16"):
            raise SqlSyntaxError("invalid Unicode surrogate pair") from None
        raise _not_utf8(data[error.start : max(error.end, error.start + 1)]) from None


def _not_utf8(data: bytes) -> InvalidParameterValue:
    shown = " ".join(f"0x{byte:02x}" for byte in data)
    return InvalidParameterValue(
        f'invalid byte sequence for encoding "UTF8": {shown}', sqlstate="22021"
    )
