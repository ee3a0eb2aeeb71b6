"""Transactions made of the commits of this node's subscriptions between two cuts.

Each subscription gives one transaction over all its tables, from their versions in the node's log
to its last cut, with the subscription as its origin. If another writer has committed between
commits of the subscription (``own_commits``), the transaction ends at the newest cut before that
commit, which becomes a transaction of its own, in its place. If there is no such cut, the
subscription's transaction is divided.

A cut counts only for the tables of its own subscription. A cut left by a dropped subscription does
not count for a table that has another owner now, or none. If a table has left its subscription, the
subscription's commits to it enter the log one by one. These commits keep their origin, so that they
are not sent back to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from penstock.catalog import LakeTable, Member, Subscription, SubscriptionRel
from penstock.catalog.pg_subscription import origin_name
from penstock.lakehouse.cuts import Cut, CutOwner
from penstock.lakehouse.warehouse import Warehouse
from penstock.walsender.commit_order import PendingTransaction
from penstock.walsender.commits import newest_version
from penstock.walsender.own_commits import CutMember, OwnedTables, Owners
from penstock.walsender.table_logs import next_path


def owners(
    subscriptions: Sequence[Subscription],
    rels: Sequence[SubscriptionRel],
    tables: Sequence[LakeTable],
) -> Owners:
    """Return the subscription that maintains each table, the owner. A partition without an owner
    has its nearest ancestor's."""
    oids = {subscription.oid for subscription in subscriptions}
    found = {(rel.schema, rel.table): rel.subid for rel in rels if rel.subid in oids}
    by_oid = {table.oid: table for table in tables}
    for table in tables:
        above: LakeTable | None = table
        while above is not None:
            owner = found.get((above.schema, above.name))
            if owner is not None:
                found[table.schema, table.name] = owner
                break
            above = None if above.parent is None else by_oid.get(above.parent)
    return found


class CutCommits:
    """The last cut of each subscription. For one thread at a time."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._read: tuple[int | None, frozenset[tuple[int, CutOwner]]] | None = None
        self._cuts: dict[int, Cut] = {}
        self._owners: dict[int, CutOwner] = {}

    def look_again(self) -> None:
        """List the cuts table's log at the next step, since another table may have replaced it."""
        self._read = None

    def next_path(self) -> str | None:
        """Return the path of the next entry in a local folder, None if it is not known."""
        version = None if self._read is None else self._read[0]
        if version is None:
            return None
        return next_path(self._warehouse.storage, self._warehouse.cuts.uri, version)

    def has_grown(self, subscriptions: Sequence[Subscription]) -> bool:
        """Tell whether ``refresh`` may find something."""
        if self._read is None or self._read[1] != _cut_owners(subscriptions):
            return True
        path = self.next_path()
        return bool(subscriptions) and (path is None or os.access(path, os.F_OK))

    def refresh(self, subscriptions: Sequence[Subscription]) -> None:
        """Read each last cut again if the cuts table or the subscriptions have changed."""
        if not self.has_grown(subscriptions):
            return
        cuts, wanted = self._warehouse.cuts, _cut_owners(subscriptions)
        version = newest_version(self._warehouse.storage, cuts.uri) if wanted else None
        if self._read == (version, wanted):
            return
        found = {oid: cuts.last(owner) for oid, owner in wanted} if version is not None else {}
        self._cuts = {oid: cut for oid, cut in found.items() if cut is not None}
        self._owners = dict(wanted)
        self._read = version, wanted

    def version(self, owner: int, uri: str, newest: int) -> int:
        """Return a table's version in its subscription's last cut, ``newest`` if no cut has it."""
        cut = self._cuts.get(owner)
        members = () if cut is None else cut.tables.values()
        return next((at.version for at in members if at.uri == uri), newest)

    def moved(self, owned: OwnedTables) -> Iterator[tuple[int, Cut, list[CutMember]]]:
        """Yield subscription, cut and tables for each subscription whose cut has moved on."""
        for subscription, last in sorted(self._cuts.items()):
            cut: Cut | None = last
            chosen, members = last, owned.moved_by(subscription, last)
            while cut is not None and (found := owned.moved_by(subscription, cut)):
                chosen, members = cut, found
                if not owned.mixed(found):
                    break
                cut = self._warehouse.cuts.before(self._owners[subscription], cut)
            if members:
                yield subscription, chosen, members


def _cut_owners(subscriptions: Sequence[Subscription]) -> frozenset[tuple[int, CutOwner]]:
    return frozenset((s.oid, CutOwner(s.name, s.app_id)) for s in subscriptions)


def transaction(
    subscription: int, cut: Cut, members: Sequence[Member], size: int
) -> PendingTransaction:
    """Return a cut as one transaction. The time of the cut decides its place; its own time is that
    of the cut's last commit."""
    committed = cut.commit_time or cut.cut_time
    return PendingTransaction(
        tuple(members),
        moment=round(cut.cut_time.timestamp() * 1e6),
        time=round(committed.timestamp() * 1e6),
        size=size,
        origin=origin_name(subscription),
        origin_lsn=cut.lsn,
        of_cut=True,
    )
