"""COMMIT of a transaction block: the commits of its tables, all of them or none.

In: what the block has staged. Out: one version more of each table, and one transaction of the
node's log. A block over several tables is written down first, with everything that its commits need
(``catalog.block_commits``): whoever finds that goes on with the commits, or takes back those that
were made where another writer was first at the rows of a table. The sequencer waits meanwhile
(``walsender.block_order``). Readers of the tables by themselves may see one commit before another.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from penstock.catalog import BlockCommit, Catalog
from penstock.errors import CommitConflict, PenstockError, StorageError
from penstock.executor.block import outrun_block
from penstock.failpoint import (
    AFTER_BLOCK_COMMITS,
    AFTER_BLOCK_INTENT,
    AFTER_BLOCK_UNDONE,
    BETWEEN_BLOCK_COMMITS,
    failpoint,
)
from penstock.lakehouse.staged_change import StagedChange, from_json, to_json
from penstock.lakehouse.staged_commit import StagedCommit
from penstock.lakehouse.state import TableState
from penstock.lakehouse.warehouse import Warehouse
from penstock.sqlstate import StatementCompletionUnknown
from penstock.walsender.sequencer import Sequencer

log = logging.getLogger(__name__)


class CommitBlocks:
    """For every session."""

    def __init__(self, warehouse: Warehouse, catalog: Catalog, sequencer: Sequencer) -> None:
        self._warehouse: Final = warehouse
        self._catalog: Final = catalog
        self._sequencer: Final = sequencer

    def commit(self, changes: Sequence[StagedChange]) -> None:
        """All of them. Raises PenstockError: none (40001: others were first at some row); what a
        store raises leaves it open until ``finish``."""
        if not changes:
            return
        with self._sequencer.one_transaction():
            self._finish_all()  # what is left over comes first, in each table
            made = self._commit(changes)
        self._sequencer.step()
        for commit, (version, state) in made:
            commit.checkpoint(version, state.properties)

    def finish(self) -> None:
        """Whatever a crash, or an error of a store, has left between two commits. What cannot be
        finished now is left for the next time."""
        try:
            with self._sequencer.one_transaction():
                self._finish_all()
        except StorageError as error:
            log.warning("a transaction block is not finished yet: %s", error.message)

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
        """Before everything in these tables is changed. Raises PenstockError (40001): one waits."""
        if not self.settled(relations):
            self.finish()
            if not self.settled(relations):
                raise outrun_block(CommitConflict("a transaction block is not finished yet"))

    def _commit(
        self, changes: Sequence[StagedChange]
    ) -> list[tuple[StagedCommit, tuple[int, TableState]]]:
        relations = tuple(change.relation for change in changes)
        block = BlockCommit(str(uuid.uuid4()), relations, _content(changes))
        commits = self._commits(block, changes)
        try:
            states = [commit.check() for commit in commits]
            if len(changes) == 1:
                return [(commits[0], (commits[0].put(states[0]), states[0]))]
            self._keep(block)
            failpoint(AFTER_BLOCK_INTENT)
            versions = self._put_all(block, commits, states)
        except CommitConflict as error:
            raise outrun_block(error) from None
        return list(zip(commits, zip(versions, states, strict=True), strict=True))

    def _put_all(
        self,
        block: BlockCommit,
        commits: Sequence[StagedCommit],
        states: Sequence[TableState | None],
    ) -> list[int]:
        """Raises CommitConflict, StorageError: none of them are left, now or after ``finish``."""
        versions = []
        try:
            for commit, state in zip(commits, states, strict=True):
                versions.append(commit.put(state))
                failpoint(BETWEEN_BLOCK_COMMITS)
        except (CommitConflict, StorageError) as error:
            self._take_back(block, commits, error)
            raise
        failpoint(AFTER_BLOCK_COMMITS)
        self._forget(block)
        return versions

    def _take_back(
        self, block: BlockCommit, commits: Sequence[StagedCommit], error: PenstockError
    ) -> None:
        undone = replace(block, undone=True)
        try:
            self._keep(undone)
        except PenstockError as why:
            raise StatementCompletionUnknown(
                "it is not known yet whether the transaction block is committed",
                detail=f"{error.message}; and then: {why.message}",
                hint="It is committed or rolled back, as a whole, when its tables and the node's "
                "state can be written again.",
            ) from error
        try:
            self._undo(undone, commits)
        except StorageError as why:
            log.error("a transaction block will be rolled back later: %s", why.message)

    def _undo(self, block: BlockCommit, commits: Sequence[StagedCommit]) -> None:
        for commit in commits:
            commit.undo()
            failpoint(AFTER_BLOCK_UNDONE)
        self._forget(block)

    def _finish_all(self) -> None:
        with self._catalog.read() as t:
            left = t.block_commits.all()
        for block in left:
            changes = [from_json(found) for found in json.loads(block.content)]
            commits = self._commits(block, changes)
            if block.undone:
                self._undo(block, commits)
                continue
            try:
                self._put_all(block, commits, [None] * len(commits))
                log.info("a transaction block over %d tables was committed", len(commits))
            except CommitConflict as error:
                log.warning("a transaction block was rolled back: %s", error.message)

    def _commits(self, block: BlockCommit, changes: Sequence[StagedChange]) -> list[StagedCommit]:
        storage, store = self._warehouse.storage, self._warehouse.store
        group = block.block if len(changes) > 1 else None
        return [StagedCommit(storage, store, change, group, block.relations) for change in changes]

    def _keep(self, block: BlockCommit) -> None:
        with self._catalog.write() as t:
            t.block_commits.put(block)

    def _forget(self, block: BlockCommit) -> None:
        with self._catalog.write() as t:
            t.block_commits.delete(block.block)


def _content(changes: Sequence[StagedChange]) -> str:
    return json.dumps([to_json(change) for change in changes])
