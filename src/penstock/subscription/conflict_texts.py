"""What is told of conflicts, of each kind of a table (conflict.c, errdetail_apply_conflict).

In: outcomes, and what an error knows of the rows that are in the way. Out: ``Told``: how many, and
of the first ones keys, rows and texts. Who is told is ``conflicts``'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.catalog.pg_subscription import is_app_id
from penstock.lakehouse.file_commits import FileCommit
from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.apply import TableOutcome
from penstock.pipeline.conflict import APPLY_REMOTE, EXISTS, shown_rows
from penstock.pipeline.net_change import LocalRow, Met, OriginDiffers
from penstock.pipeline.routing import by_leaf

INSERT_EXISTS: Final = "insert_exists"
UPDATE_EXISTS: Final = "update_exists"
UPDATE_MISSING: Final = "update_missing"
DELETE_MISSING: Final = "delete_missing"
UPDATE_ORIGIN_DIFFERS: Final = "update_origin_differs"
DELETE_ORIGIN_DIFFERS: Final = "delete_origin_differs"
EXIST: Final = (INSERT_EXISTS, UPDATE_EXISTS)


_NOT_FOUND: Final = {
    UPDATE_MISSING: "Could not find the row to be updated.",
    DELETE_MISSING: "Could not find the row to be deleted.",
}
_THEIRS: Final = {
    UPDATE_ORIGIN_DIFFERS: "Updating the row that was",
    DELETE_ORIGIN_DIFFERS: "Deleting the row that was",
}


@dataclass(frozen=True)
class Names:
    """``index``: of a table's unique index, by the table's name; None: there is none that the node
    knows of. ``origin``: of a replication origin, by the subscription's app id; None: it is none of
    the node's any more."""

    index: Callable[[str], str | None]
    origin: Callable[[str], str | None]

    def line(self, kind: str, table: str, local: LocalRow | None) -> str:
        """The first one of a DETAIL."""
        if kind in _NOT_FOUND:
            return _NOT_FOUND[kind]
        if kind in EXIST:
            return f"{self.exists(table, local)}."
        by = None if local is None else local.by
        who = " modified by others" if by is None else self._modified(by, "a different origin")
        return f"{_THEIRS[kind]}{who}."

    def exists(self, table: str, local: LocalRow | None) -> str:
        """``Key already exists in unique index "t_pkey", modified ...``, as far as it is known."""
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
class Told:
    """Conflicts of a kind: how many, and of the first ones keys, sequences, new rows, and the keys
    or rows that the publisher's old rows had. ``whole``: those are rows. ``local``: the rows that
    they met."""

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
        """Key and new row of each, and the row that it met."""
        rows = [None] * len(self.at) if self.rows is None else self.rows.to_pylist()
        yield from zip(self.keys.to_pylist(), rows, self._met(), strict=True)

    def texts(self, outcome: TableOutcome, names: Names) -> list[tuple[str, str]]:
        """Of each the relation where its row would be, of a partitioned one the leaf, and its
        DETAIL, without the last period."""
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
        """``Remote row (1, x); replica identity (a)=(1)`` (conflict.c, build_tuple_value_details).
        ``leaf``: whose order the columns have."""
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


def told_of(outcome: TableOutcome, resolution: str) -> Iterator[Told]:
    """Of each kind that there is."""
    if (skipped := outcome.skipped) is not None:
        whole = skipped.whole_rows
        if skipped.update_missing:
            keys, at, rows = skipped.updates, skipped.updates_at, skipped.new_rows
            yield Told(UPDATE_MISSING, skipped.update_missing, keys, at, rows, keys, whole)
        if skipped.delete_missing:
            keys, at = skipped.deletes, skipped.deletes_at
            yield Told(DELETE_MISSING, skipped.delete_missing, keys, at, None, keys, whole)
    if outcome.resolved is not None:
        yield from told_of_met(outcome.resolved, resolution)
    if outcome.differs is not None:
        yield from _told_of_others(outcome.differs)


def _told_of_others(differs: OriginDiffers) -> Iterator[Told]:
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
            yield Told(kind, number, keys, at, rows, keys, resolution=APPLY_REMOTE, local=local)


def told_of_met(met: Met, resolution: str) -> Iterator[Told]:
    """Of each kind that there is of changes that met a row. ``resolution``: what became of them."""
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
            yield Told(kind, number, keys, at, rows, old, resolution=resolution, local=local)
