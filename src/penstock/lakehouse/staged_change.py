"""The changes of an open transaction to one table: files that wait for their commit, deleted rows.

In: rows of the version that it has read, and files just written in the table's folder. Out: the
table's files as the transaction sees them, actions for a commit on any later version in which
nobody else has touched the same rows, and actions that take such a commit back. All are immutable
values: each statement makes a new one, so a savepoint just keeps an earlier value.
``staged_commit`` puts entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyroaring import BitMap

from penstock.errors import CommitConflict
from penstock.lakehouse import actions
from penstock.lakehouse.actions import Action
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import VectorFile, inline, of_inline
from penstock.lakehouse.files import WrittenFile, file_uri
from penstock.lakehouse.row_pairs import pairs_folder, pairs_mark
from penstock.lakehouse.state import TableState, data_file
from penstock.lakehouse.xact import Commit

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"
MOVE: Final = "move"
"""The kind of a change that moves rows to another partition."""
_OPERATIONS: Final[Mapping[str, str]] = {INSERT: "WRITE", UPDATE: "UPDATE", DELETE: "DELETE"}
_MIXED: Final = "MERGE"
"""commitInfo.operation of changes of several kinds."""
_UNDO: Final = "ROLLBACK"


@dataclass(frozen=True)
class Loss:
    """Deleted rows of a file of the table. ``file``: as it was when they were read."""

    file: DataFile
    positions: BitMap


@dataclass(frozen=True)
class StagedChange:
    """The changes of a transaction to one table.

    ``relation``: the table's oid. ``table_id``, ``schema`` and ``partition_by``: those of the table
    that was read. ``version``: the version that the last statement has read, ``since``: the first
    one. ``gone``: deleted rows of the table's files, by path. ``added``: the transaction's own
    files that have rows left, by path, with their vectors inline. ``kinds``: those of its
    statements. ``pairs``: files that tell which new row was which old one.
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

    @classmethod
    def of(cls, relation: int, uri: str, name: str, state: TableState) -> StagedChange:
        """Return a value without changes yet."""
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
        return not (self.gone or self.added)

    def with_rows(
        self,
        kind: str,
        state: TableState,
        gone: Mapping[str, BitMap],
        written: Sequence[WrittenFile],
        pairs: Sequence[WrittenFile] = (),
    ) -> StagedChange:
        """Return the value after one more statement. ``state``: the table as the statement has read
        it, without staged changes; ``gone``: deleted positions in its files and in own ones."""
        lost, added = dict(self.gone), dict(self.added)
        for path, positions in gone.items():
            own = added.get(path)
            if own is None:
                before = lost[path].positions if path in lost else BitMap()
                lost[path] = Loss(state.files[path], before | positions)
                continue
            left = own.positions_deleted() | positions
            if len(left) < own.rows:
                added[path] = _in_line(own, left)
            else:
                del added[path]
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

    def check(self, state: TableState) -> None:
        """Check that it can be committed on ``state``, in which touched files have their vectors.

        Raises CommitConflict if the table was altered or replaced, or others were first to change
        one of the rows.
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
        found = dict(state.files)
        for path, loss in self.gone.items():
            left = found[path].positions_deleted() | loss.positions
            if len(left) < found[path].rows:
                found[path] = _in_line(found[path], left)
            else:
                del found[path]
        return {**found, **self.added}

    def commit(self, state: TableState, mark: Mapping[str, object], vectors: VectorFile) -> Commit:
        """Return the commit after ``state``, which has passed ``check``. ``mark``: user metadata;
        ``vectors``: the file that gets its deletion vectors."""
        now = actions.now_ms()
        operation = _OPERATIONS.get(next(iter(self.kinds)), _MIXED)
        lost = ((state.files[path], loss.positions) for path, loss in self.gone.items())
        kept = [(file, file.positions_deleted() | positions) for file, positions in lost]
        changes = [
            *_removes((file for file, _ in kept), now),
            *_adds(((file, left) for file, left in kept if len(left) < file.rows), vectors),
            *_adds(((file, file.positions_deleted()) for file in self.added.values()), vectors),
        ]
        return Commit(
            operation if len(self.kinds) == 1 else _MIXED,
            changes,
            {**mark, **pairs_mark(state.version, self.pairs)},
            blind_append=not self.gone,
        )

    def undo(self, state: TableState, mark: Mapping[str, object], vectors: VectorFile) -> Commit:
        """Return the commit after ``state`` that takes its commit back: deleted rows come back, and
        added rows go, unless others have moved them to other files."""
        here = [state.files[path] for path in (*self.gone, *self.added) if path in state.files]
        removes = _removes(here, actions.now_ms())
        return Commit(_UNDO, [*removes, *_adds(self._back(state), vectors)], mark)

    def _back(self, state: TableState) -> Iterator[tuple[DataFile, BitMap]]:
        for path, loss in self.gone.items():
            file = state.files.get(path, loss.file)
            others = file.positions_deleted() if path in state.files else _all(file)
            yield file, others - loss.positions

    def paths(self) -> set[str]:
        """Return the paths of its own files that the commit names."""
        return set(self.added)

    def uris(self) -> set[str]:
        """Return the URIs of all files that it needs until it is committed, and of its pairs."""
        folder = pairs_folder(self.uri)
        return {
            *(file_uri(self.uri, path) for path in self.paths()),
            *(file_uri(folder, file.path) for file in self.pairs),
        }


def _all(file: DataFile) -> BitMap:
    return BitMap(range(file.rows))


def _in_line(file: DataFile, positions: BitMap) -> DataFile:
    return file.with_deleted(positions).with_descriptor(inline(positions))


def _removes(files: Iterable[DataFile], now: int) -> Iterator[Action]:
    return (actions.remove(file, now=now, data_change=True) for file in files)


def _adds(files: Iterable[tuple[DataFile, BitMap]], vectors: VectorFile) -> Iterator[Action]:
    for file, deleted in files:
        descriptor = vectors.add(deleted) if deleted else None
        yield actions.add(file, descriptor, data_change=True)


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
    body: Mapping[str, Any] = actions.add(replace(file, stats=stats), vector, data_change=True)[
        "add"
    ]
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
    )


def _file(body: Mapping[str, Any]) -> DataFile:
    file = data_file(body)
    if not file.descriptor:
        return file
    positions = of_inline(file.descriptor)
    return file.with_deleted(positions).with_descriptor(file.descriptor)
