"""Comments, and quotes and comments that never end (scan.l, <<EOF>> rules).

In: text. Out: the same text with blanks for comments, and the offset at which PostgreSQL would
complain, with its words. One pass over the text, whatever is in it: the text may come from a
hostile client. sqlglot is not asked, since it takes ``/*/`` for a whole comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = r"[A-Za-z_\x80-\U0010ffff]"
_COMPLETE: Final = re.compile(
    rf"""
    [eE]'[^'\\]*(?:(?:''|\\.)[^'\\]*)*'(?!')
    | [xXbB]'[^']*'
    | (?:[nN]|[uU]&)?'[^']*(?:''[^']*)*'(?!')
    | (?:[uU]&)?"[^"]*(?:""[^"]*)*"(?!")
    | \$(?P<tag>(?:{_NAME}\w*)?)\$ .*? \$(?P=tag)\$
    | (?!(?:[eExXbBnN]|[uU]&)'|[uU]&") (?:
          {_NAME}[\w$\x80-\U0010ffff]*
        | \d+
        | \s+
        | [^'"$\w]
        | \$(?!(?:{_NAME}\w*)?\$)
      )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
"""A piece of text that ends by itself and is no comment."""

_OPENINGS: Final = (
    (re.compile(r"[xX]'"), "unterminated hexadecimal string literal"),
    (re.compile(r"[bB]'"), "unterminated bit string literal"),
    (re.compile(r"(?:[eE]|[uU]&)?'"), "unterminated quoted string"),
    (re.compile(r"""(?:[uU]&)?\""""), "unterminated quoted identifier"),
    (re.compile(r"\$"), "unterminated dollar-quoted string"),
)
_LINE: Final = re.compile(r"[^\n\r]*")
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Scanned:
    """``text``: as long as the original. ``unterminated``: PostgreSQL's words, None where
    everything ends; what is wrong begins at ``end``, else that is the length of the text."""

    text: str
    end: int
    unterminated: str | None = None


def scan(text: str) -> Scanned:
    """Find comments, and what does not end."""
    pieces: list[str] = []
    at = copied = 0
    while at < len(text):
        comment = text.startswith(("/*", "--"), at)
        end = _comment_end(text, at) if comment else _piece_end(text, at)
        if end is None:
            at, words = (at, "unterminated /* comment") if comment else _opening(text, at)
            return Scanned("".join([*pieces, text[copied:]]), at, words)
        if comment:
            pieces += [text[copied:at], " " * (end - at)]
            copied = end
        at = end
    return Scanned("".join([*pieces, text[copied:]]), len(text))


def _piece_end(text: str, at: int) -> int | None:
    piece = _COMPLETE.match(text, at)
    return None if piece is None else piece.end()


def _opening(text: str, at: int) -> tuple[int, str]:
    if text[at] in "nN" and text.startswith("'", at + 1):
        at += 1  # NCHAR is a word, the string comes behind it
    for opening, words in _OPENINGS:
        if opening.match(text, at):
            return at, words
    return at, "syntax error"


def _comment_end(text: str, start: int) -> int | None:
    if text.startswith("--", start):
        return _LINE.match(text, start).end()  # type: ignore[union-attr]
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return None
