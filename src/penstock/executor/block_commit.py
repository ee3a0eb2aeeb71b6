"""COMMIT of a transaction block: the commits of its tables, all of them or none.

In: what the block has staged. Out: one version more of each table, and one transaction of the
node's log. A block over several tables is written down first, with everything that its commits need
(``catalog.block_commits``): whoever finds that goes on with the commits, or takes back those that
were made where another writer was first at the rows of a table. The sequencer waits meanwhile
(``walsender.sequencer``). Readers of the tables by themselves may see one commit before another.

COMMIT PREPARED is the same, from what PREPARE TRANSACTION has written down (``two_phase``): also
for one table, so that nothing is put twice. What is taken back then is prepared still.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from penstock.catalog import (
    BlockCommit,
    BlockMessage,
    Catalog,
    CatalogTransaction,
    MadeTable,
    PreparedBlock,
    PreparedState,
)
from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    FeatureNotSupported,
    PenstockError,
    StorageError,
    UndefinedObject,
)
from penstock.executor.block import LakeBlock, outrun_block
from penstock.executor.held_rows import HeldRows
from penstock.executor.unique_keys import UniqueKeys
from penstock.failpoint import (
    AFTER_BLOCK_COMMITS,
    AFTER_BLOCK_INTENT,
    AFTER_BLOCK_TABLE,
    AFTER_BLOCK_UNDONE,
    BETWEEN_BLOCK_COMMITS,
    failpoint,
)
from penstock.lakehouse.actions import group_of
from penstock.lakehouse.block_warehouse import remove_empty_folders
from penstock.lakehouse.log import entry_uri, list_log, log_folder, read_entry
from penstock.lakehouse.schema import own_types
from penstock.lakehouse.staged_change import StagedChange, changes_in, content_of
from penstock.lakehouse.staged_commit import StagedCommit
from penstock.lakehouse.state import TableState
from penstock.lakehouse.warehouse import Warehouse
from penstock.relation import TableName
from penstock.sqlstate import (
    DuplicateTable,
    InvalidSchemaName,
    SerializationFailure,
    StatementCompletionUnknown,
    UniqueViolation,
)
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.two_phase import note_commit, put_prepare, put_rollback, put_without_rows

log = logging.getLogger(__name__)

_TRIES: Final = 3
"""To find tables without a block whose commits are under way."""


Made = Sequence[tuple[StagedCommit, tuple[int | None, TableState | None]]]
"""Commits, their versions where they are known, and what they were made on, None for new tables."""


class CommitBlocks:
    """For every session."""

    def __init__(
        self,
        warehouse: Warehouse,
        catalog: Catalog,
        sequencer: Sequencer,
        held: HeldRows,
        unique: UniqueKeys,
    ) -> None:
        self._warehouse: Final = warehouse
        self._catalog: Final = catalog
        self._sequencer: Final = sequencer
        self._held: Final = held
        self._unique: Final = unique
        self._new: Final = NewTables(warehouse)

    def commit(self, block: LakeBlock) -> None:
        """What it has staged. Raises PenstockError: nothing of it (40001: others were first at some
        row, 23505: at some key, 42P07: at some name); what a store raises leaves it open until
        ``finish``."""
        changes, tables, messages = block.changes, block.made, block.staged.messages
        if not (changes or tables or messages):
            return
        if messages:
            self._sequencer.step()  # what was committed before stands before them
        keyed = self._unique.turn(change.relation for change in changes if change.added)
        with keyed, self._sequencer.one_transaction():
            self._finish_before(changes, tables)
            self._held.now(_tables(changes)).check_changes(changes)
            made = self._commit(block, changes, tables=tables, messages=messages)
        self._after(made)

    def prepare(self, prepared_id: str, changes: Sequence[StagedChange]) -> None:
        """What is being prepared is prepared, if it could be committed now, and the log says so.
        Raises PenstockError (23505, 40001)."""
        with self._sequencer.one_transaction():
            self._finish_before(changes)
            block = BlockCommit("", tuple(_tables(changes)), "")
            try:
                states = [commit.check() for commit in self._commits(block, changes)]
            except CommitConflict as error:
                raise outrun_block(error) from None
            # What a subscription maintains goes into the log with its cuts.
            follows = self._sequencer.follows_each_commit(_tables(changes))
            with self._sequencer.recording() as (t, time):
                told = follows and bool(changes or t.block_messages.of(prepared_id))
                t.prepared_blocks.set_state(prepared_id, PreparedState.PREPARED)
                found = t.prepared_blocks.get(prepared_id) if told else None
                if found is not None:
                    put_prepare(t, found, changes, [state.version for state in states], time)

    def give_up(self, prepared_id: str) -> bool:
        """A PREPARE TRANSACTION that has failed: whether nobody will find it, and nobody was told
        of it. Otherwise it is rolled back, and its files are left. Raises StorageError."""
        with self._sequencer.one_transaction(), self._sequencer.recording() as (t, time):
            found = t.prepared_blocks.get(prepared_id)
            if found is not None and found.prepare is not None:
                t.prepared_blocks.set_state(prepared_id, PreparedState.ROLLED_BACK)
                put_rollback(t, found, time)
                return False
            t.prepared_blocks.delete(prepared_id)
            return True

    def roll_back(self, prepared: PreparedBlock) -> None:
        """Within ``prepared``; its files are left."""
        with self._sequencer.recording() as (t, time):
            t.prepared_blocks.set_state(prepared.id, PreparedState.ROLLED_BACK)
            found = t.prepared_blocks.get(prepared.id)
            if found is not None:
                put_rollback(t, found, time)

    def commit_prepared(self, find: Callable[[], PreparedBlock]) -> None:
        """Raises what ``find`` does, and PenstockError: nothing of it, and it is prepared still."""
        with self.prepared(find) as prepared:
            changes = changes_in(prepared.content)
            self._finish_before(changes)
            try:
                with self._catalog.read() as t:
                    messages = t.block_messages.of(prepared.id)
                made = self._commit(Kept(), changes, prepared.id, messages=messages)
            except (SerializationFailure, UniqueViolation) as error:
                raise error.changed(
                    hint="The transaction is prepared still; ROLLBACK PREPARED ends it."
                ) from None
        self._after(made)

    @contextmanager
    def prepared(self, find: Callable[[], PreparedBlock]) -> Iterator[PreparedBlock]:
        """The prepared transaction that ``find`` gives: nobody commits it while inside, and no
        commit of it is left over."""
        with self._sequencer.one_transaction():
            found = find()
            left = [block for block in self._left() if block.prepared == found.id]
            for block in left:
                self._finish(block)
            yield find() if left else found

    def _finish_before(
        self, changes: Sequence[StagedChange], tables: Collection[MadeTable] = ()
    ) -> None:
        """What is left over comes first, in each table, and under each name of a new one."""
        names = names_of(tables)
        for left in self._left():
            touched = not _tables(changes).isdisjoint(left.relations)
            if touched or not names.isdisjoint(names_of(left.made)):
                self._finish(left)

    def _after(self, made: Made) -> None:
        try:
            self._sequencer.step()
        except StorageError as error:  # it is committed, and what it has done is not done again
            log.warning("a transaction block is not in the log yet: %s", error.message)
        for commit, (version, state) in made:
            if version is not None and state is not None:
                commit.checkpoint(version, state.properties)

    def finish(self) -> None:
        """Whatever a crash, or an error of a store, has left between two commits. What cannot be
        finished now is left for the next time."""
        with self._sequencer.one_transaction():
            try:
                left = self._left()
            except StorageError as error:
                log.warning("transaction blocks are not finished yet: %s", error.message)
                return
            for block in left:
                try:
                    self._finish(block)
                except PenstockError as error:
                    log.warning("a transaction block is not finished yet: %s", error.report())
        try:
            self._sequencer.end_blocks()
        except StorageError as error:
            log.warning("transaction blocks are not in the log yet: %s", error.message)

    def settled(self, relations: Iterable[int]) -> bool:
        """False where commits to these tables were under way: what was read of them may be half a
        block. They are over on return, unless they wait for a store."""
        with self._catalog.read() as t:
            under_way = t.block_commits.touch(relations)
        if under_way:
            with self._sequencer.one_transaction():
                pass
        return not under_way

    def finish_those_of(self, relations: Collection[int]) -> None:
        """Before their newest versions are read or changed as a whole. Raises PenstockError
        (40001): one waits."""
        for _ in range(_TRIES):
            if self.settled(relations):
                return
            self.finish()
        raise outrun_block(CommitConflict("a transaction block is not finished yet"))

    def _commit(
        self,
        staged: Keeps,
        changes: Sequence[StagedChange],
        prepared: str | None = None,
        tables: tuple[MadeTable, ...] = (),
        messages: Sequence[BlockMessage] = (),
    ) -> Made:
        relations = tuple(change.relation for change in changes)
        block = BlockCommit(
            str(uuid.uuid4()),
            relations,
            content_of(changes),
            prepared=prepared,
            made=tables,
            noted=bool(messages),
        )
        commits = self._commits(block, changes)
        new = {table.row.oid for table in tables}
        try:
            # nobody else can have been in a new table
            states = [None if c.change.relation in new else c.check() for c in commits]
            staged.keep(changes)
            if block.is_alone and states[0] is not None:
                return [(commits[0], (self._put_one(staged, commits[0], states[0]), states[0]))]
            self._note(staged, block, messages)
            failpoint(AFTER_BLOCK_INTENT)
            versions = self._put_all(block, commits, states)
        except CommitConflict as error:
            raise outrun_block(error) from None
        return list(zip(commits, zip(versions, states, strict=True), strict=True))

    def _note(self, staged: Keeps, block: BlockCommit, messages: Sequence[BlockMessage]) -> None:
        """Write it down. A store that has not answered may have it: then nobody is to find it."""
        try:
            with self._catalog.write() as t:
                self._new.check(t, block.made)
                note_commit(t, block, messages)
        except StorageError as error:
            try:
                self._forget(block)
            except StorageError as why:
                raise unknown(error, why) from error
            staged.keep(())
            raise
        except PenstockError:  # another one has a name by now
            staged.keep(())
            raise

    @staticmethod
    def _put_one(staged: Keeps, commit: StagedCommit, state: TableState) -> int:
        try:
            return commit.put(state)
        except (CommitConflict, UniqueViolation):
            staged.keep(())  # nothing names its files
            raise
        except StorageError as error:
            try:
                version = commit.settled()
            except PenstockError as why:
                raise unknown(error, why, LOOK_AT_IT) from error
            if version is None:
                staged.keep(())
                raise
            return version

    def _put_all(
        self,
        block: BlockCommit,
        commits: Sequence[StagedCommit],
        states: Sequence[TableState | None],
    ) -> list[int | None]:
        """None: it is there without being answered for. Raises PenstockError: none of them are
        left, now or after ``finish``."""
        versions: list[int | None] = []
        try:
            for table in block.made:
                self._new.put(table)
                failpoint(AFTER_BLOCK_TABLE)
            for commit, state in zip(commits, states, strict=True):
                versions.append(commit.put(state))
                failpoint(BETWEEN_BLOCK_COMMITS)
        except PenstockError as error:
            if self._take_back(block, commits, error):
                raise
            versions = [None] * len(commits)
        failpoint(AFTER_BLOCK_COMMITS)
        try:
            self._done(block)
        except StorageError as error:  # who finds it finds the commits as well
            log.warning("a transaction block is committed, and noted still: %s", error.message)
        return versions

    def _take_back(
        self, block: BlockCommit, commits: Sequence[StagedCommit], error: PenstockError
    ) -> bool:
        """False where all of them are there nevertheless: a store has done what it has not said."""
        undone = replace(block, undone=True)
        try:
            if self._is_there(block, commits):
                return False
            self._keep(undone)
        except PenstockError as why:
            raise unknown(error, why) from error
        try:
            self._undo(undone, commits)
        except PenstockError as why:
            if isinstance(error, StorageError) and not self._warehouse.storage.is_local:
                raise unknown(error, why) from error  # the last commit may come yet
            log.error("a transaction block will be rolled back later: %s", why.report())
        return True

    def _is_there(self, block: BlockCommit, commits: Sequence[StagedCommit]) -> bool:
        """Whether the log has it, or will: every table that is left has its commit, and none was
        taken back (``block_order``). It is not taken back from then on."""
        self._warehouse.check_there()  # else every table is taken for dropped
        if not all(map(self._new.is_there, block.made)):
            return False
        found = [there for commit in commits if (there := commit.there()) is not None]
        return bool(found or not commits) and all(found)

    def _undo(self, block: BlockCommit, commits: Sequence[StagedCommit]) -> None:
        """New tables go first: nobody knows them."""
        changes = {commit.change.relation: commit.change for commit in commits}
        gone: set[int] = set()
        for table in block.made:
            if self._new.undo(table, changes.get(table.row.oid), block.block):
                gone.add(table.row.oid)
            failpoint(AFTER_BLOCK_UNDONE)
        for commit in commits:
            if commit.change.relation not in gone:
                commit.undo()
                failpoint(AFTER_BLOCK_UNDONE)
        self._forget(block)

    def _left(self) -> tuple[BlockCommit, ...]:
        with self._catalog.read() as t:
            return t.block_commits.all()

    def _finish(self, block: BlockCommit) -> None:
        """Raises PenstockError: it is left over still, unless it is committed or rolled back."""
        changes = changes_in(block.content)
        commits = self._commits(block, changes)
        if block.undone:
            if self._is_there(block, commits):
                self._done(block)
            else:
                self._undo(block, commits)
            return
        try:
            self._put_all(block, commits, [None] * len(commits))
            log.info("a transaction block over %d tables was committed", len(commits))
        except (CommitConflict, DuplicateTable, FeatureNotSupported, UniqueViolation) as error:
            log.warning("a transaction block was rolled back: %s", error.report())

    def _commits(self, block: BlockCommit, changes: Sequence[StagedChange]) -> list[StagedCommit]:
        storage, store = self._warehouse.storage, self._warehouse.store
        group = None if block.is_alone else block.block
        check = self._unique.check_staged
        return [
            StagedCommit(storage, store, change, group, block.relations, check)
            for change in changes
        ]

    def _keep(self, block: BlockCommit) -> None:
        with self._catalog.write() as t:
            note_commit(t, block)

    def _done(self, block: BlockCommit) -> None:
        """It is committed."""
        with self._sequencer.recording() as (t, time):
            t.block_commits.delete(block.block)
            self._new.enter(t, block.made)
            if not block.relations:
                put_without_rows(t, block, time)
            if block.prepared is not None:
                t.prepared_blocks.end_commit(block.prepared)

    def _forget(self, block: BlockCommit) -> None:
        with self._catalog.write() as t:
            t.block_commits.delete(block.block)
            t.block_messages.delete(block.block)


def _tables(changes: Iterable[StagedChange]) -> set[int]:
    return {change.relation for change in changes}


# Whose files a commit names: a block's, which go with it, or a prepared transaction's.
#
# In: what is staged. Out: nothing; ``block_commit`` says when versions may name it.


class Keeps(Protocol):
    """Whose files are committed."""

    def keep(self, changes: Iterable[StagedChange]) -> None:
        """Versions may name files of these from now on."""


class Kept:
    """A prepared transaction's files, which are there until it has ended."""

    def keep(self, changes: Iterable[StagedChange]) -> None:
        """Nothing changes."""


