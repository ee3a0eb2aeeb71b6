"""Limits: nesting depth (check_stack_depth), length of numbers, number of parameters.

Code that reads or walks a tree raises PostgreSQL's error instead of a RecursionError.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.sqlstate import StatementTooComplex

MAX_DIGITS: Final = 3500
"""The most digits of a number. Python refuses to convert more than 4300 digits."""

MAX_PARAMETERS: Final = 65_535
"""The most parameters of Bind. It bounds loops that run up to a ``$n`` from a client."""


_FRAMES: Final = 12_000
"""The frames of Python that a tree may need, about six for each level. A thread of 8 MB has room
for several times as many; Python's own limit of 1,000 would refuse 200 times ``||``."""
sys.setrecursionlimit(max(_FRAMES, sys.getrecursionlimit()))


@contextmanager
def limited_depth() -> Iterator[None]:
    """Raise PenstockError (54001) if the code inside recurses too deeply."""
    try:
        yield
    except RecursionError:
        raise too_deep() from None


def too_deep() -> StatementTooComplex:
    """Return the error for a statement with too many levels."""
    return StatementTooComplex("stack depth limit exceeded", hint="Write it with fewer levels.")
