"""Conflicts (conflict.c): changes of missing rows, which are skipped; changes whose key already
exists, which is an error or is resolved; and changes of rows that another origin has written.

The conflicts come from a batch's outcomes, or from the error that ends it. They become rows of the
conflicts table before the batch is committed or the error ends the session. After a batch's commit
they are also logged as PostgreSQL 18 does, at most KEPT of a kind for each table in LOG_INTERVAL.
``pipeline`` finds the conflicts; ``worker_status`` counts them.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.catalog.pg_subscription import Subscription, is_app_id
from penstock.errors import KeyExists, PenstockError
from penstock.failpoint import AFTER_CONFLICTS, failpoint
from penstock.lakehouse.file_commits import FileCommit
from penstock.lakehouse.history_table import COMMIT_LSN, COMMIT_TIMESTAMP, XID
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.side_table import CONFLICTS, SideTable
from penstock.lsn import Lsn
from penstock.pipeline.apply import TableOutcome
from penstock.pipeline.columns import Integers
from penstock.pipeline.conflict import APPLY_REMOTE, ERROR, EXISTS, KEEP_LOCAL, shown_rows
from penstock.pipeline.history import Stamps
from penstock.pipeline.net_change import KEPT, LocalRow, Met, OriginDiffers
from penstock.pipeline.routing import by_leaf
from penstock.subscription.apply_error import during_message, processing

log = logging.getLogger(__name__)

LOG_INTERVAL: Final = 10.0
"""Seconds in which at most KEPT messages of a kind are logged for a table. PostgreSQL logs each
change; millions of messages would fill the disk."""

SAME: Final = (
    "remote_origin",
    "remote_commit_lsn",
    "relation",
    "conflict_type",
    "replica_identity",
    "resolution",
)
"""The columns by which a conflict is recognized when its transaction is applied again."""
_DONE: Final = {
    APPLY_REMOTE: " The remote row has taken the place of the local one.",
    KEEP_LOCAL: " The change was left out.",
}


class Conflicts:
    """The conflicts of one stream, to be recorded and logged; one thread at a time."""

    def __init__(
        self,
        subscription: Subscription,
        names: ConflictNames,
        table: SideTable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscription = subscription.name
        self._app_id = subscription.app_id
        self._table = table
        self._put = False
        self._origin = subscription.origin_name
        self._resolution = subscription.conflict_resolution
        self._names = names
        self._noted: list[Mapping[str, object]] = []
        self._groups: list[_Group] = []
        self._clock = clock
        self._quotas: dict[tuple[str, str], _Quota] = {}

    def note(self, outcomes: Iterable[TableOutcome], stamps: Stamps) -> None:
        """Note the conflicts of a piece of a batch. ``stamps``: those of the piece's
        transactions."""
        for outcome in outcomes:
            for told in told_of(outcome, self._resolution):
                transactions = tuple(_transactions(told.at, stamps))
                self._groups.append(_Group(outcome, told, transactions))
                self._noted += self._rows(outcome.table, told, transactions, stamps)

    def put_error(self, table: str, error: PenstockError, stamps: Stamps) -> None:
        """Record the conflicts of an error about existing keys. An earlier attempt may have
        recorded them already; nothing of their batch is committed. Raises StorageError,
        CommitConflict."""
        if not isinstance(error, KeyExists) or not isinstance(error.met, Met):
            return
        rows = [
            row
            for told in told_of_met(error.met, ERROR)
            for row in self._rows(table, told, tuple(_transactions(told.at, stamps)), stamps)
        ]
        self._table.append_once(pa.Table.from_pylist(rows, CONFLICTS), SAME)
        failpoint(AFTER_CONFLICTS)

    def named(self, table: str, version: int, error: PenstockError) -> PenstockError:
        """Return an error about existing keys with the names that its DETAIL lacks; return other
        errors unchanged. ``version``: the table's version; rows of the batch itself would be in the
        next version."""
        if not isinstance(error, KeyExists) or not isinstance(error.met, Met):
            return error
        _, told = str(error.detail).split("\n", 1)
        local = error.met.local[0]
        if local is not None and local.of_run:
            now = FileCommit(version + 1, int(time.time() * 1000), self._app_id)
            local = replace(local, by=now)
        line = self._names.exists(table, local)
        return error.changed(detail=f"{line}.\n{told}")

    def _rows(
        self,
        table: str,
        told: ConflictGroup,
        transactions: Sequence[_Transaction],
        stamps: Stamps,
    ) -> Iterator[Mapping[str, object]]:
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
        """Prepare for another batch."""
        self._put, self._groups = False, []

    def forget(self) -> None:
        """Forget the noted conflicts: the batch is applied again."""
        self._noted = []

    @property
    def noted(self) -> bool:
        """True if there is anything for ``put`` to record."""
        return bool(self._noted)

    def put(self, end_lsn: Lsn) -> None:
        """Record the conflicts, before the batch that ends at ``end_lsn`` is committed. Raises
        StorageError, CommitConflict."""
        rows = pa.Table.from_pylist(self._noted, CONFLICTS)
        # An attempt that lost a race has recorded its conflicts, and this attempt may have found
        # more. ``append`` would skip those, because the marker is already in the table.
        if self._put:
            self._table.append_once(rows, SAME)
        else:
            self._table.append((self._app_id,), end_lsn, rows)
        self._put = True
        failpoint(AFTER_CONFLICTS)

    def report(self, outcomes: Iterable[TableOutcome]) -> None:
        """Log the conflicts of a committed batch."""
        committed = set(map(id, outcomes))
        for group in self._groups:
            if id(group.outcome) in committed:
                self._log(group)

    def _log(self, group: _Group) -> None:
        outcome, told = group.outcome, group.told
        quota = self._quota(outcome.table, told.kind)
        shown = quota.told(self._clock(), len(told.at), told.number)
        if not shown:
            return
        done = _DONE.get(told.resolution or ERROR, "") if told.kind in EXIST else ""
        during = during_message(_MESSAGES[told.kind], outcome.table)
        texts = told.texts(outcome, self._names)[:shown]
        for (relation, detail), at in zip(texts, group.transactions, strict=False):
            log.warning(
                'conflict detected on relation "%s": conflict=%s\nDETAIL:  %s.%s\nCONTEXT:  %s',
                relation,
                told.kind,
                detail,
                done,
                processing(self._origin, during, at.xid, at.finish),
            )

    def _quota(self, table: str, kind: str) -> _Quota:
        return self._quotas.setdefault((table, kind), _Quota(table, kind))


@dataclass
class _Quota:
    """How many conflicts of a kind of a table may still be logged in the interval that began at
    ``since`` (``left``), and how many were not logged (``untold``)."""

    table: str
    kind: str
    since: float | None = None
    left: int = 0
    untold: int = 0

    def told(self, now: float, known: int, number: int) -> int:
        """Return how many changes to log, out of ``number``, of which the first ``known`` are known
        in detail."""
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
class _Group:
    """Conflicts of a kind of one outcome, and the transactions of the first of them."""

    outcome: TableOutcome
    told: ConflictGroup
    transactions: tuple[_Transaction, ...]


@dataclass(frozen=True, slots=True)
class _Transaction:
    """The transaction of a conflict. Without ``xid`` and ``finish`` it stands for several
    transactions, which end at ``end`` at the latest."""

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
    """Return a row as JSON. Values that JSON lacks become strings."""
    if row is None:
        return None
    return json.dumps(_shown(row), default=str, ensure_ascii=False, allow_nan=False)


def _shown(value: object) -> object:
    """Return a value with to_jsonb's form of parts that json.dumps would not write as JSON."""
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


