"""One total order of the lake's commits, with permanent positions: the node's WAL.

The sequencer reads the logs of the warehouse's tables and the cuts of this node's subscriptions. It
records transactions in the catalog, each durable before anybody sees it, and wakes their streams.

Delta orders the commits of one table and knows no order between tables, and writers need not know
of the node. So the order is decided here, once, and recorded: a commit keeps its position for ever.
A table is followed from the version at which it is first seen. A snapshot at a position has, for
each table, the last version in the log up to there.

From Delta commits to positions (``step``; one thread at a time, in any process):

    logs of own tables              logs of tables that subscriptions maintain, cuts table
    each commit by itself           a subscription's commits from cut to cut as one; each commit of
      |                             others by itself, in its place
      '---------------.-------------------'
                      v
    in_order          read every table twice; order by the writers' times, and keep each table's
                      own order (commit_order)
    goes_on           drop a table whose log was replaced by another, which is a new relation
    whole_blocks      a transaction block's commits wait until all its tables have theirs
    one_by_block      then they are one transaction; a block that was taken back changes nothing
    together          other commits that belong together (moved rows) are one transaction, too
                      v
    _append           one write of the catalog: does every table's part begin where the log ends?
                      Then record xid, time, LSNs begin < commit < end, and each table's from and to
                      version. If not, another process was quicker: read again.
                      v
    _told             durable, so wake the streams that wait for a position

States of a commit of a table:

    not seen --> found --> in the log (has a position) --> forgotten, once no slot needs it (prune)
                  |  ^
                  v  |     its cut does not exist yet; its block is incomplete; an earlier commit of
                 waits     its table waits; the table or its log cannot be read now

    A commit whose log entry is gone never gets a position. The gap gets one, at which streams that
    need the commit fail (``following``).

OPTIMIZE and other commits that change no rows get no position; the next commit starts from their
version. Each table is followed by itself: if one cannot be read, its commits enter the log later
than those of others. Messages of sessions enter the log by ``emit``, PREPAREs by ``recording``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    EmittedMessage,
    LakeTable,
    Member,
    Sequenced,
)
from penstock.errors import PenstockError, StorageError
from penstock.failpoint import AFTER_EMIT, AFTER_SEQUENCE, BEFORE_SEQUENCE, failpoint
from penstock.lakehouse.cuts import Cut
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.precedence import NODE, PRECEDENCE, WorkLock
from penstock.wait_event import Patience
from penstock.walsender.commit_order import (
    CommitTimes,
    PendingTransaction,
    by_relation,
    follows,
    in_order,
    now,
    together,
    without_unfinished,
)
from penstock.walsender.commits import TableCommit
from penstock.walsender.cut_commits import CutCommits, transaction
from penstock.walsender.following import CUTS_NAME, FollowedTables, Following
from penstock.walsender.own_commits import (
    CutMember,
    OwnedTable,
    OwnedTables,
    Turn,
    found_alone,
    in_turn,
    walk,
)
from penstock.walsender.table_logs import TableLogs
from penstock.walsender.troubles import Troubles
from penstock.walsender.two_phase import (
    commit_record,
    committed_by,
    end_in_log,
    put_without_commits,
    waiting_for_commits,
)

log = logging.getLogger(__name__)

_DISCOVERY_INTERVAL_S: Final = 5.0
"""Seconds between two listings of the warehouse; statements and new slots cause one at once."""
_TRIES: Final = 10
"""Attempts of one step while other processes are quicker; then the next step continues."""
_LAST: Final = 1 << 62
"""A version that no table reaches."""
_CUTS_WORK: Final = "cuts"
_CUTS: Final = -1
"""The key of subscriptions' commits, where other keys are oids of tables."""


@dataclass(frozen=True, slots=True)
class Position:
    """A consistent point: ``versions``, by table oid, have every transaction up to ``lsn``, and no
    other."""

    lsn: Lsn
    versions: Mapping[int, int]


