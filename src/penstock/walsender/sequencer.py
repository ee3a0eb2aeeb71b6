"""One total order of the lake's commits, with positions that stay: the node's WAL.

In: the logs of the warehouse's tables, and the cuts of this node's subscriptions. Out: transactions
in the catalog, each durable before anybody hears of it, and a wake-up for those who send them.

A commit of a table is one transaction. Tables that a subscription maintains move from cut to cut:
what lies between two cuts is one transaction over all of them, with the subscription as its origin;
what others commit to them is in its place a transaction of its own.
A table is followed from the version at which it is first seen; a snapshot at a position is the
version of each table up to which its commits are in the log.

Each table is followed by itself. One that cannot be read waits with its commits, and they come
after those of others once it can be. One that was removed and made again is dropped, and another
relation is followed in its place; those who followed the old one are told at that place of the log.
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
from penstock.walsender.commit_order import (
    CommitTimes,
    Found,
    by_relation,
    finish_moves,
    follows,
    in_order,
    now,
    together,
    without_unfinished,
)
from penstock.walsender.commits import TableCommit
from penstock.walsender.cut_commits import CutCommits, transaction
from penstock.walsender.following import CUTS_NAME, Followed, Following
from penstock.walsender.own_commits import (
    CutMember,
    Owned,
    OwnedTable,
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
"""Seconds between two listings of the warehouse; creating a slot and statements list it at once."""
_TRIES: Final = 10
"""Looks in one step that another process was quicker than; the rest is left to the next step."""
_LAST: Final = 1 << 62
"""A version that no table reaches."""
_CUTS_WORK: Final = "cuts"
_CUTS: Final = -1
"""The source of what subscriptions wrote, beside the oids of tables."""


@dataclass(frozen=True, slots=True)
class Position:
    """A consistent point: every transaction up to ``lsn`` is in ``versions``, and no other.

    ``versions``: by table oid.
    """

    lsn: Lsn
    versions: Mapping[int, int]


class Sequencer:
    """Writes the log. ``step`` may be called by any thread, and in other processes too."""

    def __init__(self, catalog: Catalog, warehouse: Warehouse) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._lock = threading.Lock()
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
        """Put every commit that there is into the log. ``discover``: look for new tables, too.

        Raises what the catalog raises; what a table raises is its trouble alone.
        """
        begun = self._begun
        with self._lock:
            if self._ended > begun and not discover:
                return  # somebody has looked since, while this one waited
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
                    break  # else commits of others come after the cut, and maybe further cuts
            self._watch()
            self._ended = self._begun
        self._told(self._following.end)
        if self._following.last is None:  # another process has put something there, too
            self._tell()

    def _is_discovery_due(self) -> bool:
        due = time.monotonic() - self._discovered >= _DISCOVERY_INTERVAL_S
        return due or self._following.has_changed

    @property
    def watches(self) -> bool:
        """Whether ``has_news`` can say so."""
        return bool(self._watched)

    def has_news(self) -> bool:
        """Whether a step would find something, as far as some system calls tell: cheap enough to be
        asked again and again. A table that has not changed lately may have news all the same."""
        return any(os.access(path, os.F_OK) for path in self._watched)

    def _watch(self) -> None:
        followed, cuts = self._following.last, self._cuts.next_path()
        paths = () if followed is None else self._looks.watched(followed)
        self._watched = paths if cuts is None else (*paths, cuts)

    def emit(self, message: EmittedMessage, content: bytes) -> Lsn:
        """Put a message into the log, after every commit that there is; the end of its record,
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
        """Of the log, as far as it was told."""
        return self._end

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """What is committed inside goes into the log by one step: a group is found whole."""
        with self._lock:
            yield

    @contextmanager
    def recording(self) -> Iterator[tuple[CatalogTransaction, int]]:
        """Within ``one_transaction``: a write of the catalog that puts records into the log, and
        their time; they are told when it is durable."""
        with self._catalog.write() as t:
            yield t, self._times.next(t, now())
        with suppress(StorageError):  # it is durable; the next step tells it
            self._tell()

    def follows_each_commit(self, relations: Collection[int]) -> bool:
        """Whether each commit to these tables is a transaction, so that no subscription maintains
        one of them."""
        return {table.oid for table in self._following.followed().own()} >= set(relations)

    def end_blocks(self) -> None:
        """Those whose commits will not be found any more, as their tables are gone, or entries of
        their logs: who was told of PREPARE is told that it is committed, and who takes messages
        gets theirs. Raises what the catalog raises."""
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
        """The end of the log, after a step: now."""
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
        """Where the log is, if no table and no cut has anything that is not in it: so a statement
        need not wait for who commits. None: that is not to be seen without a step."""
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
        """Wait until the log reaches beyond ``beyond``; whether it does. ``stopping``: set before
        ``wake``, it ends the wait."""

        def over() -> bool:
            return self._end > beyond or (stopping is not None and stopping.is_set())

        with self._grown:
            self._grown.wait_for(over, timeout_s)
            return self._end > beyond

    def prune(self, needed_from: Lsn | None) -> None:
        """Forget transactions that no slot needs; ``needed_from`` None: there are no slots."""
        with self._catalog.read() as t:
            end, oldest = t.transactions.end(), t.transactions.oldest()
        before = end if needed_from is None else needed_from
        if before > oldest:
            with self._catalog.write() as t:
                t.transactions.prune(before)
                t.publications.forget_before(t.transactions.oldest_place())

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._grown:
            self._grown.notify_all()

    def check_logs(self) -> None:
        """Look for logs with gaps, and for other logs in their places (``following``)."""
        with self._lock:
            self._following.check_logs()

    def _tell(self) -> None:
        with self._catalog.read() as t:
            # asked, not counted: another process may have appended
            self._told(t.transactions.end())

    def _told(self, end: Lsn) -> None:
        with self._grown:
            if end > self._end:
                self._end = end
                self._grown.notify_all()

    def _transactions(self) -> list[Found]:
        return together(one_by_block(self._found_whole()))

    def _found_whole(self) -> list[Found]:
        """What there is. A session that moves rows between tables commits all of it in one go,
        under our lock: what lacks its second commit was stopped, and is finished here."""
        while True:
            found = self._find()
            if not any(item.arrivals for item in found):
                return found
            with self._catalog.read() as t:
                tables = {table.oid: table for table in t.tables.all()}
            arrived, whole = finish_moves(self._warehouse, tables, found, self.troubles)
            if not arrived:
                return whole

    def _find(self) -> list[Found]:
        followed = self._following.followed()
        cuts_grown = self._cuts.has_grown(followed.subscriptions) or self.troubles.of(_CUTS_WORK)
        if cuts_grown:
            with self.troubles.kept(_CUTS_WORK, CUTS_NAME):
                self._cuts.refresh(followed.subscriptions)  # what cuts name is in the logs then
        grown = self._looks.grown(followed)
        if not (grown or cuts_grown):
            return []
        by_oid = {table.oid: table for table in followed.tables}
        # The first of the two looks that ``commit_order`` needs; the second one is below.
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

    def _between_cuts(self, owned: Owned, followed: Followed) -> Iterable[Found]:
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
        """A table's commits in a cut; None where it is no longer that table."""
        table, at = moved.table, moved.at
        commits: tuple[TableCommit, ...] | None = None
        with self.troubles.kept("commits", table.qualified_name):
            after = (commit for commit, _ in self._logs.after(table, at.version))
            commits = tuple(takewhile(lambda c: c.version <= moved.to_version, after))
        if commits is None or not self._following.goes_on(table, at, moved.to_version):
            return None
        return moved, commits

    def _append(self, found: Sequence[Found]) -> bool:
        """Whether it was done: else another process has put commits of these tables into the log
        meanwhile, and what there is has to be found again."""
        relations = {member.relation for item in found for member in item.members}
        with self._catalog.write(counted=False) as t:
            # Compared inside the write transaction, of which there is one at a time: two processes
            # cannot both append a commit.
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
                    if member.relation in ids  # else it was dropped meanwhile
                )
                ids |= {member.relation: member.table_id for member in members}
                time_ = item.time if item.of_cut else self._times.next(t, item.time)
                prepared = committed_by(t, item, self._times.next(t, item.time))
                messages = t.block_messages.take(item.blocks)
                if not members and prepared is None and not messages:
                    continue
                # OPTIMIZE and the like: nothing is sent, and the next commit starts from that
                # version.
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


