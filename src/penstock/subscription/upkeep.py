"""Upkeep between batches: compaction of tables, checkpoints of logs, a small cuts table.

In: the open tables after a batch. Out: at most one piece of work a call, so that the next batch
waits for one table at most. Which files to rewrite is decided in ``pipeline.compact``; losing the
race against another writer is harmless, as the next round sees the table again. Whatever fails is
left for later: nothing here is worth a stop, but another applier of the same subscription.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from penstock.errors import ApplierReplaced, CommitConflict, PenstockError
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.cuts import Cuts
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.compact import CompactOptions, commit_again, compact, needs_compaction
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets

log = logging.getLogger(__name__)

_PAUSE: Final = 100
"""Commits of a table for which its upkeep is left alone after it has failed."""
_UNTIL_PRUNED: Final = 86_400
"""Seconds that versions stay longer than the cuts that name them."""
_SET_PROPERTIES: Final = "SET TBLPROPERTIES"
"""As Spark's own statement is named in DESCRIBE HISTORY."""


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """``checkpoint_commits``: commits of a table between two checkpoints; ``cuts_kept``: newest
    cuts; ``cuts_kept_for``: seconds, those that are younger stay too.
    """

    compact: CompactOptions
    checkpoint_commits: int
    cuts_kept: int
    cuts_kept_for: float = 0.0


class Upkeep:
    """Counts commits of one session and does what has become due."""

    def __init__(self, spark: Spark, targets: Targets, cuts: Cuts, options: UpkeepOptions) -> None:
        self._spark = spark
        self._targets = targets
        self._cuts = cuts
        self.options = options
        """Others hold from the next cut on."""
        self._checkpointed: Counter[str] = Counter(
            {t.name: t.version for target in targets for t in target.with_history}
        )
        self._cuts_since = 0
        self._failed_at: dict[str, int] = {}

    def after_cut(self) -> None:
        """Look for due work; call it after each cut. Raises ApplierReplaced."""
        self._cuts_since += 1
        if self._cuts_since >= self.options.checkpoint_commits:
            self._cuts_since = 0
            try:
                self._cuts.prune(self.options.cuts_kept, self.options.cuts_kept_for)
            except PenstockError as error:
                log.warning("upkeep of the cuts: %s", error.message)
        for target in self._targets:
            if target.ahead is not None:
                continue  # what its partitions were before the batch is needed yet
            for table in target.with_history:
                if self._upkeep_of(target, table):
                    return

    def _upkeep_of(self, target: Target, table: DeltaTable) -> bool:
        if self._failed_at.get(table.name, -_PAUSE) + _PAUSE > table.version:
            return False
        try:
            return self._one(target, table)
        except ApplierReplaced:
            raise  # the next commit would go on top of what the other one did
        except PenstockError as error:
            # What is wrong with the rows says the batch that needs them.
            self._failed_at[table.name] = table.version
            table.discard()
            log.warning('upkeep of table "%s": %s', table.name, error.message)
            return False

    def _one(self, target: Target, table: DeltaTable) -> bool:
        if self.options.cuts_kept_for and not table.has_staged:
            table.keep_versions(int(self.options.cuts_kept_for) + _UNTIL_PRUNED)
            if table.has_staged:
                self._commit_properties(target, table)
                return True
        return self._compact_or_checkpoint(target, table)

    def _commit_properties(self, target: Target, table: DeltaTable) -> None:
        try:
            commit_again(table, _SET_PROPERTIES)
        except CommitConflict:
            self._targets.load_again(target)

    def _compact_or_checkpoint(self, target: Target, table: DeltaTable) -> bool:
        if needs_compaction(table, self.options.compact):
            try:
                compact(self._spark, table, self.options.compact)
            except CommitConflict:
                self._targets.load_again(target)
                return True
            log.info('compacted table "%s" to %d files', table.name, len(table.files))
            return True
        due = self._checkpointed[table.name] + self.options.checkpoint_commits
        if table.version >= due:
            self._checkpointed[table.name] = table.version
            table.checkpoint()
            return True
        return False