class Sequencer:
    """The writer of the log. Any thread may call ``step``, in other processes too."""

    def __init__(self, catalog: Catalog, warehouse: Warehouse) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._lock = WorkLock()
        self._grown = threading.Condition()
        self._end = Lsn(0)
        self._begun = self._ended = 0
        self._discovered = -_DISCOVERY_INTERVAL_S
        self._cuts = CutCommits(warehouse)
        self._mixed = False
        self._times = CommitTimes()
        self.troubles: Final = Troubles()
        self._following = Following(catalog, warehouse, self._cuts, self._times, self.troubles)
        self._logs = self._following.logs
        self._looks = TableLooks(self._logs, self.troubles)
        self._lost_blocks = LostBlocks(catalog, self._following, self.troubles)
        self._watched: tuple[str, ...] = ()

    def step(self, *, discover: bool = False) -> None:
        """Put every commit of the tables into the log. ``discover``: look for new tables, too.

        Raises what the catalog raises; an error of a table goes to ``troubles``.
        """
        begun = self._begun
        with PRECEDENCE.work(NODE), self._lock:
            if self._ended > begun and not discover:
                return  # another thread has made a step while this one waited for the lock
            self._begun += 1
            if discover or self._is_discovery_due():
                self._following.has_changed = False
                self._following.discover()
                self._discovered = time.monotonic()
            stale = 0
            while stale < _TRIES and (found := self._transactions()):
                failpoint(BEFORE_SEQUENCE)
                appended = self._append(found)
                failpoint(AFTER_SEQUENCE)
                stale += not appended
                if appended and not (self._mixed and any(item.of_cut for item in found)):
                    break  # if not: commits of others follow the cut, and maybe more cuts
            self._watch()
            self._ended = self._begun
        self._told(self._following.end)
        if self._following.last is None:  # another process has written to the log, too
            self._tell()

    def _is_discovery_due(self) -> bool:
        due = time.monotonic() - self._discovered >= _DISCOVERY_INTERVAL_S
        return due or self._following.has_changed

    @property
    def watches(self) -> bool:
        """True if ``has_news`` can find anything."""
        return bool(self._watched)

    def has_news(self) -> bool:
        """Tell whether a step would find something. A few system calls decide, so this can be
        called often. Tables that have not changed lately are not checked."""
        return any(os.access(path, os.F_OK) for path in self._watched)

    def _watch(self) -> None:
        followed, cuts = self._following.last, self._cuts.next_path()
        paths = () if followed is None else self._looks.watched(followed)
        self._watched = paths if cuts is None else (*paths, cuts)

    def emit(self, message: EmittedMessage, content: bytes) -> Lsn:
        """Put a message into the log, after every commit so far. Return the end of its record,
        which is durable. Raises StorageError."""
        self.step()
        with self._lock, self._catalog.write(counted=False) as t:
            time_ = self._times.next(t, now())
            emitted = t.transactions.emit(message, content, commit_time=time_)
        failpoint(AFTER_EMIT)
        self._tell()
        return emitted.message_end

    @property
    def end(self) -> Lsn:
        """The end of the log for which streams were woken last."""
        return self._end

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """Hold off steps while the ``with`` block commits a group: one step must find all of it."""
        with self._lock:
            yield

    @contextmanager
    def recording(self) -> Iterator[tuple[CatalogTransaction, int]]:
        """Open a write of the catalog that puts records into the log; yield it and the records'
        time. Use it within ``one_transaction``. Streams are woken when the records are durable."""
        with self._catalog.write() as t:
            yield t, self._times.next(t, now())
        with suppress(StorageError):  # the records are durable; the next step wakes the streams
            self._tell()

    def follows_each_commit(self, relations: Collection[int]) -> bool:
        """Tell whether each commit to these tables is a transaction: no subscription maintains any
        of them."""
        return {table.oid for table in self._following.followed().own()} >= set(relations)

    def end_blocks(self) -> None:
        """Put committed blocks into the node's log if their commits cannot be found any more,
        because their tables or Delta log entries are gone. Streams that have sent the PREPARE then
        send COMMIT PREPARED, and streams with messages send the blocks' messages. Raises the
        catalog's errors.
        """
        with self._catalog.read() as t:
            waiting = waiting_for_commits(t)
        if not waiting:
            return
        self.step()
        with self._lock:
            newest: dict[int, int] = {}
            for table in self._following.followed().tables:
                with self.troubles.kept("commits", table.qualified_name):
                    newest[table.oid] = self._logs.newest(table)
            with self.recording() as (t, time_):
                put_without_commits(t, waiting, newest, time_)

    def position(self, *, discover: bool = False) -> Position:
        """Return the end of the log now, after a step if one is needed."""
        found = None if discover or self._is_discovery_due() else self._unmoved()
        if found is not None:
            return found
        self.step(discover=discover)
        with self._catalog.read() as t:
            end = t.transactions.end()
            followed = self._following.last_at(t.generation(), end)
            at = t.transactions.sequenced() if followed is None else followed.at
        return Position(end, {oid: sequenced.version for oid, sequenced in at.items()})

    def _unmoved(self) -> Position | None:
        """Return the end of the log if it has all commits of all tables and cuts, so that a
        statement need not wait for a step. None if only a step can decide that."""
        with self._catalog.read() as t:
            generation, end = t.generation(), t.transactions.end()
        followed = self._following.last_at(generation, end)
        if followed is None:
            return None
        versions = {oid: sequenced.version for oid, sequenced in followed.at.items()}
        if self._logs.grown(followed.tables, versions):
            return None
        return None if self._cuts.has_grown(followed.subscriptions) else Position(end, versions)

    def wait(self, beyond: Lsn, timeout_s: float, stopping: threading.Event | None = None) -> bool:
        """Wait until the log goes beyond ``beyond``, and tell whether it does. Set ``stopping`` and
        call ``wake`` to end the wait."""

        def over() -> bool:
            return self._end > beyond or (stopping is not None and stopping.is_set())

        with self._grown:
            self._grown.wait_for(over, timeout_s)
            return self._end > beyond

    def prune(self, needed_from: Lsn | None) -> None:
        """Forget transactions that no slot needs; ``needed_from`` is None without slots."""
        with self._catalog.read() as t:
            end, oldest = t.transactions.end(), t.transactions.oldest()
        before = end if needed_from is None else needed_from
        if before > oldest:
            with self._catalog.write() as t:
                t.transactions.prune(before)
                t.publications.forget_before(t.transactions.oldest_place())

    def wake(self) -> None:
        """Let waiting threads look again."""
        with self._grown:
            self._grown.notify_all()

    def check_logs(self) -> None:
        """Look for logs with gaps, and for logs replaced by others (``following``)."""
        with self._lock:
            self._following.check_logs()

    def _tell(self) -> None:
        with self._catalog.read() as t:
            # Ask the catalog for the end, since another process may have appended.
            self._told(t.transactions.end())

    def _told(self, end: Lsn) -> None:
        with self._grown:
            if end > self._end:
                self._end = end
                self._grown.notify_all()

    def _transactions(self) -> list[PendingTransaction]:
        return together(one_by_block(self._find()))

    def _find(self) -> list[PendingTransaction]:
        followed = self._following.followed()
        cuts_grown = self._cuts.has_grown(followed.subscriptions) or self.troubles.of(_CUTS_WORK)
        if cuts_grown:
            with self.troubles.kept(_CUTS_WORK, CUTS_NAME):
                # Cuts are read before the tables' logs, which then have all that cuts name.
                self._cuts.refresh(followed.subscriptions)
        grown = self._looks.grown(followed)
        if not (grown or cuts_grown):
            return []
        by_oid = {table.oid: table for table in followed.tables}
        # The first of the two passes that ``commit_order`` needs; the second is below.
        first = self._looks.own(followed, grown)
        own = {oid: found for oid, found in first.items() if found}
        owned = self._looks.owned(followed, grown)
        self._mixed = any(table.mixed is not None for table in owned.tables)
        cuts = list(self._between_cuts(owned, followed))
        moments = {m.relation: found.moment for found in cuts for m in found.members}
        first |= owned.before(moments)
        if cuts:
            first[_CUTS] = sorted(cuts, key=lambda found: found.moment)
        if not any(first.values()):
            return []
        found = in_order(first, self._looks.again(followed, own))
        upto = {f.members[0].relation: f.members[0].to_version for f in found if not f.of_cut}
        gone = {
            oid
            for oid, version in upto.items()
            if not self._following.goes_on(by_oid[oid], followed.at[oid], version)
        }
        there = [f for f in found if f.of_cut or f.members[0].relation not in gone]
        own_tables = {table.oid for table in followed.own()} - gone
        waiting = waited_for(there, own_tables | followed.made)
        return whole_blocks(there, waiting, self._lost_blocks.lost(there, waiting, followed))

    def _between_cuts(
        self, owned: OwnedTables, followed: FollowedTables
    ) -> Iterable[PendingTransaction]:
        for oid, cut, moved in self._cuts.moved(owned):
            parts = [part for item in moved if (part := self._part(item)) is not None]
            app_id = next(s.app_id for s in followed.subscriptions if s.oid == oid)
            whole = [Turn(tuple(parts))] if parts else []
            for turn in in_turn(parts, app_id) if owned.mixed(moved) else whole:
                if turn.others:
                    ((member, (commit,)),) = turn.commits
                    moment = round(cut.cut_time.timestamp() * 1e6)
                    yield found_alone(member.table, commit, moment, followed.subscriptions)
                else:
                    yield _of_cut(oid, cut, turn)

    def _part(self, moved: CutMember) -> tuple[CutMember, tuple[TableCommit, ...]] | None:
        """Return a table's commits in a cut, None if unreadable or if the table was replaced."""
        table, at = moved.table, moved.at
        commits: tuple[TableCommit, ...] | None = None
        with self.troubles.kept("commits", table.qualified_name):
            after = (commit for commit, _ in self._logs.after(table, at.version))
            commits = tuple(takewhile(lambda c: c.version <= moved.to_version, after))
        if commits is None or not self._following.goes_on(table, at, moved.to_version):
            return None
        return moved, commits

    def _append(self, found: Sequence[PendingTransaction]) -> bool:
        """Append transactions to the log and return True. Return False if another process has put
        commits of these tables there meanwhile; then they must be found again."""
        relations = {member.relation for item in found for member in item.members}
        with self._catalog.write(counted=False) as t:
            # Compare inside the write transaction, since there is one at a time: two processes must
            # not both append a commit.
            before, sequenced = t.transactions.end(), t.transactions.sequenced(relations)
            if not follows(found, {oid: at.version for oid, at in sequenced.items()}):
                self._times.look_again()
                self._following.read_again()
                return False
            ids = {oid: at.table_id for oid, at in sequenced.items()}
            for item in found:
                members = tuple(
                    replace(member, table_id=member.table_id or ids[member.relation])
                    for member in item.members
                    if member.relation in ids  # otherwise the table was dropped meanwhile
                )
                ids |= {member.relation: member.table_id for member in members}
                time_ = item.time if item.of_cut else self._times.next(t, item.time)
                prepared = committed_by(t, item, self._times.next(t, item.time))
                messages = t.block_messages.take(item.blocks)
                if not members and prepared is None and not messages:
                    continue
                # OPTIMIZE and the like are not sent, but the next commit starts at their version.
                if not item.changes and prepared is None and not messages:
                    for member in members:
                        t.transactions.advance(member.relation, member.to_version, member.table_id)
                    continue
                t.transactions.append(
                    members,
                    commit_time=time_,
                    size=item.size,
                    origin=item.origin,
                    origin_lsn=item.origin_lsn,
                    xid=None if prepared is None else prepared.xid,
                    two_phase=None if prepared is None else commit_record(prepared),
                    messages=messages,
                )
                if prepared is not None:
                    end_in_log(t, prepared)
            moved, end = t.transactions.sequenced(relations), t.transactions.end()
        self._following.moved(moved, before, end)
        self._looks.changed(relations)
        return True


