"""Net change: the effect of a chunk of changes on one table, the value between fold and apply.

``NetChange`` and its parts hold Arrow tables with the target's columns. ``fold`` makes them and
``apply`` carries them out; neither depends on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import ReplicationConflict
from penstock.lakehouse.file_commits import FileCommit
from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.versions import Versions

KEPT: Final = 20
"""The number of keys kept for reports of skipped changes, and of changes with an existing key."""


@dataclass(frozen=True)
class Incomplete:
    """New versions of rows with cells that the publisher did not send (unchanged TOAST).

    ``rows`` has the target's columns, with NULL in the cells to be completed. ``missing`` maps a
    column to the mask of rows whose cell is to be taken from the row's old version. The old version
    of row i is row ``old[i]`` of ``NetChange.removed``.
    """

    rows: pa.Table
    missing: Mapping[str, np.ndarray]
    old: np.ndarray


@dataclass(frozen=True)
class EndedRows:
    """Rows that are deleted and stay (``soft_delete``), as they were before the run: row ``old[i]``
    of ``NetChange.removed`` is written again with the metadata columns ``stamps``."""

    old: np.ndarray
    stamps: pa.Table


@dataclass(frozen=True)
class Skipped:
    """Changes skipped because the target lacks their rows (update_missing, delete_missing).

    ``updates``, ``deletes``: the rows' keys as the publisher named them, one for each change; whole
    rows in a table without a key. ``updates_at``, ``deletes_at``: the changes' message sequences.
    ``new_rows``: the new rows of the updates. Each holds at most KEPT; ``update_missing`` and
    ``delete_missing`` count all changes. ``whole_rows``: rows are identified by all their values.
    """

    update_missing: int
    delete_missing: int
    updates: pa.Table
    deletes: pa.Table
    updates_at: np.ndarray
    deletes_at: np.ndarray
    new_rows: pa.Table
    whole_rows: bool = False

    def with_more(self, more: Skipped) -> Skipped:
        """Return both together."""
        return Skipped(
            self.update_missing + more.update_missing,
            self.delete_missing + more.delete_missing,
            pa.concat_tables([self.updates, more.updates]).slice(0, KEPT),
            pa.concat_tables([self.deletes, more.deletes]).slice(0, KEPT),
            np.concatenate([self.updates_at, more.updates_at])[:KEPT],
            np.concatenate([self.deletes_at, more.deletes_at])[:KEPT],
            pa.concat_tables([self.new_rows, more.new_rows]).slice(0, KEPT),
            self.whole_rows,
        )


@dataclass(frozen=True)
class LocalRow:
    """An existing row. ``shown``: its text in messages; ``by``: the commit that wrote it, if known;
    ``of_run``: a change of the same run made it, so that it is not committed yet."""

    shown: str
    by: FileCommit | None = None
    of_run: bool = False


LocalRows = Mapping[int, LocalRow]
"""Existing rows by the number of their key, or by the position of a change."""


@dataclass(frozen=True)
class Met:
    """Changes whose key existed already (insert_exists, update_exists).

    ``insert_exists``, ``update_exists`` count all changes. The rest describes the first KEPT.
    ``keys``: the keys that existed; ``at``: the message sequences; ``rows``: the rows that the
    changes would have made; ``old_keys``: the keys of the changed rows, as the publisher names
    them; ``update``: whether a change is an UPDATE; ``local``: the existing rows.
    """

    insert_exists: int
    update_exists: int
    keys: pa.Table
    at: np.ndarray
    rows: pa.Table
    old_keys: pa.Table
    update: np.ndarray
    local: tuple[LocalRow | None, ...]

    def with_more(self, more: Met) -> Met:
        """Return both together."""
        return Met(
            self.insert_exists + more.insert_exists,
            self.update_exists + more.update_exists,
            pa.concat_tables([self.keys, more.keys]).slice(0, KEPT),
            np.concatenate([self.at, more.at])[:KEPT],
            pa.concat_tables([self.rows, more.rows]).slice(0, KEPT),
            pa.concat_tables([self.old_keys, more.old_keys]).slice(0, KEPT),
            np.concatenate([self.update, more.update])[:KEPT],
            (*self.local, *more.local)[:KEPT],
        )


@dataclass(frozen=True)
class OriginDiffers:
    """Changes of rows whose last writer was somebody else (update_origin_differs,
    delete_origin_differs). They are carried out like other changes.

    ``updates``, ``deletes`` count all changes. The rest describes the first KEPT. ``keys``: the
    rows' keys, as the publisher names them; ``at``: the message sequences; ``update``: whether a
    change is an UPDATE; ``rows``: the rows that the UPDATEs made; ``local``: the rows that existed.
    """

    updates: int
    deletes: int
    keys: pa.Table
    at: np.ndarray
    rows: pa.Table
    update: np.ndarray
    local: tuple[LocalRow | None, ...]


@dataclass(frozen=True)
class NetChange:
    """The net effect of a run of whole transactions, or of a piece of one, on one table.

    To carry it out: if ``truncate``, drop all rows; delete the rows of ``removed``; insert
    ``rows`` and the completed ``incomplete``. ``removed`` holds keys that exist in the target, each
    in exactly one row; in a table without a key it holds whole rows (``TableSchema.identity``), and
    ``copies[i]`` of row i are deleted. ``absent`` holds keys that the target must not have. With
    ``truncate``, ``removed``, ``absent`` and ``incomplete`` are empty.

    If deleted rows stay (``soft_delete``), those that the run changed before it deleted them are in
    ``rows`` and ``incomplete``, marked as deleted; the other deleted rows are in ``ended``.
    ``all_ended``: every live row is deleted, with these metadata columns (one row); the rest is
    empty then.
    """

    table: str
    schema: TableSchema
    changes: int
    """The number of folded row changes, for statistics, without those before a TRUNCATE."""
    rows: pa.Table
    removed: pa.Table
    absent: pa.Table
    copies: np.ndarray | None = None
    incomplete: Incomplete | None = None
    truncate: bool = False
    skipped: Skipped | None = None
    versions: Versions | None = None
    """The row versions of the changes that were not skipped, if requested."""
    without: Callable[[np.ndarray], NetChange] | None = field(default=None, repr=False)
    """Fold again without the changes of missing rows. The argument tells how many of each row of
    ``removed`` are missing. None if this net change does not know its changes."""
    asks: bool = False
    """The net change only asks how many of ``removed`` are missing; ``without`` must be called with
    the answer, even if none are."""
    exists: Callable[[str, np.ndarray, LocalRows], ReplicationConflict] | None = field(
        default=None, repr=False
    )
    """Make the error for rows of ``absent`` that the target has, from its name, the rows' numbers
    in order, and the existing rows. None: ``absent`` is empty."""
    resolved: Met | None = None
    existing: Callable[[np.ndarray, LocalRows], NetChange] | None = field(default=None, repr=False)
    """Fold again, if an existing row is not an error. The arguments are the numbers of the rows of
    ``absent`` that the target has, and the existing rows."""
    ended: EndedRows | None = None
    all_ended: pa.Table | None = None
    differs: Callable[[np.ndarray, LocalRows], OriginDiffers] | None = field(
        default=None, repr=False
    )
    """Report the changes that remove rows of ``removed``, given by numbers. None: the table has no
    key, so its changes are not reported."""

    @property
    def empty(self) -> bool:
        """Return whether the target stays as it is."""
        emptied = self.truncate or self.all_ended is not None
        return not emptied and self.rows_written == 0 and self.removed.num_rows == 0

    @property
    def rows_removed(self) -> int:
        """The number of removed rows, without those that a TRUNCATE removes."""
        return int(self.removed.num_rows if self.copies is None else self.copies.sum())

    @property
    def rows_written(self) -> int:
        """The number of new rows, complete and incomplete."""
        return int(self.rows.num_rows) + self.rows_completed

    @property
    def rows_completed(self) -> int:
        """The number of new rows that need their old rows."""
        incomplete: int = self.incomplete.rows.num_rows if self.incomplete else 0
        return incomplete + (len(self.ended.old) if self.ended else 0)
