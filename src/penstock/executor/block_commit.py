"""COMMIT of a transaction block: commit the changes of all of its tables or of none.

COMMIT writes one new version of each changed table; the node's log gets one transaction. A block
with several tables first records everything that its commits need (``catalog.block_commits``). If
COMMIT is interrupted, any session that finds the record completes the commits, or undoes them if
another writer has changed the same rows first. The sequencer (``walsender.sequencer``) waits until
then. Readers who open the tables directly may see one table's commit before another's.

COMMIT PREPARED does the same with the record of PREPARE TRANSACTION (``two_phase``). It records
even a block with one table, so that nothing is committed twice. If its commits are undone, the
transaction stays prepared.
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
from penstock.executor.rows import partly_done, sentence, serialization_failure
from penstock.executor.spark_errors import spark_errors
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
from penstock.lakehouse.change import StagedChange, StagedCommit, changes_in, content_of, is_named
from penstock.lakehouse.log import entry_uri, list_log, log_folder, read_entry
from penstock.lakehouse.schema import own_types
from penstock.lakehouse.state import TableState
from penstock.lakehouse.warehouse import Warehouse, remove_empty_folders
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

_STILL_PREPARED: Final = "The transaction is prepared still; ROLLBACK PREPARED ends it."
_TRIES: Final = 3
"""The number of attempts to find some tables without a block that is being committed."""


Made = Sequence[tuple[StagedCommit, tuple[int | None, TableState | None]]]
"""Commits, each with its version (None if unknown) and the state on which it is based (None for a
new table)."""


class CommitBlocks:
    """Commits and prepares the transaction blocks of all sessions."""

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

    def commit(self, block: LakeBlock, *, alone: bool = False, apart: bool = False) -> None:
        """Commit the staged changes. ``alone``: the block is one statement, which read the newest
        versions, holds the lock of its keys, and changes no row of a prepared transaction.
        ``apart``: commit each table by itself, because a subscription fills the tables and may
        make a cut between two commits.

        After PenstockError nothing is committed, except after 40003 with ``apart``. CommitConflict:
        another writer changed a row or altered a table first; 23505: inserted a key; 42P07: took a
        name. After a store's error the outcome may be unknown (40003) until ``finish``."""
        changes, tables, messages = block.changes, block.made, block.staged.messages
        if not (changes or tables or messages):
            return
        if alone and (apart or len(changes) == 1):
            block.check_rules(self._catalog)
            self._commit_each(block, changes)
            return
        if messages:
            self._sequencer.step()  # earlier commits must precede the messages in the node's log
        keyed = () if alone else [change.relation for change in changes if change.added]
        with self._unique.turn(keyed), self._sequencer.one_transaction():
            self._finish_before(changes, tables)
            block.check_rules(self._catalog)
            if not alone:
                self._held.now(_tables(changes)).check_changes(changes)
            made = self._commit(block, changes, tables=tables, messages=messages)
        self._checkpoint(made)

    def _commit_each(self, block: LakeBlock, changes: Sequence[StagedChange]) -> None:
        """Commit each table by itself, on top of the version in which its rows were found."""
        done: list[StagedChange] = []
        for change in changes:
            state = block.read_state(change)
            (commit,) = self._commits(BlockCommit("", (change.relation,), ""), [change])
            block.keep([*done, change])
            try:
                version = self._put_one(block, commit, state)
            except PenstockError as error:
                if not done:
                    raise
                block.keep([*done, change])  # a lost race has called keep(())
                names = [each.name for each in done]
                if not isinstance(error, CommitConflict):
                    raise partly_done(error, names) from None
                raise serialization_failure(sentence(error), names) from None
            done.append(change)
            self._checkpoint([(commit, (version, state))])

    def put_into_log(self) -> None:
        """Put new commits into the node's log. An error is only reported in the server log: the
        rows are committed, and the sequencer tries again."""
        try:
            self._sequencer.step()
        except StorageError as error:
            log.warning("commits are not in the log yet: %s", error.message)

    def prepare(self, prepared_id: str, changes: Sequence[StagedChange]) -> None:
        """Mark the block as prepared and put PREPARE into the log. Raises PenstockError (23505,
        40001) if the block could not be committed now."""
        self._sequencer.step()  # a TRUNCATE before it must stand before it in the log
        with self._sequencer.one_transaction():
            self._finish_before(changes)
            block = BlockCommit("", tuple(_tables(changes)), "")
            try:
                states = [commit.check() for commit in self._commits(block, changes)]
            except CommitConflict as error:
                raise outrun_block(error) from None
            # Changes of tables that a subscription maintains enter the node's log with its cuts.
            follows = self._sequencer.follows_each_commit(_tables(changes))
            with self._sequencer.recording() as (t, time):
                told = follows and bool(changes or t.block_messages.of(prepared_id))
                t.prepared_blocks.set_state(prepared_id, PreparedState.PREPARED)
                found = t.prepared_blocks.get(prepared_id) if told else None
                if found is not None:
                    put_prepare(t, found, changes, [state.version for state in states], time)

    def give_up(self, prepared_id: str) -> bool:
        """End a PREPARE TRANSACTION that has failed. If the node's log has no PREPARE, delete the
        record and return True. Otherwise roll it back, leave its files, and return False. Raises
        StorageError."""
        with self._sequencer.one_transaction(), self._sequencer.recording() as (t, time):
            found = t.prepared_blocks.get(prepared_id)
            if found is not None and found.prepare is not None:
                t.prepared_blocks.set_state(prepared_id, PreparedState.ROLLED_BACK)
                put_rollback(t, found, time)
                return False
            t.prepared_blocks.delete(prepared_id)
            return True

    def roll_back(self, prepared: PreparedBlock) -> None:
        """Roll back a prepared transaction, but leave its files. Call it inside ``prepared``."""
        with self._sequencer.recording() as (t, time):
            t.prepared_blocks.set_state(prepared.id, PreparedState.ROLLED_BACK)
            found = t.prepared_blocks.get(prepared.id)
            if found is not None:
                put_rollback(t, found, time)

    def commit_prepared(self, find: Callable[[], PreparedBlock]) -> None:
        """Commit the prepared transaction that ``find`` returns. Raises PenstockError, also from
        ``find``; then nothing is committed, and the transaction is still prepared."""
        with self.prepared(find) as prepared:
            changes = changes_in(prepared.content)
            self._finish_before(changes)
            try:
                with self._catalog.read() as t:
                    messages = t.block_messages.of(prepared.id)
                made = self._commit(Kept(), changes, prepared.id, messages=messages)
            except CommitConflict as error:
                raise outrun_block(error).changed(hint=_STILL_PREPARED) from None
            except (SerializationFailure, UniqueViolation) as error:
                raise error.changed(hint=_STILL_PREPARED) from None
        self.put_into_log()
        self._checkpoint(made)

    @contextmanager
    def prepared(self, find: Callable[[], PreparedBlock]) -> Iterator[PreparedBlock]:
        """Yield the prepared transaction that ``find`` returns. Inside the ``with`` block nobody
        else can commit it. If its commit was interrupted before, finish the commit first."""
        with self._sequencer.one_transaction():
            found = find()
            left = [block for block in self._left() if block.prepared == found.id]
            for block in left:
                self._finish(block)
            yield find() if left else found

    def _finish_before(
        self, changes: Sequence[StagedChange], tables: Collection[MadeTable] = ()
    ) -> None:
        """Finish interrupted blocks that change these tables, or create tables of these names."""
        names = names_of(tables)
        for left in self._left():
            touched = not _tables(changes).isdisjoint(left.relations)
            if touched or not names.isdisjoint(names_of(left.made)):
                self._finish(left)

    @staticmethod
    def _checkpoint(made: Made) -> None:
        for commit, (version, state) in made:
            if version is not None and state is not None:
                commit.checkpoint(version, state.properties)

    def finish(self) -> None:
        """Finish every block that a crash or a store's error interrupted between two commits. A
        block that cannot be finished now is left for the next call."""
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
        """Return False if a block was being committed to these tables, so that the caller may have
        read half of it. In that case wait for it first, unless a store's error interrupted it."""
        with self._catalog.read() as t:
            under_way = t.block_commits.touch(relations)
        if under_way:
            with self._sequencer.one_transaction():
                pass
        return not under_way

    def finish_those_of(self, relations: Collection[int]) -> None:
        """Finish interrupted blocks of these tables. Call it before their newest versions are read
        or replaced. Raises PenstockError (40001) if a block cannot be finished."""
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
        # a new table needs no check: no other session can see it
        states = [None if c.change.relation in new else c.check() for c in commits]
        staged.keep(changes)
        if block.is_alone and states[0] is not None:
            return [(commits[0], (self._put_one(staged, commits[0], states[0]), states[0]))]
        self._note(staged, block, messages)
        failpoint(AFTER_BLOCK_INTENT)
        versions = self._put_all(staged, block, commits, states)
        return list(zip(commits, zip(versions, states, strict=True), strict=True))

    def _note(self, staged: Keeps, block: BlockCommit, messages: Sequence[BlockMessage]) -> None:
        """Record the block. A state store that fails may have written the record nevertheless, so
        delete it then. Raises PenstockError."""
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
        except PenstockError:  # another session took a name first
            staged.keep(())
            raise

    @staticmethod
    def _put_one(staged: Keeps, commit: StagedCommit, state: TableState) -> int:
        try:
            with _unexpected():
                return commit.put(state)
        except (CommitConflict, UniqueViolation):
            staged.keep(())  # no Delta log names the block's files
            raise
        except PenstockError as error:
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
        staged: Keeps,
        block: BlockCommit,
        commits: Sequence[StagedCommit],
        states: Sequence[TableState | None],
    ) -> list[int | None]:
        """Put the commits and return their versions; all None if a store failed and yet all commits
        exist. Raises PenstockError if all commits are undone, now or by ``finish``."""
        versions: list[int | None] = []
        try:
            for table in block.made:
                self._new.put(table)
                failpoint(AFTER_BLOCK_TABLE)
            for commit, state in zip(commits, states, strict=True):
                with _unexpected():
                    versions.append(commit.put(state))
                failpoint(BETWEEN_BLOCK_COMMITS)
        except PenstockError as error:
            if self._take_back(staged, block, commits, error):
                raise
            versions = [None] * len(commits)
        failpoint(AFTER_BLOCK_COMMITS)
        try:
            self._done(block)
        except StorageError as error:  # ``finish`` will find the record and all commits
            log.warning("a transaction block is committed, and noted still: %s", error.message)
        return versions

    def _take_back(
        self,
        staged: Keeps,
        block: BlockCommit,
        commits: Sequence[StagedCommit],
        error: PenstockError,
    ) -> bool:
        """Undo the commits after an error and return True. If all of them exist, leave them and
        return False: a store may report an error for a write that has succeeded."""
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
                raise unknown(error, why) from error  # the last commit may still appear
            log.error("a transaction block will be rolled back later: %s", why.report())
        else:
            self._keep_named(staged, commits)
        return True

    def _keep_named(self, staged: Keeps, commits: Sequence[StagedCommit]) -> None:
        """Keep only files that Delta logs name: the rest may have filled the disk."""
        storage = self._warehouse.storage
        try:
            staged.keep([each.change for each in commits if is_named(storage, each.change)])
        except StorageError as error:
            log.warning("files of a transaction block are left: %s", error.message)

    def _is_there(self, block: BlockCommit, commits: Sequence[StagedCommit]) -> bool:
        """Tell whether the block is committed: every table that still exists has its commit, and no
        commit was undone. The node's log has such a block, or will get it."""
        self._warehouse.check_there()  # otherwise every table would look dropped
        if not all(map(self._new.is_there, block.made)):
            return False
        found = [there for commit in commits if (there := commit.there()) is not None]
        return bool(found or not commits) and all(found)

    def _undo(self, block: BlockCommit, commits: Sequence[StagedCommit]) -> None:
        """Undo the commits; remove new tables first, which no other session can see."""
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
        """Complete the block's commits or undo them. After PenstockError it is still unfinished."""
        changes = changes_in(block.content)
        commits = self._commits(block, changes)
        if block.undone:
            if self._is_there(block, commits):
                self._done(block)
            else:
                self._undo(block, commits)
            return
        try:
            self._put_all(Kept(), block, commits, [None] * len(commits))
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
        """Delete the block's record, now that it is committed, and enter its new tables."""
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