def _of_cut(subscription: int, cut: Cut, turn: Turn) -> PendingTransaction:
    """Return a cut as one transaction, or the part of it before a commit of others."""
    members, size, blocks = [], 0, frozenset[str]()
    for moved, commits in turn.commits:
        at, table = moved.at, moved.table
        first, last = commits[0].version - 1 if commits else at.version, moved.to_version
        if turn.lsn is not None and commits:
            last = commits[-1].version
        ids = [commit.table_id for commit in commits if commit.table_id]
        table_id = ids[-1] if ids else None  # otherwise as in the log
        members.append(Member(table.oid, table.uri or "", first, last, table_id))
        size += sum(commit.size for commit in commits)
        blocks = blocks.union(*(commit.blocks for commit in commits))
    whole = transaction(subscription, cut, members, size)
    return replace(whole, blocks=blocks, origin_lsn=turn.lsn or cut.lsn)


# Transaction blocks over several tables, each of which becomes one transaction.
#
# The commits of each block are joined into one transaction. A block is complete when all its tables
# have their commits, or when each of its commits was taken back. Until then its commits wait, with
# all later commits of its tables. So the log never has half a block.
#
# Commits of others between those of the block go before or after the block, as in the tables' own
# logs. Commits between a commit of the block and its undoing commit become part of the block.

