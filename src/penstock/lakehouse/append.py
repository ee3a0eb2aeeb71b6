"""Appends: rows added to a table by one commit, whatever others commit meanwhile.

In: a table, later files with rows in its columns. Out: one version with them, durable when
``commit`` returns. No row of the table is read. The caller decides which rows to add.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from penstock.errors import CommitConflict, PenstockError
from penstock.lakehouse import actions, protocol
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.log_store import LogStore, may_be_there
from penstock.lakehouse.schema import TableSchema, check_lengths
from penstock.lakehouse.state import TableState, load, refresh
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import check_layout
from penstock.sqlstate import UndefinedTable

_OPERATION: Final = "WRITE"
"""The operation that DESCRIBE HISTORY shows for Spark's own appends."""
_CHECKPOINT_INTERVAL: Final = "delta.checkpointInterval"
_DEFAULT_INTERVAL: Final = "10"
"""Commits between two checkpoints (Delta's default)."""

log = logging.getLogger(__name__)


Check = Callable[[Collection[DataFile]], None]
"""A function that is given files of the table, and raises an error if they forbid the append."""


class Append:
    """An append to a table as it is now.

    Raises UndefinedTable if there is none, and FeatureNotSupported if adding files alone would
    break what the table promises.
    """

    def __init__(self, storage: Storage, store: LogStore, uri: str, name: str) -> None:
        self.storage: Final = storage
        self._store = store
        self.uri: Final = uri
        self.name: Final = name
        self.state: Final = self._load()
        self.schema: Final = TableSchema.of_delta(
            self.state.metadata["schemaString"], self.state.properties
        )
        check_layout(name, self.state.layout, self.schema.arrow())
        self._may_be_there = False
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
        self._may_be_there = False
        try:
            return self._commit(files)
        except BaseException:
            if not self._may_be_there:
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
            info = actions.commit_info(
                _OPERATION,
                now=now,
                user_metadata={},
                blind_append=True,
                read_version=before.version,
            )
            try:
                self._put(before.version + 1, actions.lines([info, *added]))
            except CommitConflict:
                known, before = before.files, self._load()
                self._check_same(before)
                self._again([f for f in before.files.values() if not _same_rows(f, known)])
                continue
            self._checkpoint(before.version + 1, before)
            return before.version + 1

    def _put(self, version: int, lines: Sequence[str]) -> None:
        try:
            self._store.put(self.uri, version, lines)
        except CommitConflict:
            raise
        except BaseException as error:
            self._may_be_there = may_be_there(self.storage, self.uri, version, error)
            raise

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

    def _checkpoint(self, version: int, state: TableState) -> None:
        """Write a checkpoint if one is due. An error is only logged: the rows are in the table."""
        interval = int(state.properties.get(_CHECKPOINT_INTERVAL, _DEFAULT_INTERVAL))
        if version % interval:
            return
        try:
            self._store.checkpoint(self.uri, state.properties)
        except PenstockError as error:
            log.warning('checkpoint of table "%s": %s', self.name, error.message)


def _same_rows(file: DataFile, known: Mapping[str, DataFile]) -> bool:
    """Tell whether a file was there before, and no row that was deleted then can be back."""
    before = known.get(file.path)
    return before is not None and (
        before.descriptor is None or before.descriptor == file.descriptor
    )
