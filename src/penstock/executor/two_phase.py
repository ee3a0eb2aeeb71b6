"""PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED of blocks over the lake (twophase.c).

PREPARE TRANSACTION stores the block's staged changes in the catalog (``catalog.PreparedBlock``)
under the client's gid. They survive the session and a restart of the node, but no statement sees
them. A block that could not be committed now is refused. While a transaction is prepared, no other
session of the node can change its rows (``held_rows``). COMMIT PREPARED checks again, because other
writers may change the tables directly; if it cannot commit, the transaction stays prepared.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from penstock.catalog import (
    BlockMessage,
    Catalog,
    CatalogTransaction,
    PreparedBlock,
    PreparedState,
    Role,
)
from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    FeatureNotSupported,
    InsufficientPrivilege,
    InvalidParameterValue,
    NotInPrerequisiteState,
    PenstockError,
    StorageError,
    UndefinedObject,
)
from penstock.executor.block import LakeBlock, outrun_block
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.held_rows import Held, HeldRows
from penstock.failpoint import (
    AFTER_BLOCK_PREPARED,
    AFTER_PREPARE_INTENT,
    AFTER_ROLLBACK_PREPARED,
    failpoint,
)
from penstock.lakehouse.change import StagedChange, changes_in, content_of, is_named
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pipeline.query import Interrupts
from penstock.sqlstate import OutOfMemory, StatementCompletionUnknown

log = logging.getLogger(__name__)

_GID_SIZE: Final = 200
"""The most bytes of a gid, including C's terminating NUL (xact.h, GIDSIZE)."""