def _of_cut(subscription: int, cut: Cut, turn: Turn) -> Found:
    """A cut, or a part of it that others have committed after."""
    members, size, blocks = [], 0, frozenset[str]()
    for moved, commits in turn.commits:
        at, table = moved.at, moved.table
        first, last = commits[0].version - 1 if commits else at.version, moved.to_version
        if turn.lsn is not None and commits:
            last = commits[-1].version
        ids = [commit.table_id for commit in commits if commit.table_id]
        table_id = ids[-1] if ids else None  # else as it is in the log
        members.append(Member(table.oid, table.uri or "", first, last, table_id))
        size += sum(commit.size for commit in commits)
        blocks = blocks.union(*(commit.blocks for commit in commits))
    whole = transaction(subscription, cut, members, size)
    return replace(whole, blocks=blocks, origin_lsn=turn.lsn or cut.lsn)


# Commits of transaction blocks over several tables: each block as one transaction, or not yet.
#
# In: transactions that were found, in order. Out: the same, the commits of each block as one. A
# block is there when all its tables have their commits, or when each commit of it was taken back;
# until then what was found of it waits, with all that comes after it in its tables. So half a
# block is in no log, whoever looks, and whenever.
#
# What others have committed between the tables' commits stands before the block or after it, as it
# stands in the tables' own logs; what stands between a commit and the one that takes it back
# becomes a part of it.

