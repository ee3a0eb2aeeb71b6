"""Upkeep beside the batches: compaction, checkpoints of Delta logs, pruning of the cuts table.

Between two batches, work on the open tables begins in a thread of its own (``BackgroundTask``), one
piece at a time, at the table's present version. Between two later batches a compaction is put in
place, which is quick, or discarded if it no longer fits. ``pipeline.compact`` decides which files
to rewrite. Losing the race against another writer is harmless: the table is examined again. Work
that fails is left for later: only another applier of the same subscription stops the session.

At a cut, only the tables that its batch has changed are examined, and a table's files only once in
many commits, so that the cost does not matter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from penstock.errors import ApplierReplaced, CommitConflict, PenstockError
from penstock.failpoint import AFTER_COMPACTION, BEFORE_COMPACTION, failpoint
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.cuts import Cuts
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.compact import (
    CompactOptions,
    Rewritten,
    TableAt,
    commit_again,
    due_files,
    gain,
    put_in_place,
    rewrite,
)
from penstock.relation import TableName
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets

log = logging.getLogger(__name__)

_PAUSE: Final = 100
"""Commits of a table until its upkeep is tried again after a failure."""
_LOOKED_AT: Final = 32
"""The number of candidates from which the tables that gain most by compaction are chosen."""
_RUN_BYTES: Final = 8 << 20
"""Bytes to rewrite, up to which several tables are compacted in one go."""
_FILES_A_COMMIT: Final = 64
"""The search for due files may cost this many files per commit: a table of n files is searched once
in n / 64 commits."""
_UNTIL_PRUNED: Final = 86_400
"""Seconds for which versions outlive the cuts that name them."""
_SET_PROPERTIES: Final = "SET TBLPROPERTIES"
"""The name of the operation in DESCRIBE HISTORY, as Spark's own statement has it."""


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """The options of upkeep.

    ``checkpoint_commits``: commits of a table between two checkpoints. ``cuts_kept``: the number of
    newest cuts to keep. ``cuts_kept_for``: seconds; younger cuts are kept too.
    """

    compact: CompactOptions
    checkpoint_commits: int
    cuts_kept: int
    cuts_kept_for: float = 0.0


@dataclass(slots=True)
class _Due:
    """The versions from which a Delta table is due for examination and for a checkpoint."""

    look: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class _Done:
    """The results of a piece of work.

    ``nothing``: ids of tables that have nothing to compact, with the number of commits until they
    are examined again. ``failed``: the errors, by the tables' ids.
    """

    nothing: dict[str, int] = field(default_factory=dict)
    rewritten: list[tuple[TableName, Rewritten]] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)