# Owners of the files that a commit names. When a block ends, it removes its files, except those it
# must ``keep``. The files of a prepared transaction stay until it is committed or rolled back.


class Keeps(Protocol):
    """The owner of files that a commit names."""

    def keep(self, changes: Iterable[StagedChange]) -> None:
        """Keep the files of these changes: from now on Delta logs may name them."""


class Kept:
    """The files of a prepared transaction, which stay until it is committed or rolled back."""

    def keep(self, changes: Iterable[StagedChange]) -> None:
        """Do nothing: the files stay anyway."""


# After two errors of stores in a row it may be unknown whether a block is committed (40003).
# ``unknown`` combines both errors into one for the client, with a hint.

_LATER: Final = (
    "It is committed or rolled back, as a whole, when its tables and the node's state can be "
    "written again."
)
LOOK_AT_IT: Final = (
    "Look whether the table has its rows, all or none, when it can be read again. Only then run "
    "the transaction again."
)


@contextmanager
def _unexpected() -> Iterator[None]:
    """Turn errors of any kind into StorageError inside: what a client is told has failed must be
    taken back, whatever the error is."""
    try:
        with spark_errors():
            yield
    except PenstockError:
        raise
    except Exception as error:
        log.exception("a transaction block could not be committed")
        raise StorageError("internal error", sqlstate="XX000") from error


