"""What subscriptions of this node wrote between two cuts, as transactions.

In: the cuts table, the subscriptions that there are. Out: for each one the transaction from where
its tables are in the log to its last cut, over all its tables, with the subscription as its origin.
A cut counts for a subscription and its own tables only: one that a dropped subscription has left
behind says nothing of a table that has another owner, or none, now. What a subscription wrote to a
table that has left it since goes into the log commit by commit, and has an origin still: else it
would go back to where it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.catalog import LakeTable, Member, Sequenced, Subscription, SubscriptionRel
from penstock.lakehouse.cuts import Cut, CutOwner, CutTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.commit_order import Found
from penstock.walsender.commits import newest_version

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
    names = {subscription.app_id: origin_name(subscription.oid) for subscription in subscriptions}
    return names.get(app_id, app_id), lsn


def origin_name(subscription: int) -> str:
    """As PostgreSQL's subscriber names its origins (ReplicationOriginNameForLogicalRep)."""
    return f"pg_{subscription}"


def owners(subscriptions: Sequence[Subscription], rels: Sequence[SubscriptionRel]) -> Owners:
    """Who maintains what."""
    oids = {subscription.oid for subscription in subscriptions}
    return {(rel.schema, rel.table): rel.subid for rel in rels if rel.subid in oids}


class CutCommits:
    """For one thread at a time."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._read: tuple[int | None, frozenset[tuple[int, CutOwner]]] | None = None
        self._cuts: dict[int, Cut] = {}

    def refresh(self, subscriptions: Sequence[Subscription]) -> None:
        """Read the last cut of each, where the cuts table or the subscriptions have changed."""
        cuts = self._warehouse.cuts
        wanted = frozenset((s.oid, CutOwner(s.name, s.app_id)) for s in subscriptions)
        version = newest_version(self._warehouse.storage, cuts.uri) if wanted else None
        if self._read == (version, wanted):
            return
        found = {oid: cuts.last(owner) for oid, owner in wanted} if version is not None else {}
        self._cuts = {oid: cut for oid, cut in found.items() if cut is not None}
        self._read = version, wanted

    def version(self, owner: int, uri: str, newest: int) -> int:
        """The version of a table in its subscription's last cut; ``newest`` where it is in none."""
        cut = self._cuts.get(owner)
        members = () if cut is None else cut.tables.values()
        return next((at.version for at in members if at.uri == uri), newest)

    def moved(
        self, tables: Sequence[LakeTable], sequenced: Mapping[int, Sequenced], owners: Owners
    ) -> Iterator[tuple[int, Cut, list[CutMember]]]:
        """Subscription, cut and tables for each cut that has gone on."""
        for subscription, cut in sorted(self._cuts.items()):
            there = {at.uri: at for at in cut.tables.values()}
            members = [
                CutMember(table, sequenced[table.oid], there[table.uri].version)
                for table in tables
                if table.uri in there
                and owners.get((table.schema, table.name)) == subscription
                and table.oid in sequenced
                and _has_moved(sequenced[table.oid], there[table.uri])
            ]
            if members:
                yield subscription, cut, members


def _has_moved(at: Sequenced, cut: CutTable) -> bool:
    """A cut of another table, which lay or lies there, has moved nothing."""
    other = at.table_id is not None and cut.id is not None and at.table_id != cut.id
    return at.version < cut.version and not other


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
