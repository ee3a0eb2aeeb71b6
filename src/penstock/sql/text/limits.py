"""How deep a text may be nested (check_stack_depth), how long a number, how many parameters.

In: what reads or walks a tree. Out: PostgreSQL's error in place of a RecursionError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.sqlstate import StatementTooComplex

MAX_DIGITS: Final = 3500
"""Of a number. Python refuses to read or write more than 4300 digits of one, be it hexadecimal."""

MAX_PARAMETERS: Final = 65_535
"""What Bind can give: nothing is counted out up to a number that a client makes up."""


@contextmanager
def limited_depth() -> Iterator[None]:
    """Raises PenstockError (54001) where what runs within is nested too deeply."""
    try:
        yield
    except RecursionError:
        raise StatementTooComplex(
            "stack depth limit exceeded", hint="Write it with fewer levels."
        ) from None
