"""The commits of a batch: of all its tables side by side, each with the batch's end LSN.

In: targets with everything staged. Out: their next versions, histories ahead of their tables and
partitions ahead of the tables that they are of; or an error, when all have been tried. Which
changes are staged is left to ``apply``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, NoReturn

from penstock.errors import CommitConflict, PenstockError
from penstock.failpoint import AFTER_HISTORY, BETWEEN_COMMITS, failpoint
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import INVALID, Lsn
from penstock.subscription.parking import is_own
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets

_COMMITS_AT_ONCE: Final = 8
_OPERATION: Final = "REPLICATION"


class Commits:
    """Of one stream."""

    def __init__(
        self, targets: Targets, app_id: str, refuse: Callable[[Target, PenstockError], None]
    ) -> None:
        """``refuse``: parks a table that cannot be committed, or raises the error."""
        self._targets = targets
        self._app_id = app_id
        self._refuse = refuse
        self._pool = ThreadPoolExecutor(_COMMITS_AT_ONCE, thread_name_prefix="commit")

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown()

    def check_current(self, touched: Sequence[Target], told: Collection[str], end_lsn: Lsn) -> None:
        """Before what was found in the tables ``told`` is told of for good. Raises CommitConflict
        where somebody has committed to one of them meanwhile; nothing is staged then."""
        asked = [target for target in touched if target.table.name in told]
        behind = [t for t in asked if any(each.is_behind() for each in t.tables.values())]
        if behind:
            for target in touched:
                target.discard()
            self._lost(behind, end_lsn)

    def commit(self, touched: Sequence[Target], end_lsn: Lsn) -> None:
        """Commit side by side; all are tried, so that a lost race costs one table's work.

        Partitions come before the table that they are of, whose commit says that all have it.
        """
        failed = _Failed()
        self._targets.changed(touched)
        histories = [(t, each) for t in touched if (each := self._history(t, end_lsn)) is not None]
        self._commit_all(histories, end_lsn, failed)
        if histories:
            failpoint(AFTER_HISTORY)
            touched = [t for t in touched if not failed.has(t)]
        rows = [(t, each) for t in touched for each in t.to_commit(end_lsn)]
        self._commit_all(rows, end_lsn, failed)
        roots = [t for t in touched if t.partitions is not None and not failed.has(t)]
        if roots:
            failpoint(BETWEEN_COMMITS)
        self._commit_all([(t, t.table) for t in roots], end_lsn, failed)
        for target in touched:
            if not failed.has(target):
                target.committed(end_lsn)
        for target, own in failed.refused:
            self._refuse(target, own)
        if failed.lost:
            self._lost(failed.lost, end_lsn)

    def _lost(self, lost: Sequence[Target], end_lsn: Lsn) -> NoReturn:
        for target in lost:
            try:
                self._targets.load_again(target, end_lsn)
            except PenstockError as own:
                self._refuse(target, own)
        names = ", ".join(f'"{target.table.name}"' for target in lost)
        raise CommitConflict(f"another writer has committed to {names}")

    def _commit_all(
        self, commits: Sequence[tuple[Target, DeltaTable]], end_lsn: Lsn, failed: _Failed
    ) -> None:
        """Raises what is no table's own, when all are done."""
        futures = {
            self._pool.submit(self._commit_table, table, end_lsn): target
            for target, table in commits
        }
        pending: set[Future[None]] = set(futures)
        error: BaseException | None = None
        left = len(pending)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                error = failed.take(futures[future], future.exception()) or error
                left -= 1
                if left:  # also where two have ended at once
                    failpoint(BETWEEN_COMMITS)
        if error is not None:
            raise error

    def _commit_table(self, table: DeltaTable, end_lsn: Lsn) -> None:
        self._targets.unanswered.commit(table, self._app_id, end_lsn, _OPERATION)

    def _history(self, target: Target, end_lsn: Lsn) -> DeltaTable | None:
        """Where it does not have the batch from before a crash."""
        table = target.history
        if table is None or table.has_staged:
            return table
        marker = table.transaction_version(self._app_id) or INVALID
        return table if marker < end_lsn else None


class _Failed:
    """Targets that could not be committed: those that have lost a race, and others."""

    def __init__(self) -> None:
        self.lost: list[Target] = []
        self.refused: list[tuple[Target, PenstockError]] = []

    def take(self, target: Target, error: BaseException | None) -> BaseException | None:
        """An error of one of its tables; returned where it is not the table's own."""
        if isinstance(error, CommitConflict):
            if not self.has(target):
                self.lost.append(target)
        elif isinstance(error, PenstockError) and is_own(error):
            self.lost = [each for each in self.lost if each is not target]
            if not self.has(target):
                self.refused.append((target, error))
        else:
            return error
        return None

    def has(self, target: Target) -> bool:
        """Whether it is one of them."""
        return any(each is target for each in [*self.lost, *(t for t, _ in self.refused)])