_NONE: Final[Mapping[str, Collection[int]]] = {}


def waited_for(
    found: Sequence[PendingTransaction], followed: Collection[int]
) -> dict[str, set[int]]:
    """Return, for each incomplete block, oids of the tables whose commits it lacks; if some of its
    commits were taken back, oids of the tables whose commits were not taken back yet. ``followed``:
    oids of the tables of which every commit is read."""
    blocks: dict[str, list[PendingTransaction]] = defaultdict(list)
    for item in found:
        if item.block and item.group is not None:
            blocks[item.group].append(item)
    lacking = {group: _lacking(items, followed) for group, items in blocks.items()}
    return {group: relations for group, relations in lacking.items() if relations}


def whole_blocks(
    found: Sequence[PendingTransaction],
    waiting: Mapping[str, Collection[int]],
    lost: Mapping[str, Collection[int]] = _NONE,
) -> list[PendingTransaction]:
    """Return ``found`` without incomplete blocks. ``waiting`` comes from ``waited_for``; ``lost``
    has, by block, the tables that need not be waited for any more."""
    unfinished = {
        group for group, relations in waiting.items() if set(relations) - set(lost.get(group, ()))
    }
    return without_unfinished(found, unfinished) if unfinished else list(found)


def _lacking(items: Sequence[PendingTransaction], followed: Collection[int]) -> set[int]:
    there, undone = _put(items), _undone(items)
    return there - undone if undone else (set(followed) & items[0].block) - there


