"""The tables of the lake as one transaction block sees and changes them.

In: consistent points, the leaves that statements change, rows that go and files just written. Out:
positions with the block's own changes in them, tables that statements read rows of, and the staged
changes for COMMIT. Tables that the block makes are here as values, and nowhere else before COMMIT.
Nothing is locked: what others commit meanwhile to the same rows is found by the next statement that
reads a later point, or by COMMIT. One that is not committed leaves no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pyroaring import BitMap

from penstock.catalog import BlockCatalog, BlockMessage, Catalog, LakeTable, MadeTable, MessageHead
from penstock.errors import CommitConflict, FeatureNotSupported, PenstockError
from penstock.executor.rows import serialization_failure
from penstock.executor.tables import BlockPosition
from penstock.lakehouse.block_warehouse import BlockWarehouse, remove_empty_folders
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import WrittenFile, file_uri
from penstock.lakehouse.row_pairs import pairs_folder
from penstock.lakehouse.schema import check_lengths
from penstock.lakehouse.staged_change import StagedChange
from penstock.lakehouse.state import TableState, load_at, load_vectors, refresh
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.sqlstate import ProgramLimitExceeded
from penstock.walsender.sequencer import Position

Result = TypeVar("Result")

_MAX_MESSAGE_BYTES: Final = 256 << 20
"""They are in memory until COMMIT, and then one value of the node's state: SQLite's have less than
1 GB."""


@dataclass(frozen=True, slots=True)
class Staged:
    """By the tables' oids, what a block has changed, and which tables it has made; messages that it
    has emitted. A value: a savepoint is the one of then."""

    changes: Mapping[int, StagedChange] = field(default_factory=dict)
    tables: Mapping[int, MadeTable] = field(default_factory=dict)
    messages: tuple[BlockMessage, ...] = ()
    message_bytes: int = 0


class LakeBlock:
    """For one session. ``staged`` may be set back to an earlier value."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.staged = Staged()
        self._node_warehouse: Final = warehouse
        self._sequences: dict[int, tuple[int, bool]] = {}
        self._folders: set[str] = set()
        self._states: dict[int, TableState] = {}
        self._written: list[str] = []
        self._kept: set[str] = set()

    @property
    def changes(self) -> list[StagedChange]:
        """Of tables that do not stay as they are."""
        return [change for change in self.staged.changes.values() if not change.empty]

    @property
    def made(self) -> tuple[MadeTable, ...]:
        """Tables that it makes, with what was taken of their sequences."""
        return tuple(self._as_they_are(table) for table in self.staged.tables.values())

    def _as_they_are(self, table: MadeTable) -> MadeTable:
        known = self._sequences
        now = (
            replace(one, last_value=known[one.oid][0], is_called=known[one.oid][1])
            if one.oid in known
            else one
            for one in table.sequences
        )
        return replace(table, sequences=tuple(now))

    @property
    def warehouse(self) -> Warehouse:
        """With the tables that it has made."""
        return self._own_warehouse() if self.staged.tables else self._node_warehouse

    def _own_warehouse(self) -> BlockWarehouse:
        tables = self.staged.tables.values()
        return BlockWarehouse(self._node_warehouse, {table.uri: table.entry for table in tables})

    def catalog(self, catalog: Catalog) -> BlockCatalog:
        """With the tables that it has made."""
        return BlockCatalog(catalog, self.staged.tables.values(), self._sequences)

    def define(self, catalog: Catalog, run: Callable[[BlockCatalog, Warehouse], Result]) -> Result:
        """What a command makes and drops of the catalog and the warehouse that it is given is the
        block's. Raises what it raises: nothing has changed then."""
        own, warehouse = self.catalog(catalog), self._own_warehouse()
        result = run(own, warehouse)
        tables = {
            oid: MadeTable(
                row,
                tuple(s for s in own.own_sequences.values() if s.table == oid),
                warehouse.entries[row.uri or ""],
            )
            for oid, row in own.tables.items()
        }
        dropped = self.staged.tables.keys() - tables.keys()
        changes = {oid: c for oid, c in self.staged.changes.items() if oid not in dropped}
        self.staged = replace(self.staged, changes=changes, tables=tables)
        self._folders |= {table.uri for table in tables.values()}
        return result

    def with_made(self, position: Position) -> Position:
        """The position with the tables that it has made, all of them without rows."""
        made = dict.fromkeys(self.staged.tables, 0)
        return replace(position, versions={**position.versions, **made}) if made else position

    def at(self, position: Position) -> Position:
        """The position with the block's changes. Raises PenstockError (40001): others have changed
        the same rows since."""
        position = self.with_made(position)
        if not (self.staged.changes or self.staged.tables):
            return position
        files: dict[int, dict[str, DataFile]] = {oid: {} for oid in self.staged.tables}
        for oid, change in self.staged.changes.items():
            version = position.versions.get(oid)
            if version is None:
                raise outrun_block(CommitConflict(f'table "{change.name}" was dropped'))
            state = self._state(oid, change.uri, version)
            load_vectors(self.warehouse.storage, change.uri, state, change.gone.keys())
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
        warehouse, uri = self.warehouse, leaf.uri or ""
        storage = warehouse.storage
        if leaf.oid in self.staged.tables:
            warehouse.check_there()
            storage.create_folder(uri)  # COMMIT puts its log there
        state = self._state(leaf.oid, uri, version)
        load_vectors(storage, uri, state)
        seen = state.copy()
        change = self.staged.changes.get(leaf.oid)
        if change is not None:
            seen.files = change.files(state)
        check_lengths(seen.metadata["schemaString"])
        return DeltaTable(storage, warehouse.store, uri, leaf.qualified_name, seen)

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
        before = self.staged.changes.get(leaf.oid) or StagedChange.of(
            leaf.oid, uri, leaf.qualified_name, state
        )
        after = before.with_rows(kind, state, gone, written, pairs)
        self.staged = replace(self.staged, changes={**self.staged.changes, leaf.oid: after})

    def emit(self, prefix: str, content: bytes) -> None:
        """A message, after the rows that it has changed so far. Raises ProgramLimitExceeded."""
        total = self.staged.message_bytes + len(prefix.encode()) + len(content)
        if total > _MAX_MESSAGE_BYTES:
            raise ProgramLimitExceeded(
                "messages of a transaction block cannot be larger than "
                f"{_MAX_MESSAGE_BYTES >> 20} MB together"
            )
        after = max((change.relation for change in self.changes), default=0)
        message = BlockMessage(MessageHead(prefix, len(content), after), content)
        messages = (*self.staged.messages, message)
        self.staged = replace(self.staged, messages=messages, message_bytes=total)

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
        folders, self._folders = self._folders, set()
        self.staged, self._states, self._written = Staged(), {}, []
        for uri in gone:
            self._node_warehouse.storage.remove(uri)
        for uri in folders:
            remove_empty_folders(self._node_warehouse.storage, uri)

    def _state(self, oid: int, uri: str, version: int) -> TableState:
        """Followed from statement to statement, so that few entries are read again."""
        state, storage = self._states.get(oid), self.warehouse.storage
        if state is None or state.version > version:
            state = load_at(storage, uri, version)
        elif state.version < version:
            refresh(storage, uri, state, version)
            if state.version < version:
                state = load_at(storage, uri, version)
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
