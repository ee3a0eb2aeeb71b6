"""The tables of the lake as one transaction block sees and changes them.

In: consistent points, the leaves that statements change, rows that go and files just written. Out:
positions with the block's own changes in them, tables that statements read rows of, and the staged
changes for COMMIT. Nothing is locked: what others commit meanwhile to the same rows is found by the
next statement that reads a later point, or by COMMIT. One that is not committed leaves no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyroaring import BitMap

from penstock.catalog import LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported, PenstockError
from penstock.executor.rows import serialization_failure
from penstock.executor.tables import BlockPosition
from penstock.lakehouse.files import WrittenFile, file_uri
from penstock.lakehouse.row_pairs import pairs_folder
from penstock.lakehouse.schema import check_lengths
from penstock.lakehouse.staged_change import StagedChange
from penstock.lakehouse.state import TableState, load_at, load_vectors, refresh
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.walsender.sequencer import Position

Staged = Mapping[int, StagedChange]
"""By the tables' oids. A value: a savepoint is the one of then."""


class LakeBlock:
    """For one session. ``staged``: what it has changed; it may be set back to an earlier value."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.staged: Staged = {}
        self._warehouse: Final = warehouse
        self._states: dict[int, TableState] = {}
        self._written: list[str] = []
        self._kept: set[str] = set()

    @property
    def changes(self) -> list[StagedChange]:
        """Of tables that do not stay as they are."""
        return [change for change in self.staged.values() if not change.empty]

    def at(self, position: Position) -> Position:
        """The position with the block's changes. Raises PenstockError (40001): others have changed
        the same rows since."""
        if not self.staged:
            return position
        files = {}
        for oid, change in self.staged.items():
            version = position.versions.get(oid)
            if version is None:
                raise outrun_block(CommitConflict(f'table "{change.name}" was dropped'))
            state = self._state(oid, change.uri, version)
            load_vectors(self._warehouse.storage, change.uri, state, change.gone.keys())
            try:
                change.check(state)
            except CommitConflict as error:
                raise outrun_block(error) from None
            files[oid] = change.files(state)
        return BlockPosition(position.lsn, position.versions, files)

    def open(self, leaf: LakeTable, version: int) -> DeltaTable:
        """A leaf at a version with the block's changes; not to be committed to.

        Raises FeatureNotSupported: only Delta knows what the table asks of its writers.
        """
        storage, uri = self._warehouse.storage, leaf.uri or ""
        state = self._state(leaf.oid, uri, version)
        load_vectors(storage, uri, state)
        seen = state.copy()
        change = self.staged.get(leaf.oid)
        if change is not None:
            seen.files = change.files(state)
        check_lengths(seen.metadata["schemaString"])
        return DeltaTable(storage, self._warehouse.store, uri, leaf.qualified_name, seen)

    def stage(
        self,
        leaf: LakeTable,
        kind: str,
        gone: Mapping[str, BitMap],
        written: Sequence[WrittenFile],
        pairs: Sequence[WrittenFile] = (),
    ) -> None:
        """Rows of the leaf as it was opened last, and files in its folder."""
        uri, state = leaf.uri or "", self._states[leaf.oid]
        self.wrote(uri, written)
        self.wrote(pairs_folder(uri), pairs)
        before = self.staged.get(leaf.oid) or StagedChange.of(
            leaf.oid, uri, leaf.qualified_name, state
        )
        after = before.with_rows(kind, state, gone, written, pairs)
        self.staged = {**self.staged, leaf.oid: after}

    def wrote(self, folder: str, files: Iterable[WrittenFile]) -> None:
        """They go with the block unless its commit names them."""
        self._written += [file_uri(folder, file.path) for file in files]

    def keep(self, changes: Iterable[StagedChange]) -> None:
        """What versions of tables may name from now on stays: those that are taken back are read as
        well, by who looks at older versions or follows a table's log."""
        self._kept = set[str]().union(*(change.uris() for change in changes))

    def end(self) -> None:
        """Remove the files that nobody needs."""
        gone = [uri for uri in self._written if uri not in self._kept]
        self.staged, self._states, self._written = {}, {}, []
        for uri in gone:
            self._warehouse.storage.remove(uri)

    def _state(self, oid: int, uri: str, version: int) -> TableState:
        """Followed from statement to statement, so that few entries are read again."""
        state = self._states.get(oid)
        if state is None or state.version > version:
            state = load_at(self._warehouse.storage, uri, version)
        elif state.version < version:
            refresh(self._warehouse.storage, uri, state, version)
            if state.version < version:
                state = load_at(self._warehouse.storage, uri, version)
        self._states[oid] = state
        return state


def outrun_block(error: CommitConflict) -> PenstockError:
    """Others were first."""
    detail = f"{error.message[0].upper()}{error.message[1:]}."
    return serialization_failure(detail, again="transaction")


def not_in_a_block(what: str) -> FeatureNotSupported:
    """For statements that cannot be staged."""
    return FeatureNotSupported(
        f"{what} cannot run inside a transaction block",
        hint="By itself it is a commit of the lake: run it outside of BEGIN ... COMMIT.",
    )
