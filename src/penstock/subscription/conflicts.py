"""Changes that were skipped because the target has no such row, and others that met one of their
key where that is no error (conflict.c).

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

from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.side_table import CONFLICTS
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import DecodedChunk
from penstock.pipeline.apply import TableOutcome
from penstock.pipeline.conflict import APPLY_REMOTE, ERROR, KEEP_LOCAL, shown_rows
from penstock.pipeline.net_change import KEPT
from penstock.pipeline.routing import by_leaf

log = logging.getLogger(__name__)

LOG_INTERVAL: Final = 10.0
"""Seconds. PostgreSQL writes a message for each change; millions would fill the disk."""

INSERT_EXISTS: Final = "insert_exists"
UPDATE_EXISTS: Final = "update_exists"
UPDATE_MISSING: Final = "update_missing"
DELETE_MISSING: Final = "delete_missing"
_LAST: Final = np.iinfo(np.int64).max
"""For a sequence after all others."""
_DETAIL: Final = {
    INSERT_EXISTS: "Key already exists.",
    UPDATE_EXISTS: "Key already exists.",
    UPDATE_MISSING: "Could not find the row to be updated.",
    DELETE_MISSING: "Could not find the row to be deleted.",
}

_DONE: Final = {
    APPLY_REMOTE: " The remote row has taken the place of the local one.",
    KEEP_LOCAL: " The change was left out.",
}


class Conflicts:
    """The log of one stream's conflicts; one thread at a time."""

    def __init__(
        self,
        subscription: str = "",
        resolution: str = ERROR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscription = subscription
        self._resolution = resolution
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
            for told in _told(outcome, self._resolution):
                for key, sequence, row in told.changes():
                    lsn, time_us = finished(sequence)
                    self._noted.append(self._row(outcome, told, lsn, 1, key, row, time_us))
                if told.number > len(told.at):
                    lsn, time_us = finished(_LAST)
                    more = told.number - len(told.at)
                    self._noted.append(self._row(outcome, told, lsn, more, None, None, time_us))

    def _row(
        self,
        outcome: TableOutcome,
        told: _Told,
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
            "conflict_type": told.kind,
            "replica_identity": _json(key),
            "remote_tuple": _json(row),
            "remote_commit_lsn": int(lsn),
            "remote_commit_time": time_us,
            "changes": changes,
            "resolution": told.resolution,
        }

    def take(self) -> pa.Table | None:
        """The rows that were noted; they are forgotten. None: there are none."""
        noted, self._noted = self._noted, []
        return pa.Table.from_pylist(noted, CONFLICTS) if noted else None

    def report(self, outcomes: Iterable[TableOutcome], finished: Lsn) -> None:
        """Tell of what was skipped. ``finished``: the end of the batch that is committed now."""
        for outcome in outcomes:
            for told in _told(outcome, self._resolution):
                quota = self._quota(outcome.table, told.kind)
                shown = quota.told(self._clock(), len(told.at), told.number)
                for relation, text in told.texts(outcome)[:shown]:
                    log.warning(
                        'conflict detected on relation "%s": conflict=%s\nDETAIL:  %s\n%s; '
                        "finished at %s.%s",
                        relation,
                        told.kind,
                        _DETAIL[told.kind],
                        text,
                        finished,
                        _DONE.get(told.resolution or ERROR, ""),
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
                'conflict detected on relation "%s": conflict=%s\nDETAIL:  %d more changes.',
                self.table,
                self.kind,
                self.untold,
            )
            self.untold = 0


@dataclass(frozen=True)
class _Told:
    """Conflicts of a kind: how many, and of the first ones keys, sequences, new rows, and the keys
    or rows that the publisher's old rows had. ``whole``: those are rows."""

    kind: str
    number: int
    keys: pa.Table
    at: np.ndarray
    rows: pa.Table | None
    identities: pa.Table | None
    whole: bool = False
    resolution: str | None = None

    def changes(self) -> Iterator[tuple[Mapping[str, object], int, Mapping[str, object] | None]]:
        """Key, message sequence and new row of each."""
        rows = [None] * len(self.at) if self.rows is None else self.rows.to_pylist()
        yield from zip(self.keys.to_pylist(), self.at.tolist(), rows, strict=True)

    def texts(self, outcome: TableOutcome) -> list[tuple[str, str]]:
        """Of each the relation where its row would be, of a partitioned one the leaf, and ``Remote
        row (1, x); replica identity (a)=(1)`` (conflict.c, build_tuple_value_details)."""
        leaves, count = outcome.leaves, len(self.at)
        if leaves is None or not leaves.can_route(self.keys):
            return [(outcome.table, text) for text in self._texts(None)]
        found = [("", "")] * count
        for number, which in by_leaf(leaves.routing.leaves(self.keys)).items():
            leaf = leaves.tables[number]
            texts = self._texts(leaf.schema)
            for at in which.tolist():
                found[at] = (leaf.name, texts[at])
        return found

    def _texts(self, leaf: TableSchema | None) -> list[str]:
        """``leaf``: whose order the columns have."""
        found = []
        if self.identities is None or self.resolution is not None:
            names = f"({', '.join(self.keys.column_names)})"
            found.append([f"key {names}={key}" for key in shown_rows(self.keys)])
        if self.rows is not None:
            found.append([f"remote row {row}" for row in shown_rows(_ordered(self.rows, leaf))])
        if self.identities is not None:
            identities = _ordered(self.identities, leaf) if self.whole else self.identities
            names = "full " if self.whole else f"({', '.join(identities.column_names)})="
            shown = shown_rows(identities)
            found.append([f"replica identity {names}{identity}" for identity in shown])
        texts = ["; ".join(parts) for parts in zip(*found, strict=True)]
        return [text[:1].upper() + text[1:] for text in texts]


def _ordered(rows: pa.Table, leaf: TableSchema | None) -> pa.Table:
    if leaf is None:
        return rows
    return rows.select([c.name for c in leaf.columns if c.name in rows.column_names])


def _told(outcome: TableOutcome, resolution: str) -> Iterator[_Told]:
    """Of each kind that there is."""
    if (skipped := outcome.skipped) is not None:
        whole = skipped.whole_rows
        if skipped.update_missing:
            keys, at, rows = skipped.updates, skipped.updates_at, skipped.new_rows
            yield _Told(UPDATE_MISSING, skipped.update_missing, keys, at, rows, keys, whole)
        if skipped.delete_missing:
            keys, at = skipped.deletes, skipped.deletes_at
            yield _Told(DELETE_MISSING, skipped.delete_missing, keys, at, None, keys, whole)
    if (met := outcome.resolved) is not None:
        for kind, number, which in (
            (INSERT_EXISTS, met.insert_exists, ~met.update),
            (UPDATE_EXISTS, met.update_exists, met.update),
        ):
            if number:
                here = pa.array(which)
                keys, rows = met.keys.filter(here), met.rows.filter(here)
                old = met.old_keys.filter(here) if kind == UPDATE_EXISTS else None
                at = met.at[which]
                yield _Told(kind, number, keys, at, rows, old, resolution=resolution)


def _json(row: Mapping[str, object] | None) -> str | None:
    """Of values that JSON has not, the text."""
    return None if row is None else json.dumps(row, default=str, ensure_ascii=False)