def _put(items: Sequence[PendingTransaction]) -> set[int]:
    return {relation for item in items for relation in _relations(item)}


def _undone(items: Sequence[PendingTransaction]) -> set[int]:
    return {relation for item in items if item.undone for relation in _relations(item)}


def one_by_block(found: Sequence[PendingTransaction]) -> list[PendingTransaction]:
    """Join the commits of each block into one transaction; all blocks are complete."""
    order = list(found)
    for group in dict.fromkeys(item.group for item in found if item.block):
        places = [place for place, item in enumerate(order) if item.group == group]
        first, last = places[0], places[-1] + 1
        order[first:last] = _Span(order[first:last], group).divided()
    return order


@dataclass
class _Span:
    """The span from the first commit of a block to its last one."""

    items: Sequence[PendingTransaction]
    group: str | None
    before: list[PendingTransaction] = field(default_factory=list)
    within: list[PendingTransaction] = field(default_factory=list)
    after: list[PendingTransaction] = field(default_factory=list)

    def divided(self) -> list[PendingTransaction]:
        """Return what comes before the block, then the block, then what comes after it."""
        begun: set[int] = set()
        ended: set[int] = set()  # relations of the items after the block
        for place, item in enumerate(self.items):
            relations = _relations(item)
            own = item.group == self.group
            if own and relations & ended:  # two transactions would each have to come first
                return [self._one(self.items)]
            if own or (relations & begun and relations & self._own_relations(place + 1)):
                self.within.append(item)
                begun |= relations
            elif relations & (begun | ended):
                self.after.append(item)
                ended |= relations
            else:
                self.before.append(item)
        return [*self.before, self._one(self.within), *self.after]

    def _own_relations(self, start: int) -> set[int]:
        own = (item for item in self.items[start:] if item.group == self.group)
        return {relation for item in own for relation in _relations(item)}

    def _one(self, items: Sequence[PendingTransaction]) -> PendingTransaction:
        members = by_relation(member for item in items for member in item.members)
        last = next(item for item in reversed(items) if item.group == self.group)
        # A block that was taken back changes nothing, and its tables' next commits start after it.
        # Others may have rewritten its files meanwhile, even by OPTIMIZE, which then must count.
        others = [item for item in items if item.group != self.group]
        own = [item for item in items if item.group == self.group]
        undone = _undone(own)
        # If a log has lost a commit or its undoing commit, the other one is a change.
        taken_back = undone == _put([item for item in own if not item.undone])
        blocks = frozenset[str]().union(*(item.blocks for item in items))
        return replace(
            last,
            members=members,
            moment=max(item.moment for item in items),
            time=max(item.time for item in items),
            size=sum(item.size for item in items),
            changes=bool(others) if taken_back else any(item.changes for item in items),
            group=None,
            block=frozenset(),
            undone=False,
            blocks=blocks - {self.group} if taken_back else blocks,
            only_block=not others and not undone,
        )


