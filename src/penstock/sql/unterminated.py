"""Where a quote or comment begins that never ends (scan.l, <<EOF>> rules).

In: text that sqlglot refuses, and a way to ask it about other texts. Out: the offset at which
PostgreSQL would complain, and its words. The right terminator, put behind the text, is the one that
makes the text complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

_OPENINGS: Final = (
    # (openings, what closes it, sqlglot's number of tokens, PostgreSQL's words)
    (r"\b[xX]'", ("'",), 2, "unterminated hexadecimal string literal"),
    (r"\b[bB]'", ("'",), 2, "unterminated bit string literal"),
    (r"(?:\b[eE]|\b[uU]&)?'", ("'", "\\'"), 1, "unterminated quoted string"),
    (r"""(?:\b[uU]&)?\"""", ('"',), 1, "unterminated quoted identifier"),
)
_DOLLAR: Final = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][\w]*)?\$")


def find_unterminated(text: str, count: Callable[[str], int | None]) -> tuple[int, str]:
    """``count`` gives the number of tokens of a text, None when it is incomplete."""
    for pattern, closers, tokens, words in _OPENINGS:
        for closer in closers:
            for start in _openings(text, pattern, closer, count):
                if count(text[start:] + closer) == tokens:
                    return start, words
    for tag in sorted({match[0] for match in _DOLLAR.finditer(text)}):
        for start in _openings(text, re.escape(tag), tag, count):
            if count(text[start:] + tag) == 1:
                return start, "unterminated dollar-quoted string"
    comments = [match.start() for match in re.finditer(r"/\*", text)]
    for start in reversed(comments):
        closed = (text[start:] + " */" * depth for depth in range(1, len(comments) + 1))
        if count(text[:start]) is not None and any(count(comment) == 0 for comment in closed):
            return start, "unterminated /* comment"
    return 0, "syntax error"


def _openings(
    text: str, pattern: str, closer: str, count: Callable[[str], int | None]
) -> Iterator[int]:
    """Where the pattern stands with a complete text before it, if the closer completes the text."""
    if count(text + closer) is None:
        return
    for match in re.finditer(pattern, text):
        if count(text[: match.start()]) is not None:
            yield match.start()
