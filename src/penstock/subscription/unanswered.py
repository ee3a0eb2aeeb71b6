"""Commits of a worker that failed, and may have taken effect all the same, or arrive later.

In: a table with staged changes. Out: its commit; afterwards whether a marker that is found in a
table is such a commit of our own, or a place taken that it can no longer arrive at. One for a
subscription, as a commit may arrive after its session, and after its worker.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import StorageError
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import Lsn

_APP_ID: Final = "penstock.late"
_OPERATION: Final = "REPLICATION"

log = logging.getLogger(__name__)


class Unanswered:
    """By the table's own id and the LSN. Used by several threads."""

    def __init__(self) -> None:
        self._commits: set[tuple[str, int]] = set()

    def commit(self, table: DeltaTable, app_id: str, lsn: Lsn, operation: str) -> None:
        """Commit what is staged, up to an LSN. Raises what ``DeltaTable.commit`` raises."""
        try:
            table.commit(app_id=app_id, version_marker=lsn, operation=operation)
        except StorageError:
            self._commits.add((table.id, lsn))
            raise

    def shut_out(self, table: DeltaTable, marker: int | None) -> None:
        """None of them arrives in a table any more, whose own marker is given: what one would be is
        another version now. A partition is not to get a batch which has been worked again since.

        Raises CommitConflict where one has arrived just now, StorageError.
        """
        waiting = {lsn for table_id, lsn in self._commits if table_id == table.id}
        if not waiting:
            return
        if marker not in waiting:
            table.commit(app_id=_APP_ID, operation=_OPERATION)
        self._commits.difference_update({(table.id, lsn) for lsn in waiting})

    def has(self, table: DeltaTable, marker: int) -> bool:
        """Whether it is one of them that has arrived."""
        if (table.id, marker) not in self._commits:
            return False
        log.info('a commit to table "%s" at %s has arrived late', table.name, Lsn(marker))
        return True