# The texts of conflicts, for each kind of a table (conflict.c, errdetail_apply_conflict).
#
# Outcomes, or an error with its existing rows, become ``ConflictGroup``s: the number of conflicts,
# and the keys, rows and texts of the first of them. ``Conflicts`` records and logs the groups.

INSERT_EXISTS: Final = "insert_exists"
UPDATE_EXISTS: Final = "update_exists"
UPDATE_MISSING: Final = "update_missing"
DELETE_MISSING: Final = "delete_missing"
UPDATE_ORIGIN_DIFFERS: Final = "update_origin_differs"
DELETE_ORIGIN_DIFFERS: Final = "delete_origin_differs"
EXIST: Final = (INSERT_EXISTS, UPDATE_EXISTS)
_MESSAGES: Final = {
    INSERT_EXISTS: "INSERT",
    UPDATE_EXISTS: "UPDATE",
    UPDATE_MISSING: "UPDATE",
    DELETE_MISSING: "DELETE",
    UPDATE_ORIGIN_DIFFERS: "UPDATE",
    DELETE_ORIGIN_DIFFERS: "DELETE",
}
"""The message of pgoutput that met each kind of conflict."""


_NOT_FOUND: Final = {
    UPDATE_MISSING: "Could not find the row to be updated.",
    DELETE_MISSING: "Could not find the row to be deleted.",
}
_THEIRS: Final = {
    UPDATE_ORIGIN_DIFFERS: "Updating the row that was",
    DELETE_ORIGIN_DIFFERS: "Deleting the row that was",
}


