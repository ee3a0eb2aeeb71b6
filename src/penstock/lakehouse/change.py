"""Changes of a transaction to one table: they add files, delete rows and files, and can be undone.

A change consists of files just written in the table's folder and of positions to delete. It shows
the table's files as the transaction sees them, and returns actions for the Delta log.

    a batch of the apply worker, a copy, compaction          statements of a session
          |                                                        |
          |                              StagedChange: a value, a new one for each statement
          v                                                        v   put on a version
    Staging: the files of one version, changed in place <----------'
          |
          '--> remove and add actions, one file of vectors --> xact

A batch is valid only for the loaded version; after a lost race it is made again. A session's change
can be committed on any later version in which nobody else has touched the same rows. A savepoint is
an earlier value of the change; a prepared transaction stores the change as text. ``StagedCommit``
commits a change, and can undo the commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from pyroaring import BitMap

from penstock.errors import (
    CommitConflict,
    NotInPrerequisiteState,
    PenstockError,
    RelationChanged,
    StorageError,
)
from penstock.lakehouse import actions, protocol
from penstock.lakehouse.actions import Action, block_mark, group_of, is_undone, reversal_mark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import Descriptor, VectorFile, inline, of_inline
from penstock.lakehouse.files import WrittenFile, file_uri
from penstock.lakehouse.foreign import empties
from penstock.lakehouse.log import log_folder, read_entry
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.row_pairs import pairs_folder, pairs_mark
from penstock.lakehouse.state import TableState, data_file, load, load_at, load_vectors
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.xact import Commit, TableLog

log = logging.getLogger(__name__)

# ``Staging`` gathers the changes of files for the next version of a table: written files, deleted
# positions, removals. It shows the files with all changes, and returns remove and add actions with
# one vector file. If a later step deletes rows of a staged file, the file is added with a vector. A
# file that loses rows in several steps gets one vector for all of them.


class Staging:
    """The files of the current version, changed in place; the changes can be discarded."""

    def __init__(
        self, table: str, files: dict[str, DataFile], partition_by: Sequence[str] = ()
    ) -> None:
        self._table = table
        self._partition_by = tuple(partition_by)
        self._files = files
        self._before: dict[str, DataFile | None] = {}
        self._emptied = False

    @property
    def files(self) -> Mapping[str, DataFile]:
        """Files by path, staged changes included."""
        return MappingProxyType(self._files)

    @property
    def added(self) -> tuple[DataFile, ...]:
        """Files that the current version lacks."""
        new = (path for path, before in self._before.items() if before is None)
        return tuple(self._files[path] for path in new if path in self._files)

    @property
    def changed(self) -> bool:
        """Return whether the next version has other files."""
        return bool(self._before)

    @property
    def appends_only(self) -> bool:
        """Return whether no file of the current version is touched."""
        return all(before is None for before in self._before.values())

    @property
    def emptied(self) -> bool:
        """Return whether a TRUNCATE has removed every row of the current version."""
        return self._emptied

    def add(self, file: DataFile) -> None:
        """Stage a new file. Raises PenstockError if its path exists already, RelationChanged if it
        was written for another partitioning of the table."""
        if tuple(file.partition_values or ()) != self._partition_by:
            raise RelationChanged(
                f'table "{self._table}" was partitioned otherwise when file "{file.path}" was '
                "written"
            )
        if file.path in self._files:
            raise PenstockError(f'file "{file.path}" is staged twice')
        self._put(file.path, file)

    def replace(self, path: str, file: DataFile) -> None:
        """Stage a file that replaces another one. Raises CommitConflict if the old file is gone."""
        self.remove(path)
        self.add(file)

    def remove(self, path: str) -> None:
        """Stage the removal of a file. Raises CommitConflict if it is gone."""
        self._file(path)
        self._put(path, None)

    def remove_all(self, *, truncate: bool = True) -> None:
        """Stage the removal of all files, staged ones included."""
        self._emptied = truncate
        for path in list(self._files):
            self._put(path, None)

    def put(self, files: Mapping[str, DataFile | None]) -> None:
        """Stage files by path; None removes a file."""
        for path, file in files.items():
            self._put(path, file)

    def delete(self, path: str, positions: BitMap) -> None:
        """Delete more rows of a file; remove the file if no row is left.

        Raises CommitConflict if there is no such file.
        """
        file = self._file(path)
        left = file.without(positions)
        if left is not file:
            self._put(path, left)

    def discard(self) -> list[str]:
        """Go back to the current version; return the paths of staged files, now unneeded."""
        staged = [path for path, before in self._before.items() if before is None]
        for path, before in self._before.items():
            self._set(path, before)
        self._before = {}
        self._emptied = False
        return staged

    def describe(self, place: Callable[[BitMap], Descriptor]) -> dict[str, DataFile]:
        """Return the files with new vectors, each with the descriptor that ``place`` returns."""
        described = {}
        for path in self._before:
            file = self._files.get(path)
            if file is not None and file.deleted and file.descriptor is None:
                described[path] = file.with_descriptor(place(file.positions_deleted()))
        return described

    def actions(
        self, described: Mapping[str, DataFile], *, data_change: bool = True
    ) -> list[Action]:
        """Return remove and add actions. ``described``: the result of ``describe``."""
        now = actions.now_ms()
        removes: list[Action] = []
        adds: list[Action] = []
        for path, before in self._before.items():
            file = described.get(path) or self._files.get(path)
            if before is not None:
                removes.append(actions.remove(before, now=now, data_change=data_change))
            if file is not None:
                adds.append(actions.add(file, data_change=data_change))
        return removes + adds

    def committed(self, described: Mapping[str, DataFile]) -> list[str]:
        """Make the staged changes the current version; return the paths of files that were staged
        and then removed."""
        self._files.update(described)
        dropped = [p for p, before in self._before.items() if not before and p not in self._files]
        self._before = {}
        self._emptied = False
        return dropped

    def _file(self, path: str) -> DataFile:
        file = self._files.get(path)
        if file is None:
            raise CommitConflict(
                f'table "{self._table}" has no file "{path}" any more',
                hint="Load the table again and retry.",
            )
        return file

    def _put(self, path: str, file: DataFile | None) -> None:
        self._before.setdefault(path, self._files.get(path))
        self._set(path, file)

    def _set(self, path: str, file: DataFile | None) -> None:
        if file is None:
            self._files.pop(path, None)
        else:
            self._files[path] = file


# The changes of a session's open transaction to one table. All are immutable values.

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"
MOVE: Final = "move"
"""The kind of a change that moves rows to another partition."""
TRUNCATE: Final = "truncate"
_OPERATIONS: Final[Mapping[str, str]] = {
    INSERT: "WRITE",
    UPDATE: "UPDATE",
    DELETE: "DELETE",
    TRUNCATE: "TRUNCATE",
}
_MIXED: Final = "MERGE"
"""commitInfo.operation of changes of several kinds."""
ROLLBACK: Final = "ROLLBACK"
"""commitInfo.operation of commits that undo others."""


@dataclass(frozen=True)
class Loss:
    """Deleted rows of a file of the table. ``file``: its state when the rows were read."""

    file: DataFile
    positions: BitMap


@dataclass(frozen=True)
class StagedChange:
    """The changes of a transaction to one table.

    ``relation``: the table's oid. ``table_id``, ``schema``, ``partition_by``: of the table that was
    read. ``version``: the version that the last statement has read; ``since``: that of the first
    statement. ``gone``: deleted rows of the table's files, by path. ``added``: the transaction's
    own files that have rows left, by path, with their vectors inline. ``kinds``: the kinds of its
    statements. ``pairs``: files that map each new row to its old one. ``emptied``: the mark of a
    TRUNCATE, which removes all rows that exist at the commit; empty if there was none.
    """

    relation: int
    uri: str
    name: str
    table_id: str
    schema: str
    partition_by: tuple[str, ...]
    version: int
    gone: Mapping[str, Loss] = field(default_factory=dict)
    added: Mapping[str, DataFile] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    pairs: tuple[WrittenFile, ...] = ()
    since: int = -1
    emptied: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, relation: int, uri: str, name: str, state: TableState) -> StagedChange:
        """Return the value before the first statement."""
        metadata = state.metadata
        return cls(
            relation,
            uri,
            name,
            str(metadata["id"]),
            metadata["schemaString"],
            tuple(state.layout.partition_by),
            state.version,
            since=state.version,
        )

    @property
    def empty(self) -> bool:
        """Tell whether the table stays as it is."""
        return not (self.gone or self.added or self.emptied)

    @property
    def removes(self) -> bool:
        """Tell whether the commit removes rows of others, or of its own files."""
        deleted = any(file.deleted for file in self.added.values())
        return bool(self.gone or self.emptied) or deleted

    def with_rows(
        self,
        kind: str,
        state: TableState,
        gone: Mapping[str, BitMap],
        written: Sequence[WrittenFile],
        pairs: Sequence[WrittenFile] = (),
    ) -> StagedChange:
        """Return the value after one more statement. ``state``: the version that the statement has
        read, without staged changes; ``gone``: deleted positions, by path, in files of the version
        or of the transaction itself."""
        lost, added = dict(self.gone), dict(self.added)
        for path, positions in gone.items():
            own = added.get(path)
            if own is None:
                before = lost[path].positions if path in lost else BitMap()
                lost[path] = Loss(state.files[path], before | positions)
                continue
            left = own.without(positions)
            if left is None:
                del added[path]
            else:
                added[path] = _in_line(left)
        now = actions.now_ms()
        added |= {file.path: DataFile.of_written(file, now) for file in written}
        return replace(
            self,
            version=state.version,
            gone=lost,
            added=added,
            kinds=self.kinds | {kind},
            pairs=(*self.pairs, *pairs),
        )

    def with_none(self, state: TableState, mark: Mapping[str, Any]) -> StagedChange:
        """Return the value after a TRUNCATE with this mark. ``state``: the version that it has
        read."""
        return replace(
            self,
            version=state.version,
            gone={},
            added={},
            kinds=frozenset({TRUNCATE}),
            pairs=(),
            emptied=mark,
        )

    def check(self, state: TableState) -> None:
        """Check that the change can be committed on ``state``, with the touched files' vectors.

        Raises CommitConflict if the table was altered or replaced, or if others were first to
        change one of the rows.
        """
        metadata = state.metadata
        known = (self.table_id, self.schema, self.partition_by)
        if known != (metadata["id"], metadata["schemaString"], tuple(state.layout.partition_by)):
            raise CommitConflict(f'table "{self.name}" was altered')
        for path, loss in self.gone.items():
            file = state.files.get(path)
            if file is None or file.positions_deleted() & loss.positions:
                raise CommitConflict(
                    f'others have changed rows of table "{self.name}" that this transaction changes'
                )

    def files(self, state: TableState) -> dict[str, DataFile]:
        """Return the files of a version as the transaction sees them."""
        staging = self._staged(state)
        return {**staging.files, **staging.describe(inline)}

    def _staged(self, state: TableState) -> Staging:
        staging = Staging(self.name, dict(state.files), self.partition_by)
        if self.emptied:
            staging.remove_all()
        for path, loss in self.gone.items():
            staging.delete(path, loss.positions)
        for file in self.added.values():
            staging.add(replace(file, descriptor=None))
        return staging

    def commit(self, state: TableState, mark: Mapping[str, object], vectors: VectorFile) -> Commit:
        """Return the commit after ``state``, which has passed ``check``. ``mark``: user metadata;
        ``vectors``: the file that gets its deletion vectors."""
        operation = _OPERATIONS.get(next(iter(self.kinds)), _MIXED)
        staging = self._staged(state)
        return Commit(
            operation if len(self.kinds) == 1 else _MIXED,
            staging.actions(staging.describe(vectors.add)),
            {**self.emptied, **mark, **pairs_mark(state.version, self.pairs)},
            blind_append=staging.appends_only,
        )

    def undo(self, state: TableState, mark: Mapping[str, object], vectors: VectorFile) -> Commit:
        """Return the commit after ``state`` that undoes the change's commit. It restores deleted
        rows, and removes added rows unless others have moved them to other files."""
        staging = Staging(self.name, dict(state.files), self.partition_by)
        for path, loss in self.gone.items():
            staging.put({path: loss.file.restored(state.files.get(path), loss.positions)})
        staging.put(dict.fromkeys(self.added))
        return Commit(ROLLBACK, staging.actions(staging.describe(vectors.add)), mark)

    def paths(self) -> set[str]:
        """Return the paths of the change's own files, which the commit names."""
        return set(self.added)

    def uris(self) -> set[str]:
        """Return the URIs of all files that the change needs until its commit, and of its pairs."""
        folder = pairs_folder(self.uri)
        return {
            *(file_uri(self.uri, path) for path in self.paths()),
            *(file_uri(folder, file.path) for file in self.pairs),
        }


