"""Whose files a commit names: a block's, which go with it, or a prepared transaction's.

In: what is staged. Out: nothing; ``block_commit`` says when versions may name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.lakehouse.staged_change import StagedChange


class Keeps(Protocol):
    """Whose files are committed."""

    def keep(self, changes: Iterable[StagedChange]) -> None:
        """Versions may name files of these from now on."""


class Kept:
    """A prepared transaction's files, which are there until it has ended."""

    def keep(self, changes: Iterable[StagedChange]) -> None:
        """Nothing changes."""
