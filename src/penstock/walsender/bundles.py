"""Transactions of the log that are decoded together: a job for each would cost more than what it
does.

In: the log, a position. Out: the transactions that come next, few at first, so that a client has
something soon, then twice as many each time.
"""

from __future__ import annotations

from typing import Final

from penstock.catalog import Catalog, LakeTransaction
from penstock.lsn import Lsn

_AT_ONCE: Final = 100
"""Transactions that are read from the catalog at a time."""
_FIRST_BYTES: Final = 64 << 10


class Bundles:
    """For one reader. ``most_bytes``: bytes of WAL that are decoded together, about; a larger
    transaction is decoded alone."""

    def __init__(self, catalog: Catalog, most_bytes: int) -> None:
        self._catalog = catalog
        self._most_bytes = most_bytes
        self._bytes = _FIRST_BYTES

    def begin_again(self) -> None:
        """With few."""
        self._bytes = _FIRST_BYTES

    def after(self, position: Lsn, before: Lsn | None = None) -> list[LakeTransaction]:
        """The next transactions; ``before``: of those whose commit stands before it. [] where there
        are none."""
        with self._catalog.read() as t:
            waiting = t.transactions.after(position, _AT_ONCE)
        found: list[LakeTransaction] = []
        for transaction in waiting:
            if before is not None and transaction.commit >= before:
                break
            if found and transaction.end - found[0].begin > self._bytes:
                break
            found.append(transaction)
        self._bytes = min(2 * self._bytes, self._most_bytes)
        return found
