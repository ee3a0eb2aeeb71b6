"""Changes that were skipped because the target has no such row, and others that met one of their
key, an error or not (conflict.c).

In: the outcomes of a batch, or the error that ends it. Out: rows of the conflicts table, before the
batch is committed, or the error ends the session; of a batch then log messages as PostgreSQL 18's,
of each table at most KEPT of a kind in LOG_INTERVAL. What is a conflict is found in ``pipeline``;
``worker_status`` counts.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from penstock.errors import KeyExists, PenstockError
from penstock.failpoint import AFTER_CONFLICTS, failpoint
from penstock.lakehouse.file_commits import FileCommit
from penstock.lakehouse.history_table import COMMIT_LSN, COMMIT_TIMESTAMP, XID
from penstock.lakehouse.side_table import CONFLICTS, SideTable
from penstock.lsn import Lsn
from penstock.pipeline.apply import TableOutcome
from penstock.pipeline.columns import Integers
from penstock.pipeline.conflict import APPLY_REMOTE, ERROR, KEEP_LOCAL
from penstock.pipeline.history import Stamps
from penstock.pipeline.net_change import KEPT, LocalRow, Met
from penstock.subscription.conflict_texts import (
    EXIST,
    Names,
    Told,
    told_of,
    told_of_met,
)

log = logging.getLogger(__name__)

LOG_INTERVAL: Final = 10.0
"""Seconds. PostgreSQL writes a message for each change; millions would fill the disk."""

SAME: Final = (
    "remote_origin",
    "remote_commit_lsn",
    "relation",
    "conflict_type",
    "replica_identity",
    "resolution",
)
"""Columns that tell a conflict that comes again, whenever its transaction is worked again."""
_DONE: Final = {
    APPLY_REMOTE: " The remote row has taken the place of the local one.",
    KEEP_LOCAL: " The change was left out.",
}


class Conflicts:
    """The log of one stream's conflicts; one thread at a time."""

    def __init__(
        self,
        subscription: str,
        app_id: str,
        origin: str,
        resolution: str,
        names: Names,
        table: SideTable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``origin``: the subscription's replication origin, as error contexts name it."""
        self._subscription = subscription
        self._app_id = app_id
        self._table = table
        self._put = False
        self._origin = origin
        self._resolution = resolution
        self._names = names
        self._noted: list[Mapping[str, object]] = []
        self._clock = clock
        self._quotas: dict[tuple[str, str], _Quota] = {}

    def note(self, outcomes: Iterable[TableOutcome], stamps: Stamps) -> None:
        """What a piece of a batch skips and resolves. ``stamps``: of its transactions."""
        for outcome in outcomes:
            for told in told_of(outcome, self._resolution):
                self._noted += self._rows(outcome.table, told, stamps)

    def put_error(self, table: str, error: PenstockError, stamps: Stamps) -> None:
        """Of an error that a table's keys are; it may have come before, and nothing of its batch is
        committed. Raises StorageError, CommitConflict."""
        if not isinstance(error, KeyExists) or not isinstance(error.met, Met):
            return
        rows = [
            row for told in told_of_met(error.met, ERROR) for row in self._rows(table, told, stamps)
        ]
        self._table.append_once(pa.Table.from_pylist(rows, CONFLICTS), SAME)
        failpoint(AFTER_CONFLICTS)

    def named(self, table: str, version: int, error: PenstockError) -> PenstockError:
        """An error that a table's keys are with the names that its DETAIL lacks; another one as it
        is. ``version``: the table's, of which a row that the run has made would be the next."""
        if not isinstance(error, KeyExists) or not isinstance(error.met, Met):
            return error
        _, told = str(error.detail).split("\n", 1)
        local = error.met.local[0]
        if local is not None and local.of_run:
            now = FileCommit(version + 1, int(time.time() * 1000), self._app_id)
            local = replace(local, by=now)
        line = self._names.exists(table, local)
        return error.changed(detail=f"{line}.\n{told}")

    def _rows(self, table: str, told: Told, stamps: Stamps) -> Iterator[Mapping[str, object]]:
        def row(changes: int, at: _Transaction, **values: object) -> Mapping[str, object]:
            return {
                "log_time": datetime.now(UTC),
                "subscription": self._subscription,
                "relation": table,
                "conflict_type": told.kind,
                "remote_commit_lsn": int(at.end),
                "remote_commit_time": at.time,
                "changes": changes,
                "resolution": told.resolution,
                "remote_origin": self._origin,
                "remote_xid": at.xid,
                "finish_lsn": None if at.finish is None else str(at.finish),
                **values,
            }

        transactions = list(_transactions(told.at, stamps))
        for at, (key, remote, local) in zip(transactions, told.changes(), strict=True):
            yield row(
                1,
                at,
                replica_identity=row_json(key),
                remote_tuple=row_json(remote),
                **self._local(local),
            )
        if told.number > len(told.at):
            last = _Transaction(stamps.end, stamps.time)
            if all(each.end == last.end for each in transactions[-1:]):
                last = transactions[-1]
            yield row(told.number - len(told.at), last)

    def _local(self, row: LocalRow | None) -> Mapping[str, object]:
        if row is None:
            return {}
        if (by := row.by) is None:
            return {"local_row": row.shown}
        return {
            "local_row": row.shown,
            "local_origin": None if by.app_id is None else self._names.origin(by.app_id),
            "local_version": by.version,
            "local_commit_time": by.time * 1000,
        }

    def begin(self) -> None:
        """Another batch comes."""
        self._put = False

    def forget(self) -> None:
        """Of the batch; it is worked once more."""
        self._noted = []

    @property
    def noted(self) -> bool:
        """Whether there is anything to be put."""
        return bool(self._noted)

    def put(self, end_lsn: Lsn) -> None:
        """What was noted, before the batch that ends there is committed. Raises StorageError,
        CommitConflict."""
        rows = pa.Table.from_pylist(self._noted, CONFLICTS)
        if self._put:  # before a lost race, which leads to more
            self._table.append_once(rows, SAME)
        else:
            self._table.append((self._app_id,), end_lsn, rows)
        self._put = True
        failpoint(AFTER_CONFLICTS)

    def report(self, outcomes: Iterable[TableOutcome], finished: Lsn) -> None:
        """Tell of what was skipped. ``finished``: the end of the batch that is committed now."""
        for outcome in outcomes:
            for told in told_of(outcome, self._resolution):
                quota = self._quota(outcome.table, told.kind)
                shown = quota.told(self._clock(), len(told.at), told.number)
                for relation, detail in told.texts(outcome, self._names)[:shown] if shown else ():
                    log.warning(
                        'conflict detected on relation "%s": conflict=%s\nDETAIL:  %s; finished at '
                        "%s.%s",
                        relation,
                        told.kind,
                        detail,
                        finished,
                        _DONE.get(told.resolution or ERROR, "") if told.kind in EXIST else "",
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


@dataclass(frozen=True, slots=True)
class _Transaction:
    """Of a conflict. Without ``xid`` and ``finish``: of several, which end there at the latest."""

    end: Lsn
    time: int
    xid: int | None = None
    finish: Lsn | None = None


def _transactions(sequence: Integers, stamps: Stamps) -> Iterator[_Transaction]:
    of = stamps.columns(sequence)
    columns = (of[name].to_pylist() for name in (COMMIT_LSN, COMMIT_TIMESTAMP, XID))
    for end, time_us, xid, finish in zip(
        *columns, stamps.finish_lsns(sequence).tolist(), strict=True
    ):
        yield _Transaction(Lsn(end), time_us, xid, Lsn(finish))


def row_json(row: Mapping[str, object] | None) -> str | None:
    """Of values that JSON has not, the text."""
    if row is None:
        return None
    return json.dumps(_shown(row), default=str, ensure_ascii=False, allow_nan=False)


def _shown(value: object) -> object:
    """What json.dumps would not write as JSON, as to_jsonb has it."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
        case bytes():
            return rf"\x{value.hex()}"
        case list():
            return [_shown(item) for item in value]
        case Mapping():
            return {name: _shown(item) for name, item in value.items()}
        case _:
            return value