def _relations(item: PendingTransaction) -> set[int]:
    return {member.relation for member in item.members}


# Blocks some of whose commits are gone from a table's log; their other tables must go on.
#
# ``LostBlocks`` finds the tables of an incomplete block that need not be waited for. A block is
# over once the catalog has no record of it: commits that its tables' logs still lack will never be
# put. If such a log has a gap, the gap is put into the log of transactions before the rest of the
# block. So a stream of all the block's tables stops there, and no stream sends half a block.


class LostBlocks:
    """A search for blocks that lost commits. For one thread at a time."""

    def __init__(self, catalog: Catalog, following: Following, troubles: Troubles) -> None:
        self._catalog = catalog
        self._following = following
        self._troubles = troubles
        self._over: frozenset[str] = frozenset()
        """Blocks that were over before the logs were read this time."""

    def lost(
        self,
        there: Sequence[PendingTransaction],
        waiting: Mapping[str, Collection[int]],
        followed: FollowedTables,
    ) -> Mapping[str, Collection[int]]:
        """Return, by block, oids of tables that need not be waited for. ``waiting`` has, by block,
        the tables whose commits ``there`` lacks."""
        known, self._over = self._over, frozenset()
        if not waiting:
            return {}
        with self._catalog.read() as t:
            noted = {block.block for block in t.block_commits.all()}
        self._over = frozenset(waiting.keys() - noted)
        tables = {table.oid: table for table in followed.tables}
        found: dict[str, set[int]] = defaultdict(set)
        for group in self._over & known:
            here = {m.relation for item in there if item.group == group for m in item.members}
            for oid in waiting[group]:
                with self._troubles.kept("log", tables[oid].qualified_name):
                    put = self._put(tables[oid], followed.at[oid], group)
                    if put == (1 if oid in here else 0):
                        found[group].add(oid)
            if found[group] >= set(waiting[group]):
                names = ", ".join(sorted(tables[oid].qualified_name for oid in found[group]))
                log.error(
                    "commits of a transaction block to %s are gone from the log: its other tables "
                    "go on without them",
                    names,
                )
        return found

    def _put(self, table: LakeTable, at: Sequenced, group: str) -> int | None:
        """Return how many commits of the block the table's log has after ``at``. None if this log
        cannot be read now. A gap in it is put into the log of transactions first."""
        logs = self._following.logs
        if not logs.same(table, at):
            return None  # ``check_logs`` will replace the table
        last, count = at.version, 0
        for commit, _ in logs.after(table, at.version):
            last, count = commit.version, count + (commit.group == group)
        if logs.has_entry(table, last + 1):
            return None  # the entry has come meanwhile
        newest = logs.newest(table)  # a listing, since nothing else shows a gap
        if newest > last:
            if not logs.has_entry(table, last + 1):
                self._following.gap(table, at, newest)
            return None
        return count


