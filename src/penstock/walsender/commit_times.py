"""Commit times of the log: they come from the clocks of many writers.

In: what a writer's commit says. Out: a time that is not later than now and never earlier than one
that was given out before, by this process or, where its clock has not gone back, by an earlier one.
What a subscription wrote between two cuts has the time of its publisher instead.
"""

from __future__ import annotations

import time

from penstock.catalog import CatalogTransaction


class CommitTimes:
    """Of one log, for one thread at a time."""

    def __init__(self) -> None:
        self._latest: int | None = None

    def next(self, t: CatalogTransaction, moment: int) -> int:
        """Microseconds since the Unix epoch for the transaction that is appended next."""
        if self._latest is None:
            self._latest = min(t.transactions.latest_commit_time(), now())
        self._latest = max(self._latest, min(moment, now()))
        return self._latest

    def look_again(self) -> None:
        """Another process has written to the log: what it gave out counts as well."""
        self._latest = None


def now() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000
