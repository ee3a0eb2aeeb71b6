"""The apply half of worker.c: apply a batch of whole transactions to Delta tables, exactly once.

The inbox supplies batches. For each batch this module commits the tables, with the batch's end LSN
in each commit (law 2), and then makes the cut (law 3). A server applies one change after the other.
A Delta commit costs tens of milliseconds however few rows it has, so a batch becomes one commit of
each table that it touches. The pieces of a transaction larger than ``logical_decoding_work_mem``
are staged one after the other and committed together.

From messages to the cut (E: the end LSN of the batch):

    Batch -- its pieces, one after the other
      |
      |   _decode     messages -> changes of each relation, as Arrow columns (pgoutput.columnar)
      |   _look       definitions at the publisher, before rows under a new Relation message
      |   shares      changes that a table lacks: those after its own LSN (relation_map)
      |   _fold_share columns follow the relation; the net change for each key (pipeline.fold)
      |   _run        one job for all tables: old rows located, new rows written (pipeline.apply)
      |               '-> staged: files that no Delta log entry names
      |   (a run that applyparallelworker has written begins at _run)
      v
    all is staged     check: the subscription still has these tables, and their definitions are the
      |               same; before several commits or with conflicts: nobody else has committed
      v
    conflicts, then logical messages, into tables of their own
      v
    Commits           histories, then tables; leaves, then their root; side by side, each with E
      v
    cut               at E, unless a table is beyond it or has left: each table's version
      v
    the caller acknowledges what is in the cut, and no more (law 1)

How an error ends:

    before the first commit     nothing is committed, staged changes are forgotten. The caller may
                                divide the batch to find the transaction that has the error.
    another writer was first    CommitConflict: the tables are loaded and the batch is tried again,
                                without the tables that already have it.
    between two commits         tables at E skip the batch when it is sent again; or ``take_back``
                                reverts them to the last cut.
    of one table alone          on_table_error = park: the table is parked, the others go on.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.catalog.pg_subscription import LakeOptions, Subscription
from penstock.errors import (
    CommitConflict,
    NotInPrerequisiteState,
    PenstockError,
    RelationChanged,
    ReplicationConflict,
    VersionGone,
)
from penstock.failpoint import (
    AFTER_CUT,
    AFTER_HISTORY,
    AFTER_MESSAGES,
    AFTER_REVERSAL,
    BEFORE_COMMITS,
    BEFORE_CUT,
    BETWEEN_COMMITS,
    failpoint,
)
from penstock.lakehouse.change import Reversal
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.cuts import Cut, CutOwner, CutTable
from penstock.lakehouse.history_table import fit
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import is_local
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.columnar import ChangeBatch, ColumnarDecoder, MessageChunk, check_commits
from penstock.pgtypes import find
from penstock.pgtypes.out_of_range import OutOfRange
from penstock.pipeline.apply import TableOutcome, run_batch
from penstock.pipeline.changes import DELETE, Stamped, stamp_of
from penstock.pipeline.columns import Integers
from penstock.pipeline.fold import fold
from penstock.pipeline.history import HistoryWork, Stamps
from penstock.pipeline.net_change import NetChange
from penstock.pipeline.table_work import ApplyOptions, TableWork
from penstock.pipeline.versions import Versions
from penstock.relation import TableName
from penstock.sql.builtin.enum_types import known_enums
from penstock.subscription import origin
from penstock.subscription.apply_error import Passing
from penstock.subscription.applyparallelworker import StagedRun
from penstock.subscription.conflicts import ConflictNames, Conflicts
from penstock.subscription.history import TransactionStamps
from penstock.subscription.in_place import with_labels
from penstock.subscription.inbox import Batch, Piece
from penstock.subscription.logical_messages import message_rows
from penstock.subscription.parking import Parking, is_own
from penstock.subscription.relation_map import Share, first_message, shares
from penstock.subscription.target import Target
from penstock.subscription.target_columns import EarlierRows
from penstock.subscription.targets import Targets

log = logging.getLogger(__name__)

_MAX_RACES: Final = 10
_LOOKS: Final = 3
"""The number of attempts that check, before the first commit and before reporting conflicts, that
no table has changed since it was loaded. Later attempts do not: others may commit all the time."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The result of a batch. ``cut``: the LSN of the new cut, None if none was made. ``outcomes``:
    one or more for each table. ``replaced``: how many values were out of range."""

    rows: int
    cut: Lsn | None
    joined: tuple[Target, ...]
    outcomes: tuple[TableOutcome, ...] = ()
    replaced: int = 0


class _OtherTables(Exception):
    """The subscription no longer has the tables that the session opened."""


@dataclass(frozen=True)
class ApplySession:
    """The tables and resources of one session of an apply worker.

    ``origin_of``: returns the name of a subscription's replication origin by its app id.
    ``members_hold``: returns whether the subscription still has the tables that were opened
    (``worker.MembershipWatch``); once it returns False, no more cuts are made and the session must
    end.
    """

    spark: Spark
    warehouse: Warehouse
    targets: Targets
    parking: Parking
    last_cut: Cut | None
    members_hold: Callable[[], bool]
    origin_of: Callable[[str], str | None]

    @property
    def subscription(self) -> Subscription:
        return self.targets.subscription


class Applier:
    """The applier of batches to the open tables of one subscription; one thread at a time."""

    def __init__(self, session: ApplySession, options: ApplyOptions) -> None:
        targets, subscription = session.targets, session.subscription
        parking, last_cut = session.parking, session.last_cut
        self._spark = session.spark
        self._cuts = session.warehouse.cuts
        self._targets = targets
        self._subscription = subscription.name
        self._app_id = subscription.app_id
        self._options = options
        self._parking = parking
        self._members_hold = session.members_hold
        self._out_of_range = OutOfRange(subscription.out_of_range)
        self._decoder = ColumnarDecoder(self._out_of_range.find, find, targets.text_readers)
        self._commits = Commits(targets, lambda t, error: self._refuse(t, error, {}))
        self._phases = Phases()
        self._outcomes: list[TableOutcome] = []
        self._committed: list[TableOutcome] = []
        self._conflicts = Conflicts(
            subscription,
            ConflictNames(
                lambda table: parking.unique_index(targets.name_of(table)), session.origin_of
            ),
            session.warehouse.conflicts,
        )
        self._stamps = TransactionStamps()
        self._piece: Stamps | None = None
        self._divided, self._looks, self._end_lsn = False, False, INVALID
        self._messages: list[pa.Table] = []
        self._labels: dict[TableName, dict[tuple[str, int], set[str]]] = {}
        """Labels of enums in the changes of the batch, by table, then by column and type."""
        self._message_table = session.warehouse.messages
        self.committing = False
        """True once everything is staged: no single transaction can cause an error any more."""
        self.last_cut = None if last_cut is None else last_cut.lsn
        self._members = frozenset(() if last_cut is None else last_cut.tables)

    def close(self) -> None:
        """Release the commit threads."""
        self._commits.close()

    def apply(
        self, batch: Batch, skip: Lsn = INVALID, *, whole: bool = False
    ) -> BatchOutcome | None:
        """Apply whole transactions. Raises ReplicationConflict, RelationChanged, StorageError ...

        ``skip``: the finish LSN of the transaction to skip. ``whole``: the caller will not divide
        the batch to find the transaction with an error. Returns None, with nothing committed, if
        the subscription's tables have changed.

        After an error before the first commit (``committing`` is False), nothing is committed, and
        the caller may apply parts of the batch instead. After an error between two commits, the
        committed tables skip the batch by their own LSNs when it is sent again, or ``take_back``
        reverts it. With ``on_table_error = park`` a table with an error of its own is parked, and
        the other tables get the batch.
        """
        relations = dict(self._decoder.relations)
        before = [(target, target.followed, target.rows_applied) for target in self._targets]
        self._phases = Phases()
        self._committed = []
        self._conflicts.begin()
        self._divided, self._end_lsn = batch.transactions > 1 and not whole, batch.end_lsn
        for attempt in range(_MAX_RACES):
            self.committing, self._looks = False, attempt < _LOOKS
            try:
                rows = self._attempt(batch, skip)
                break
            except _OtherTables:
                return None
            except CommitConflict as conflict:
                log.info("%s: working the batch again", conflict.message)
                # The next attempt decodes the batch's Relation messages again.
                self._decoder.relations = dict(relations)
            except Exception:
                self._decoder.relations = relations
                for target, followed, applied in before:
                    target.followed, target.rows_applied = followed, applied
                raise
        else:
            raise CommitConflict(
                f'others have committed to the tables of subscription "{self._subscription}" '
                f"{_MAX_RACES} times in a row",
                hint="Let one writer at a time commit to a replicated table.",
            )
        failpoint(BEFORE_CUT)
        with self._phases.phase("cut"):
            joined = self.cut(batch.end_lsn, batch.commit_time)
        failpoint(AFTER_CUT)
        self._phases.report(
            "batch", transactions=batch.transactions, rows=rows, pieces=len(batch.pieces)
        )
        cut = None if joined is None else batch.end_lsn
        outcomes, replaced = tuple(self._outcomes), self._out_of_range.take()
        return BatchOutcome(rows, cut, joined or (), outcomes, replaced)

    def take_back(self) -> bool:
        """Revert all tables to the last cut, and return whether any was reverted. If so, they have
        to be opened again. Raises the errors of ``DeltaTable.commit`` and ``reload``.

        The last cut is read from the cuts table: a cut may have been written despite an error, and
        its changes are not sent again.
        """
        there = self._cuts.last(CutOwner(self._subscription, self._app_id))
        known = self.last_cut or INVALID
        return self._commits.take_back(known if there is None else max(known, there.lsn))

    def cut(self, lsn: Lsn, commit_time: int | None) -> tuple[Target, ...] | None:
        """Record a cut at ``lsn`` if it holds whole transactions. Return the tables that have
        joined the cuts, including those into which nothing was copied.

        Return None if no cut is made: a table is ahead, or the subscription's tables have changed.
        """
        self._look_at_partitions({})
        if not origin.may_cut(lsn, self.last_cut, self._targets.progress()):
            return None
        if not self._members_hold():
            return None
        joined = self._joining(lsn)
        tables = _in_cut(t for t in self._targets if t.ready or t in joined)
        self._cuts.append(CutOwner(self._subscription, self._app_id), lsn, commit_time, tables)
        self.last_cut, self._members = lsn, frozenset(tables)
        self._targets.last_cut = lsn
        joined += tuple(t for t in self._targets if t.ready and t.rel.lsn is None)
        for target in joined:
            target.ready = True
            target.rel = replace(target.rel, lsn=lsn)
        return joined

    def members_changed(self) -> bool:
        """Return whether another cut at the last cut's LSN would contain other tables."""
        ready = [t for t in self._targets if t.ready]
        joining = () if self.last_cut is None else self._joining(self.last_cut)
        return frozenset(_in_cut([*ready, *joining])) != self._members

    def _joining(self, lsn: Lsn) -> tuple[Target, ...]:
        waiting = (t for t in self._targets if not t.ready)
        return tuple(t for t in waiting if origin.joins(lsn, self._targets.progress_of(t)))

    def _attempt(self, batch: Batch, skip: Lsn) -> int:
        used: list[StagedRun] = []
        try:
            return self._stage_and_commit(batch, skip, used)
        finally:
            for staged in used:
                staged.forget_notes()

    def _stage_and_commit(self, batch: Batch, skip: Lsn, used: list[StagedRun]) -> int:
        touched: dict[TableName, Target] = {}
        rows, passing = 0, Passing(skip)
        self._outcomes = []
        self._conflicts.forget()
        self._out_of_range.take()
        self._stamps, self._messages, self._labels = TransactionStamps(), [], {}
        try:
            self._look_at_partitions(touched)
            for number, piece in enumerate(batch.pieces):
                open_end = batch.open_end_lsn(number)
                staged = self._take_staged(piece, open_end, skip, touched)
                before = len(self._outcomes)
                if staged is None:
                    chunks = map(passing.rest, piece.chunks())
                    stamps = self._decode([*chunks], open_end, batch.commit_time)
                    rows += self._stage(stamps, touched)
                else:
                    used.append(staged)
                    stamps = self._piece = self._stamps.of_undecoded(open_end, batch.commit_time)
                    rows += self._apply_staged(staged, touched)
                self._conflicts.note(self._outcomes[before:], stamps)
            # Others may write to a table that has left the subscription (``tablesync``), and no
            # commit of ours may follow theirs. If they commit after this check, ours loses the
            # race, and the next attempt checks again.
            if not self._members_hold():
                raise _OtherTables
            if self._targets.with_other_partitions():
                raise CommitConflict("partitions were attached or detached")
            self._look_after_conflicts(touched)
            own_types = self._targets.definitions.has_own_types
            self._look([t for t in touched.values() if own_types(t)], touched)
            self._check_labels(touched)
        except BaseException:
            for target in touched.values():
                target.discard()
            raise
        changed = list(touched.values())
        if self._conflicts.noted or self._commits.are_several(changed, batch.end_lsn):
            self._check_current(changed)
        if self._conflicts.noted:
            self._conflicts.put(batch.end_lsn)
        if self._messages:
            messages = pa.concat_tables(self._messages)
            ids = (self._app_id, *self._targets.earlier)
            self._message_table.append(ids, batch.end_lsn, messages)
            failpoint(AFTER_MESSAGES)
        failpoint(BEFORE_COMMITS)
        self.committing = True
        try:
            with self._phases.phase("commit"):
                self._commits.commit(changed, batch.end_lsn)
        except CommitConflict:
            # The next attempt leaves out the tables that have the batch.
            done = {t.table.name for t in touched.values() if t.marker == batch.end_lsn}
            self._committed += [each for each in self._outcomes if each.table in done]
            raise
        self._outcomes = [*self._committed, *self._outcomes]
        self._conflicts.report(self._outcomes)
        return rows

    def _refuse(
        self, target: Target, error: PenstockError, touched: dict[TableName, Target]
    ) -> None:
        """Park a table and forget its staged changes, or raise the error. First record the error's
        conflicts, unless the caller may still divide the batch to find the transaction with the
        error."""
        if isinstance(error, ReplicationConflict):
            self._check_current([target])
            error = self._targets.definitions.unproven(target) or error
        if isinstance(error, RelationChanged):
            self._targets.check_newest(target)
            unseen = self._targets.definitions.unseen(target, error, self._stamps.xids)
            if unseen is not None:
                raise unseen
        if self._piece is not None and (not self._divided or self._parking.parks(error)):
            self._conflicts.put_error(target.table.name, error, self._piece)
        table = target.table
        named = self._conflicts.named(table.name, table.version, error)
        self._parking.refuse(target.rel, named)
        touched.pop(target.rel.table_name, None)
        target.discard()
        self._targets.close(target)

    def _check_current(self, touched: Sequence[Target]) -> None:
        """Raise CommitConflict if a table has changed since it was loaded, so that no commit or
        report is based on older versions. Then the batch is applied again."""
        if self._looks:
            self._commits.check_current(touched, self._end_lsn)

    def _look(self, targets: Iterable[Target | None], touched: dict[TableName, Target]) -> None:
        """Read the publisher's definitions before applying rows that may come after a change of
        the definitions. Raises CommitConflict if rows here were changed in place."""
        definitions = self._targets.definitions
        end, xids = self._end_lsn, self._stamps.xids
        due = [t for t in targets if t is not None and not definitions.covers(t, end, xids)]
        for target, difference in definitions.look(due, self.last_cut or INVALID, xids):
            if self._targets.named(target.rel.table_name) is not target:
                continue
            version, coming = target.table.version, definitions.labels(target)
            error = self._targets.settle(target, difference)
            if error is not None:
                self._refuse(target, error, touched)
            elif target.table.version != version:
                raise CommitConflict(f'table "{target.table.name}" has another version by now')
            elif definitions.labels(target) != coming:
                raise CommitConflict(f'labels in changes of table "{target.table.name}" are others')

    def _look_after_conflicts(self, touched: dict[TableName, Target]) -> None:
        """Look at the definitions of tables with conflicts. A row may be missing here because the
        publisher renamed an enum label in it, or attached a partition that contained it."""
        told = {each.table for each in self._outcomes if each.conflicts}
        lacking = [t for t in touched.values() if t.table.name in told]
        self._look(lacking, touched)
        for target in lacking:
            error = self._targets.definitions.unproven(target)
            if error is not None and target.rel.table_name in touched:
                self._refuse(target, error, touched)

    def _check_labels(self, touched: dict[TableName, Target]) -> None:
        """Refuse tables whose changes have labels that their enums no longer have."""
        for target in list(touched.values()):
            sent = self._labels.get(target.rel.table_name, {})
            error = self._targets.definitions.other_labels(target, sent)
            if error is not None:
                self._refuse(target, error, touched)

    def _note_for_looks(self, share: Share, stamps: Stamps) -> None:
        definitions = self._targets.definitions
        doubts = definitions.has_doubts(share.target)
        if not (share.truncates or doubts or definitions.awaits_look(share.target)):
            return
        places = np.concatenate([c.sequence for c in share.changes] or [np.empty(0, np.int64)])
        places = places[places >= share.first]
        if doubts:
            self._note_transactions(share.target, places, stamps)
        xids = map(int, stamps.xids(np.array(share.truncates, np.int64)))
        truncates = list(zip(share.truncates, xids, strict=True))
        definitions.truncated(share.target, truncates, (places, stamps.xids(places)))

    def _note_transactions(self, target: Target, places: Integers, stamps: Stamps) -> None:
        """Note the transactions of changes, and which is the first one that names a partition."""
        leaves: dict[int, int] = {}
        for place, root, leaf in stamps.chunk.announced_leaves:
            if root == target.rel.relid:
                leaves.setdefault(leaf, place)
        first = map(int, stamps.finish_lsns(np.array([*leaves.values()], np.int64)))
        sent = zip(map(int, stamps.finish_lsns(places)), map(int, stamps.xids(places)), strict=True)
        self._targets.definitions.told(target, dict(zip(leaves, first, strict=True)), set(sent))

    def _note_labels(self, target: Target, changes: Iterable[ChangeBatch]) -> None:
        noted = self._labels.setdefault(target.rel.table_name, {})
        for column, labels in self._labels_in(target, changes).items():
            noted.setdefault(column, set()).update(labels)

    def _labels_in(
        self, target: Target, changes: Iterable[ChangeBatch]
    ) -> dict[tuple[str, int], set[str]]:
        """Return the labels in changes, by column and enum."""
        found: dict[tuple[str, int], set[str]] = {}
        if not self._targets.definitions.has_own_types(target):
            return found
        for change in changes:
            columns = {a.name: a.type_oid for a in change.relation.attributes}
            enums = self._targets.definitions.enums(target, columns)
            batches = (change.new,) if change.old is None else (change.new, change.old)
            for batch in batches:
                for name in enums.keys() & set(batch.schema.names):
                    labels = pc.unique(batch.column(name)).drop_null().to_pylist()
                    found.setdefault((name, enums[name]), set()).update(labels)
        return found

    def _look_at_partitions(self, touched: dict[TableName, Target]) -> None:
        for target in self._targets.with_other_partitions():
            try:
                self._targets.open_partitions_again(target)
            except PenstockError as error:
                self._refuse(target, error, touched)

    def _take_staged(
        self, piece: Piece, open_end: Lsn, skip: Lsn, touched: dict[TableName, Target]
    ) -> StagedRun | None:
        """Return the work done on a piece before its commit, if it is still valid. A transaction
        may send a Relation message only once, so look at the definitions of all relations that
        the piece names, even of relations without rows."""
        pending, piece.pending = piece.pending, None
        staged = None if pending is None else pending.take()
        if staged is None:
            return None
        try:
            self._look(map(self._targets.of, staged.relations), touched)
            fits = all(t.fits(self._targets, open_end) for t in staged.tables)
        except BaseException:
            staged.remove()
            raise
        if skip == INVALID and fits:
            return staged
        staged.remove()
        return None

    def _apply_staged(self, staged: StagedRun, touched: dict[TableName, Target]) -> int:
        self._decoder.relations = {**self._decoder.relations, **staged.relations}
        touched.update({t.target.rel.table_name: t.target for t in staged.tables})
        for each in staged.tables:
            each.target.rows_applied += each.rows
        try:
            self._run([table.work for table in staged.tables], touched)
        except BaseException:
            staged.remove()
            raise
        return sum(t.rows for t in staged.tables if t.target.rel.table_name in touched)

    def _run(self, works: Sequence[TableWork], touched: dict[TableName, Target]) -> None:
        with self._phases.phase("job"):
            self._outcomes += run_batch(
                self._spark,
                works,
                self._options,
                failed=lambda work, error: self._refuse(
                    next(t for t in touched.values() if t.table is work.table), error, touched
                ),
            )

    def _decode(self, chunks: Sequence[MessageChunk], open_end: Lsn, open_time: int) -> Stamps:
        with self._phases.phase("decode"):
            decoded = self._decoder.decode(*chunks)
            check_commits(decoded)
        size = sum(map(len, chunks))
        self._piece = self._stamps.of(decoded, size, open_end, open_time)
        return self._piece

    def _stage(self, stamps: Stamps, touched: dict[TableName, Target]) -> int:
        messages = message_rows(self._subscription, stamps)
        self._messages += [] if messages is None else [messages]
        works: dict[TableName, list[TableWork]] = {}
        rows: dict[TableName, int] = {}
        self._look((self._targets.of(oid) for oid in stamps.chunk.announced), touched)
        self._check_leaves(stamps, touched)
        # Make all shares first: only together they show that two tables have exchanged names.
        for share in list(shares(stamps.chunk, self._targets, stamps.end)):
            target, name = share.target, share.target.rel.table_name
            if self._targets.named(name) is not target:
                continue  # parked a moment ago
            touched[name] = target
            try:
                works[name] = self._fold_share(share, stamps)
                rows[name] = share.rows
            except PenstockError as error:
                works.pop(name, None)
                self._refuse(target, error, touched)
        while due := [mine.pop(0) for name, mine in works.items() if mine and name in touched]:
            self._run(due, touched)
        return sum(count for name, count in rows.items() if name in touched)

    def _check_leaves(self, stamps: Stamps, touched: dict[TableName, Target]) -> None:
        """Refuse tables that get changes of a partition that no longer exists."""
        for sequence, root, leaf in stamps.chunk.announced_leaves:
            target = None if self._targets.of(leaf) is not None else self._targets.of(root)
            if target is None or self._targets.named(target.rel.table_name) is not target:
                continue  # parked a moment ago, for a reason of its own
            if sequence < first_message(stamps.chunk, target.marker, stamps.end):
                continue
            name = self._decoder.relations[leaf].name
            error = self._targets.definitions.sent(target, leaf, name)
            if error is not None:
                self._refuse(target, error, touched)

    def _fold_share(self, share: Share, stamps: Stamps) -> list[TableWork]:
        """Return the TableWorks of a share, to be run one after the other."""
        if share.error is not None:
            raise share.error
        target = share.target
        keys = []
        definitions = self._targets.definitions
        renamed = definitions.labels(target)
        if renamed:
            sent = self._labels_in(target, share.changes)
            error = definitions.ambiguous_labels(target, sent)
            if error is not None:
                raise error
            changes = tuple(with_labels(change, renamed) for change in share.changes)
            share = replace(share, changes=changes)
        self._note_labels(target, share.changes)
        for number, change in enumerate(share.changes):
            try:
                self._targets.follow(target, change.relation, earlier=number > 0)
            except EarlierRows as error:
                if self._divided:
                    raise
                raise error.instead from None
            keys.append(target.table.schema.key)
        self._targets.add_metadata_columns(target)  # ``follow`` is not called for a TRUNCATE alone
        with self._phases.phase("fold"):
            works = list(fold_share(share, keys, stamps, self._targets.subscription))
        if target.partitions is not None:
            for work in works:
                if work.leaves is not None:
                    target.partitions.touched |= work.leaves.touched(work.net)
        self._note_for_looks(share, stamps)
        target.rows_applied += share.rows
        return works