def _whole(file: DataFile) -> Loss:
    """Return the loss of all rows that a file has."""
    return Loss(file, BitMap(range(file.rows)) - file.positions_deleted())


def _in_line(file: DataFile) -> DataFile:
    """Return the file with its vector inline, which can be read before the commit."""
    return file.with_descriptor(inline(file.positions_deleted()))


def to_json(change: StagedChange) -> dict[str, Any]:
    """Return the JSON form of a change, in which it is stored."""
    return {
        "relation": change.relation,
        "uri": change.uri,
        "name": change.name,
        "table_id": change.table_id,
        "schema": change.schema,
        "partition_by": list(change.partition_by),
        "version": change.version,
        "since": change.since,
        "gone": [[_body(loss.file), inline(loss.positions)] for loss in change.gone.values()],
        "added": [_body(file) for file in change.added.values()],
        "kinds": sorted(change.kinds),
        "pairs": [[file.path, file.size] for file in change.pairs],
        "emptied": dict(change.emptied),
    }


def changes_in(content: str | bytes) -> list[StagedChange]:
    """Return the changes in a text of ``content_of``."""
    return [from_json(found) for found in json.loads(content)]


def content_of(changes: Sequence[StagedChange]) -> str:
    """Return the text in which a transaction's changes to its tables are stored."""
    return json.dumps([to_json(change) for change in changes])