# New commits of the followed tables, read only from logs that have grown.
#
# ``TableLooks`` reads the commits after the last version of each table in the log. ``commit_order``
# decides the order between tables.
#
# If nothing is new, this takes one system call for each table in a local folder, and one request
# for each table in an object store. Otherwise only new commits are read.

_COMMITS: Final = "commits"
_LATELY_S: Final = 60.0
"""Seconds for which a table that has changed is likely to change again."""
_FEW: Final = 16
"""Up to this number of tables, all tables are watched, even if they have not changed lately."""
_MANY: Final = 100
"""The largest number of watched tables: those that changed last."""


class TableLooks:
    """A reader of new commits of tables. For one thread at a time."""

    def __init__(self, logs: TableLogs, troubles: Troubles) -> None:
        self._logs = logs
        self._troubles = troubles
        self._grown_at: Mapping[int, int] = {}
        self._changed: dict[int, float] = {}

    def grown(self, followed: FollowedTables) -> frozenset[int]:
        """Return oids of the tables whose logs may have grown, or could not be read before."""
        at = {oid: sequenced.version for oid, sequenced in followed.at.items()}
        found = {table.oid for table in self._logs.grown(followed.tables, at)}
        troubled = self._troubles.of(_COMMITS)
        if troubled:
            found |= {t.oid for t in followed.tables if t.qualified_name in troubled}
        self._grown_at = {oid: at[oid] for oid in found}
        return frozenset(found)

    def own(
        self, followed: FollowedTables, grown: Collection[int]
    ) -> dict[int, list[PendingTransaction]]:
        """Return new commits of the tables of which every commit is a transaction."""
        return self._look((t for t in followed.own() if t.oid in grown), followed, {})

    def again(
        self, followed: FollowedTables, before: Mapping[int, Sequence[PendingTransaction]]
    ) -> dict[int, list[PendingTransaction]]:
        """Read all these tables again, for commits after those found ``before``."""
        tables = list(followed.own())
        at = {
            table.oid: before[table.oid][-1].members[0].to_version
            if table.oid in before
            else followed.at[table.oid].version
            for table in tables
        }
        return self._look(self._logs.grown(tables, at), followed, before)

    def _look(
        self,
        tables: Iterable[LakeTable],
        followed: FollowedTables,
        behind: Mapping[int, Sequence[PendingTransaction]],
    ) -> dict[int, list[PendingTransaction]]:
        found: dict[int, list[PendingTransaction]] = {}
        for table in tables:
            commits: list[PendingTransaction] = []
            before = behind.get(table.oid)
            version, moment = followed.at[table.oid].version, 0
            if before:
                version, moment = before[-1].members[0].to_version, before[-1].moment
            with self._troubles.kept(_COMMITS, table.qualified_name):
                for commit, committed in self._logs.after(table, version):
                    # A clock may go back, but commits of a table keep their order.
                    moment = max(moment, committed)
                    alone = found_alone(table, commit, moment, followed.subscriptions)
                    commits.append(
                        replace(alone, group=commit.group, block=commit.block, undone=commit.undone)
                    )
            found[table.oid] = commits
        return found

    def owned(self, followed: FollowedTables, grown: Collection[int]) -> OwnedTables:
        """Return the tables that subscriptions maintain, with the commits of others to them."""
        if not followed.owners:
            return OwnedTables(())
        subscriptions = {subscription.oid: subscription for subscription in followed.subscriptions}
        found: list[OwnedTable] = []
        for table in followed.tables:
            owner = followed.owners.get((table.schema, table.name))
            if owner is None:
                continue
            at = followed.at[table.oid]
            if table.oid not in grown:
                found.append(OwnedTable(table, owner, (), at, None))
                continue
            with self._troubles.kept(_COMMITS, table.qualified_name):
                maintains = subscriptions[owner]
                found.append(walk(self._logs, table, at, maintains, followed.subscriptions))
        return OwnedTables(found)

    def changed(self, relations: Iterable[int]) -> None:
        """Note that the node's log has new commits of these tables."""
        self._changed |= dict.fromkeys(relations, time.monotonic())

    def watched(self, followed: FollowedTables) -> tuple[str, ...]:
        """Return the paths of the next log entries of tables that have changed lately. A table is
        left out if its next entry exists, but waits for something else."""
        since = time.monotonic() - _LATELY_S
        lately = sorted((at, oid) for oid, at in self._changed.items() if at >= since)[-_MANY:]
        self._changed = {oid: at for at, oid in lately}
        tables = list(followed.tables)
        if len(tables) > _FEW:
            tables = [table for table in tables if table.oid in self._changed]
        paths = (
            self._logs.next_path(table, followed.at[table.oid].version)
            for table in tables
            if (table.schema, table.name) not in followed.owners
            and self._grown_at.get(table.oid) != followed.at[table.oid].version
        )
        return tuple(path for path in paths if path is not None)


