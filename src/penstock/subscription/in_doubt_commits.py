"""Commits in doubt: they failed, but may have taken effect, or may still arrive.

This module commits a table's staged changes and remembers the commits in doubt. Later it finds
whether a table's marker comes from a commit in doubt, or takes the version at which such a commit
could still arrive. A subscription has one ``InDoubtCommits`` for all its workers, because a commit
may arrive after its session and even its worker have ended.
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


class InDoubtCommits:
    """The commits in doubt, by the table's own id and the LSN. Several threads use it."""

    def __init__(self) -> None:
        self._commits: set[tuple[str, int]] = set()

    def commit(self, table: DeltaTable, app_id: str, lsn: Lsn, operation: str) -> None:
        """Commit the changes staged up to ``lsn``. Raises the errors of ``DeltaTable.commit``."""
        table.check_store()  # a refused commit has not begun
        try:
            table.commit(app_id=app_id, version_marker=lsn, operation=operation)
        except StorageError:
            self._commits.add((table.id, lsn))
            raise

    def shut_out(self, table: DeltaTable, marker: int | None) -> None:
        """Make sure that no commit in doubt can arrive in a table any more: another commit takes
        its version. A commit that arrives late would apply its batch to a partition twice.

        ``marker``: the table's own. If a commit in doubt has the same marker, it has arrived.
        Raises StorageError; CommitConflict if a commit in doubt has just arrived.
        """
        waiting = {lsn for table_id, lsn in self._commits if table_id == table.id}
        if not waiting:
            return
        if marker not in waiting:
            table.commit(app_id=_APP_ID, operation=_OPERATION)
        self._commits.difference_update({(table.id, lsn) for lsn in waiting})

    def has(self, table: DeltaTable, marker: int) -> bool:
        """Return whether a table's marker is that of a commit in doubt: the commit has arrived."""
        if (table.id, marker) not in self._commits:
            return False
        log.info('a commit to table "%s" at %s has arrived late', table.name, Lsn(marker))
        return True
