"""Tables that a subscription maintains, and what others have committed to them.

In: the logs of such tables from where they are in the log of transactions. Out: commits of others
up to the first one of the subscription, each a transaction of its own, without an origin or with
that of its writer; and which tables a cut moves on from there. What the subscription has committed
is for ``cut_commits``: a cut is all of it or nothing. So a row that was written here goes to every
subscriber, with origin = none too, as soon as it is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.catalog import LakeTable, Member, Sequenced, Subscription
from penstock.lakehouse.cuts import Cut, CutTable
from penstock.lsn import Lsn
from penstock.walsender.commit_order import Found
from penstock.walsender.commits import TableCommit
from penstock.walsender.table_logs import TableLogs

log = logging.getLogger(__name__)

Owners = Mapping[tuple[str, str], int]
"""(schema, table) -> oid of the subscription that maintains it."""


@dataclass(frozen=True, slots=True)
class CutMember:
    """A table that a cut has moved on."""

    table: LakeTable
    at: Sequenced
    to_version: int


def origin_of(
    applied: tuple[str, Lsn] | None, subscriptions: Sequence[Subscription]
) -> tuple[str | None, Lsn | None]:
    """Origin and its LSN for one commit. Of a dropped subscription, or another node's, the appId
    is all that is known."""
    if applied is None:
        return None, None
    app_id, lsn = applied
    names = {subscription.app_id: subscription.origin_name for subscription in subscriptions}
    return names.get(app_id, app_id), lsn


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A table with its subscription's oid. ``others``: the commits of others that come first;
    ``at``: where it is after them; ``mixed``: the version of the first commit of others that comes
    after one of the subscription, None where there is none."""

    table: LakeTable
    owner: int
    others: tuple[Found, ...]
    at: Sequenced
    mixed: int | None


@dataclass(frozen=True, slots=True)
class Owned:
    """Those that could be read."""

    tables: Sequence[OwnedTable]

    def moved_by(self, subscription: int, cut: Cut) -> list[CutMember]:
        """What a cut of a subscription moves on."""
        there = {at.uri: at for at in cut.tables.values()}
        return [
            CutMember(owned.table, owned.at, there[owned.table.uri].version)
            for owned in self.tables
            if owned.owner == subscription
            and owned.table.uri in there
            and _has_moved(owned.at, there[owned.table.uri])
        ]

    def mixed(self, members: Sequence[CutMember]) -> bool:
        """Whether others have committed in between."""
        limits = {owned.table.oid: owned.mixed for owned in self.tables}
        return any(
            limit is not None and limit <= member.to_version
            for member in members
            for limit in [limits[member.table.oid]]
        )

    def before(self, moments: Mapping[int, int]) -> dict[int, list[Found]]:
        """By table oid: the commits of others. ``moments``: where cuts stand that move tables on;
        what a table's log has before them stands before them, whatever the clocks said."""
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
) -> Found:
    """A commit as a transaction of its own, whatever group or block it may be of."""
    member = Member(table.oid, table.uri or "", commit.version - 1, commit.version, commit.table_id)
    origin, lsn = origin_of(commit.applied, subscriptions)
    return Found(
        (member,),
        moment,
        moment,
        commit.size,
        commit.changes,
        origin,
        lsn,
        arrivals=commit.arrivals,
        blocks=commit.blocks,
    )


def walk(
    logs: TableLogs,
    table: LakeTable,
    at: Sequenced,
    owner: Subscription,
    subscriptions: Sequence[Subscription],
) -> OwnedTable:
    """Look at what was committed after ``at``. Raises StorageError."""
    others: list[Found] = []
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
    """A cut of another table, which lay or lies there, has moved nothing."""
    other = at.table_id is not None and cut.id is not None and at.table_id != cut.id
    return at.version < cut.version and not other
