"""What a chunk of changes does to one table in the end: the value between fold and apply.

In: nothing. Out: ``NetChange`` and its parts, as Arrow tables in the target's terms. ``fold``
makes them, ``apply`` carries them out, and neither looks at the other.
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
"""Keys of skipped changes, and of those that met a row, that are kept for the log."""


@dataclass(frozen=True)
class Incomplete:
    """New versions of rows with cells that the publisher did not send (unchanged TOAST).

    ``rows`` has the target's columns with NULL in the cells to be completed; ``missing`` maps a
    column to the mask of rows whose cell is to be taken from the row's old version, which is row
    ``old[i]`` of ``NetChange.removed``.
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
    """Changes of rows that the target does not have, left out (update_missing, delete_missing).

    ``updates``, ``deletes``: the rows' keys as the publisher named them, one for each change; in a
    table without a key whole rows. ``updates_at``, ``deletes_at``: the changes' message sequences;
    ``new_rows``: of the updates. Not more than KEPT of each, ``update_missing`` and
    ``delete_missing`` count them all. ``whole_rows``: what names them is no key.
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
        """Both together."""
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
    """A row that was there. ``shown``: as the log shows rows; ``by``: the commit that wrote it,
    where that is known; ``of_run``: a change of the same run made it, and it is in no commit."""

    shown: str
    by: FileCommit | None = None
    of_run: bool = False


LocalRows = Mapping[int, LocalRow]
"""By the number of the key that they have, as far as they are told of."""


@dataclass(frozen=True)
class Met:
    """Changes that met a row with their key (insert_exists, update_exists).

    ``insert_exists``, ``update_exists`` count them all. Of the first KEPT: ``keys`` that were
    there, ``at``: their message sequences, ``rows`` that they would have made, ``old_keys`` of the
    rows that they are of, as the publisher names them, ``update``: whether they are UPDATEs,
    ``local``: the rows that they met.
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
        """Both together."""
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
    """Changes of rows that somebody else has written last (update_origin_differs,
    delete_origin_differs). They are carried out like others.

    ``updates``, ``deletes`` count them all. Of the first KEPT: ``keys`` of the rows, as the
    publisher names them, ``at``: the changes' message sequences, ``update``: whether they are
    UPDATEs, ``rows``: what those made, ``local``: the rows that were there.
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
    in exactly one row; in a table without a key it holds whole rows (``TableSchema.identity``) of
    which ``copies[i]`` are to go. ``absent`` holds keys that the target must not have. With
    ``truncate`` there is nothing in ``removed``, ``absent`` or ``incomplete``.

    Where deleted rows stay, those that were changed before are in ``rows`` and ``incomplete`` with
    what says that they are deleted, the others in ``ended``. ``all_ended``: every live row is
    deleted, with these metadata columns (one row); there is nothing else then.
    """

    table: str
    schema: TableSchema
    changes: int
    """Row changes folded, for statistics; those that a TRUNCATE made void are not counted."""
    rows: pa.Table
    removed: pa.Table
    absent: pa.Table
    copies: np.ndarray | None = None
    incomplete: Incomplete | None = None
    truncate: bool = False
    skipped: Skipped | None = None
    versions: Versions | None = None
    """Where they were asked for: what was not skipped."""
    without: Callable[[np.ndarray], NetChange] | None = field(default=None, repr=False)
    """Fold again without the changes of rows that are not there: given is for each row of
    ``removed`` how many of it are missing. None: a net change that does not know its changes."""
    asks: bool = False
    """It does nothing: ``without`` is to be told how much of ``removed`` is missing, nothing or
    not."""
    exists: Callable[[str, np.ndarray, LocalRows], ReplicationConflict] | None = field(
        default=None, repr=False
    )
    """The error for these rows of ``absent``, in order, which the target, of this name, has.
    None: ``absent`` is empty."""
    resolved: Met | None = None
    existing: Callable[[np.ndarray, LocalRows], NetChange] | None = field(default=None, repr=False)
    """Fold again, where an existing row is no error: given are the rows of ``absent`` that the
    target has."""
    ended: EndedRows | None = None
    all_ended: pa.Table | None = None
    differs: Callable[[np.ndarray, LocalRows], OriginDiffers] | None = field(
        default=None, repr=False
    )
    """What is told of the changes by which these rows of ``removed`` go. None: of rows without a
    key nothing is."""

    @property
    def empty(self) -> bool:
        """True when the target stays as it is."""
        emptied = self.truncate or self.all_ended is not None
        return not emptied and self.rows_written == 0 and self.removed.num_rows == 0

    @property
    def rows_removed(self) -> int:
        """Rows that go, without those that a TRUNCATE takes."""
        return int(self.removed.num_rows if self.copies is None else self.copies.sum())

    @property
    def rows_written(self) -> int:
        """Rows that come, complete and to be completed."""
        return int(self.rows.num_rows) + self.rows_completed

    @property
    def rows_completed(self) -> int:
        """Those that need their old rows."""
        incomplete: int = self.incomplete.rows.num_rows if self.incomplete else 0
        return incomplete + (len(self.ended.old) if self.ended else 0)
