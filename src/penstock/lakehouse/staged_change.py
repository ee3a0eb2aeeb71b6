"""What an open transaction does to one table: files that wait for their commit, rows that go.

In: rows of the version that it has read, and files just written in the table's folder. Out: the
table's files as the transaction sees them, actions for a commit on any later version where nobody
else has touched the same rows, and actions that take such a commit back. Values only: what a
statement adds makes another one, so that a savepoint is the value of then. Putting entries is
``staged_commit``'s.
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

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"
MOVE: Final = "move"
"""Rows have left for another partition."""
_OPERATIONS: Final[Mapping[str, str]] = {INSERT: "WRITE", UPDATE: "UPDATE", DELETE: "DELETE"}
_MIXED: Final = "MERGE"
"""commitInfo.operation of what is not all of one kind to subscribers."""
_UNDO: Final = "ROLLBACK"


@dataclass(frozen=True)
class Loss:
    """Rows of a file of the table that go. ``file``: as it was when they were read."""

    file: DataFile
    positions: BitMap


@dataclass(frozen=True)
class StagedChange:
    """``relation``: the table's oid. ``table_id``, ``schema`` and ``partition_by``: of the table
    that was read, ``version``: at which, ``since``: at which by its first statement. ``gone``: by
    path. ``added``: own files with rows that are left, by path, with their vectors in line.
    ``kinds``: of its statements. ``pairs``: files that say which new row was which old one.
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
        """Nothing yet."""
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
        """True when the table stays as it is."""
        return not (self.gone or self.added)

    def with_rows(
        self,
        kind: str,
        state: TableState,
        gone: Mapping[str, BitMap],
        written: Sequence[WrittenFile],
        pairs: Sequence[WrittenFile] = (),
    ) -> StagedChange:
        """After one more statement. ``state``: the table's that it has read, without what is
        staged; ``gone``: positions in its files and in own ones."""
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
        """Whether it can be committed to a version, whose touched files have their vectors.

        Raises CommitConflict: it is another table, or others were first at one of the rows.
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
        """The files of a version as the transaction sees them."""
        found = dict(state.files)
        for path, loss in self.gone.items():
            left = found[path].positions_deleted() | loss.positions
            if len(left) < found[path].rows:
                found[path] = _in_line(found[path], left)
            else:
                del found[path]
        return {**found, **self.added}

    def entry(
        self, state: TableState, mark: Mapping[str, object], vectors: VectorFile
    ) -> list[Action]:
        """Of the version after ``state``, which ``check`` has passed. ``mark``: user metadata."""
        now = actions.now_ms()
        operation = _OPERATIONS.get(next(iter(self.kinds)), _MIXED)
        info = actions.commit_info(
            operation if len(self.kinds) == 1 else _MIXED,
            now=now,
            user_metadata={**mark, **pairs_mark(state.version, self.pairs)},
            blind_append=not self.gone,
            read_version=state.version,
        )
        lost = ((state.files[path], loss.positions) for path, loss in self.gone.items())
        kept = [(file, file.positions_deleted() | positions) for file, positions in lost]
        return [
            info,
            *_removes((file for file, _ in kept), now),
            *_adds(((file, left) for file, left in kept if len(left) < file.rows), vectors),
            *_adds(((file, file.positions_deleted()) for file in self.added.values()), vectors),
        ]

    def undo_entry(
        self, state: TableState, mark: Mapping[str, object], vectors: VectorFile
    ) -> list[Action]:
        """The reverse, after its commit, on ``state``: rows that went are back, and those that came
        go, as far as others have left them where they were."""
        now = actions.now_ms()
        info = actions.commit_info(
            _UNDO, now=now, user_metadata=mark, blind_append=False, read_version=state.version
        )
        here = [state.files[path] for path in (*self.gone, *self.added) if path in state.files]
        return [info, *_removes(here, now), *_adds(self._back(state), vectors)]

    def _back(self, state: TableState) -> Iterator[tuple[DataFile, BitMap]]:
        for path, loss in self.gone.items():
            file = state.files.get(path, loss.file)
            others = file.positions_deleted() if path in state.files else _all(file)
            yield file, others - loss.positions

    def paths(self) -> set[str]:
        """Of its own files that the commit names."""
        return set(self.added)

    def uris(self) -> set[str]:
        """Of all files that it needs until it is committed, and of those that say of pairs."""
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
    """As it is written down."""
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
    """What a transaction does to each table, as it was written down."""
    return [from_json(found) for found in json.loads(content)]


def content_of(changes: Sequence[StagedChange]) -> str:
    """The reverse."""
    return json.dumps([to_json(change) for change in changes])


def _body(file: DataFile) -> Mapping[str, Any]:
    stats = {"numRecords": file.rows, **file.stats}
    vector = inline(file.positions_deleted()) if file.deleted else None
    body: Mapping[str, Any] = actions.add(replace(file, stats=stats), vector, data_change=True)[
        "add"
    ]
    return body


def from_json(found: Mapping[str, Any]) -> StagedChange:
    """The reverse of ``to_json``."""
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
