"""Tables that a dropped subscription has left, and that another one goes on with.

In: the dropped subscriptions that the catalog knows, what the publisher says of itself, an open
table. Out: the subscription's own marker in the table's log, at the position up to which the
dropped one had filled it, so that nothing is applied twice; or the error where that position means
nothing at this publisher. A slot that is beyond the position is found by ``agreement``.

The commit of the marker also ends the dropped subscription in this table: its worker, if it still
runs, loses the race for the next version, looks whether it is still there, and commits no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from penstock.catalog.pg_subscription import DroppedSubscription, is_app_id
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.errors import CommitConflict
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import INVALID, Lsn
from penstock.subscription.agreement import PublisherState, check_known_start, check_timeline

log = logging.getLogger(__name__)

_OPERATION: Final = "TAKE OVER"


@dataclass(frozen=True, slots=True)
class Predecessors:
    """What a session knows of dropped subscriptions. ``dropped``: all of the node's; ``name_of``:
    the name of a subscription that there is, by its app id; ``last_cut`` and ``advanced``: the last
    cut, and where the replication origin was put."""

    subscription: str
    app_id: str
    dropped: Collection[DroppedSubscription]
    name_of: Callable[[str], str | None]
    server: PublisherState
    last_cut: Lsn | None
    advanced: Lsn

    @property
    def same_publisher(self) -> frozenset[str]:
        """App ids of those whose positions are this publisher's."""
        return frozenset(one.app_id for one in of_publisher(self.dropped, self.server))

    def take_over(self, rel: SubscriptionRel, table: DeltaTable) -> None:
        """Before a table is followed whose rows were not copied. Raises StateMismatch where the
        publisher lacks what the table has, or nobody knows whose it is."""
        joins = rel.state is SubscriptionRelState.READY and rel.lsn is None
        while joins and table.transaction_version(self.app_id) is None:
            position = self._position(table)
            if position is None or position <= (self.last_cut or INVALID):
                return
            try:
                table.commit(app_id=self.app_id, version_marker=position, operation=_OPERATION)
            except CommitConflict:
                table.reload()
            else:
                told = (self.subscription, table.name, position)
                log.info('subscription "%s" goes on with table "%s" at %s', *told)

    def _position(self, table: DeltaTable) -> Lsn | None:
        found: Lsn | None = None
        for one in of_publisher(self.dropped, self.server):
            position = one.position(table.id, table.transaction_version(one.app_id))
            if position is None:
                continue
            owner = f'table "{table.name}"'
            check_timeline(self.subscription, one.publisher, self.server, position, owner)
            found = max(found or INVALID, position)
        if self.last_cut is None and self.advanced == INVALID:
            known = {one.app_id for one in self.dropped}
            markers = (
                table.transaction_version(other) or 0
                for other in table.app_ids - known
                if is_app_id(other) and self.name_of(other) is None
            )
            marker = Lsn(max(markers, default=INVALID))
            if marker > (found or INVALID):
                check_known_start(self.subscription, table.name, marker, self.server)
        return found


def of_publisher(
    dropped: Iterable[DroppedSubscription], server: PublisherState
) -> list[DroppedSubscription]:
    """Those that followed this cluster and database."""
    return [
        one
        for one in dropped
        if one.publisher is not None
        and one.publisher.system_id == server.identity.system_id
        and one.publisher.database_oid == server.identity.database_oid
    ]
