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


@contextmanager
def limited_depth() -> Iterator[None]:
    """Raises PenstockError (54001) where what runs within is nested too deeply."""
    try:
        yield
    except RecursionError:
        raise PenstockError(
            "stack depth limit exceeded", hint="Write it with fewer levels.", sqlstate="54001"
        ) from None


def check_array_nesting(tokens: Sequence[Token]) -> None:
    """Raises PenstockError (54000) where brackets are within brackets too often."""
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
