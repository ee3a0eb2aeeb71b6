"""The Delta logs of the followed tables, and whether another log has replaced one of them.

``TableLogs`` reads the commits after a version, and checks that the log is still the followed one.
The check is usually cheap: it compares the mark of the last entry read, by one request to the store
for each table with new commits. In a local folder, one system call shows whether the next entry
exists; times of folders may be coarse, so they are not used. The sequencer decides what to do about
a replaced log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from penstock.catalog import LakeTable, Sequenced
from penstock.errors import StorageError
from penstock.lakehouse.identity import EntryMark, entry_mark, table_id
from penstock.lakehouse.log import entry_uri
from penstock.lakehouse.storage import Storage, is_local, local_path
from penstock.walsender.commits import TableCommit, commits_after, newest_version


class TableLogs:
    """A reader of tables' logs. For one thread at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._marks: dict[int, tuple[int, EntryMark | None]] = {}
        self._next: dict[int, tuple[int, str, str | None]] = {}

    def grown(self, tables: Iterable[LakeTable], at: Mapping[int, int]) -> list[LakeTable]:
        """Return the tables whose logs may have grown beyond ``at`` (versions by table oid). A
        table is always returned if checking it costs as much as reading the entry. An unreadable
        table is not reported here; ``same`` raises its error."""
        return [
            table
            for table in tables
            if (path := self.next_path(table, at[table.oid])) is None or os.access(path, os.F_OK)
        ]

    def next_path(self, table: LakeTable, version: int) -> str | None:
        """Return the path of the entry after a version, None if it is not in a local folder."""
        known = self._next.get(table.oid)
        uri = table.uri or ""
        if known is None or known[0] != version or known[1] != uri:
            path = next_path(self._storage, uri, version)
            known = self._next[table.oid] = version, uri, path
        return known[2]

    def after(self, table: LakeTable, version: int) -> Iterator[tuple[TableCommit, int]]:
        """Yield commits with their times: the stated ones, or else when the entry was written.

        Raises StorageError at an entry that cannot be read.
        """
        uri = table.uri or ""
        for commit in commits_after(self._storage, uri, version):
            if commit.time is not None:
                yield commit, commit.time
            else:
                mark = entry_mark(uri, commit.version)
                written = None if mark is None else mark.modified
                yield commit, (written or 0) // 1000

    def goes_on(self, table: LakeTable, at: Sequenced, upto: int) -> bool:
        """Tell whether the entries read, up to ``upto``, belong to the log followed up to ``at``.
        If so, remember ``upto`` as the last entry. Raises StorageError."""
        seen = entry_mark(table.uri or "", upto)  # before the check, so as not to mark another log
        if not self.same(table, at):
            return False
        self._marks[table.oid] = upto, seen
        return True

    def same(self, table: LakeTable, at: Sequenced) -> bool:
        """Tell whether the log is the one that was followed up to ``at``. Raises StorageError."""
        uri = table.uri or ""
        mark = entry_mark(uri, at.version)
        if self._marks.get(table.oid) == (at.version, mark):
            return True
        newest = self.newest(table)
        if newest < at.version:
            return False
        if at.table_id not in (None, table_id(self._storage, uri, at.version)):
            return False
        self._marks[table.oid] = at.version, mark
        return True

    def seen(self, table: LakeTable) -> bool:
        """Tell whether ``same`` takes only one request to the store."""
        return table.oid in self._marks

    def newest(self, table: LakeTable) -> int:
        """Return the newest version. Raises StorageError if there is no Delta table."""
        newest = newest_version(self._storage, table.uri or "")
        if newest is None:
            raise StorageError(f'there is no Delta table at "{table.uri}"', sqlstate="58P01")
        return newest

    def id_at(self, table: LakeTable, version: int) -> str:
        """Return the table's id at a version. Raises VersionGone, StorageError."""
        return table_id(self._storage, table.uri or "", version)

    def has_entry(self, table: LakeTable, version: int) -> bool:
        """Tell whether the log has an entry. Raises StorageError."""
        return entry_mark(table.uri or "", version) is not None

    def forget(self, relation: int) -> None:
        """Forget everything known of a table."""
        self._marks.pop(relation, None)
        self._next.pop(relation, None)


def next_path(storage: Storage, uri: str, version: int) -> str | None:
    """Return the path of the entry after a version, None if it is not a local file."""
    if storage.held or not is_local(uri):
        return None
    return local_path(entry_uri(uri, version + 1))