_NONE: Final[Mapping[str, Collection[int]]] = {}


def waited_for(found: Sequence[Found], followed: Collection[int]) -> dict[str, set[int]]:
    """By block that is not there yet, oids of the tables whose commits it lacks, or those that take
    it back. ``followed``: oids of tables of which each commit is looked at."""
    blocks: dict[str, list[Found]] = defaultdict(list)
    for item in found:
        if item.block and item.group is not None:
            blocks[item.group].append(item)
    lacking = {group: _lacking(items, followed) for group, items in blocks.items()}
    return {group: relations for group, relations in lacking.items() if relations}


def whole_blocks(
    found: Sequence[Found],
    waiting: Mapping[str, Collection[int]],
    lost: Mapping[str, Collection[int]] = _NONE,
) -> list[Found]:
    """Without the blocks that are not there yet. ``waiting``: what ``waited_for`` has found;
    ``lost``: by block, what of that is not waited for any more."""
    unfinished = {
        group for group, relations in waiting.items() if set(relations) - set(lost.get(group, ()))
    }
    return without_unfinished(found, unfinished) if unfinished else list(found)


def _lacking(items: Sequence[Found], followed: Collection[int]) -> set[int]:
    there, undone = _put(items), _undone(items)
    return there - undone if undone else (set(followed) & items[0].block) - there


def _put(items: Sequence[Found]) -> set[int]:
    return {relation for item in items for relation in _relations(item)}


def _undone(items: Sequence[Found]) -> set[int]:
    return {relation for item in items if item.undone for relation in _relations(item)}


def one_by_block(found: Sequence[Found]) -> list[Found]:
    """The commits of each block, all of which are there, as one transaction."""
    order = list(found)
    for group in dict.fromkeys(item.group for item in found if item.block):
        places = [place for place, item in enumerate(order) if item.group == group]
        first, last = places[0], places[-1] + 1
        order[first:last] = _Span(order[first:last], group).divided()
    return order