def _in_cut(targets: Iterable[Target]) -> dict[TableName, CutTable]:
    return {name: at for target in targets for name, at in target.in_cut.items()}


# The commits of a batch: all of its tables commit side by side, each with the batch's end LSN.
#
# Everything is staged on the targets before. After an error all other commits are still tried. All
# tables are checked for commits of others before the first commit. Even so, another writer may be
# quicker, or a crash may come between two commits.

_COMMITS_AT_ONCE: Final = 8
_OPERATION: Final = "REPLICATION"
_NOT_POSSIBLE: Final = (NotInPrerequisiteState, VersionGone)


class Commits:
    """The commits of one stream's tables, in threads of their own."""

    def __init__(self, targets: Targets, refuse: Callable[[Target, PenstockError], None]) -> None:
        """``refuse``: parks a table that cannot be committed, or raises the error."""
        self._targets = targets
        self._app_id = targets.subscription.app_id
        self._refuse = refuse
        self._pool = ThreadPoolExecutor(_COMMITS_AT_ONCE, thread_name_prefix="commit")

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown()

    def are_several(self, touched: Sequence[Target], end_lsn: Lsn) -> bool:
        """Return whether the batch needs more than one commit. A single commit needs no check
        before it: if it loses a race, it is refused."""
        each = (
            len(t.to_commit(end_lsn)) + (t.partitions is not None) + (t.history is not None)
            for t in touched
        )
        return sum(each) > 1

    def check_current(self, touched: Sequence[Target], end_lsn: Lsn) -> None:
        """Raise CommitConflict, and forget the staged changes of all tables, if somebody has
        committed to one of them since it was loaded."""
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
        """Commit side by side. Try all tables, so that a lost race costs one table's work only.

        Partitions come before their partitioned table, whose commit proves that all partitions
        have the batch.
        """
        failed = _FailedTargets()
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
        """Revert batches that end after ``since``, the last cut's LSN, in the tables that have
        them, and return whether there were any. If a table cannot be reverted, revert no table and
        log why."""
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
        """Carry out a reversal, and retry whenever another writer is first."""
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
        self, commits: Sequence[tuple[Target, DeltaTable]], end_lsn: Lsn, failed: _FailedTargets
    ) -> None:
        """Commit the tables. Once all are done, raise an error that does not belong to a single
        table."""
        ended = itertools.count(1)

        def commit(table: DeltaTable) -> None:
            try:
                self._targets.in_doubt.commit(table, self._app_id, end_lsn, _OPERATION)
            finally:
                # Not in the waiting thread: it may see the first commit's end after the last one's.
                if next(ended) < len(commits):
                    failpoint(BETWEEN_COMMITS)

        futures = {self._pool.submit(commit, table): target for target, table in commits}
        error: BaseException | None = None
        for future in as_completed(futures):
            error = failed.take(futures[future], future.exception()) or error
        if error is not None:
            raise error

    def _history(self, target: Target, end_lsn: Lsn) -> DeltaTable | None:
        """Return the history of a target if it has to be committed: it has staged rows, or lacks
        the batch after a crash."""
        table = target.history
        if table is None or table.has_staged:
            return table
        marker = table.transaction_version(self._app_id) or INVALID
        return table if marker < end_lsn else None


