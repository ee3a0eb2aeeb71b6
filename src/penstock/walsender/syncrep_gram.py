"""The parameter synchronous_standby_names (syncrep_gram.y, syncrep_scanner.l).

``parse`` returns the standbys that a commit waits for, or raises PostgreSQL's syntax error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidParameterValue

NAME: Final = "synchronous_standby_names"
_TOKENS: Final = re.compile(
    r"[ \t\n\r\f\v]*(?:(?P<quoted>\"(?:[^\"]|\"\")*\")"
    r"|(?P<name>[A-Za-z_\u0080-\U0010ffff][A-Za-z_0-9$\u0080-\U0010ffff]*|\*)"
    r"|(?P<number>[0-9]+)|(?P<mark>[(),])|(?P<open>\"[^\"]*)|(?P<junk>.)|(?P<end>\Z))",
    re.DOTALL,
)
_SYNTAX_ERROR: Final = "42601"
_WORDS: Final = ("any", "first")
_END: Final = "end"
_INT_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SyncRepConfig:
    """The rule: ``count`` of ``members`` must confirm, the first ones (``priority``) or any."""

    count: int
    members: tuple[str, ...]
    priority: bool = True

    def place(self, application_name: str) -> int:
        """SyncRepGetStandbyPriority: return 1 or more, 0 for a standby that no commit waits for."""
        for place, name in enumerate(self.members, 1):
            if name in ("*", application_name) or name.lower() == application_name.lower():
                return place if self.priority else 1
        return 0


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def is_word(self) -> bool:
        """True for ANY and FIRST, which are names only if quoted."""
        return self.kind == "name" and self.text.lower() in _WORDS


def parse(text: str) -> SyncRepConfig | None:
    """Parse the parameter, None if it is empty. Raises InvalidParameterValue (42601, 22023)."""
    if not text:
        return None
    return _Parser(text).config()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_scan(text))
        self._at = 0

    def config(self) -> SyncRepConfig:
        """standby_config: parse the whole text."""
        first, second = self._tokens[0], self._tokens[min(1, len(self._tokens) - 1)]
        if first.is_word:
            self._at = 1
            found = self._counted(first.text.lower() == "first")
        elif first.kind == "number" and second.text == "(" and second.kind == "mark":
            found = self._counted(True)
        else:
            found = SyncRepConfig(1, self._names())
        if self._peek.kind != _END:
            raise self._wrong()
        if found.count <= 0:
            raise InvalidParameterValue(
                f"number of synchronous standbys ({found.count}) must be greater than zero"
            )
        return found

    def _counted(self, priority: bool) -> SyncRepConfig:
        count = self._take("number")
        self._take("mark", "(")
        names = self._names()
        self._take("mark", ")")
        return SyncRepConfig(min(int(count), _INT_MAX), names, priority)

    def _names(self) -> tuple[str, ...]:
        names = [self._name()]
        while self._peek.kind == "mark" and self._peek.text == ",":
            self._at += 1
            names.append(self._name())
        return tuple(names)

    def _name(self) -> str:
        token = self._peek
        if token.is_word or token.kind not in ("name", "quoted", "number"):
            raise self._wrong()
        self._at += 1
        return token.text

    def _take(self, kind: str, text: str | None = None) -> str:
        token = self._peek
        if token.kind != kind or text not in (None, token.text):
            raise self._wrong()
        self._at += 1
        return token.text

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _wrong(self) -> InvalidParameterValue:
        token = self._peek
        if token.kind == "open":
            return _invalid(self._text, "unterminated quoted identifier at end of input")
        near = '"' if token.kind == "quoted" else token.text  # where the scanner has stopped
        at = "end of input" if token.kind == _END else f'or near "{near}"'
        return _invalid(self._text, f"syntax error at {at}")


def _scan(text: str) -> Iterator[_Token]:
    for found in _TOKENS.finditer(text):
        kind = str(found.lastgroup)
        token = found[kind]
        yield _Token(kind, token[1:-1].replace('""', '"') if kind == "quoted" else token)
        if kind == _END:
            return


def _invalid(text: str, detail: str) -> InvalidParameterValue:
    return InvalidParameterValue(
        f'invalid value for parameter "{NAME}": "{text}"', detail=detail, sqlstate=_SYNTAX_ERROR
    )
