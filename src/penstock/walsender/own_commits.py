"""Tables that a subscription maintains, and the commits of others to them.

``walk`` reads the Delta logs of such tables from their versions in the log of transactions. Each
commit of others before the subscription's first commit is a transaction of its own, without an
origin or with its writer's. So a row written here is sent to every subscriber as soon as it is
committed, even with origin = none. ``cut_commits`` handles the subscription's own commits: a cut
has all of them or none. If a crash has left such commits without a cut, and others have committed
between them, the cut is divided (``in_turn``). A commit's marker identifies its writer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from penstock.catalog import LakeTable, Member, Sequenced, Subscription
from penstock.lakehouse.cuts import Cut, CutTable
from penstock.lsn import Lsn
from penstock.walsender.commit_order import PendingTransaction
from penstock.walsender.commits import TableCommit
from penstock.walsender.table_logs import TableLogs

Owners = Mapping[tuple[str, str], int]
"""The oid of the subscription that maintains a table, by (schema, table)."""


@dataclass(frozen=True, slots=True)
class CutMember:
    """A table that has a later version in a cut than in the log."""

    table: LakeTable
    at: Sequenced
    to_version: int


def origin_of(
    applied: tuple[str, Lsn] | None, subscriptions: Sequence[Subscription]
) -> tuple[str | None, Lsn | None]:
    """Return origin and LSN of one commit. Of a subscription that was dropped, or of another node,
    only the appId is known."""
    if applied is None:
        return None, None
    app_id, lsn = applied
    names = {subscription.app_id: subscription.origin_name for subscription in subscriptions}
    return names.get(app_id, app_id), lsn


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A table with the oid of its subscription. ``others`` are the commits of others that come
    first, and ``at`` is the table's place after them. ``mixed`` is the version of the first commit
    of others that follows a commit of the subscription, None if there is none."""

    table: LakeTable
    owner: int
    others: tuple[PendingTransaction, ...]
    at: Sequenced
    mixed: int | None


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive commits of tables. ``others``: they are one commit of another writer. ``lsn``:
    the position of the subscription's last commit; None: the cut's position."""

    commits: tuple[tuple[CutMember, tuple[TableCommit, ...]], ...]
    others: bool = False
    lsn: Lsn | None = None


def in_turn(
    parts: Sequence[tuple[CutMember, Sequence[TableCommit]]], app_id: str
) -> Iterator[Turn]:
    """Yield the commits of a cut, keeping each table's order. Each commit of others is a turn of
    its own. The subscription's commits before it come first, up to the same position in every
    table."""
    left = [(member, list(commits)) for member, commits in parts]
    while first := min(filter(None, map(partial(_next_of_others, app_id), left)), default=None):
        lsn, oid = first
        taken = []
        for member, commits in left:
            ready = itertools.takewhile(partial(_is_upto, app_id, lsn), commits)
            if own := tuple(ready):
                taken.append((member, own))
                del commits[: len(own)]
        if taken:
            yield Turn(tuple(taken), lsn=lsn)
        member, commits = next(part for part in left if part[0].table.oid == oid)
        while commits and _is_of_others(app_id, commits[0]):
            yield Turn(((member, (commits.pop(0),)),), others=True)
    rest = tuple((member, tuple(commits)) for member, commits in left if commits)
    if rest:
        yield Turn(rest)


def _is_of_others(app_id: str, commit: TableCommit) -> bool:
    return commit.changes and (commit.applied is None or commit.applied[0] != app_id)


def _is_upto(app_id: str, lsn: Lsn, commit: TableCommit) -> bool:
    if _is_of_others(app_id, commit):
        return False
    return commit.applied is None or commit.applied[0] != app_id or commit.applied[1] <= lsn


def _next_of_others(
    app_id: str, part: tuple[CutMember, Sequence[TableCommit]]
) -> tuple[Lsn, int] | None:
    """Return the subscription's position before the next commit of others, and the table's oid.
    None if there is no such commit."""
    lsn = Lsn(0)
    for commit in part[1]:
        if _is_of_others(app_id, commit):
            return lsn, part[0].table.oid
        if commit.applied is not None and commit.applied[0] == app_id:
            lsn = max(lsn, commit.applied[1])
    return None


@dataclass(frozen=True, slots=True)
class OwnedTables:
    """The tables that have an owner and could be read."""

    tables: Sequence[OwnedTable]

    def moved_by(self, subscription: int, cut: Cut) -> list[CutMember]:
        """Return the tables that a subscription's cut moves on."""
        there = {at.uri: at for at in cut.tables.values()}
        return [
            CutMember(owned.table, owned.at, there[owned.table.uri].version)
            for owned in self.tables
            if owned.owner == subscription
            and owned.table.uri in there
            and _has_moved(owned.at, there[owned.table.uri])
        ]

    def mixed(self, members: Sequence[CutMember]) -> bool:
        """Tell whether others have committed between commits of the subscription."""
        limits = {owned.table.oid: owned.mixed for owned in self.tables}
        return any(
            limit is not None and limit <= member.to_version
            for member in members
            for limit in [limits[member.table.oid]]
        )

    def before(self, moments: Mapping[int, int]) -> dict[int, list[PendingTransaction]]:
        """Return the commits of others, by table oid. ``moments``: the times that order the cuts of
        these tables. Commits that precede a cut in a table's log stay before it, whatever their
        writers' clocks."""
        return {
            owned.table.oid: [
                replace(found, moment=min(found.moment, moments.get(owned.table.oid, found.moment)))
                for found in owned.others
            ]
            for owned in self.tables
            if owned.others
        }


def found_alone(
    table: LakeTable, commit: TableCommit, moment: int, subscriptions: Sequence[Subscription]
) -> PendingTransaction:
    """Return a commit as a transaction of its own, even if it belongs to a group or block."""
    member = Member(table.oid, table.uri or "", commit.version - 1, commit.version, commit.table_id)
    origin, lsn = origin_of(commit.applied, subscriptions)
    return PendingTransaction(
        (member,),
        moment,
        moment,
        commit.size,
        commit.changes,
        origin,
        lsn,
        blocks=commit.blocks,
    )


def walk(
    logs: TableLogs,
    table: LakeTable,
    at: Sequenced,
    owner: Subscription,
    subscriptions: Sequence[Subscription],
) -> OwnedTable:
    """Read a table's commits after ``at``. Raises StorageError."""
    others: list[PendingTransaction] = []
    waits, mixed, moment = False, None, 0
    for commit, committed in logs.after(table, at.version):
        theirs = commit.applied is None or commit.applied[0] != owner.app_id
        if waits and theirs and commit.changes:
            mixed = commit.version
            break
        if waits or (commit.changes and not theirs):
            waits = True
            continue
        moment = max(moment, committed)
        others.append(found_alone(table, commit, moment, subscriptions))
        at = Sequenced(commit.version, commit.table_id or at.table_id)
    return OwnedTable(table, owner.oid, tuple(others), at, mixed)


def _has_moved(at: Sequenced, cut: CutTable) -> bool:
    """Tell whether a cut has a later version of the table. A cut of another table at the same URI
    does not count."""
    other = at.table_id is not None and cut.id is not None and at.table_id != cut.id
    return at.version < cut.version and not other