@dataclass
class _Span:
    """From the first commit of a block to the last one."""

    items: Sequence[Found]
    group: str | None
    before: list[Found] = field(default_factory=list)
    within: list[Found] = field(default_factory=list)
    after: list[Found] = field(default_factory=list)

    def divided(self) -> list[Found]:
        """What comes before the block, the block, what comes after it."""
        begun: set[int] = set()
        ended: set[int] = set()  # relations of what comes after
        for place, item in enumerate(self.items):
            relations = _relations(item)
            own = item.group == self.group
            if own and relations & ended:  # each of two transactions would come before the other
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

    def _one(self, items: Sequence[Found]) -> Found:
        members = by_relation(member for item in items for member in item.members)
        last = next(item for item in reversed(items) if item.group == self.group)
        # What was taken back changes nothing: the next commits of its tables start after it.
        # Others may have rewritten files of it, and say so of rows that stay: OPTIMIZE, too.
        others = [item for item in items if item.group != self.group]
        own = [item for item in items if item.group == self.group]
        undone = _undone(own)
        # where the log has lost one of the two, the other one is a change
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


def _relations(item: Found) -> set[int]:
    return {member.relation for member in item.members}


# Blocks whose commits to a table are gone from its log: their other tables wait no longer.
#
# In: blocks that are not there yet, with the tables whose commits they lack. Out: those of these
# tables that are not waited for. A block that the catalog does not note any more is over: what its
# tables' logs lack when they are read after that, they never get. Where such a log has a gap, the
# place of it is in the log of transactions before the rest of the block is, so that a stream of
# both tables stops there, and no stream is sent half a block.


class LostBlocks:
    """For one thread at a time."""

    def __init__(self, catalog: Catalog, following: Following, troubles: Troubles) -> None:
        self._catalog = catalog
        self._following = following
        self._troubles = troubles
        self._over: frozenset[str] = frozenset()
        """Blocks that were over before this look at the logs."""

    def lost(
        self,
        there: Sequence[Found],
        waiting: Mapping[str, Collection[int]],
        followed: Followed,
    ) -> Mapping[str, Collection[int]]:
        """By block, oids of tables. ``waiting``: likewise, what ``there`` lacks of blocks."""
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
        """How many commits of the block the log has, from ``at`` to its end; None: it is not to be
        said now. A gap in it is told first."""
        logs = self._following.logs
        if not logs.same(table, at):
            return None  # ``check_logs`` sees to it
        last, count = at.version, 0
        for commit, _ in logs.after(table, at.version):
            last, count = commit.version, count + (commit.group == group)
        if logs.has_entry(table, last + 1):
            return None  # it has come meanwhile
        newest = logs.newest(table)  # which takes a listing: it is known of a gap by nothing else
        if newest > last:
            if not logs.has_entry(table, last + 1):
                self._following.gap(table, at, newest)
            return None
        return count


# New commits of the tables that are followed, read from the logs that have gone on and no others.
#
# In: what is followed, and how far. Out: which logs go on after that, and what was committed
# there. The order between tables is left to ``commit_order``.
#
# The cost of a look where nothing is new is one system call a table in a folder of this machine,
# and in an object store one request a table. What is read grows with the commits that are new.

_COMMITS: Final = "commits"
_LATELY_S: Final = 60.0
"""Who has committed within that time is likely to do it again."""
_FEW: Final = 16
"""So many tables are watched whether they have changed lately or not."""
_MANY: Final = 100
"""And not more of those that have."""


