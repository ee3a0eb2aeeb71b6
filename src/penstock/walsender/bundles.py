"""Bundles of transactions that are decoded together, since a job for each would cost too much.

Bundles are read from the log after a position. The first one is small, so a client soon gets its
first rows; each later one has up to twice as many bytes.
"""

from __future__ import annotations

from typing import Final

from penstock.catalog import Catalog, LakeTransaction
from penstock.lsn import Lsn

_AT_ONCE: Final = 100
"""Transactions read from the catalog at a time."""
_FIRST_BYTES: Final = 64 << 10


class Bundles:
    """The bundles of one reader. A bundle has up to about ``most_bytes`` of WAL; a larger
    transaction is decoded alone."""

    def __init__(self, catalog: Catalog, most_bytes: int) -> None:
        self._catalog = catalog
        self._most_bytes = most_bytes
        self._bytes = _FIRST_BYTES

    def begin_again(self) -> None:
        """Make the next bundle small again."""
        self._bytes = _FIRST_BYTES

    def after(self, position: Lsn, before: Lsn | None = None) -> list[LakeTransaction]:
        """Return the next transactions, [] if there are none. With ``before``, return only those
        whose commit precedes it."""
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
