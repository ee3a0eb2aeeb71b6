"""The commits of a batch: of all its tables side by side, each with the batch's end LSN.

In: targets with everything staged. Out: their next versions, histories ahead of their tables and
partitions ahead of the tables that they are of; or an error, when all have been tried. Which
changes are staged is left to ``apply``.

Tables are looked at before the first of them is committed, so that what others have done to them is
known by then. Where another writer is quicker all the same, or a crash comes in between, and the
batch turns out to have an error, it is taken back from the tables that have it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final, NoReturn

from penstock.errors import CommitConflict, NotInPrerequisiteState, PenstockError, VersionGone
from penstock.failpoint import AFTER_HISTORY, AFTER_REVERSAL, BETWEEN_COMMITS, failpoint
from penstock.lakehouse.reversal import Reversal
from penstock.lakehouse.storage import is_local
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import INVALID, Lsn
from penstock.subscription.parking import is_own
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets

log = logging.getLogger(__name__)

_COMMITS_AT_ONCE: Final = 8
_OPERATION: Final = "REPLICATION"
_NOT_POSSIBLE: Final = (NotInPrerequisiteState, VersionGone)


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

    def are_several(self, touched: Sequence[Target], end_lsn: Lsn) -> bool:
        """Whether it takes more than one commit: a single one is refused where it loses a race."""
        each = (
            len(t.to_commit(end_lsn)) + (t.partitions is not None) + (t.history is not None)
            for t in touched
        )
        return sum(each) > 1

    def check_current(self, touched: Sequence[Target], end_lsn: Lsn) -> None:
        """Raises CommitConflict where somebody has committed to one of the tables since it was
        loaded; nothing is staged then."""
        looked_at = [(t, each) for t in touched for each in t.with_history]
        remote = not all(is_local(each.uri) for _, each in looked_at)
        look = self._pool.map if remote else map
        found = list(look(DeltaTable.is_behind, [each for _, each in looked_at]))
        late = {id(t) for (t, _), behind in zip(looked_at, found, strict=True) if behind}
        behind = [target for target in touched if id(target) in late]
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

    def take_back(self, since: Lsn) -> bool:
        """Take back what tables have of batches that end after ``since``, where the last cut is;
        whether there was any. Nothing is where it is not possible for each, which is logged."""
        beyond = [
            (target, table)
            for target in self._targets
            for table in target.with_history
            if (table.transaction_version(self._app_id) or INVALID) > since
        ]
        try:
            found = [(each, self._reversal(*each, since)) for each in beyond]
        except _NOT_POSSIBLE as error:
            log.warning("%s", error.report())
            return False
        due = [(table, reversal) for (_, table), reversal in found if reversal is not None]
        for table, reversal in due:
            self._reverse(table, reversal, since)
            log.info('table "%s" is back at %s, as the last cut has it', table.name, since)
            failpoint(AFTER_REVERSAL)
        return bool(due)

    def _reversal(self, target: Target, table: DeltaTable, since: Lsn) -> Reversal | None:
        found = table.reversal(self._app_id, since, _OPERATION)
        if found is None and target.ready:
            raise NotInPrerequisiteState(
                f'the history of table "{table.name}" has begun after the last cut, at {since}'
            )
        return found

    def _reverse(self, table: DeltaTable, found: Reversal | None, since: Lsn) -> None:
        """As often as others are first."""
        while found is not None:
            try:
                table.reverse(self._app_id, found)
                return
            except CommitConflict:
                found = table.reversal(self._app_id, since, _OPERATION)

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
        ended = itertools.count(1)

        def commit(table: DeltaTable) -> None:
            try:
                self._targets.unanswered.commit(table, self._app_id, end_lsn, _OPERATION)
            finally:
                # Here: whoever waits for all may learn of the first one after the last.
                if next(ended) < len(commits):
                    failpoint(BETWEEN_COMMITS)

        futures = {self._pool.submit(commit, table): target for target, table in commits}
        error: BaseException | None = None
        for future in as_completed(futures):
            error = failed.take(futures[future], future.exception()) or error
        if error is not None:
            raise error

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