class TableLooks:
    """For one thread at a time."""

    def __init__(self, logs: TableLogs, troubles: Troubles) -> None:
        self._logs = logs
        self._troubles = troubles
        self._grown_at: Mapping[int, int] = {}
        self._changed: dict[int, float] = {}

    def grown(self, followed: Followed) -> frozenset[int]:
        """Oids of the tables whose logs may have more; those that could not be read, too."""
        at = {oid: sequenced.version for oid, sequenced in followed.at.items()}
        found = {table.oid for table in self._logs.grown(followed.tables, at)}
        troubled = self._troubles.of(_COMMITS)
        if troubled:
            found |= {t.oid for t in followed.tables if t.qualified_name in troubled}
        self._grown_at = {oid: at[oid] for oid in found}
        return frozenset(found)

    def own(self, followed: Followed, grown: Collection[int]) -> dict[int, list[Found]]:
        """New commits of the tables of which each commit is a transaction."""
        return self._look((t for t in followed.own() if t.oid in grown), followed, {})

    def again(
        self, followed: Followed, before: Mapping[int, Sequence[Found]]
    ) -> dict[int, list[Found]]:
        """The same once more, of all such tables, after what was found ``before``."""
        tables = list(followed.own())
        at = {
            table.oid: before[table.oid][-1].members[0].to_version
            if table.oid in before
            else followed.at[table.oid].version
            for table in tables
        }
        return self._look(self._logs.grown(tables, at), followed, before)

    def _look(
        self, tables: Iterable[LakeTable], followed: Followed, behind: Mapping[int, Sequence[Found]]
    ) -> dict[int, list[Found]]:
        found: dict[int, list[Found]] = {}
        for table in tables:
            commits: list[Found] = []
            before = behind.get(table.oid)
            version, moment = followed.at[table.oid].version, 0
            if before:
                version, moment = before[-1].members[0].to_version, before[-1].moment
            with self._troubles.kept(_COMMITS, table.qualified_name):
                for commit, committed in self._logs.after(table, version):
                    # A clock may go back; commits of a table do not change places.
                    moment = max(moment, committed)
                    alone = found_alone(table, commit, moment, followed.subscriptions)
                    commits.append(
                        replace(alone, group=commit.group, block=commit.block, undone=commit.undone)
                    )
            found[table.oid] = commits
        return found

    def owned(self, followed: Followed, grown: Collection[int]) -> Owned:
        """Tables that subscriptions maintain, with what others have committed to them."""
        if not followed.owners:
            return Owned(())
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
        return Owned(found)

    def changed(self, relations: Iterable[int]) -> None:
        """Commits of these tables are in the log of transactions now."""
        self._changed |= dict.fromkeys(relations, time.monotonic())

    def watched(self, followed: Followed) -> tuple[str, ...]:
        """Paths of entries that may come next: of the tables that have changed lately, and that do
        not wait for something else with the entry that comes next."""
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


# The sequencer's thread: steps again and again, and now and then what else is to be kept up.
#
# In: a sequencer and an interval. Out: a thread from ``start`` to ``stop``.

_UPKEEP_INTERVAL_S: Final = 30.0
_GLANCES: Final = 5
"""Between two steps, where it costs some system calls to see whether there is something new."""
_SHORTEST_S: Final = 0.005
"""Between two glances."""
_SHARE: Final = 0.02
"""Of a core, that steps which find nothing take at most: they come less often then."""
_LONGEST_S: Final = 0.25
"""But that often."""


class SequencerThread:
    """Steps again and again; an error is logged once and tried again. ``upkeep``: now and then."""

    def __init__(
        self, sequencer: Sequencer, interval_s: float, upkeep: Callable[[], None] = lambda: None
    ) -> None:
        self._sequencer = sequencer
        self.interval_s = interval_s
        """Another one holds from the next step on."""
        self._upkeep = upkeep
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sequencer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self._sequencer.wake()
        self._thread.join()

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
        """Seconds that the next one waits longer than usual."""
        end, began = self._sequencer.end, time.thread_time()
        self._sequencer.step()
        if self._sequencer.end > end:
            return 0.0
        cost = (time.thread_time() - began) / _SHARE
        return max(0.0, min(cost, _LONGEST_S) - self.interval_s)