@dataclass(frozen=True)
class ConflictNames:
    """Names for the texts. ``index``: the name of a table's unique index, by the table's name; None
    if the node knows of none. ``origin``: the name of a replication origin, by the subscription's
    app id; None if the node no longer has that subscription."""

    index: Callable[[str], str | None]
    origin: Callable[[str], str | None]

    def line(self, kind: str, table: str, local: LocalRow | None) -> str:
        """Return the first line of a DETAIL."""
        if kind in _NOT_FOUND:
            return _NOT_FOUND[kind]
        if kind in EXIST:
            return f"{self.exists(table, local)}."
        by = None if local is None else local.by
        who = " modified by others" if by is None else self._modified(by, "a different origin")
        return f"{_THEIRS[kind]}{who}."

    def exists(self, table: str, local: LocalRow | None) -> str:
        """Return ``Key already exists in unique index "t_pkey", modified ...``, without the parts
        that are not known."""
        index = self.index(table)
        where = "" if index is None else f' in unique index "{index}"'
        by = None if local is None else local.by
        return f"{EXISTS}{where}{'' if by is None else f',{self._modified(by)}'}"

    def _modified(self, by: FileCommit, origin_is: str = "origin") -> str:
        who, time = "locally", datetime.fromtimestamp(by.time / 1000, UTC)
        if by.app_id is not None and is_app_id(by.app_id):
            origin = self.origin(by.app_id)
            who = "by a non-existent origin" if origin is None else f'by {origin_is} "{origin}"'
        at = time.isoformat(" ", "milliseconds").replace("+00:00", "+00")
        return f" modified {who} in transaction {by.version} at {at}"


@dataclass(frozen=True)
class ConflictGroup:
    """Conflicts of a kind: their number, and of the first conflicts the keys, the numbers of their
    messages, the new rows, and the publisher's old rows or keys (``identities``). ``whole``:
    ``identities`` are rows, not keys. ``local``: the existing rows."""

    kind: str
    number: int
    keys: pa.Table
    at: np.ndarray
    rows: pa.Table | None
    identities: pa.Table | None
    whole: bool = False
    resolution: str | None = None
    local: tuple[LocalRow | None, ...] = ()

    def changes(
        self,
    ) -> Iterator[tuple[Mapping[str, object], Mapping[str, object] | None, LocalRow | None]]:
        """Yield the key, the new row and the existing row of each change."""
        rows = [None] * len(self.at) if self.rows is None else self.rows.to_pylist()
        yield from zip(self.keys.to_pylist(), rows, self._met(), strict=True)

    def texts(self, outcome: TableOutcome, names: ConflictNames) -> list[tuple[str, str]]:
        """Return for each change the relation of its row, which may be a leaf, and its DETAIL
        without the last period."""
        leaves, count = outcome.leaves, len(self.at)
        if leaves is None or not leaves.can_route(self.keys):
            where, texts = [outcome.table] * count, self._texts(None)
        else:
            where, texts = [""] * count, [""] * count
            for number, which in by_leaf(leaves.routing.leaves(self.keys)).items():
                leaf = leaves.tables[number]
                of_leaf = self._texts(leaf.schema)
                for at in which.tolist():
                    where[at], texts[at] = leaf.name, of_leaf[at]
        lines = [
            names.line(self.kind, table, local)
            for table, local in zip(where, self._met(), strict=True)
        ]
        details = [f"{line}\n{text}" for line, text in zip(lines, texts, strict=True)]
        return list(zip(where, details, strict=True))

    def _met(self) -> Sequence[LocalRow | None]:
        return self.local or [None] * len(self.at)

    def _texts(self, leaf: TableSchema | None) -> list[str]:
        """Return texts such as ``Remote row (1, x); replica identity (a)=(1)`` (conflict.c,
        build_tuple_value_details). ``leaf``: the schema that gives the order of the columns."""
        found: list[list[str]] = []
        if self.kind in EXIST:
            names = f"({', '.join(self.keys.column_names)})"
            found.append([f"key {names}={key}" for key in shown_rows(self.keys)])
        if self.local:
            local = ("" if row is None else f"existing local row {row.shown}" for row in self.local)
            found.append(list(local))
        if self.rows is not None:
            found.append([f"remote row {row}" for row in shown_rows(_ordered(self.rows, leaf))])
        if self.identities is not None:
            identities = _ordered(self.identities, leaf) if self.whole else self.identities
            names = "full " if self.whole else f"({', '.join(identities.column_names)})="
            shown = shown_rows(identities)
            found.append([f"replica identity {names}{identity}" for identity in shown])
        texts = ["; ".join(filter(None, parts)) for parts in zip(*found, strict=True)]
        return [text[:1].upper() + text[1:] for text in texts]