class Upkeep:
    """The upkeep of one session; used by the applying thread."""

    def __init__(self, spark: Spark, targets: Targets, cuts: Cuts, options: UpkeepOptions) -> None:
        self._spark = spark
        self._targets = targets
        self._cuts = cuts
        self.options = options
        """The options; changes take effect at the next cut."""
        self._due: dict[str, _Due] = {}
        self._waiting: dict[str, TableName] = {}
        """Names of the targets of tables that may have something due, by the tables' ids."""
        self._changed = 0
        """Number of tables that batches have changed since a compaction was begun last."""
        self._cuts_since = 0
        self._background: BackgroundTask[_Done] = BackgroundTask("upkeep", _undo)
        self._busy_with: dict[str, int] = {}
        """Ids of the tables in work, with their versions when the work began."""

    def after_cut(self) -> None:
        """Count a cut, and go on. Call it after each cut that follows a batch. Raises
        ApplierReplaced."""
        self._cuts_since += 1
        self.between_batches()

    def between_batches(self) -> None:
        """Put finished work in place, and begin work that is due. Raises ApplierReplaced."""
        for target in self._targets.take_changed():
            self._note(target)
        self._finish()
        if self._background.free and (work := self._next()) is not None:
            self._background.begin(work)

    def wait(self) -> None:
        """Wait until the running work is done; ``between_batches`` takes its results."""
        self._background.wait()

    def close(self) -> None:
        """Discard work that is not in place yet."""
        self._background.close()

    def _note(self, target: Target) -> None:
        for table in target.with_history:
            self._changed += 1
            due = self._due.get(table.id)
            if due is None:
                first = table.version + self.options.checkpoint_commits
                due = self._due[table.id] = _Due(table.version, first)
            if table.version >= min(due.look, due.checkpoint):
                self._waiting[table.id] = target.rel.table_name

    def _finish(self) -> None:
        try:
            done = self._background.take()
        except Exception as raised:
            done = _Done(failed=dict.fromkeys(self._busy_with, raised))
            if not self._busy_with:
                log.warning("upkeep of the cuts: %s", _said(raised))
        if done is None:
            return
        for table_id in done.failed:
            # Put off, not stopped: a damaged file is reported by the batch that needs it.
            self._put_off(table_id, self._busy_with[table_id])
        for told in dict.fromkeys(map(_said, done.failed.values())):
            log.warning("upkeep: %s", told)
        for table_id, commits in done.nothing.items():
            self._due[table_id].look = self._busy_with[table_id] + commits
        try:
            while done.rewritten:
                self._put(*done.rewritten.pop(0))
        finally:
            _undo(done)  # after an error: results that were not tried

    def _put(self, name: TableName, rewritten: Rewritten) -> None:
        target, table = self._find(name, rewritten.at.id)
        if target is None or table is None or not self._targets.in_last_cut(target):
            rewritten.remove()
            return
        failpoint(BEFORE_COMPACTION)
        try:
            if not self._put_or_look_again(target, table, rewritten):
                return
        except ApplierReplaced:
            raise  # the next commit would be put on top of the other applier's
        except PenstockError as error:
            self._failed(table, error)
            return
        failpoint(AFTER_COMPACTION)
        log.info('compacted table "%s" to %d files', table.name, len(table.files))

    def _put_or_look_again(self, target: Target, table: DeltaTable, rewritten: Rewritten) -> bool:
        try:
            if put_in_place(table, rewritten):
                return True
            log.info('table "%s" has changed too much to be compacted', table.name)
        except CommitConflict as conflict:
            log.info("%s: looking at the table again", conflict.message)
            self._targets.load_again(target)
        return False

    def _next(self) -> Callable[[], _Done] | None:
        """Return due work, on state that no longer changes; None if nothing is due."""
        self._busy_with = {}
        options = self.options
        if self._cuts_since >= options.checkpoint_commits:
            self._cuts_since = 0
            return partial(_prune, self._cuts, options.cuts_kept, options.cuts_kept_for)
        looked_at: list[tuple[TableName, TableAt]] = []
        for target, table in self._tables_waiting():
            try:
                if self._keep_versions(target, table):
                    continue
            except ApplierReplaced:
                raise  # the next commit would be put on top of the other applier's
            except PenstockError as error:
                self._failed(table, error)
                continue
            due = self._due[table.id]
            if table.version >= due.checkpoint:
                due.checkpoint = table.version + options.checkpoint_commits
                self._busy_with = {table.id: table.version}
                return partial(_checkpoint, table)
            if table.version >= due.look:
                looked_at.append((target.rel.table_name, TableAt.now(table)))
            else:
                del self._waiting[table.id]
            if len(looked_at) == _LOOKED_AT:
                break
        if not looked_at:
            return None
        self._busy_with = {at.id: at.version for _, at in looked_at}
        # Enough that compaction keeps up: a table has too many files after ``full`` commits.
        most, self._changed = 1 + self._changed // options.compact.full, 0
        return partial(_compact, self._spark, looked_at, options.compact, most)

    def _tables_waiting(self) -> Iterator[tuple[Target, DeltaTable]]:
        """Yield the tables that can be worked on now."""
        for table_id, name in list(self._waiting.items()):
            target, table = self._find(name, table_id)
            if target is None or table is None:
                del self._waiting[table_id]
                self._due.pop(table_id, None)
            elif self._targets.in_last_cut(target) and not table.has_staged:
                # Other tables wait: changes after the cut may be reverted, which needs their files.
                yield target, table

    def _find(self, name: TableName, table_id: str) -> tuple[Target | None, DeltaTable | None]:
        """Return a target and its open table; None if it was closed, parked, dropped or
        replaced."""
        target = self._targets.named(name)
        tables = () if target is None else target.with_history
        return target, next((each for each in tables if each.id == table_id), None)

    def _keep_versions(self, target: Target, table: DeltaTable) -> bool:
        """Keep the table's versions as long as the cuts that name them.

        Return True if the table was loaded again because another writer was first.
        """
        if not self.options.cuts_kept_for:
            return False
        table.keep_versions(int(self.options.cuts_kept_for) + _UNTIL_PRUNED)
        if not table.has_staged:
            return False
        try:
            commit_again(table, _SET_PROPERTIES)
        except CommitConflict:
            self._targets.load_again(target)
            return True
        return False

    def _failed(self, table: DeltaTable, error: PenstockError) -> None:
        table.discard()
        self._put_off(table.id, table.version)
        log.warning('upkeep of table "%s": %s', table.name, error.message)

    def _put_off(self, table_id: str, version: int) -> None:
        self._waiting.pop(table_id, None)
        if due := self._due.get(table_id):
            due.look = due.checkpoint = version + _PAUSE


