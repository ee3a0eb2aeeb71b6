"""How deep a text may be nested (check_stack_depth).

In: what reads or walks a tree. Out: PostgreSQL's error in place of a RecursionError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.sqlstate import StatementTooComplex


@contextmanager
def limited_depth() -> Iterator[None]:
    """Raises PenstockError (54001) where what runs within is nested too deeply."""
    try:
        yield
    except RecursionError:
        raise StatementTooComplex(
            "stack depth limit exceeded", hint="Write it with fewer levels."
        ) from None