def unknown(
    error: PenstockError, then: PenstockError, hint: str = _LATER
) -> StatementCompletionUnknown:
    """Return the error for a COMMIT whose outcome is unknown. ``error`` stopped the commit;
    ``then`` stopped the attempt to check it or to undo it."""
    return StatementCompletionUnknown(
        "it is not known yet whether the transaction block is committed",
        detail=f"{error.message}; and then: {then.message}",
        hint=hint,
    )


# COMMIT of a block that has created tables. It first puts the first entry of each table's Delta
# log, without rows. Then it commits their rows like those of other tables. Finally it enters the
# tables into the catalogs, in the transaction that deletes the block's record.
#
# Until then no other session can see the tables (``BlockCommits.makes``) or take their names.


class NewTables:
    """Creates and undoes the new tables of blocks, and enters them into the catalogs."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse: Final = warehouse

    def check(self, t: CatalogTransaction, tables: Iterable[MadeTable]) -> None:
        """Check that the tables can still be created: other sessions may have changed the catalogs
        since the block's CREATE TABLE.

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
        """Put the first entry of the table's Delta log; it is durable on return. Raises
        DuplicateTable if the folder holds another table."""
        self._warehouse.check_there()  # an unmounted warehouse would accept the entry
        try:
            self._warehouse.log_of(table.uri).create(table.entry)
        except CommitConflict:
            if not self.is_there(table):
                raise DuplicateTable(f'relation "{table.row.name}" already exists') from None

    def is_there(self, table: MadeTable) -> bool:
        """Tell whether the table's Delta log was put. Raises StorageError."""
        entry = read_entry(self._warehouse.storage, table.uri, 0) or []
        found = (action["metaData"]["id"] for action in entry if "metaData" in action)
        return table.table_id in found

    def undo(self, table: MadeTable, change: StagedChange | None, block: str) -> bool:
        """Remove the table with its files and return True. If others have written to it, leave it
        and return False: the caller must then undo the commit of its rows. Raises StorageError."""
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
            for version in reversed(listing.entries):  # remove entry 0, which has the id, last
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
        """Enter the tables into the catalogs. They become visible, and the sequencer follows them
        from the version before their first rows."""
        for table in tables:
            t.tables.add(table.row)
            for sequence in table.sequences:
                t.sequences.add(sequence)
            t.transactions.advance(table.row.oid, 0, table.table_id)


def names_of(tables: Iterable[MadeTable]) -> set[TableName]:
    """Return the names of all relations that new tables bring along, such as sequences."""
    return {(table.row.schema, name) for table in tables for name in table.names}
