"""What subscriptions of this node wrote between two cuts, as transactions.

In: the cuts table, the subscriptions that there are. Out: for each one the transaction from where
its tables are in the log to its last cut, over all its tables, with the subscription as its origin.
Where others have committed between commits of the subscription (``own_commits``), it goes to the
newest cut before that, so that theirs is a transaction of its own, in its place; where there is no
such cut, it is taken apart.
A cut counts for a subscription and its own tables only: one that a dropped subscription has left
behind says nothing of a table that has another owner, or none, now. What a subscription wrote to a
table that has left it since goes into the log commit by commit, and has an origin still: else it
would go back to where it came from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from penstock.catalog import LakeTable, Member, Subscription, SubscriptionRel
from penstock.catalog.pg_subscription import origin_name
from penstock.lakehouse.cuts import Cut, CutOwner
from penstock.lakehouse.warehouse import Warehouse
from penstock.walsender.commit_order import Found
from penstock.walsender.commits import newest_version
from penstock.walsender.own_commits import CutMember, Owned, Owners
from penstock.walsender.table_logs import next_path


def owners(
    subscriptions: Sequence[Subscription],
    rels: Sequence[SubscriptionRel],
    tables: Sequence[LakeTable],
) -> Owners:
    """Who maintains what: a partition, who maintains the table that it is of."""
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
    """For one thread at a time."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._read: tuple[int | None, frozenset[tuple[int, CutOwner]]] | None = None
        self._cuts: dict[int, Cut] = {}
        self._owners: dict[int, CutOwner] = {}

    def look_again(self) -> None:
        """Another table may lie in the place of the cuts: it is listed."""
        self._read = None

    def next_path(self) -> str | None:
        """Where the next entry would be, in a folder of this machine; None: it is not known."""
        version = None if self._read is None else self._read[0]
        if version is None:
            return None
        return next_path(self._warehouse.storage, self._warehouse.cuts.uri, version)

    def has_grown(self, subscriptions: Sequence[Subscription]) -> bool:
        """Whether ``refresh`` may find something."""
        if self._read is None or self._read[1] != _wanted(subscriptions):
            return True
        path = self.next_path()
        return bool(subscriptions) and (path is None or os.access(path, os.F_OK))

    def refresh(self, subscriptions: Sequence[Subscription]) -> None:
        """Read the last cut of each, where the cuts table or the subscriptions have changed."""
        if not self.has_grown(subscriptions):
            return
        cuts, wanted = self._warehouse.cuts, _wanted(subscriptions)
        version = newest_version(self._warehouse.storage, cuts.uri) if wanted else None
        if self._read == (version, wanted):
            return
        found = {oid: cuts.last(owner) for oid, owner in wanted} if version is not None else {}
        self._cuts = {oid: cut for oid, cut in found.items() if cut is not None}
        self._owners = dict(wanted)
        self._read = version, wanted

    def version(self, owner: int, uri: str, newest: int) -> int:
        """The version of a table in its subscription's last cut; ``newest`` where it is in none."""
        cut = self._cuts.get(owner)
        members = () if cut is None else cut.tables.values()
        return next((at.version for at in members if at.uri == uri), newest)

    def moved(self, owned: Owned) -> Iterator[tuple[int, Cut, list[CutMember]]]:
        """Subscription, cut and tables for each cut that has gone on."""
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


def _wanted(subscriptions: Sequence[Subscription]) -> frozenset[tuple[int, CutOwner]]:
    return frozenset((s.oid, CutOwner(s.name, s.app_id)) for s in subscriptions)


def transaction(subscription: int, cut: Cut, members: Sequence[Member], size: int) -> Found:
    """All of it as one. It stands where the cut was made, with the time of its last commit."""
    committed = cut.commit_time or cut.cut_time
    return Found(
        tuple(members),
        moment=round(cut.cut_time.timestamp() * 1e6),
        time=round(committed.timestamp() * 1e6),
        size=size,
        origin=origin_name(subscription),
        origin_lsn=cut.lsn,
        of_cut=True,
    )
