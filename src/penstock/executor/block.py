"""The tables of the lake as one transaction block sees and changes them.

For each leaf that its statements change, a block stages deleted rows and written files. Later
statements of the block see these changes, and COMMIT commits them. Until COMMIT, tables that the
block creates exist only in this object. The block locks nothing: if another session commits a
change of the same rows, the next statement with a new snapshot fails, or COMMIT does. A block that
is not committed leaves no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from pyroaring import BitMap

from penstock.catalog import BlockCatalog, BlockMessage, Catalog, LakeTable, MadeTable, MessageHead
from penstock.errors import CommitConflict, FeatureNotSupported, PenstockError
from penstock.executor.routes import OpenTable, RowRules, row_rules
from penstock.executor.rows import sentence, serialization_failure
from penstock.executor.tables import BlockPosition
from penstock.lakehouse import protocol
from penstock.lakehouse.change import StagedChange
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import WrittenFile, file_uri
from penstock.lakehouse.row_pairs import pairs_folder
from penstock.lakehouse.schema import TableSchema, check_lengths
from penstock.lakehouse.state import TableState, load, load_at, load_vectors, refresh
from penstock.lakehouse.table_layout import check_layout
from penstock.lakehouse.warehouse import BlockWarehouse, Warehouse, remove_empty_folders
from penstock.sqlstate import ProgramLimitExceeded, UndefinedTable
from penstock.walsender.sequencer import Position

Result = TypeVar("Result")

_MAX_MESSAGE_BYTES: Final = 256 << 20
"""The most bytes of all messages of a block. They stay in memory until COMMIT, which writes them to
the state store as one value; a value in SQLite must be smaller than 1 GB."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A block's changes and new tables, by the tables' oids, and the messages that it has emitted.
    ``rules``: those by which the first new rows of each table were checked. Being immutable, it
    also serves as a savepoint."""

    changes: Mapping[int, StagedChange] = field(default_factory=dict)
    rules: Mapping[int, RowRules] = field(default_factory=dict)
    tables: Mapping[int, MadeTable] = field(default_factory=dict)
    messages: tuple[BlockMessage, ...] = ()
    message_bytes: int = 0


class LakeBlock:
    """The transaction block of one session. ROLLBACK TO sets ``staged`` to an earlier value."""

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
        """The staged changes, one for each changed table."""
        return [change for change in self.staged.changes.values() if not change.empty]

    @property
    def made(self) -> tuple[MadeTable, ...]:
        """The tables that the block creates, with the present values of their sequences."""
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
        """The warehouse, including the tables that the block has created."""
        return self._own_warehouse() if self.staged.tables else self._node_warehouse

    def _own_warehouse(self) -> BlockWarehouse:
        tables = self.staged.tables.values()
        return BlockWarehouse(self._node_warehouse, {table.uri: table.entry for table in tables})

    def catalog(self, catalog: Catalog) -> BlockCatalog:
        """Return the catalog, including the tables that the block has created."""
        return BlockCatalog(catalog, self.staged.tables.values(), self._sequences)

    def define(self, catalog: Catalog, run: Callable[[BlockCatalog, Warehouse], Result]) -> Result:
        """Run a command on the block's own catalog and warehouse, and stage the tables that it
        creates and drops. Raises the command's errors, and then changes nothing."""
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
        """Return the position with the tables that the block has created, at version 0."""
        made = dict.fromkeys(self.staged.tables, 0)
        return replace(position, versions={**position.versions, **made}) if made else position

    def at(self, position: Position) -> Position:
        """Return the position with the block's changes. Raises PenstockError (40001) if other
        sessions have changed the same rows in the meantime."""
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

    def open(self, leaf: LakeTable, version: int | None, *, to_insert: bool = False) -> OpenTable:
        """Open a leaf at a version, or the newest version if None, with the block's changes.
        ``to_insert``: rows are only added, so only deletion vectors of changed files are read.

        Raises UndefinedTable; FeatureNotSupported if the table has features that only Delta itself
        can maintain.
        """
        state, change = self._open(leaf, version), self.staged.changes.get(leaf.oid)
        name, uri, storage = leaf.qualified_name, leaf.uri or "", self.warehouse.storage
        check = protocol.check_appendable if to_insert else protocol.check_writable
        check(name, state.protocol, state.metadata)
        schema = TableSchema.of_delta(state.metadata["schemaString"], state.properties)
        check_layout(name, state.layout, schema.arrow())
        touched = () if change is None else change.gone
        load_vectors(storage, uri, state, touched if to_insert else None)
        seen = state.copy()
        if change is not None:
            seen.files = change.files(state)
        return OpenTable(storage, uri, name, seen, schema)

    def _open(self, leaf: LakeTable, version: int | None) -> TableState:
        warehouse, uri = self.warehouse, leaf.uri or ""
        if leaf.oid in self.staged.tables:
            warehouse.check_there()
            warehouse.storage.create_folder(uri)  # COMMIT puts the table's log there
        if version is not None:
            state = self._state(leaf.oid, uri, version)
        else:
            newest = load(warehouse.storage, uri)
            if newest is None:
                raise UndefinedTable(f'relation "{leaf.qualified_name}" does not exist')
            state = self._states[leaf.oid] = newest
        check_lengths(state.metadata["schemaString"])
        return state

    def read_state(self, change: StagedChange) -> TableState:
        """Return the state of the changed table that the block's last statement has read."""
        return self._states[change.relation]

    def stage(
        self,
        leaf: LakeTable,
        kind: str,
        gone: Mapping[str, BitMap],
        written: Sequence[WrittenFile],
        pairs: Sequence[WrittenFile] = (),
        rules: RowRules | None = None,
    ) -> None:
        """Stage a change of a leaf: ``gone`` rows of the version that was last opened, and files
        ``written`` to its folder, whose rows were checked by ``rules``."""
        uri, state = leaf.uri or "", self._states[leaf.oid]
        self.wrote(uri, written)
        self.wrote(pairs_folder(uri), pairs)
        before = self.staged.changes.get(leaf.oid) or StagedChange.of(
            leaf.oid, uri, leaf.qualified_name, state
        )
        after = before.with_rows(kind, state, gone, written, pairs)
        known = {leaf.oid: rules} if written and rules is not None else {}
        self.staged = replace(
            self.staged,
            changes={**self.staged.changes, leaf.oid: after},
            rules={**known, **self.staged.rules},
        )

    def check_rules(self, catalog: Catalog) -> None:
        """Raise CommitConflict if the new rows of a table were checked by other rules than those
        that it has now."""
        changed = [c for c in self.changes if c.added and c.relation in self.staged.rules]
        if not changed:
            return
        with catalog.read() as t:
            for change in changed:
                leaf = t.tables.find_oid(change.relation)
                if leaf is None:
                    continue  # dropped, which its log tells; or made by this block
                rules = row_rules(leaf, () if leaf.parent is None else t.tables.all())
                if rules != self.staged.rules[change.relation]:
                    raise CommitConflict(f'table "{change.name}" was altered')

    def stage_none(self, leaf: LakeTable, mark: Mapping[str, Any]) -> None:
        """Stage the removal of all rows of a leaf that was opened. ``mark``: of the TRUNCATE."""
        state = self._states[leaf.oid]
        empty = StagedChange.of(leaf.oid, leaf.uri or "", leaf.qualified_name, state)
        changes = {**self.staged.changes, leaf.oid: empty.with_none(state, mark)}
        self.staged = replace(self.staged, changes=changes)

    def emit(self, prefix: str, content: bytes) -> None:
        """Stage a message, to be sent after the rows that the block has changed so far. Raises
        ProgramLimitExceeded."""
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
        """Note files that the block has written. ``end`` removes them unless they are kept."""
        self._written += [file_uri(folder, file.path) for file in files]

    def keep(self, changes: Iterable[StagedChange]) -> None:
        """Keep the files of these changes, and no others: from now on Delta logs may name them.
        This includes files of commits that were undone, because readers of older versions and of
        the table's Delta log still read them."""
        self._kept = set[str]().union(*(change.uris() for change in changes))

    def end(self) -> None:
        """End the block and remove the files that need not be kept."""
        gone = [uri for uri in self._written if uri not in self._kept]
        folders, self._folders = self._folders, set()
        self.staged, self._states, self._written = Staged(), {}, []
        for uri in gone:
            self._node_warehouse.storage.remove(uri)
        for uri in folders:
            remove_empty_folders(self._node_warehouse.storage, uri)

    def _state(self, oid: int, uri: str, version: int) -> TableState:
        """Return the leaf's state at a version. The block keeps the last state, so the next
        statement reads only new entries of the Delta log."""
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
    """Return the error of a block whose rows others have changed first."""
    return serialization_failure(sentence(error), again="transaction")


def not_in_a_block(what: str) -> FeatureNotSupported:
    """Return the error for a statement that cannot run inside a block."""
    return FeatureNotSupported(
        f"{what} cannot run inside a transaction block",
        hint="By itself it is a commit of the lake: run it outside of BEGIN ... COMMIT.",
    )