class _FailedTargets:
    """Targets whose commit failed: those that lost a race, and others."""

    def __init__(self) -> None:
        self.lost: list[Target] = []
        self.refused: list[tuple[Target, PenstockError]] = []

    def take(self, target: Target, error: BaseException | None) -> BaseException | None:
        """Take an error of one of a target's tables; return it if it is not the table's own."""
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
        """Return whether a commit of a target has failed."""
        return any(each is target for each in [*self.lost, *(t for t, _ in self.refused)])


# The phases of a batch show where its time goes: one DEBUG line per batch, for benchmarks.
#
# The logger ``penstock.subscription.apply`` gets ``batch rows=... decode=... job=... commit=...
# cut=... total=...``, in seconds. No decision depends on the times.


class Phases:
    """Seconds by phase, summed over all runs of a phase."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to phase ``name``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def report(self, what: str, **counts: object) -> None:
        """Log the line."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        fields = [f"{name}={value}" for name, value in counts.items()]
        fields += [f"{name}={seconds:.3f}" for name, seconds in self._seconds.items()]
        fields.append(f"total={time.perf_counter() - self._began:.3f}")
        log.debug("%s %s", what, " ".join(fields))


# The TableWorks of a share of a batch: net changes of its table, to be carried out one by one.
#
# A target's new changes become TableWorks in order, as a rule only one. If the table has a history,
# or deleted rows stay, or columns take values of sequences, the changes before a TRUNCATE still
# matter. Then the changes before and after it are separate works. A change of the key columns
# divides the works too: each row is located by the key that was valid at its change.

