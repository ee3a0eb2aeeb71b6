"""A place in a statement's tokens, and the pieces of grammar that all statements share (gram.y).

In: the tokens of one statement. Out: names, strings and option lists, or PostgreSQL's syntax error
at the first token that cannot stand there. The functions bear the names of the grammar's rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.sql.keywords import COLUMN_NAME, NOT_A_NAME, RESERVED, TYPE_NAMES
from penstock.sql.lexer import Kind, Token, is_operator, near
from penstock.sql.statements import DefElem

HINT: Final = (
    "Penstock knows the statements for subscriptions, publications, roles and tables of the lake, "
    "COPY TO STDOUT, and queries."
)

_LOOK_AHEAD: Final = frozenset({"format", "not", "nulls", "with", "without"})
"""Words behind which base_yylex reads one token more, and so finds what is wrong with it first; it
does so behind U&'...' and U&"..." as well."""


def not_supported(what: str) -> FeatureNotSupported:
    """A form that PostgreSQL has and Penstock has not yet."""
    return FeatureNotSupported(f"{what} is not supported", hint=HINT)


class Cursor:
    """Reads tokens from left to right; collects the notices of the names it takes."""

    def __init__(self, tokens: Sequence[Token], text: str = "") -> None:
        self._tokens = tokens
        self._text = text
        self._at = 0
        self._notices: list[str] = []

    def copy(self) -> Cursor:
        """Another cursor at the same place."""
        other = Cursor(self._tokens, self._text)
        other._at = self._at
        other._notices = [*self._notices]
        return other

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(self._notices)

    @property
    def token(self) -> Token:
        """The next token. Raises what the lexer could not read."""
        token = self._tokens[self._at]
        looks = token.kind is Kind.WORD and token.value in _LOOK_AHEAD
        escaped = token.source[:2] in ("u&", "U&") and token.kind is not Kind.SYMBOL
        seen = self._tokens[self._at : self._at + (2 if looks or escaped else 1)]
        for each in reversed(seen) if escaped else seen:
            if each.error is not None:
                raise each.error
        return token

    def word(self) -> str | None:
        """The next token if it is an unquoted word."""
        token = self.token
        return token.value if token.kind is Kind.WORD else None

    def peek(self, offset: int) -> str:
        """The word (folded) or symbol ``offset`` tokens ahead, "" for every other token."""
        token = self._tokens[min(self._at + offset, len(self._tokens) - 1)]
        return token.value if token.kind in (Kind.WORD, Kind.SYMBOL) else ""

    def take(self) -> Token:
        """Consume the next token. Raises SqlSyntaxError where there is none."""
        token = self.token
        if token.kind is Kind.END:
            raise self.syntax_error()
        if token.notice:
            self._notices.append(token.notice)
        self._at += 1
        return token

    def word_after(self) -> str | None:
        """The token behind the next one if it is an unquoted word."""
        token = self.token_after()
        return token.value if token.kind is Kind.WORD else None

    def token_after(self) -> Token:
        """The token behind the next one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def at_symbol(self, symbol: str) -> bool:
        """Whether a punctuation mark or operator comes next."""
        return self.token.kind is Kind.SYMBOL and self.token.value == symbol

    def accept(self, *words: str) -> bool:
        """Consume the words if they come next, all of them."""
        for offset, word in enumerate(words):
            token = self._tokens[min(self._at + offset, len(self._tokens) - 1)]
            if token.kind is not Kind.WORD or token.value != word:
                return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Consume the words or raise the syntax error at the first that is missing."""
        for word in words:
            if not self.accept(word):
                raise self.syntax_error()

    def accept_symbol(self, symbol: str) -> bool:
        """Consume a punctuation mark or operator if it comes next."""
        token = self.token
        if token.kind is not Kind.SYMBOL or token.value != symbol:
            return False
        self._at += 1
        return True

    def expect_symbol(self, symbol: str) -> None:
        if not self.accept_symbol(symbol):
            raise self.syntax_error()

    def expect_end(self) -> None:
        if self.token.kind is not Kind.END:
            raise self.syntax_error()

    def syntax_error(self) -> SqlSyntaxError:
        """PostgreSQL's error at the next token; to be raised."""
        token = self.token
        if token.kind is Kind.END and not token.source:
            return SqlSyntaxError("syntax error at end of input")
        return SqlSyntaxError(f'syntax error at or near "{near(token.source)}"')

    def accept_any(self, *words: str) -> str | None:
        """Consume the next word if it is one of these; which one it was."""
        word = self.word()
        if word not in words:
            return None
        self.take()
        return word

    def opt_drop_behavior(self) -> bool:
        """``opt_drop_behavior``: True for CASCADE."""
        return self.accept_any("cascade", "restrict") == "cascade"

    def parenthesized_text(self) -> str:
        """Consume ``( ... )``; the source text between the two, which may not be empty."""
        self.expect_symbol("(")
        start = self.token.start
        if self.at_symbol(")"):
            raise self.syntax_error()
        self.skip_balanced(")")
        end = self._end_of_last()
        self.expect_symbol(")")
        return self._text[start:end]

    def source_text(self) -> str:
        """What comes from here on, of this statement and others."""
        return self._text[self.token.start :]

    def rest_of_text(self) -> str:
        """Consume everything up to the statement's end; its source text."""
        start = self.token.start
        self.skip_balanced("")
        return self._text[start : self._end_of_last()]

    def _end_of_last(self) -> int:
        """Where the token before the next one ends, so that comments behind it are left out."""
        last = self._tokens[self._at - 1]
        end = last.start + len(last.source)
        if self._text[last.start : end] == last.source:
            return end
        return len(self._text[: self.token.start].rstrip())  # a string in several pieces

    def skip_balanced(self, stop: str) -> None:
        """Go to the symbol ``stop`` outside of inner parentheses; "" goes to the end.

        Raises what the lexer could not read, and the syntax error at a parenthesis without its
        other half.
        """
        depth = 0
        while self.token.kind is not Kind.END:
            symbol = self.token.value if self.token.kind is Kind.SYMBOL else ""
            if symbol == stop and not depth and stop:
                return
            if symbol in ("(", "["):
                depth += 1
            elif symbol in (")", "]"):
                depth -= 1
                if depth < 0:
                    raise self.syntax_error()
            self.take()
        if depth or stop:
            raise self.syntax_error()

    def name(self) -> str:
        """``name``: ColId, any word but the reserved ones, or a quoted identifier."""
        token = self.token
        if token.kind is Kind.QUOTED or (token.kind is Kind.WORD and token.value not in NOT_A_NAME):
            return self.take().value
        raise self.syntax_error()

    def name_list(self) -> tuple[str, ...]:
        """``name_list``: one or more names."""
        names = [self.name()]
        while self.accept_symbol(","):
            names.append(self.name())
        return tuple(names)

    def string(self) -> str:
        """``Sconst``."""
        if self.token.kind is not Kind.STRING:
            raise self.syntax_error()
        return self.take().value

    def numeric_only(self) -> str | int:
        """``NumericOnly``: a number with a sign or without; int where it is an integer."""
        sign = "+" if self.accept_symbol("+") else "-" if self.accept_symbol("-") else ""
        if self.token.kind not in (Kind.INTEGER, Kind.FLOAT):
            raise self.syntax_error()
        return self._number("-" if sign == "-" else "")

    def word_string_or_number(self) -> str | int:
        """``opt_boolean_or_string`` or ``NumericOnly``"""
        token = self.token
        if token.kind in (Kind.STRING, Kind.QUOTED):
            return self.take().value
        if token.kind is Kind.WORD:
            if token.value in RESERVED and token.value not in ("true", "false", "on"):
                raise self.syntax_error()
            return self.take().value
        return self.numeric_only()

    def opt_definition(self) -> tuple[DefElem, ...]:
        """``opt_definition``: WITH and a definition, or nothing."""
        return self.definition() if self.accept("with") else ()

    def definition(self) -> tuple[DefElem, ...]:
        """``definition``: options in parentheses, at least one."""
        self.expect_symbol("(")
        elements = [self._def_elem()]
        while self.accept_symbol(","):
            elements.append(self._def_elem())
        self.expect_symbol(")")
        return tuple(elements)

    def _def_elem(self) -> DefElem:
        if self.token.kind not in (Kind.WORD, Kind.QUOTED):
            raise self.syntax_error()
        name = self.take().value
        return DefElem(name, self._def_arg() if self.accept_symbol("=") else None)

    def _def_arg(self) -> str | int:
        token = self.token
        match token.kind:
            case Kind.STRING:
                return self.take().value
            case Kind.INTEGER | Kind.FLOAT:
                return self._number("")
            case Kind.WORD | Kind.QUOTED:
                return self._type_name()
            case Kind.SYMBOL if token.value in ("+", "-"):
                return self._signed()
            case Kind.SYMBOL if is_operator(token.value):
                return self.take().value
        raise self.syntax_error()

    def _signed(self) -> str | int:
        sign = self.take().value
        if self.token.kind in (Kind.INTEGER, Kind.FLOAT):
            return self._number("-" if sign == "-" else "")
        return sign

    def _number(self, sign: str) -> str | int:
        token = self.take()
        text = sign + token.value
        return int(text) if token.kind is Kind.INTEGER else text

    def _type_name(self) -> str:
        """A word, or a dotted name; a type's name becomes what PostgreSQL calls it."""
        word = self.word()
        if word == "none" or word in RESERVED:
            return self.take().value
        if word in COLUMN_NAME and word not in TYPE_NAMES:
            raise self.syntax_error()
        name = self.take().value
        if word in TYPE_NAMES:
            name = f"pg_catalog.{TYPE_NAMES[word]}"
        else:
            while self.accept_symbol("."):
                if self.token.kind not in (Kind.WORD, Kind.QUOTED):
                    raise self.syntax_error()
                name += f".{self.take().value}"
        if self.token.source in ("(", "["):
            raise not_supported("a type with modifiers as the value of an option")
        return name
