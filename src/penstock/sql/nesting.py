"""How deep a text may be nested (check_stack_depth; array dimensions).

In: what reads or walks a tree, tokens. Out: PostgreSQL's errors in place of a RecursionError, and
before sqlglot spends a time that is exponential in the nesting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.errors import PenstockError
from penstock.sql.lexer import Kind, Token

_MAX_DIMENSIONS: Final = 6
"""MAXDIM. sqlglot reads every ``ARRAY[`` twice at least, so each level doubles its time."""
_MAX_OPEN_JOINS: Final = 8
"""``a JOIN b JOIN c ... ON ... ON ...``: sqlglot reads what follows a JOIN without its condition
twice, so each of them doubles its time."""


@contextmanager
def limited_depth() -> Iterator[None]:
    """Raises PenstockError (54001) where what runs within is nested too deeply."""
    try:
        yield
    except RecursionError:
        raise PenstockError(
            "stack depth limit exceeded", hint="Write it with fewer levels.", sqlstate="54001"
        ) from None


def check_nesting(tokens: Sequence[Token]) -> None:
    """Raises PenstockError (54000, 54001) for arrays and joins that are nested too deeply."""
    _check_arrays(tokens)
    _check_joins(tokens)


def _check_joins(tokens: Sequence[Token]) -> None:
    open_joins, unconditional = 0, False
    for token in tokens:
        if token.kind is not Kind.WORD:
            continue
        if token.value in ("cross", "natural"):
            unconditional = True
        elif token.value == "join":
            open_joins += not unconditional
            unconditional = False
        elif token.value in ("on", "using"):
            open_joins = max(0, open_joins - 1)
        if open_joins > _MAX_OPEN_JOINS:
            raise PenstockError(
                "stack depth limit exceeded",
                hint="Write each join's condition behind its table.",
                sqlstate="54001",
            )


def _check_arrays(tokens: Sequence[Token]) -> None:
    depth = 0
    for token in tokens:
        if token.kind is Kind.SYMBOL and token.value in ("[", "]"):
            depth += 1 if token.value == "[" else -1
            if depth > _MAX_DIMENSIONS:
                raise PenstockError(
                    f"number of array dimensions ({depth}) exceeds the maximum allowed"
                    f" ({_MAX_DIMENSIONS})",
                    sqlstate="54000",
                )