_END: Final = np.iinfo(np.int64).max


def fold_share(
    share: Share,
    keys: Sequence[tuple[str, ...]],
    stamps: Stamps,
    subscription: Subscription,
) -> Iterator[TableWork]:
    """Yield the TableWorks of a share. ``keys``: the table's key columns at each of the share's
    changes, by Delta names. Raises the errors of ``fold`` and ``fit``."""
    target = share.target
    schema, history, first = target.table.schema, target.history, share.first
    if history is not None:
        fit(history, target.table.name, schema)
        marker = history.transaction_version(subscription.app_id)
        first = first_message(stamps.chunk, None if marker is None else Lsn(marker), stamps.end)
    for run, key in _by_key(share, keys):
        keyed = schema if key is None else TableSchema(schema.columns, key)
        yield from _fold_run(run, keyed, first, stamps, subscription)


def _fold_run(
    share: Share,
    schema: TableSchema,
    first: int,
    stamps: Stamps,
    options: LakeOptions,
) -> Iterator[TableWork]:
    """Yield the TableWorks of changes with the same key columns. ``first``: the first message that
    the history, if any, lacks."""
    target, history = share.target, share.target.history
    segments = _segments(share)
    if history is None and not ((options.soft_delete or target.draws) and share.truncates):
        segments = iter([(share.changes, share.truncates, share.first)])
    for changes, truncates, start in segments:
        if share.restarts.intersection(truncates):
            target.restart()
        to = None
        if history is not None:
            to = HistoryWork(history, stamps, first, truncates[-1] if truncates else None)
        if truncates and options.soft_delete:
            net = _all_deleted(target.table.name, schema, truncates[-1], stamps.columns)
            yield TableWork(target.table, net, leaves=target.leaves, history=to)
            if not changes:
                continue
            truncates = ()
            to = None if history is None else HistoryWork(history, stamps, first)
        with known_enums(target.enums):
            net = fold(
                changes,
                schema,
                truncates=truncates,
                from_sequence=start,
                with_versions=history is not None,
                stamped=stamps.columns,
                options=options,
                draw=target.draw,
            )
        yield TableWork(target.table, net, leaves=target.leaves, history=to)