# The sequencer's thread: it steps again and again, and sometimes runs the upkeep.
#
# The thread runs from ``start`` to ``stop``.

_UPKEEP_INTERVAL_S: Final = 30.0
_GLANCES: Final = 5
"""Glances (``has_news``) between two steps, where system calls can show new commits."""
_SHORTEST_S: Final = 0.005
"""The fewest seconds between two glances, unless the interval is shorter."""
_SHARE: Final = 0.02
"""The share of a core for steps that find nothing; expensive steps are made less often."""
_LONGEST_S: Final = 0.25
"""Seconds up to which expensive steps may stretch the interval."""


class SequencerThread:
    """A thread that steps again and again, and calls ``upkeep`` now and then. An error is logged
    once, and the step is tried again."""

    def __init__(
        self, sequencer: Sequencer, interval_s: float, upkeep: Callable[[], None] = lambda: None
    ) -> None:
        self._sequencer = sequencer
        self.interval_s = interval_s
        """Seconds between two steps; a new value counts from the next step on."""
        self._upkeep = upkeep
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sequencer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, patience: Patience | None = None) -> None:
        """End the thread."""
        self._stopping.set()
        self._sequencer.wake()
        (patience or Patience()).join(self._thread, "sequencer")

    def _run(self) -> None:
        last, kept_up, due = "", 0.0, 0.0
        while not self._stopping.wait(self._pause()):
            try:
                if time.monotonic() < due and not self._sequencer.has_news():
                    continue
                due = time.monotonic() + self.interval_s
                due += self._step()
                if time.monotonic() - kept_up >= _UPKEEP_INTERVAL_S:
                    self._upkeep()
                    kept_up = time.monotonic()
                last = ""
            except Exception as error:
                text = error.report() if isinstance(error, PenstockError) else repr(error)
                if text != last:
                    log.warning("could not look for commits: %s", text)
                last = text

    def _pause(self) -> float:
        if not self._sequencer.watches:
            return self.interval_s
        return max(self.interval_s / _GLANCES, min(self.interval_s, _SHORTEST_S))

    def _step(self) -> float:
        """Step, and return the seconds that the next step waits longer than usual."""
        end, began = self._sequencer.end, time.thread_time()
        self._sequencer.step()
        if self._sequencer.end > end:
            return 0.0
        cost = (time.thread_time() - began) / _SHARE
        return max(0.0, min(cost, _LONGEST_S) - self.interval_s)