class TwoPhase:
    """Prepares and ends transactions, for all sessions. ``most``: max_prepared_transactions."""

    def __init__(
        self,
        warehouse: Warehouse,
        catalog: Catalog,
        commits: CommitBlocks,
        held: HeldRows,
        most: int,
        oldest: Callable[[], Lsn | None] = lambda: None,
    ) -> None:
        """``oldest`` returns the LSN from which slots need the node's log, or None if there is no
        slot."""
        self._oldest: Final = oldest
        self._warehouse: Final = warehouse
        self._catalog: Final = catalog
        self._commits: Final = commits
        self._held: Final = held
        self._most: Final = most
        self._preparing: set[str] = set()

    def prepare(
        self, gid: str, block: LakeBlock | None, role: Role, interrupts: Interrupts
    ) -> None:
        """Prepare a block. ``block``: None if nothing has changed. After PenstockError (22023,
        23505, 40001, 42710, 53200, 55000) nothing is prepared; after 40003 it may be."""
        changes = [] if block is None else block.changes
        prepared_id = str(uuid.uuid4())
        self._preparing.add(prepared_id)  # otherwise ``finish`` would roll it back
        if block is not None:
            block.keep(changes)
        try:
            messages = () if block is None else block.staged.messages
            self._claim(prepared_id, gid, changes, messages, role)
            failpoint(AFTER_PREPARE_INTENT)
            self._held.wait_for_statements(changes, interrupts)
            if block is not None:
                _check_rules(block, self._catalog)
            self._commits.prepare(prepared_id, changes)
        except BaseException as error:
            if self._forgotten(prepared_id, error) and block is not None:
                block.keep(())
            raise
        finally:
            self._preparing.discard(prepared_id)
        failpoint(AFTER_BLOCK_PREPARED)

    def commit(self, gid: str, role: Role) -> None:
        """Commit a prepared transaction, from any session. After PenstockError (40001, 42501,
        42704) the transaction is still prepared."""
        self._commits.commit_prepared(lambda: self._find(gid, role))

    def rollback(self, gid: str, role: Role) -> None:
        """Roll back a prepared transaction, from any session. Raises PenstockError (42501,
        42704)."""
        with self._commits.prepared(lambda: self._find(gid, role)) as block:
            self._commits.roll_back(block)
        failpoint(AFTER_ROLLBACK_PREPARED)
        try:
            if not self._is_needed(block):
                self._remove(block)
        except StorageError as error:  # the rollback itself is already recorded
            log.warning("files of a prepared transaction are removed later: %s", error.message)

    def finish(self) -> None:
        """Remove what PREPARE TRANSACTION left behind after a crash or a store's error."""
        try:
            with self._catalog.read() as t:
                blocks = t.prepared_blocks.all()
            for block in blocks:
                ended = block.state is PreparedState.ROLLED_BACK or self._is_left_over(block)
                if ended and not self._is_needed(block):
                    self._remove(block)
        except StorageError as error:
            log.warning("prepared transactions are not finished yet: %s", error.message)

    def _is_needed(self, block: PreparedBlock) -> bool:
        """Tell whether a slot must still send the block's PREPARE, with its rows."""
        oldest = self._oldest()
        return oldest is not None and block.prepare is not None and oldest <= block.prepare.lsn

    def _is_left_over(self, block: PreparedBlock) -> bool:
        """Tell whether the block's session ended before it was prepared. If so, roll it back."""
        if block.state is not PreparedState.PREPARING:
            return False
        with self._catalog.write() as t:  # no PREPARE can complete during this transaction
            left = t.prepared_blocks.get(block.id)
            if left is None or left.state is not PreparedState.PREPARING:
                return False
            if block.id in self._preparing:
                return False
            t.prepared_blocks.set_state(block.id, PreparedState.ROLLED_BACK)
        return True

    def _claim(
        self,
        prepared_id: str,
        gid: str,
        changes: Sequence[StagedChange],
        messages: Sequence[BlockMessage],
        role: Role,
    ) -> None:
        """Record the block under its gid (MarkAsPreparing). From now on its rows are held. Raises
        PenstockError."""
        relations = tuple(change.relation for change in changes)
        with self._catalog.write() as t:
            self._check(t, gid)
            Held.read(t, relations).check_changes(changes)
            block = PreparedBlock(
                prepared_id,
                gid,
                t.transactions.next_xid(),
                time.time_ns() // 1000,
                role.oid,
                relations,
                content_of(changes),
            )
            t.prepared_blocks.put(block)
            t.block_messages.put(prepared_id, messages)

    def _check(self, t: CatalogTransaction, gid: str) -> None:
        if len(gid.encode()) >= _GID_SIZE:
            raise InvalidParameterValue(f'transaction identifier "{gid}" is too long')
        if self._most == 0:
            raise NotInPrerequisiteState(
                "prepared transactions are disabled",
                hint='Set "max_prepared_transactions" to a nonzero value.',
            )
        if t.prepared_blocks.find(gid) is not None or _of_a_publisher(t, gid):
            raise DuplicateObject(f'transaction identifier "{gid}" is already in use')
        if sum(block.holds for block in t.prepared_blocks.all()) >= self._most:
            raise OutOfMemory(
                "maximum number of prepared transactions reached",
                hint=f'Increase "max_prepared_transactions" (currently {self._most}).',
            )

    def _find(self, gid: str, role: Role) -> PreparedBlock:
        """Return the prepared transaction, if the role may end it (LockGXact). Raises
        PenstockError."""
        with self._catalog.read() as t:
            found, publishers = t.prepared_blocks.find(gid), _of_a_publisher(t, gid)
        if publishers:
            raise FeatureNotSupported(
                f'prepared transaction "{gid}" is of a subscription',
                hint="It is committed or rolled back when its publisher does so.",
            )
        if found is None or not found.in_doubt:
            raise UndefinedObject(f'prepared transaction with identifier "{gid}" does not exist')
        if not role.superuser and role.oid != found.owner:
            raise InsufficientPrivilege(
                "permission denied to finish prepared transaction",
                hint="Must be superuser or the user that prepared the transaction.",
            )
        return found

    def _forgotten(self, prepared_id: str, error: BaseException) -> bool:
        """Delete the record after ``error``, and tell whether it is gone, so that its files can be
        removed. Raises StatementCompletionUnknown if a store's error hides the outcome."""
        try:
            return self._commits.give_up(prepared_id)
        except StorageError as why:
            if not isinstance(error, PenstockError):
                return False
            raise StatementCompletionUnknown(
                "it is not known whether the transaction is prepared",
                detail=f"{error.message}; and then: {why.message}",
                hint="Look into pg_prepared_xacts when the node's state can be read again.",
            ) from error

    def _remove(self, block: PreparedBlock) -> None:
        """Remove the block's files, then its record. Raises StorageError."""
        self._warehouse.check_there()  # otherwise every file would look removed
        self._warehouse.check_lease()
        storage = self._warehouse.storage
        uris: set[str] = set()
        for change in changes_in(block.content):
            # A Delta log may still name the files: after a commit that was undone, or after the
            # state store was restored from an older copy.
            if not is_named(storage, change):
                uris |= change.uris()
        for uri in uris:
            storage.remove(uri)
        if not any(map(storage.exists, uris)):
            self._forget(block.id)

    def _forget(self, prepared_id: str) -> None:
        with self._catalog.write() as t:
            t.prepared_blocks.delete(prepared_id)


def _check_rules(block: LakeBlock, catalog: Catalog) -> None:
    try:
        block.check_rules(catalog)
    except CommitConflict as error:
        raise outrun_block(error) from None


def _of_a_publisher(t: CatalogTransaction, gid: str) -> bool:
    return any(xact.local_gid == gid for xact in t.prepared_xacts.all())
