"""The text of a statement, and pieces of it as they were written (scan.l).

The catalog keeps some queries and expressions as text. This file finds them in the statement by
the locations in the parse tree. It also returns the scanner's notices about truncated names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from penstock.identifiers import fold, truncate
from penstock.sql.grammar.libpg_query import ScanToken, Token

_OPEN: Final = frozenset({Token.ASCII_40, Token.ASCII_91})
_CLOSE: Final = frozenset({Token.ASCII_41, Token.ASCII_93})
_NAME_DATA: Final = 64
START: Final = attrgetter("start")


class Source:
    """The text of one statement. ``tokens``: without comments; places are offsets in bytes."""

    def __init__(self, data: bytes, tokens: Sequence[ScanToken]) -> None:
        self._data = data
        self.tokens = tokens

    @property
    def last(self) -> str:
        """The last token."""
        return self.between(len(self.tokens) - 1, len(self.tokens))

    def between(self, first: int, stop: int) -> str:
        """Return the text from token ``first`` up to, not including, token ``stop``."""
        if stop <= first:
            return ""
        return self._data[self.tokens[first].start : self.tokens[stop - 1].end].decode()

    def word(self, number: int) -> str:
        """Return the token with this number, folded to lower case; "" if there is none."""
        if number >= len(self.tokens):
            return ""
        token = self.tokens[number]
        return fold(self._data[token.start : token.end].decode())

    def find(self, kind: int, place: int = 0) -> int:
        """Return the first token of a kind after ``place``, outside of parentheses begun there."""
        depth = 0
        for number in range(bisect_left(self.tokens, place, key=START), len(self.tokens)):
            here = self.tokens[number].kind
            if here == kind and depth <= 0:
                return number
            depth += (here in _OPEN) - (here in _CLOSE)
        raise AssertionError("the parse tree tells of what the text has not")

    def parenthesized(self, place: int = 0) -> str:
        """Return the text inside the first parentheses after a place."""
        first = self.find(Token.ASCII_40, place)
        depth = 0
        for number in range(first, len(self.tokens)):
            here = self.tokens[number].kind
            depth += (here in _OPEN) - (here in _CLOSE)
            if not depth:
                return self.between(first + 1, number)
        raise AssertionError("parentheses do not match")

    def where(self, place: int) -> str:
        """Return the text inside the parentheses after the word WHERE."""
        return self.parenthesized(self.tokens[self.find(Token.WHERE, place)].start)

    @property
    def notices(self) -> tuple[str, ...]:
        """The messages of NOTICEs (42622) about truncated names."""
        long = (t for t in self.tokens if t.end - t.start >= _NAME_DATA and t.kind == Token.IDENT)
        found = (truncate(_name(self._data[token.start : token.end].decode())) for token in long)
        return tuple(notice for _, notice in found if notice)


def _name(written: str) -> str:
    return written[1:-1].replace('""', '"') if written.startswith('"') else fold(written)
