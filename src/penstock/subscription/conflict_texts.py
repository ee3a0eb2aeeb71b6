"""What is told of conflicts, of each kind of a table (conflict.c, errdetail_apply_conflict).

In: outcomes, and what an error knows of the rows that are in the way. Out: ``Told``: how many, and
of the first ones keys, rows and texts. Who is told is ``conflicts``'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.apply import TableOutcome
from penstock.pipeline.conflict import shown_rows
from penstock.pipeline.net_change import LocalRow, Met
from penstock.pipeline.routing import by_leaf

INSERT_EXISTS: Final = "insert_exists"
UPDATE_EXISTS: Final = "update_exists"
UPDATE_MISSING: Final = "update_missing"
DELETE_MISSING: Final = "delete_missing"


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
        nothing = [None] * len(self.at)
        rows = nothing if self.rows is None else self.rows.to_pylist()
        yield from zip(self.keys.to_pylist(), rows, self.local or nothing, strict=True)

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
