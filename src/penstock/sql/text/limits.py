"""Limits: nesting depth (check_stack_depth), length of numbers, number of parameters.

Code that reads or walks a tree raises PostgreSQL's error instead of a RecursionError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.sqlstate import StatementTooComplex

MAX_DIGITS: Final = 3500
"""The most digits of a number. Python refuses to convert more than 4300 digits."""

MAX_PARAMETERS: Final = 65_535
"""The most parameters of Bind. It bounds loops that run up to a ``$n`` from a client."""


@contextmanager
def limited_depth() -> Iterator[None]:
    """Raise PenstockError (54001) if the code inside recurses too deeply."""
    try:
        yield
    except RecursionError:
        raise StatementTooComplex(
            "stack depth limit exceeded", hint="Write it with fewer levels."
        ) from None
