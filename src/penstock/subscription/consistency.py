"""Check, once in each session, that publisher, slot, cuts and tables belong together.

The check asks the publisher about itself and the slot, reads the last cut and the open tables, and
applies ``consistency_rules``. The caller parks tables that have errors of their own. The
publisher's identity is recorded at the first connection and after a promotion.

The check sends three queries, or four if the timeline has changed, and reads the cuts table's Delta
log and one small file; it runs no Spark job. A followed standby costs one more query before each
commit and each cut, because its clients are not notified of a promotion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from penstock.catalog.pg_subscription import DroppedSubscription, Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import PublisherIdentity, check_identity
from penstock.errors import ConnectionFailure, PenstockError, PublisherError
from penstock.lakehouse.cuts import Cut, CutOwner, CutTable
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.relation import TableName
from penstock.subscription.consistency_rules import (
    PublisherState,
    TableHistory,
    check_cuts,
    check_publisher,
    check_slot,
    check_table,
)
from penstock.subscription.target import Target
from penstock.subscription.targets import Predecessors, Targets
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.publisher import Publisher, database, identify_system
from penstock.walreceiver.slots import MISSING


def publisher_state(
    publisher: Publisher,
    slot: str | None,
    known: PublisherIdentity | None,
    besides: Iterable[PublisherIdentity] = (),
) -> PublisherState:
    """Ask a publisher for its state. ``besides``: other identities whose timelines matter.

    Raises ConnectionFailure, PublisherError.
    """
    # Read the slot first: it only moves forward, and never beyond an LSN that is read later.
    found = None if slot is None else publisher.slot_state(slot)
    system = publisher.identify_system()
    database_oid, in_recovery = publisher.database()
    followed = [one for one in (known, *besides) if one is not None]
    changed = any(
        one.system_id == system.system_id and one.timeline != system.timeline for one in followed
    )
    return PublisherState(
        identity=PublisherIdentity(system.system_id, system.timeline, database_oid),
        position=system.xlogpos,
        in_recovery=in_recovery,
        forks=publisher.timeline_history(system.timeline) if changed else {},
        confirmed=None if found is None else found.confirmed_flush_lsn,
        wal_status=MISSING if found is None else found.wal_status,
    )


class TimelineWatch:
    """A check that a standby is still on the timeline on which the session began to follow it.

    A standby's walsender continues silently after a promotion of the standby or of its upstream
    server. If the timeline is unchanged, everything received before the check belongs to it. So
    changes of a new timeline are committed only by a session that knows it, even after crashes.
    """

    def __init__(self, connect: Callable[[], Connection], unseen: Callable[[], None]) -> None:
        """``connect``: opens another walsender session on the publisher. ``unseen``: records that
        the timeline may have changed."""
        self._connect, self._unseen = connect, unseen
        self._connection: Connection | None = None
        self._timeline: int | None = None
        self._started = ""

    def begin(self, connection: Connection, server: PublisherState) -> None:
        """Begin to watch, if the server is a standby. ``connection``: the session's; ``server``:
        the state that was read through this connection."""
        self._timeline = server.identity.timeline if server.in_recovery else None
        if self._timeline is not None:
            self._started = _started(connection)

    def holds(self) -> bool:
        """Return whether the timeline is still the same.

        If the server does not answer, return True and call ``unseen``: the next session derives the
        timeline from the slot's confirmed LSN.
        """
        if self._timeline is None:
            return True
        kept = self._connection is not None
        try:
            return self._ask() == self._timeline
        except (ConnectionFailure, PublisherError) as error:
            self.close()
            if kept:  # the idle session may have been ended, so ask once more in a new session
                return self.holds()
            log.warning("the publisher's timeline could not be read: %s", error.message)
            self._unseen()
            return True

    def _ask(self) -> int:
        if self._connection is None:
            self._connection = self._connect()
            if _started(self._connection) != self._started:
                raise ConnectionFailure("another server has answered")
        return identify_system(self._connection, _ANSWER_S).timeline

    def close(self) -> None:
        """End the session on the publisher."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _started(connection: Connection) -> str:
    """Return a server's start time in microseconds. It distinguishes the servers of one cluster."""
    ((started,),) = connection.query(
        "SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())"
    )
    return str(started)


def server_identity(connection: Connection) -> PublisherIdentity:
    """Return the identity of a connection's server. Raises ConnectionFailure, PublisherError."""
    system, (database_oid, _) = identify_system(connection), database(connection)
    return PublisherIdentity(system.system_id, system.timeline, database_oid)


log = logging.getLogger(__name__)

_ANSWER_S: Final = 10.0
"""Seconds in which a publisher must report its timeline; no commit waits longer."""

