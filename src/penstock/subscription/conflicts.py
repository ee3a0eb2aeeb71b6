"""Changes that were skipped because the target has no such row (conflict.c).

In: the outcomes of batches that are committed. Out: a log message of PostgreSQL 18's wording for
each table, at most one of a kind in LOG_INTERVAL. What is a conflict is found in ``pipeline``, a
key that exists already is an error and not a skipped change; ``worker_status`` counts.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from penstock.lsn import Lsn
from penstock.pipeline.apply import TableOutcome
from penstock.pipeline.conflict import describe_keys

log = logging.getLogger(__name__)

LOG_INTERVAL: Final = 10.0
"""Seconds. PostgreSQL writes a message for each change; millions would fill the disk."""

UPDATE_MISSING: Final = "update_missing"
DELETE_MISSING: Final = "delete_missing"
_DETAIL: Final = {
    UPDATE_MISSING: "Could not find the row to be updated.",
    DELETE_MISSING: "Could not find the row to be deleted.",
}


class Conflicts:
    """The log of one stream's conflicts; one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._untold: Counter[tuple[str, str]] = Counter()
        self._told: dict[tuple[str, str], float] = {}

    def report(self, outcomes: Iterable[TableOutcome], finished: Lsn) -> None:
        """Tell of what was skipped. ``finished``: the end of the batch that is committed now."""
        for outcome in outcomes:
            skipped = outcome.skipped
            if skipped is None:
                continue
            for kind, number, keys in (
                (UPDATE_MISSING, skipped.update_missing, skipped.updates),
                (DELETE_MISSING, skipped.delete_missing, skipped.deletes),
            ):
                if not number:
                    continue
                if self._due(outcome.table, kind, number):
                    log.warning(
                        'conflict detected on relation "%s": conflict=%s (%d changes skipped)\n'
                        "DETAIL:  %s %s; finished at %s.",
                        outcome.table,
                        kind,
                        self._untold.pop((outcome.table, kind)),
                        _DETAIL[kind],
                        describe_keys(keys),
                        finished,
                    )

    def _due(self, table: str, kind: str, number: int) -> bool:
        self._untold[table, kind] += number
        now, last = self._clock(), self._told.get((table, kind))
        if last is not None and now - last < LOG_INTERVAL:
            return False
        self._told[table, kind] = now
        return True