def _body(file: DataFile) -> Mapping[str, Any]:
    stats = {"numRecords": file.rows, **file.stats}
    vector = inline(file.positions_deleted()) if file.deleted else None
    described = replace(file, stats=stats, descriptor=vector)
    body: Mapping[str, Any] = actions.add(described, data_change=True)["add"]
    return body


def from_json(found: Mapping[str, Any]) -> StagedChange:
    """Return the change in a JSON form of ``to_json``."""
    gone = [Loss(_file(body), of_inline(positions)) for body, positions in found["gone"]]
    added = [_file(body) for body in found["added"]]
    return StagedChange(
        relation=found["relation"],
        uri=found["uri"],
        name=found["name"],
        table_id=found["table_id"],
        schema=found["schema"],
        partition_by=tuple(found["partition_by"]),
        version=found["version"],
        since=found.get("since", -1),
        gone={loss.file.path: loss for loss in gone},
        added={file.path: file for file in added},
        kinds=frozenset(found["kinds"]),
        pairs=tuple(WrittenFile(path, size, 0, {}) for path, size in found["pairs"]),
        emptied=found.get("emptied", {}),
    )


def _file(body: Mapping[str, Any]) -> DataFile:
    file = data_file(body)
    if not file.descriptor:
        return file
    positions = of_inline(file.descriptor)
    return file.with_deleted(positions).with_descriptor(file.descriptor)


