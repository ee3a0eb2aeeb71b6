"""Commits of a transaction's staged change to one table, and the way to take one back.

In: a staged change, and the mark of its transaction if that is over several tables. Out: a new
version of the table, durable on return, or CommitConflict. A commit can be found again by its mark,
so nothing is put twice after a crash. The caller decides which tables to commit, and when to take
a commit back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

from penstock.errors import CommitConflict, StorageError
from penstock.lakehouse import protocol
from penstock.lakehouse.actions import block_mark, group_of, is_undone
from penstock.lakehouse.deletion_vectors import VectorFile
from penstock.lakehouse.files import file_uri
from penstock.lakehouse.foreign import empties
from penstock.lakehouse.log import read_entry
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.staged_change import StagedChange
from penstock.lakehouse.state import TableState, load, load_at, load_vectors
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.xact import Commit, TableLog

log = logging.getLogger(__name__)

CheckRows = Callable[[StagedChange, TableState], None]
"""A function that raises an error if the rows of a change are not allowed in a version."""
MakeCommit = Callable[[VectorFile], Commit]
"""A function that returns a commit, and adds its vectors to a file, which is a new one for every
try."""
_STATS: Final = 8
"""Files whose existence is checked at a time; object stores answer slowly."""
_FENCE: Final = "FENCE"
"""commitInfo.operation of an empty version, which takes the number of one that may still come."""


class StagedCommit:
    """The commit of one table's change. ``group`` and ``relations``: those of its transaction, None
    and empty if it has only this table."""

    def __init__(
        self,
        storage: Storage,
        store: LogStore,
        change: StagedChange,
        group: str | None = None,
        relations: Collection[int] = (),
        check_rows: CheckRows = lambda *_: None,
    ) -> None:
        self.change: Final = change
        self._check_rows = check_rows
        self._storage = storage
        self._log = TableLog(storage, store, change.uri)
        self._group = group
        self._relations = relations

    def check(self) -> TableState:
        """Check that the change can be committed now; return the state on which it can. Raises
        CommitConflict, and what ``check_rows`` raises."""
        state = load(self._storage, self.change.uri)
        if state is None or state.version < self.change.version:
            raise CommitConflict(f'table "{self.change.name}" was dropped')
        self._check(state)
        return state

    def put(self, state: TableState | None = None) -> int:
        """Commit the change; return the version that has it. ``state``: a fresh result of
        ``check``, for the first try.

        Nothing was put after CommitConflict and what ``check_rows`` raises. After StorageError the
        entry may be there.
        """
        while True:
            if state is None and self._group is not None:
                there, seen = self._find(undone=False)
                if there is not None:
                    return there
                state = self.check()
                if not self._seen_all(seen, state):
                    state = None
                    continue
            state = state or self.check()
            mark = self._mark(undone=False)
            if self._put(state, partial(self.change.commit, state, mark)):
                return state.version + 1
            state = None

    def settled(self) -> int | None:
        """Return the version that has the change although ``put`` has raised; None if there is none
        and none will come. Raises StorageError if that cannot be found out."""
        return self._log.settle()

    def undo(self) -> None:
        """Take the commit back if it was put, and make sure that it is not put later. Raises
        StorageError, and FeatureNotSupported if the table has got a feature since that we do not
        maintain."""
        while True:
            if self._find(undone=True)[0] is not None:
                return
            there, seen = self._find(undone=False)
            state = load(self._storage, self.change.uri)
            if state is None or state.metadata.get("id") != self.change.table_id:
                return  # it was dropped, with all that was in it
            if not self._seen_all(seen, state):
                continue
            if there is None and self._storage.is_local:
                return
            make: MakeCommit = _fence
            if there is not None:
                protocol.check_features(self.change.name, state.protocol, state.metadata)
                self._say_rewritten(state)
                load_vectors(self._storage, self.change.uri, state, self._touched())
                change = self._to_undo(there, state.version)
                make = partial(change.undo, state, self._mark(undone=True))
            if self._put(state, make):
                return

    def there(self) -> bool | None:
        """Tell whether it was put and not taken back; None if the table was dropped. Raises
        StorageError."""
        while True:
            there, seen = self._find(undone=False)
            state = load(self._storage, self.change.uri)
            if state is None or state.metadata.get("id") != self.change.table_id:
                return None
            if self._seen_all(seen, state):
                return there is not None and self._find(undone=True)[0] is None

    def checkpoint(self, version: int, properties: Mapping[str, str]) -> None:
        """Write a checkpoint if one is due."""
        self._log.checkpoint_if_due(version, properties)

    def _mark(self, *, undone: bool) -> Mapping[str, object]:
        if self._group is None:
            return {}
        return block_mark(self._group, self._relations, undone=undone)

    def _touched(self) -> set[str]:
        return {*self.change.gone, *self.change.added}

    def _check(self, state: TableState) -> None:
        check = protocol.check_writable if self.change.gone else protocol.check_appendable
        check(self.change.name, state.protocol, state.metadata)
        load_vectors(self._storage, self.change.uri, state, self.change.gone.keys())
        self.change.check(state)
        if self._group is not None and not self.change.paths().isdisjoint(state.files):
            raise CommitConflict(f'table "{self.change.name}" has rows of this transaction already')
        self._check_files()
        self._check_rows(self.change, state)

    def _check_files(self) -> None:
        """Raise CommitConflict if own files are gone: VACUUM removes them if they wait for long."""
        uris = [file_uri(self.change.uri, path) for path in self.change.paths()]
        with ThreadPoolExecutor(_STATS) as pool:
            there = pool.map(self._storage.exists, uris)
            if not all(there):
                raise CommitConflict(
                    f'files that this transaction has written for table "{self.change.name}" were '
                    "removed"
                )

    def _say_rewritten(self, state: TableState) -> None:
        lost = len(self.change.added.keys() - state.files.keys())
        if lost:
            log.error(
                'table "%s": others have rewritten or removed %d files of a transaction block that '
                "is rolled back: rows that they have copied stay",
                self.change.name,
                lost,
            )

    def _to_undo(self, there: int, newest: int) -> StagedChange:
        """Return the change to take back. Its deleted rows do not come back if others have emptied
        the table since: without the commit they would have removed these rows, too."""
        storage, uri = self._storage, self.change.uri
        changed = False
        for version in range(there + 1, newest + 1):
            entry = read_entry(storage, uri, version) or []
            if empties(entry, load_at(storage, uri, version - 1).files.keys()):
                return replace(self.change, gone={})
            changed |= any(action.get("remove", {}).get("dataChange") for action in entry)
        if changed and self.change.gone:
            log.error(
                'table "%s": others have changed rows after a transaction block that is rolled '
                "back: rows that it had taken away are back, whatever they would have done to them",
                self.change.name,
            )
        return self.change

    def _find(self, *, undone: bool) -> tuple[int | None, int]:
        """Find the commit, or with ``undone`` the one that has taken it back; return its version,
        None if there is none, and the last version that was searched."""
        version, found = self.change.version, None
        while (entry := read_entry(self._storage, self.change.uri, version + 1)) is not None:
            version += 1
            if found is None and group_of(entry) == self._group and is_undone(entry) is undone:
                found = version
        return found, version

    def _seen_all(self, seen: int, state: TableState) -> bool:
        """Tell whether the search has covered ``state``; False if it has new entries. Raises
        StorageError if the next entry is missing."""
        if seen >= state.version:
            return True
        if read_entry(self._storage, self.change.uri, seen + 1) is None:
            raise StorageError(
                f'log of table "{self.change.uri}" has no entry for version {seen + 1}',
                sqlstate="XX001",
            )
        return False

    def _put(self, state: TableState, make: MakeCommit) -> bool:
        """Put a commit after ``state``; return False if another writer was first."""
        vectors = VectorFile()
        try:
            self._log.put(state.version, make(vectors), vectors)
        except CommitConflict:
            return False
        return True


def is_named(storage: Storage, change: StagedChange) -> bool:
    """Tell whether a version of the table names files of a change, or may have named them, as
    entries are gone. Raises StorageError."""
    own, version = change.paths(), change.version
    while (entry := read_entry(storage, change.uri, version + 1)) is not None:
        version += 1
        if any("add" in action and action["add"]["path"] in own for action in entry):
            return True
    state = load(storage, change.uri)
    return state is not None and state.version > version


def _fence(_: VectorFile) -> Commit:
    return Commit(_FENCE)
