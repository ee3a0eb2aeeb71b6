"""Changes that were skipped because the target has no such row (conflict.c).

In: the outcomes of a batch. Out: rows of the conflicts table, before the batch is committed; then
log messages as PostgreSQL 18's, of each table at most KEPT of a kind in LOG_INTERVAL. What is a
conflict is found in ``pipeline``, a key that exists already is an error and not a skipped
change; ``worker_status`` counts.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.lakehouse.side_table import CONFLICTS
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import DecodedChunk
from penstock.pipeline.apply import TableOutcome
from penstock.pipeline.conflict import shown_rows
from penstock.pipeline.net_change import KEPT, Skipped

log = logging.getLogger(__name__)

LOG_INTERVAL: Final = 10.0
"""Seconds. PostgreSQL writes a message for each change; millions would fill the disk."""

UPDATE_MISSING: Final = "update_missing"
DELETE_MISSING: Final = "delete_missing"
_LAST: Final = np.iinfo(np.int64).max
"""For a sequence after all others."""
_DETAIL: Final = {
    UPDATE_MISSING: "Could not find the row to be updated.",
    DELETE_MISSING: "Could not find the row to be deleted.",
}


class Conflicts:
    """The log of one stream's conflicts; one thread at a time."""

    def __init__(self, subscription: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._subscription = subscription
        self._noted: list[Mapping[str, object]] = []
        self._clock = clock
        self._quotas: dict[tuple[str, str], _Quota] = {}

    def note(
        self,
        outcomes: Iterable[TableOutcome],
        chunk: DecodedChunk | None,
        open_end: Lsn,
        open_time: int,
    ) -> None:
        """What a piece of a batch skips. ``chunk``: the piece, if it has commits; ``open_end``,
        ``open_time``: end of the transaction after them, and its commit in us since 1970."""

        def finished(sequence: int) -> tuple[Lsn, int]:
            commits = () if chunk is None else chunk.commit_sequence
            at = int(np.searchsorted(commits, sequence))
            if chunk is None or at == len(commits):
                return open_end, open_time
            return Lsn(int(chunk.end_lsn[at])), int(chunk.commit_time[at])

        for outcome in outcomes:
            for kind, number, keys, at, rows in _kinds(outcome.skipped):
                shown = [None] * len(at) if rows is None else rows.to_pylist()
                for key, sequence, row in zip(keys.to_pylist(), at.tolist(), shown, strict=True):
                    lsn, time_us = finished(sequence)
                    self._noted.append(self._row(outcome, kind, lsn, 1, key, row, time_us))
                if number > len(at):
                    lsn, time_us = finished(_LAST)
                    more = number - len(at)
                    self._noted.append(self._row(outcome, kind, lsn, more, None, None, time_us))

    def _row(
        self,
        outcome: TableOutcome,
        kind: str,
        lsn: Lsn,
        changes: int,
        key: Mapping[str, object] | None,
        row: Mapping[str, object] | None,
        time_us: int,
    ) -> Mapping[str, object]:
        return {
            "log_time": datetime.now(UTC),
            "subscription": self._subscription,
            "relation": outcome.table,
            "conflict_type": kind,
            "replica_identity": _json(key),
            "remote_tuple": _json(row),
            "remote_commit_lsn": int(lsn),
            "remote_commit_time": time_us,
            "changes": changes,
        }

    def take(self) -> pa.Table | None:
        """The rows that were noted; they are forgotten. None: there are none."""
        noted, self._noted = self._noted, []
        return pa.Table.from_pylist(noted, CONFLICTS) if noted else None

    def report(self, outcomes: Iterable[TableOutcome], finished: Lsn) -> None:
        """Tell of what was skipped. ``finished``: the end of the batch that is committed now."""
        for outcome in outcomes:
            for kind, number, keys, _, _ in _kinds(outcome.skipped):
                told = self._quota(outcome.table, kind).told(self._clock(), keys.num_rows, number)
                for text in _texts(outcome.skipped, kind, told):
                    log.warning(
                        'conflict detected on relation "%s": conflict=%s\nDETAIL:  %s\n%s; '
                        "finished at %s.",
                        outcome.table,
                        kind,
                        _DETAIL[kind],
                        text,
                        finished,
                    )

    def _quota(self, table: str, kind: str) -> _Quota:
        return self._quotas.setdefault((table, kind), _Quota(table, kind))


@dataclass
class _Quota:
    """What is told of a table's conflicts of a kind, from ``since`` on, and what is not."""

    table: str
    kind: str
    since: float | None = None
    left: int = 0
    untold: int = 0

    def told(self, now: float, known: int, number: int) -> int:
        """How many of the first ``known`` out of ``number`` changes are told."""
        if self.since is None or now - self.since >= LOG_INTERVAL:
            self.since, self.left = now, KEPT
            self._tell_rest()
        shown = min(known, self.left)
        self.left -= shown
        self.untold += number - shown
        return shown

    def _tell_rest(self) -> None:
        if self.untold:
            log.warning(
                'conflict detected on relation "%s": conflict=%s\nDETAIL:  %d more changes were '
                "skipped.",
                self.table,
                self.kind,
                self.untold,
            )
            self.untold = 0


def _texts(skipped: Skipped | None, kind: str, number: int) -> list[str]:
    """``Remote row (1, x); replica identity (a)=(1)`` of the first changes (conflict.c,
    build_tuple_value_details)."""
    assert skipped is not None
    update = kind == UPDATE_MISSING
    keys = (skipped.updates if update else skipped.deletes).slice(0, number)
    names = "full " if skipped.whole_rows else f"({', '.join(keys.column_names)})="
    identities = [f"replica identity {names}{key}" for key in shown_rows(keys)]
    if not update:
        return [f"R{identity[1:]}" for identity in identities]
    rows = shown_rows(skipped.new_rows.slice(0, number))
    return [f"Remote row {row}; {i}" for row, i in zip(rows, identities, strict=True)]


def _kinds(
    skipped: Skipped | None,
) -> Iterator[tuple[str, int, pa.Table, np.ndarray, pa.Table | None]]:
    """Of each kind that there is: how many changes; of the first ones keys, sequences, new rows."""
    if skipped is None:
        return
    if skipped.update_missing:
        updates = skipped.updates, skipped.updates_at, skipped.new_rows
        yield UPDATE_MISSING, skipped.update_missing, *updates
    if skipped.delete_missing:
        yield DELETE_MISSING, skipped.delete_missing, skipped.deletes, skipped.deletes_at, None


def _json(row: Mapping[str, object] | None) -> str | None:
    """Of values that JSON has not, the text."""
    return None if row is None else json.dumps(row, default=str, ensure_ascii=False)