_JOINING_COMMITS: Final = 100
"""The number of Delta log entries to read of a table that is in no cut yet. A table joins the cuts
long before it has more entries."""


class ConsistencyCheck:
    """The checks of one subscription; call ``begin``, then ``check``, in each session."""

    def __init__(
        self,
        subscription: Subscription,
        warehouse: Warehouse,
        record_publisher: Callable[[PublisherIdentity], None],
        origin_lsn: Callable[[], Lsn] = lambda: INVALID,
        dropped: Callable[[], Sequence[DroppedSubscription]] = lambda: (),
        begin_again: Callable[[], None] = lambda: None,
    ) -> None:
        """``origin_lsn``: returns the LSN to which the replication origin was advanced.
        ``dropped``: returns subscriptions that may have left tables. ``begin_again``: makes another
        session begin."""
        self._begin_again = begin_again
        self._dropped_now = dropped
        self._dropped: Sequence[DroppedSubscription] = ()
        self._origin_lsn = origin_lsn
        self.last_cut: Cut | None = None
        self._subscription = subscription
        self._owner = CutOwner(subscription.name, subscription.app_id)
        self._warehouse = warehouse
        self._record = record_publisher
        self._known = subscription.publisher
        self._server: PublisherState | None = None

    def begin(self, publisher: Publisher) -> None:
        """Check warehouse, publisher and slot. Call it before anything is created.

        Raises StateMismatch, UndefinedObject (the slot is gone), StorageError, ConnectionFailure.
        """
        self._warehouse.check_there()
        subscription, cuts = self._subscription, self._warehouse.cuts
        self._dropped = self._dropped_now()
        besides = [one.publisher for one in self._dropped if one.publisher is not None]
        self._server = publisher_state(publisher, subscription.slot_name, self._known, besides)
        check_identity(subscription.name, self._known, self._server.identity)
        self.last_cut = cuts.last(self._owner)
        check_slot(subscription.name, subscription.slot_name, self._server, self._cut_lsn)
        if self.last_cut is not None:
            # The cut read here will be acknowledged, so it must be durable, as the tables' Delta
            # logs must.
            self._warehouse.storage.sync_folder(log_folder(cuts.uri))

    def unknown(self, rels: Sequence[SubscriptionRel]) -> dict[TableName, CutTable]:
        """Return the tables of the last cut that ``rels`` lack, or show as still to be copied.

        Usually they have left the subscription since. Otherwise ``rels`` are of an older copy of
        the node's state. Histories, and cuts of older versions, have no ``relid``.
        """
        tables = {} if self.last_cut is None else self.last_cut.tables
        waiting = {rel.table_name for rel in rels if rel.never_copied}
        known = {rel.table_name for rel in rels} - waiting
        # A table that was renamed at the publisher may be there under its other name already.
        relids = {rel.relid: rel.table_name for rel in rels}
        return {
            name: table
            for name, table in tables.items()
            if name not in known
            and not table.partition
            and table.id is not None
            and table.relid is not None
            and relids.get(table.relid, name) == name
        }

    def partitions(self) -> dict[int, list[tuple[TableName, CutTable]]]:
        """Return the partitions in the last cut, by the publisher's OID of the table."""
        found: dict[int, list[tuple[TableName, CutTable]]] = {}
        for name, table in ({} if self.last_cut is None else self.last_cut.tables).items():
            if table.partition and table.relid is not None:
                found.setdefault(table.relid, []).append((name, table))
        return found

    def predecessors(self, name_of: Callable[[str], str | None]) -> Predecessors:
        """Return the dropped subscriptions that may have filled the tables to open. ``name_of``:
        returns a subscription's name by its app id."""
        assert self._server is not None
        subscription = self._subscription
        return Predecessors(
            subscription.name,
            subscription.app_id,
            self._dropped,
            name_of,
            self._server,
            self._cut_lsn,
            self._origin_lsn(),
        )

    def check_cuts(self, rels: Iterable[SubscriptionRel]) -> None:
        """Raise StateMismatch if the cuts are gone. Call it before the tables are opened."""
        check_cuts(self._subscription.name, self._cut_lsn, rels, self._warehouse.cuts.uri)

    def check_missing(self, rel: SubscriptionRel) -> None:
        """Raise StateMismatch if a table without a Delta log once had one."""
        state = TableHistory(
            rel.qualified_name, rel.state, rel.lsn, None, None, None, self._in_cut(rel)
        )
        check_table(self._subscription.name, state, self._cut_lsn)

    def check(
        self, targets: Targets, refuse: Callable[[SubscriptionRel, PenstockError], None]
    ) -> None:
        """Check the open tables, and that the publisher matches them. Call it before anything is
        copied or streamed. Raises StateMismatch, ConnectionFailure.

        ``refuse``: is called for each table that fails its check; unless it raises, the table is
        closed.
        """
        assert self._server is not None
        for target in list(targets):
            try:
                self._check_table(target)
            except PenstockError as error:
                refuse(target.rel, error)
                targets.close(target)
        tables = [self._state(target) for target in targets]
        tables += [state for target in targets for state in self._half_applied(target)]
        check_publisher(
            self._subscription.name,
            self._known,
            self._server,
            self._cut_lsn,
            tables,
            self._origin_lsn(),
        )
        if self._known != self._server.identity:
            name, identity = self._subscription.name, self._server.identity
            log.info('subscription "%s" follows %s', name, identity)
            self._record(identity)
            self._known = identity

    def timeline_unseen(self) -> None:
        """Record that the subscription may follow a standby to another timeline."""
        if self._known is not None and not self._known.standby:
            self._known = replace(self._known, standby=True)
            self._record(self._known)

    @property
    def server(self) -> PublisherState:
        """The publisher's state as the session began."""
        assert self._server is not None
        return self._server

    def check_connection(self, connection: Connection) -> None:
        """Check a further connection of a session or of its copies: a host name, or a list of
        hosts, may lead to another server each time.

        Raises StateMismatch for another server; ConnectionFailure for another timeline, whose
        history the next session checks.
        """
        name, known, server = self._subscription.name, self._known, server_identity(connection)
        check_identity(name, known, server)
        if known is not None and known.timeline != server.timeline:
            self._begin_again()
            raise ConnectionFailure(
                f'the publisher of subscription "{name}" is on timeline {server.timeline}, and was '
                f"on {known.timeline}",
                sqlstate="57P03",
            )

    def check_ordinary(self, connection: Connection) -> None:
        """Check an ordinary connection, no walsender's, as far as its role's rights allow. Raises
        StateMismatch."""
        if self._known is None:
            return
        try:
            ((system_id,),) = connection.query(
                "SELECT system_identifier FROM pg_catalog.pg_control_system()"
            )
        except PublisherError:
            return
        database_oid, _ = database(connection)
        server = replace(self._known, system_id=str(system_id), database_oid=database_oid)
        check_identity(self._subscription.name, self._known, server)

    def _half_applied(self, target: Target) -> list[TableHistory]:
        """Return the partitions with a batch that others may lack and that must be sent again."""
        leaves = () if target.partitions is None else target.partitions.leaves
        return [
            TableHistory(
                name=leaf.newest.name,
                state=SubscriptionRelState.READY,
                joined=None,
                marker=leaf.half_applied,
                version=leaf.newest.version,
                id=leaf.newest.id,
                cut=None,
            )
            for leaf in leaves
            if leaf.half_applied is not None
        ]

    def _check_partitions(self, target: Target) -> None:
        """Check that the partitions in the last cut are at least at the versions that it names.

        A partition that was dropped and created again is another table; a partition that has joined
        since is in no cut. Raises StateMismatch.
        """
        leaves = () if target.partitions is None else target.partitions.leaves
        for leaf in leaves:
            table = leaf.newest
            pinned = None if self.last_cut is None else self.last_cut.tables.get(leaf.name)
            if pinned is None or pinned.id != table.id or not target.ready:
                continue
            marker = table.transaction_version(self._subscription.app_id)
            state = TableHistory(
                name=table.name,
                state=target.rel.state,
                joined=None,
                marker=None if marker is None else Lsn(marker),
                version=table.version,
                id=table.id,
                cut=pinned,
            )
            check_table(self._subscription.name, state, self._cut_lsn)
            if marker is not None:
                table.check_restored(pinned.version, self._subscription.app_id)

    def _check_table(self, target: Target) -> None:
        self._check_partitions(target)
        state, table = self._state(target), target.table
        check_table(self._subscription.name, state, self._cut_lsn)
        if target.marker is None:
            return  # nothing of ours was ever in it
        if state.pinned is not None:
            table.check_restored(state.pinned.version, self._subscription.app_id)
        else:
            table.check_restored(
                max(-1, table.version - _JOINING_COMMITS), self._subscription.app_id
            )

    @property
    def _cut_lsn(self) -> Lsn | None:
        return None if self.last_cut is None else self.last_cut.lsn

    def _state(self, target: Target) -> TableHistory:
        rel, table = target.rel, target.table
        return TableHistory(
            name=rel.qualified_name,
            state=rel.state,
            joined=rel.lsn,
            marker=target.marker,
            version=table.version,
            id=table.id,
            cut=self._in_cut(rel),
            returned=rel.returned,
        )

    def _in_cut(self, rel: SubscriptionRel) -> CutTable | None:
        return None if self.last_cut is None else self.last_cut.tables.get(rel.table_name)