# COMMIT of a block whose end is not known: two errors of stores, one after the other (40003).
#
# In: both. Out: the error for the client, with what it can do.

_LATER: Final = (
    "It is committed or rolled back, as a whole, when its tables and the node's state can be "
    "written again."
)
LOOK_AT_IT: Final = (
    "Look whether the table has its rows, all or none, when it can be read again. Only then run "
    "the transaction again."
)


def unknown(
    error: PenstockError, then: PenstockError, hint: str = _LATER
) -> StatementCompletionUnknown:
    """``then``: of the attempt to find out, or to take it back."""
    return StatementCompletionUnknown(
        "it is not known yet whether the transaction block is committed",
        detail=f"{error.message}; and then: {then.message}",
        hint=hint,
    )


# Tables that a transaction block has made, at its COMMIT: first their logs, without rows, then
# what they hold, by commits like those of other tables, and with the end of all the catalogs'
# rows.
#
# In: what is written down of a block. Out: first entries of logs, put or taken back; rows of the
# catalogs, in the transaction that the block is forgotten in. Until that one nobody on the node
# knows the tables (``BlockCommits.makes``), and nobody else takes their names.


class NewTables:
    """For every session."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse: Final = warehouse

    def check(self, t: CatalogTransaction, tables: Iterable[MadeTable]) -> None:
        """Whether they could be there now, whatever others have done since they were made.

        Raises PenstockError (3F000, 42704, 42710, 42P07).
        """
        types = {oid for enum in t.types.all() for oid in (enum.oid, enum.array_oid)}
        for table in tables:
            row = table.row
            if t.namespaces.find(row.schema) is None:
                raise InvalidSchemaName(f'schema "{row.schema}" does not exist')
            if row.owner is not None and t.roles.find_oid(row.owner) is None:
                raise UndefinedObject(f"role {row.owner} was concurrently dropped")
            for name in table.names:
                if t.is_taken(row.schema, name):
                    raise DuplicateTable(f'relation "{name}" already exists')
            if t.tables.in_folder_of(row.schema, row.name) is not None:
                raise DuplicateTable(f'relation "{row.name}" already exists')
            if t.types.find(row.schema, row.name) is not None:
                raise DuplicateObject(f'type "{row.name}" already exists')
            for oid in own_types(table.metadata["schemaString"]) - types:
                raise UndefinedObject(f"type {oid} was concurrently dropped")

    def put(self, table: MadeTable) -> None:
        """Its log, durable on return. Raises DuplicateTable: another table lies there."""
        self._warehouse.check_there()  # an empty mount point would take it, too
        self._warehouse.storage.create_folder(log_folder(table.uri))
        try:
            self._warehouse.store.put(table.uri, 0, table.entry)
        except CommitConflict:
            if not self.is_there(table):
                raise DuplicateTable(f'relation "{table.row.name}" already exists') from None

    def is_there(self, table: MadeTable) -> bool:
        """Whether its log was put. Raises StorageError."""
        entry = read_entry(self._warehouse.storage, table.uri, 0) or []
        found = (action["metaData"]["id"] for action in entry if "metaData" in action)
        return table.table_id in found

    def undo(self, table: MadeTable, change: StagedChange | None, block: str) -> bool:
        """Take it back, with its files. False where others have written to it: it stays, and its
        rows are to be taken back. Raises StorageError."""
        storage = self._warehouse.storage
        if self.is_there(table):
            listing = list_log(storage, table.uri)
            own = [read_entry(storage, table.uri, v) or [] for v in listing.entries if v]
            if listing.checkpoints or any(group_of(entry) != block for entry in own):
                log.error(
                    'table "%s" of a transaction block that is rolled back stays: others have '
                    "written to it",
                    table.row.qualified_name,
                )
                return False
            for version in reversed(listing.entries):  # the first one says whose it is
                storage.remove(entry_uri(table.uri, version))
            if self.is_there(table):
                raise StorageError(f'could not remove the log of table "{table.uri}"')
        for uri in () if change is None else change.uris():
            storage.remove(uri)
        storage.remove_empty_folder(log_folder(table.uri))
        remove_empty_folders(storage, table.uri)
        return True

    @staticmethod
    def enter(t: CatalogTransaction, tables: Collection[MadeTable]) -> None:
        """From now on everybody knows them, and follows them from before their first rows."""
        for table in tables:
            t.tables.add(table.row)
            for sequence in table.sequences:
                t.sequences.add(sequence)
            t.transactions.advance(table.row.oid, 0, table.table_id)


def names_of(tables: Iterable[MadeTable]) -> set[TableName]:
    """Of relations that come with new tables."""
    return {(table.row.schema, name) for table in tables for name in table.names}