def _all_deleted(table: str, schema: TableSchema, truncate: int, stamped: Stamped) -> NetChange:
    """Return a TRUNCATE as a DELETE of all rows, for a table that keeps deleted rows."""
    sequence = np.array([truncate])
    given = stamped(sequence)
    values = {c.name: stamp_of(c, given, np.array([DELETE])) for c in schema.stamps}
    nothing = schema.arrow().empty_table()
    keys, none = nothing.select(list(schema.identity)), np.empty(0, np.int64)
    return NetChange(
        table,
        schema,
        0,
        nothing,
        keys,
        keys,
        versions=Versions(none, none, nothing, none, {}, none),
        all_ended=pa.table({name: array for name, array in values.items() if array is not None}),
    )


def _by_key(
    share: Share, keys: Sequence[tuple[str, ...]]
) -> Iterator[tuple[Share, tuple[str, ...] | None]]:
    """Divide a share where its key columns change; yield each part with its key, if any."""
    begins = [n for n, key in enumerate(keys) if n == 0 or key != keys[n - 1]]
    if len(begins) < 2:
        yield share, keys[0] if keys else None
        return
    changes, ends = share.changes, [*begins[1:], len(keys)]
    starts = [share.first, *(int(changes[n].sequence[0]) for n in begins[1:]), _END]
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        start, stop = starts[number : number + 2]
        truncates = tuple(each for each in share.truncates if start <= each < stop)
        yield (
            replace(share, first=start, changes=changes[begin:end], truncates=truncates),
            keys[begin],
        )


def _segments(share: Share) -> Iterator[tuple[tuple[ChangeBatch, ...], tuple[int, ...], int]]:
    """Yield the changes between TRUNCATEs, the TRUNCATE before them if any, and their start."""
    starts = [share.first, *share.truncates]
    ends = [*share.truncates, _END]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        parts = (_between(batch, start, end) for batch in share.changes)
        changes = tuple(part for part in parts if len(part))
        if changes or number:
            yield changes, (start,) if number else (), start


def _between(batch: ChangeBatch, start: int, end: int) -> ChangeBatch:
    low, high = np.searchsorted(batch.sequence, (start, end))
    here = slice(low, high)
    return ChangeBatch(
        batch.relation,
        batch.sequence[here],
        batch.operation[here],
        batch.new.slice(low, high - low),
        {name: mask[here] for name, mask in batch.unchanged.items()},
        None if batch.old is None else batch.old.slice(low, high - low),
        batch.old_kind[here],
    )