def _ordered(rows: pa.Table, leaf: TableSchema | None) -> pa.Table:
    if leaf is None:
        return rows
    return rows.select([c.name for c in leaf.columns if c.name in rows.column_names])


def told_of(outcome: TableOutcome, resolution: str) -> Iterator[ConflictGroup]:
    """Yield the conflicts of an outcome, one ``ConflictGroup`` for each kind that it has."""
    if (skipped := outcome.skipped) is not None:
        whole = skipped.whole_rows
        if skipped.update_missing:
            keys, at, rows = skipped.updates, skipped.updates_at, skipped.new_rows
            yield ConflictGroup(UPDATE_MISSING, skipped.update_missing, keys, at, rows, keys, whole)
        if skipped.delete_missing:
            keys, at = skipped.deletes, skipped.deletes_at
            yield ConflictGroup(DELETE_MISSING, skipped.delete_missing, keys, at, None, keys, whole)
    if outcome.resolved is not None:
        yield from told_of_met(outcome.resolved, resolution)
    if outcome.differs is not None:
        yield from _told_of_others(outcome.differs)


def _told_of_others(differs: OriginDiffers) -> Iterator[ConflictGroup]:
    for kind, number, which in (
        (UPDATE_ORIGIN_DIFFERS, differs.updates, differs.update),
        (DELETE_ORIGIN_DIFFERS, differs.deletes, ~differs.update),
    ):
        if number:
            here = pa.array(which)
            keys = differs.keys.filter(here)
            rows = differs.rows.filter(here) if kind == UPDATE_ORIGIN_DIFFERS else None
            local = tuple(differs.local[at] for at in np.flatnonzero(which).tolist())
            at = differs.at[which]
            yield ConflictGroup(
                kind, number, keys, at, rows, keys, resolution=APPLY_REMOTE, local=local
            )


def told_of_met(met: Met, resolution: str) -> Iterator[ConflictGroup]:
    """Yield the conflicts with existing rows, one ``ConflictGroup`` for each kind. ``resolution``:
    the resolution that was applied to them."""
    for kind, number, which in (
        (INSERT_EXISTS, met.insert_exists, ~met.update),
        (UPDATE_EXISTS, met.update_exists, met.update),
    ):
        if number:
            here = pa.array(which)
            keys, rows = met.keys.filter(here), met.rows.filter(here)
            old = met.old_keys.filter(here) if kind == UPDATE_EXISTS else None
            local = tuple(met.local[at] for at in np.flatnonzero(which).tolist())
            at = met.at[which]
            yield ConflictGroup(
                kind, number, keys, at, rows, old, resolution=resolution, local=local
            )
