"""The logs of the tables that are followed, each told from any other log in its place.

In: a table and how far it is followed. Out: the commits after that, and whether the log is still
the one that was followed. A mark of the entry that was seen last makes the usual answer cheap: one
question to the store for each table with new commits. Of a folder of this machine it is asked by
one system call whether the next entry is there; times of folders, which may be coarse, are not
looked at. What follows from another log is left to the sequencer.
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
    """For one thread at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._marks: dict[int, tuple[int, EntryMark | None]] = {}
        self._next: dict[int, tuple[int, str, str | None]] = {}

    def grown(self, tables: Iterable[LakeTable], at: Mapping[int, int]) -> list[LakeTable]:
        """Those whose logs may go on after the versions ``at``, by table oid: where it costs as
        much to find out as to read the entry, all of them. What may not be read is left to
        ``same``."""
        return [
            table
            for table in tables
            if (path := self.next_path(table, at[table.oid])) is None or os.access(path, os.F_OK)
        ]

    def next_path(self, table: LakeTable, version: int) -> str | None:
        """Where the entry after a version would be, in a folder of this machine."""
        known = self._next.get(table.oid)
        uri = table.uri or ""
        if known is None or known[0] != version or known[1] != uri:
            path = next_path(self._storage, uri, version)
            known = self._next[table.oid] = version, uri, path
        return known[2]

    def after(self, table: LakeTable, version: int) -> Iterator[tuple[TableCommit, int]]:
        """Commits with their times: what they say, or when the entry was written.

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
        """Whether entries up to ``upto``, which have been read, are of the log that was followed up
        to ``at``; if so they are what was seen last. Raises StorageError."""
        seen = entry_mark(table.uri or "", upto)  # before the check: it must not be of another log
        if not self.same(table, at):
            return False
        self._marks[table.oid] = upto, seen
        return True

    def same(self, table: LakeTable, at: Sequenced) -> bool:
        """Whether the log is the one that was followed up to ``at``. Raises StorageError."""
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
        """Whether ``same`` is one question to the store."""
        return table.oid in self._marks

    def newest(self, table: LakeTable) -> int:
        """The newest version. Raises StorageError where there is no Delta table."""
        newest = newest_version(self._storage, table.uri or "")
        if newest is None:
            raise StorageError(f'there is no Delta table at "{table.uri}"', sqlstate="58P01")
        return newest

    def id_at(self, table: LakeTable, version: int) -> str:
        """The table's id at a version. Raises VersionGone, StorageError."""
        return table_id(self._storage, table.uri or "", version)

    def has_entry(self, table: LakeTable, version: int) -> bool:
        """Whether the log has that entry. Raises StorageError."""
        return entry_mark(table.uri or "", version) is not None

    def forget(self, relation: int) -> None:
        """Whatever was seen of it."""
        self._marks.pop(relation, None)
        self._next.pop(relation, None)


def next_path(storage: Storage, uri: str, version: int) -> str | None:
    """The path of the entry after a version; None where it is no file of this machine."""
    if storage.held or not is_local(uri):
        return None
    return local_path(entry_uri(uri, version + 1))