def _undo(done: _Done) -> None:
    for _, rewritten in done.rewritten:
        rewritten.remove()


def _said(error: Exception) -> str:
    return error.message if isinstance(error, PenstockError) else str(error)


def _prune(cuts: Cuts, keep: int, keep_for: float) -> _Done:
    cuts.prune(keep, keep_for)
    return _Done()


def _checkpoint(table: DeltaTable) -> _Done:
    table.checkpoint()
    return _Done()


def _compact(
    spark: Spark,
    tables: Sequence[tuple[TableName, TableAt]],
    options: CompactOptions,
    most: int,
) -> _Done:
    """Rewrite the due files of the tables that gain most by it.

    At most ``most`` tables are rewritten, and several only if they have little to rewrite.
    """
    done, size = _Done(), 0
    found: list[tuple[float, TableName, TableAt, list[DataFile]]] = []
    for name, at in tables:
        try:
            chosen = due_files(at, options)
        except Exception as error:  # one table's error must not stop the others
            done.failed[at.id] = error
            continue
        if chosen:
            found.append((gain(chosen), name, at, chosen))
        else:
            done.nothing[at.id] = max(options.full // 2, len(at.files) // _FILES_A_COMMIT, 1)
    found.sort(key=lambda each: -each[0])
    for _, name, at, chosen in found[:most]:
        size += sum(file.size for file in chosen)
        if size > _RUN_BYTES and (done.rewritten or done.failed):
            break
        try:
            done.rewritten.append((name, rewrite(spark, at, chosen, options)))
        except Exception as error:  # another table's work must not be lost
            done.failed[at.id] = error
    return done


# Work beside the thread that applies batches: one piece at a time, in a thread of its own.
#
# Work must not touch anything that the applying thread changes. That thread takes the result or the
# error. Results that are not taken are undone. ``Upkeep`` chooses the work and uses its results.

Result = TypeVar("Result")


class BackgroundTask(Generic[Result]):
    """Background work for one session. All methods are called by one thread."""

    def __init__(self, name: str, undo: Callable[[Result], None]) -> None:
        """``undo``: undoes a result that is not wanted; called in any thread."""
        self._name, self._undo = name, undo
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended: tuple[Result | None, Exception | None] | None = None
        self._closed = False

    @property
    def free(self) -> bool:
        """True if there is no work, nor a result that has not been taken."""
        return self._thread is None

    def begin(self, work: Callable[[], Result]) -> None:
        """Start work. Call it only if ``free``."""
        assert self.free
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name)
        self._thread.start()

    def take(self) -> Result | None:
        """Return the result, or None until there is one. Raises the work's error."""
        with self._lock:
            ended, self._ended = self._ended, None
        if ended is None:
            return None
        self._thread = None
        result, error = ended
        if error is not None:
            raise error
        return result

    def wait(self) -> None:
        """Wait until the work has ended."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Undo a result that was not taken. Running work goes on to its end, and is undone then."""
        with self._lock:
            self._closed, ended, self._ended = True, self._ended, None
        if ended is not None and ended[0] is not None:
            self._undo(ended[0])

    def _run(self, work: Callable[[], Result]) -> None:
        result: Result | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:  # ``take`` raises it
            error = raised
        with self._lock:
            closed = self._closed
            if not closed:
                self._ended = result, error
        if closed and result is not None:
            self._undo(result)
        if closed and error is not None:
            log.debug("%s, after the end of its session: %s", self._name, error)