# The commit of a transaction's staged change to one table, and how to undo it.
#
# A commit puts a new version of the table, durable on return, or raises CommitConflict. If the
# transaction has several tables, each commit bears the transaction's mark. The mark finds a commit
# again after a crash, so that nothing is put twice. The caller decides which tables to commit, and
# when to undo a commit.

CheckRows = Callable[[StagedChange, TableState], None]
"""A function that raises an error if the rows of a change are not allowed in a version."""
MakeCommit = Callable[[VectorFile], Commit]
"""A function that returns a commit, and adds its vectors to a file. Every try gets a new file."""
_STATS: Final = 8
"""The number of files whose existence is checked at the same time: object stores answer slowly."""
_FENCE: Final = "FENCE"
"""commitInfo.operation of an empty version. It takes the version number that a commit still under
way would get."""


class StagedCommit:
    """The commit of one table's change. ``group`` and ``relations``: the name of its transaction
    and the oids of its tables; None and () if this table is the only one."""

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
        """Check that the change can be committed now; return the state to commit it on. Raises
        CommitConflict and the errors of ``check_rows``."""
        state = load(self._storage, self.change.uri)
        if state is None or state.version < self.change.version:
            raise CommitConflict(f'table "{self.change.name}" was dropped')
        self._check(state)
        return state

    def put(self, state: TableState | None = None) -> int:
        """Commit the change; return the version that has it. ``state``: a fresh result of
        ``check``, for the first try.

        After CommitConflict or an error of ``check_rows`` nothing was committed. After StorageError
        the log entry may exist.
        """
        resumed = state is None
        while True:
            if state is None and self._group is not None:
                there, seen = self._find(undone=False)
                if there is not None:
                    return there
                state = self.check()
                if resumed:
                    self._check_emptied(seen)
                if not self._seen_all(seen, state):
                    state = None
                    continue
            state = state or self.check()
            mark = self._mark(undone=False)
            if self._put(state, partial(self.change.commit, state, mark)):
                return state.version + 1
            state = None

    def settled(self) -> int | None:
        """Return the version that has the change although ``put`` has raised. None: no version has
        it, and none will. Raises StorageError if that cannot be found out."""
        return self._log.settle()

    def undo(self) -> None:
        """Take the commit back if it was put, and make sure that it is not put later. Raises
        StorageError, FeatureNotSupported if the table has since got a feature that our commits do
        not maintain, and NotInPrerequisiteState if VACUUM has removed files that must come back."""
        while True:
            if self._find(undone=True)[0] is not None:
                return
            there, seen = self._find(undone=False)
            state = load(self._storage, self.change.uri)
            if state is None or state.metadata.get("id") != self.change.table_id:
                return  # the table was dropped with all its rows
            if not self._seen_all(seen, state):
                continue
            if there is None and self._storage.is_local:
                return
            make: MakeCommit = _fence
            if there is not None:
                protocol.check_features(self.change.name, state.protocol, state.metadata)
                self._say_rewritten(state)
                change = self._to_undo(there, state.version)
                self._check_back(path for path in change.gone if path not in state.files)
                touched = {*change.gone, *change.added}
                load_vectors(self._storage, self.change.uri, state, touched)
                mark = {**self._mark(undone=True), **reversal_mark([there])}
                make = partial(change.undo, state, mark)
            if self._put(state, make):
                return

    def there(self) -> bool | None:
        """Return whether the commit was put and not undone; None if the table was dropped. Raises
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

    def _check(self, state: TableState) -> None:
        check = protocol.check_writable if self.change.removes else protocol.check_appendable
        check(self.change.name, state.protocol, state.metadata)
        load_vectors(self._storage, self.change.uri, state, self.change.gone.keys())
        self.change.check(state)
        if self._group is not None and not self.change.paths().isdisjoint(state.files):
            raise CommitConflict(f'table "{self.change.name}" has rows of this transaction already')
        self._check_files()
        self._check_rows(self.change, state)

    def _check_emptied(self, newest: int) -> None:
        """Raise CommitConflict if others have added rows up to ``newest`` to a table that was to be
        emptied before a crash: they do not expect that any more."""
        for version in range(self.change.version + 1, newest + 1) if self.change.emptied else ():
            entry = read_entry(self._storage, self.change.uri, version) or []
            if any(action.get("add", {}).get("dataChange") for action in entry):
                raise CommitConflict(f'others have changed rows of table "{self.change.name}"')

    def _check_files(self) -> None:
        """Raise CommitConflict if own files are gone: VACUUM removes them if they wait for long."""
        if not self._exist(self.change.paths()):
            raise CommitConflict(
                f'files that this transaction has written for table "{self.change.name}" were '
                "removed"
            )

    def _check_back(self, paths: Iterable[str]) -> None:
        """Raise NotInPrerequisiteState if files that must come back are gone: readers would look
        for them."""
        if not self._exist(paths):
            raise NotInPrerequisiteState(
                f'cannot take back a commit to table "{self.change.name}": files whose rows it has '
                "deleted were removed",
                hint="Put the table's files back from a copy.",
            )

    def _exist(self, paths: Iterable[str]) -> bool:
        with ThreadPoolExecutor(_STATS) as pool:
            uris = [file_uri(self.change.uri, path) for path in paths]
            return all(pool.map(self._storage.exists, uris))

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
        """Return the change to undo. If others have emptied the table since, its deleted rows do
        not come back: without our commit the others would have removed them, too."""
        storage, uri = self._storage, self.change.uri
        changed = False
        for version in range(there + 1, newest + 1):
            entry = read_entry(storage, uri, version) or []
            if empties(entry, load_at(storage, uri, version - 1).files.keys()):
                return replace(self.change, gone={})
            changed |= any(action.get("remove", {}).get("dataChange") for action in entry)
        change = self.change
        if change.emptied:
            before = load_at(storage, uri, there - 1)
            load_vectors(storage, uri, before)
            change = replace(change, gone={p: _whole(file) for p, file in before.files.items()})
        if changed and change.gone:
            log.error(
                'table "%s": others have changed rows after a transaction block that is rolled '
                "back; the rows that it had deleted are back as they were before the block",
                self.change.name,
            )
        return change

    def _find(self, *, undone: bool) -> tuple[int | None, int]:
        """Find the commit, or with ``undone`` the commit that has taken it back. Return its version
        (None if there is none), which is durable then, and the last version that was searched."""
        version, found = self.change.version, None
        while (entry := read_entry(self._storage, self.change.uri, version + 1)) is not None:
            version += 1
            if found is None and group_of(entry) == self._group and is_undone(entry) is undone:
                found = version
        if found is not None:  # a process may have been killed before it synced the entry's name
            self._storage.sync_folder(log_folder(self.change.uri))
        return found, version

    def _seen_all(self, seen: int, state: TableState) -> bool:
        """Return whether the search up to version ``seen`` has covered ``state``. Raises
        StorageError if the next log entry is missing."""
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
    """Return whether a version of the table names files of a change; True also if log entries that
    may have named them are gone. Raises StorageError."""
    own, version = change.paths(), change.version
    while (entry := read_entry(storage, change.uri, version + 1)) is not None:
        version += 1
        if any("add" in action and action["add"]["path"] in own for action in entry):
            return True
    state = load(storage, change.uri)
    return state is not None and state.version > version


def _fence(_: VectorFile) -> Commit:
    return Commit(_FENCE)


# The reverse of our own commits, for a batch that some tables have and other tables cannot get.
#
# One more commit takes back all commits of an app id after a marker. ``reversal`` reads the Delta
# log, and returns the files to put in place and the marker to go back to. Deleted rows come back,
# added rows are removed, and later commits of others stay. There is no reverse if others have
# copied added rows into files of their own: nobody knows which rows to remove there.

Entry = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Reversal:
    """A plan to take commits back. ``versions``: the commits' versions. ``marker``: the app id's
    marker before them, 0 if it had none. ``files``: files to put in place, by path; None removes.
    """

    versions: tuple[int, ...]
    marker: int
    files: Mapping[str, DataFile | None]


@dataclass
class _Walk:
    """A walk over the log's entries, the newest first. ``moved``: files whose rows others may have
    copied. ``emptied``: others have removed all rows later, so no deleted row comes back."""

    storage: Storage
    uri: str
    newest: TableState
    files: dict[str, DataFile | None] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    emptied: bool = False

    def pass_by(self, version: int, entry: Entry) -> None:
        """Take note of a commit that stays."""
        added, removed = _paths(entry, "add"), _paths(entry, "remove")
        if added - removed:
            self.moved |= removed
        if removed and not self.emptied:
            before = load_at(self.storage, self.uri, version - 1)
            self.emptied = empties(entry, before.files.keys())

    def reverse(self, version: int, entry: Entry) -> None:
        """Take a commit back. Raises NotInPrerequisiteState."""
        if self.emptied:
            return
        paths = _paths(entry, "add") | _paths(entry, "remove")
        before = load_at(self.storage, self.uri, version - 1)
        after = before.copy()
        after.apply(version, entry)
        for state in (before, after):
            load_vectors(self.storage, self.uri, state, paths)
        for path in sorted(paths):
            self._reverse_file(path, before.files.get(path), after.files.get(path))

    def _reverse_file(self, path: str, old: DataFile | None, new: DataFile | None) -> None:
        now = self.files[path] if path in self.files else self.newest.files.get(path)
        if old is None:
            if path in self.moved:
                raise _irreversible(self.uri, "others have rewritten files with rows of it")
            self.files[path] = None
            return
        self.files[path] = old.restored(now, old.gone_in(new) - old.positions_deleted())

    def check_files(self) -> None:
        """Raise NotInPrerequisiteState if VACUUM has removed a file that must come back."""
        back = (path for path, file in self.files.items() if file and path not in self.newest.files)
        if not all(self.storage.exists(file_uri(self.uri, path)) for path in back):
            raise _irreversible(self.uri, "files that it has replaced were removed since")


def reversal(
    storage: Storage, uri: str, state: TableState, app_id: str, since: int, operation: str
) -> Reversal | None:
    """Return the plan to take back the commits of ``app_id`` with ``operation`` and markers after
    ``since``; None if there are none. ``state``: the newest version, with its vectors.

    Raises VersionGone, StorageError; NotInPrerequisiteState if they cannot be taken back.
    """
    walk, versions, marker = _Walk(storage, uri, state), [], 0
    for version in range(state.version, -1, -1):
        entry = read_entry(storage, uri, version)
        if entry is None:
            raise _irreversible(uri, f"there is no entry for version {version} in its log any more")
        found = _marker(entry, app_id)
        wrote = any(body.get("dataChange", True) for body in _bodies(entry))
        mine = _operation(entry) == operation
        if found is None or (found > since and not mine and not wrote):
            walk.pass_by(version, entry)
        elif found <= since or not mine:
            marker = found
            break
        else:
            walk.reverse(version, entry)
            versions.append(version)
    walk.check_files()
    return Reversal(tuple(versions), marker, walk.files) if versions else None


def _marker(entry: Entry, app_id: str) -> int | None:
    found = (a["txn"] for a in entry if "txn" in a)
    return next((int(each["version"]) for each in found if each["appId"] == app_id), None)


def _operation(entry: Entry) -> object:
    return next((a["commitInfo"].get("operation") for a in entry if "commitInfo" in a), None)


def _bodies(entry: Entry) -> Sequence[Mapping[str, Any]]:
    return [body for a in entry if (body := a.get("add") or a.get("remove"))]


def _paths(entry: Entry, kind: str) -> set[str]:
    return {str(action[kind]["path"]) for action in entry if kind in action}


def _irreversible(uri: str, why: str) -> NotInPrerequisiteState:
    return NotInPrerequisiteState(f'cannot take back the last batch of table "{uri}": {why}')
