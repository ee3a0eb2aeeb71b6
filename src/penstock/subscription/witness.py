"""Looks at whether publisher, slot, cuts and tables belong together, once a session.

In: a session on the publisher, then the open tables. Out: the last cut, and the errors of
``agreement``; the publisher's identity is recorded when it is first seen and after a promotion.
What it costs: three queries, the cuts table's log, one small file, no Spark job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.catalog.pg_subscription import PublisherIdentity, Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.lakehouse.cuts import Cut, CutOwner, CutTable
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.subscription.agreement import (
    PublisherState,
    TableState,
    check_identity,
    check_publisher,
    check_tables,
)
from penstock.subscription.publisher_state import publisher_state
from penstock.subscription.targets import Target, Targets
from penstock.walreceiver.publisher import Publisher

log = logging.getLogger(__name__)

_JOINING_COMMITS: Final = 100
"""How many entries of a table that is in no cut yet are read; a cut comes long before."""


class Witness:
    """Of one subscription; ``begin``, then ``check``, in each session."""

    def __init__(
        self,
        subscription: Subscription,
        warehouse: Warehouse,
        record_publisher: Callable[[PublisherIdentity], None],
    ) -> None:
        self.last_cut: Cut | None = None
        self._subscription = subscription
        self._owner = CutOwner(subscription.name, subscription.app_id)
        self._warehouse = warehouse
        self._record = record_publisher
        self._known = subscription.publisher
        self._server: PublisherState | None = None

    def begin(self, publisher: Publisher) -> None:
        """Before anything is created. Raises StateMismatch, StorageError, ConnectionFailure."""
        self._warehouse.check_there()
        subscription, cuts = self._subscription, self._warehouse.cuts
        self._server = publisher_state(publisher, subscription.slot_name, self._known)
        check_identity(subscription.name, self._known, self._server.identity)
        self.last_cut = cuts.last(self._owner)
        if self.last_cut is None:
            cuts.forget_others(self._owner)
        else:
            # As for the tables' logs: what is read here is acknowledged.
            self._warehouse.storage.sync_folder(log_folder(cuts.uri))

    def check_missing(self, rel: SubscriptionRel) -> None:
        """A table without a log: raises StateMismatch where it had one."""
        state = TableState(
            rel.qualified_name, rel.state, rel.lsn, None, None, None, self._in_cut(rel)
        )
        check_tables(self._subscription.name, self._cut_lsn, [state], self._warehouse.cuts.uri)

    def check(self, targets: Targets) -> None:
        """Before anything is copied or streamed. Raises StateMismatch, ConnectionFailure."""
        assert self._server is not None
        name, lsn = self._subscription.name, self._cut_lsn
        tables = [self._state(target) for target in targets]
        check_tables(name, lsn, tables, self._warehouse.cuts.uri)
        check_publisher(name, self._known, self._server, lsn, tables)
        for target in targets:
            pinned, newest = self._in_cut(target.rel), target.table.version
            since = max(-1, newest - _JOINING_COMMITS) if pinned is None else pinned.version
            target.table.check_restored(since)
        if self._known != self._server.identity:
            log.info('subscription "%s" follows %s', name, self._server.identity)
            self._record(self._server.identity)
            self._known = self._server.identity

    @property
    def _cut_lsn(self) -> Lsn | None:
        return None if self.last_cut is None else self.last_cut.lsn

    def _state(self, target: Target) -> TableState:
        rel, table = target.rel, target.table
        return TableState(
            name=rel.qualified_name,
            state=rel.state,
            joined=rel.lsn,
            marker=target.marker,
            version=table.version,
            id=table.id,
            cut=self._in_cut(rel),
        )

    def _in_cut(self, rel: SubscriptionRel) -> CutTable | None:
        return None if self.last_cut is None else self.last_cut.tables.get(rel.table_name)
