"""Appends: rows added to a table by one commit, whatever others commit meanwhile.

In: a table, later files with rows in its columns. Out: one version with them, durable when
``commit`` returns. No row of the table is read. The caller decides which rows to add.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from penstock.errors import CommitConflict
from penstock.lakehouse import actions, protocol
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.schema import TableSchema, check_lengths
from penstock.lakehouse.state import TableState, load, refresh
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import check_layout
from penstock.lakehouse.xact import Commit, TableLog
from penstock.sqlstate import UndefinedTable

_OPERATION: Final = "WRITE"
"""The operation that DESCRIBE HISTORY shows for Spark's own appends."""

Check = Callable[[Collection[DataFile]], None]
"""A function that is given files of the table, and raises an error if they forbid the append."""


class Append:
    """An append to a table as it is now.

    Raises UndefinedTable if there is none, and FeatureNotSupported if adding files alone would
    break what the table promises.
    """

    def __init__(self, storage: Storage, store: LogStore, uri: str, name: str) -> None:
        self.storage: Final = storage
        self._log = TableLog(storage, store, uri)
        self.uri: Final = uri
        self.name: Final = name
        self.state: Final = self._load()
        self.schema: Final = TableSchema.of_delta(
            self.state.metadata["schemaString"], self.state.properties
        )
        check_layout(name, self.state.layout, self.schema.arrow())
        self._before = self.state
        self._again: Check = lambda _: None

    def check(self, check: Check, again: Check) -> None:
        """Call ``check`` with all files that the table has now, and later ``again`` with those that
        others add before the commit. Raises CommitConflict as ``commit`` does, and what ``check``
        raises."""
        newest = self._before.copy()
        if refresh(self.storage, self.uri, newest):
            protocol.check_appendable(self.name, newest.protocol, newest.metadata)
            self._check_same(newest)
        self._before, self._again = newest, again
        check(newest.files.values())

    def commit(self, files: Sequence[WrittenFile]) -> int:
        """Add files; return the version that has them.

        Raises CommitConflict if the table has got other columns or was replaced,
        FeatureNotSupported if it now promises more, UndefinedTable if it is gone, StorageError, and
        what a ``Check`` raises. Every error removes the files, unless the version may be in the
        store all the same.
        """
        try:
            return self._commit(files)
        except BaseException:
            if not self._log.is_open:
                self.remove(files)
            raise

    def remove(self, files: Sequence[WrittenFile]) -> None:
        """Remove files that no commit has named."""
        for file in files:
            self.storage.remove(f"{self.uri}/{file.path}")

    def _commit(self, files: Sequence[WrittenFile]) -> int:
        now = actions.now_ms()
        added = [
            actions.add(DataFile.of_written(file, now), None, data_change=True) for file in files
        ]
        before = self._before
        while True:
            try:
                self._log.put(before.version, Commit(_OPERATION, added, blind_append=True))
            except CommitConflict:
                known, before = before.files, self._load()
                self._check_same(before)
                self._again([f for f in before.files.values() if not _same_rows(f, known)])
                continue
            self._log.checkpoint_if_due(before.version + 1, before.properties)
            return before.version + 1

    def _load(self) -> TableState:
        state = load(self.storage, self.uri)
        if state is None:
            raise UndefinedTable(f'relation "{self.name}" does not exist')
        protocol.check_appendable(self.name, state.protocol, state.metadata)
        check_lengths(state.metadata["schemaString"])
        return state

    def _check_same(self, state: TableState) -> None:
        mine, now = self.state.metadata, state.metadata
        same = (mine["id"], mine["schemaString"]) == (now["id"], now["schemaString"])
        if not same or self.state.layout.partition_by != state.layout.partition_by:
            raise CommitConflict(f'table "{self.name}" was altered')


def _same_rows(file: DataFile, known: Mapping[str, DataFile]) -> bool:
    """Tell whether a file was there before, and no row that was deleted then can be back."""
    before = known.get(file.path)
    return before is not None and (
        before.descriptor is None or before.descriptor == file.descriptor
    )
