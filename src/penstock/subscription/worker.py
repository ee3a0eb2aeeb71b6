"""The apply worker of one subscription (worker.c, ApplyWorkerMain).

The subscription's tables follow the publisher until the worker is stopped. A session connects,
starts the copies that are due, and streams. An error ends the session, and ``retry`` decides
whether another session begins. Tables that join later are copied beside the stream; then the
stream is started again from their consistent point (``origin``).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.catalog import LakeTable, SubscriptionCounts
from penstock.catalog.pg_stat_subscription import COPYING
from penstock.catalog.pg_subscription import DroppedSubscription, Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import PublisherIdentity, alter
from penstock.enum_type import EnumType
from penstock.errors import (
    ApplierReplaced,
    AuthenticationFailure,
    CommitConflict,
    ConnectionFailure,
    PenstockError,
)
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.cuts import CutTable
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.relation import TableName, qualified
from penstock.subscription.apply import ApplySession
from penstock.subscription.apply_error import SkipLsns, log_stop, text_of
from penstock.subscription.consistency import ConsistencyCheck, TimelineWatch
from penstock.subscription.copy_target import ensure_table
from penstock.subscription.cut_requests import RequestedCuts
from penstock.subscription.definition_watch import DefinitionWatch
from penstock.subscription.history import begin_history
from penstock.subscription.in_doubt_commits import InDoubtCommits
from penstock.subscription.origin import AdvancedOrigin
from penstock.subscription.parking import Parking
from penstock.subscription.prepared import TwoPhaseOptions
from penstock.subscription.retry import Verdict, decide
from penstock.subscription.streaming import ApplyStream, BinaryStream, NotInBinary, StreamOptions
from penstock.subscription.tablesync import NOT_COPIED, Copies, SyncOptions
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets
from penstock.subscription.worker_status import WorkerActivity, WorkerStatus
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher

log = logging.getLogger(__name__)

CONNECTING: Final = "connecting"
_POLL: Final = 0.1
"""Seconds between two checks of a running copy while nothing streams."""
_PATIENCE: Final = 1.0
"""Seconds that a publisher has to answer once the worker has been told to stop."""

_NOT_PUBLISHED: Final = (
    "It is in the last cut, and neither the node's state, of which an older copy was put back, nor "
    "the subscription's publications ({}) have it, so its changes are not sent. Add its "
    "publication to the subscription first; else the table leaves the subscription."
)
_LOST_PARTITIONS: Final = (
    "The last cut has its partitions {}, and the node's state, of which an older copy was put back "
    "or which was made again, lacks them."
)
_CLOSED: Final = (*NOT_COPIED, SubscriptionRelState.PARKED)


class WorkerStops(Exception):
    """The worker stops without waiting for its publisher. It is nobody's error."""


class ApplyWorker:
    """A thread that keeps one subscription going."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        spark: Spark,
        warehouse: Warehouse,
        catalog: CatalogAccess,
        sync_options: Callable[[], SyncOptions],
        stream_options: Callable[[], StreamOptions],
        activity: WorkerActivity,
        in_doubt: InDoubtCommits,
    ) -> None:
        """``in_doubt``: this subscription's. ``*_options``: return the present options."""
        self.subscription = subscription
        self.status = WorkerStatus(subscription.oid, catalog.count)
        self.pid: int | None = None
        """The worker's pid while sessions follow one another without an error, otherwise None."""
        self._activity = activity
        self._spark = spark
        self._warehouse = warehouse
        self._catalog = catalog
        self._sync_options = sync_options
        self._stream_options = stream_options
        self._consistency = ConsistencyCheck(
            subscription,
            warehouse,
            catalog.record_publisher,
            catalog.advanced_origin.read,
            catalog.dropped_subscriptions,
            lambda: self._changed.set(),
        )
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._terminated = threading.Event()
        self._patient_until = math.inf  # by ``time.monotonic``, for answers of the publisher
        self.others_wait = False
        """True if other subscriptions need a worker: this one ends instead of waiting to retry."""
        self.failures = 0
        """Number of failures in a row."""
        self.gave_way_until: float | None = None
        """The time (``time.monotonic``) at which the next try is due, if the worker has ended to
        make room for others."""
        self._in_doubt = in_doubt
        self._asks_for_binary = subscription.binary
        self._parking: Parking | None = None
        """The session's parking, which knows the table whose error has ended the session."""
        self._copies = Copies(
            subscription,
            spark=spark,
            warehouse=warehouse,
            catalog=catalog,
            options=sync_options,
            status=self.status,
            cancelled=self._stopping.is_set,
            check_connection=self._consistency.check_connection,
            activity=activity,
        )
        self._thread = threading.Thread(
            target=self._run, name=f"apply {subscription.name}", daemon=True
        )

    def go_on_for(self, earlier: ApplyWorker) -> None:
        """Continue for a worker that has ended to make room for others. Call it before ``start``.

        The earlier worker's error and numbers stay. Tables that it could not copy still wait.
        """
        self.failures = earlier.failures
        self._copies.go_on_for(earlier._copies)
        self.status.go_on_from(earlier.status)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the worker to end after the current cut. It does not wait for a publisher that does
        not answer."""
        self._patient_until = min(self._patient_until, time.monotonic() + _PATIENCE)
        self._stopping.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; return whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def tables_changed(self) -> None:
        """Tell the worker that the subscription's tables have changed: it must read them again."""
        self._changed.set()

    def terminate(self) -> None:
        """End the session after the current cut, and begin another session; copies continue."""
        log.warning(
            'subscription "%s": terminating logical replication worker due to '
            "administrator command",
            self.subscription.name,
        )
        self._terminated.set()

    def _run(self) -> None:
        log.info(
            'logical replication apply worker for subscription "%s" has started',
            self.subscription.name,
        )
        try:
            while not self._stopping.is_set():
                try:
                    self._sessions()
                except WorkerStops as stops:
                    log.info("%s", stops)
                    return
                except Exception as error:
                    if not self._again_after(error):
                        return
        finally:
            self._copies.close()
            self.status.state = "stopped"

    def _sessions(self) -> None:
        """Run sessions under one pid, like a server process, until an error, stop or terminate."""
        with self._activity.apply(self.status, self.terminate) as self.pid:
            self._terminated.clear()
            try:
                while not self._stopping.is_set() and not self._terminated.is_set():
                    self._session()
            finally:
                self.pid = None

    def _interrupt(self) -> None:
        """Raise WorkerStops if the worker has been told to stop, and the publisher has had time to
        answer what it is asked."""
        if time.monotonic() >= self._patient_until:
            raise WorkerStops(
                f'subscription "{self.subscription.name}": its worker ends without the answer of '
                "its publisher"
            )

    def _again_after(self, error: Exception) -> bool:
        """Follow a schema change, or wait or stop as ``retry`` decides; return whether to go on."""
        changed = None if self._parking is None else self._parking.to_follow(error)
        if changed is not None:
            try:
                self._catalog.follow_change(changed, error)
                return True
            except ConnectionFailure as lost:  # the next session finds the change again
                error = lost
            except PenstockError as refused:
                log.warning("the change is not followed: %s", refused.message)
        if self.status.progressed_since_failure():
            self.failures = 0
        self.failures += 1
        is_copys = error is self._copies.disabling  # it was recorded as an error of the copy
        if isinstance(error, PenstockError):
            error = error.with_statement(alter(self.subscription.name))
        if not is_copys:
            self.status.failed(error)
        # On a server, disable_on_error takes effect only after the worker has connected. Here it
        # is also the way to choose that a refused login is not tried again.
        passes = isinstance(error, ConnectionFailure) and not isinstance(
            error, AuthenticationFailure
        )
        disables = self.subscription.disable_on_error and not passes
        longest = self._sync_options().retry_interval
        decision = decide(error, self.failures, longest, disable_on_error=disables)
        if decision.verdict is Verdict.STOP:
            try:
                held = self._warehouse.confirm_lease()
            except PenstockError as lost:
                # Another node may have caused the error, and would be stopped by its record.
                log.warning("%s", text_of(lost))
                return not self._stopping.wait(longest)
            if held and isinstance(error, ApplierReplaced):
                late = CommitConflict("")  # of this node: a commit that has arrived late
                decision = decide(late, self.failures, longest)
        if decision.verdict is Verdict.STOP:
            error = log_stop(error, self.subscription.name, disables)
            try:
                rel = None if self._parking is None else self._parking.refused
                self._catalog.record_stop(error, None if rel is None else rel.sync_id, disables)
                return False
            except Exception:
                log.exception("could not record it; it is tried again")
                return not self._stopping.wait(longest)
        unknown = None if isinstance(error, PenstockError) else error
        log.warning("%s", text_of(error), exc_info=unknown)
        log.info('subscription "%s": next try in %.1f s', self.subscription.name, decision.pause)
        self.status.state = "waiting to retry"
        return self._waits_until(time.monotonic() + decision.pause)

    def _waits_until(self, due: float) -> bool:
        """Wait for the next try; return False if the worker makes room for others meanwhile.

        A worker that copies tables makes no room.
        """
        while not (gives_way := self.others_wait and not self._copies.running):
            left = due - time.monotonic()
            if left <= 0 or self._stopping.wait(min(left, _POLL)):
                break
        if gives_way:
            log.info('subscription "%s": its worker ends, others wait', self.subscription.name)
            self.gave_way_until = due
        return not gives_way

    def _session(self) -> None:
        """Connect, open the tables, and stream until the session has to end."""
        # Cleared before the tables are read, so that any later change ends the session.
        self._changed.clear()
        self._parking = None
        self.status.state = CONNECTING
        self._catalog.check_origin()
        record = self._catalog.record_definition
        with (
            closing(DefinitionWatch(self.subscription, record, self._connect_to_look)) as watch,
            closing(
                TimelineWatch(self._connect_walsender, self._consistency.timeline_unseen)
            ) as timeline,
        ):
            self._watched_session(watch, timeline)

    def _watched_session(self, definitions: DefinitionWatch, timeline: TimelineWatch) -> None:
        with self._connect_publisher() as publisher:
            if self._stopping.is_set():
                return
            self._consistency.begin(publisher)
            self._take_up_unknown(publisher)
            self._refuse_lost_partitions()
            self._copies.begin()
            parking = self._parking = self._new_parking()
            members = MembershipWatch(
                self.subscription, self._catalog.generation, self._catalog.subscription_with_rels
            )
            if members.altered:
                self._end_altered()
                return
            targets = self._open_targets(publisher, members.rels, parking, definitions)
            self._consistency.check(targets, parking.refuse)
            timeline.begin(publisher.connection, self._consistency.server)
            self._look_at_definitions(publisher, targets, parking)
            self._copies.start(members.sync_ids)
            binary = BinaryStream(self.subscription, targets)
            in_binary = self._asks_for_binary and binary.begins(publisher)
        if not self._copies.running or any(True for _ in targets):
            self._warn_without_tables()
            session = ApplySession(
                self._spark,
                self._warehouse,
                targets,
                parking,
                self._consistency.last_cut,
                members_hold=lambda: self._members_hold(members) and self._goes_on(timeline),
                origin_of=self._catalog.origin_name,
            )
            stream = ApplyStream(
                session,
                self._catalog,
                binary=binary if in_binary else None,
                options=self._stream_options,
                status=self.status,
                copy_began_at=lambda: self._copies.began_at,
                joined=self._record_joined,
                check_connection=self._consistency.check_connection,
                interrupt=self._interrupt,
            )
            try:
                stream.run(self._told_to_end)
            except NotInBinary as found:
                # Text from now on: even if altered back, the relation first comes as it was.
                self._asks_for_binary = False
                log.warning("%s", found)
            except Exception as error:
                # A table that has left meanwhile may have been dropped, which is no error.
                if self._members_hold(members):
                    raise
                log.info("%s", text_of(error))
        else:
            # No stream yet: changes before the first copy's consistent point would be discarded.
            self.status.state = COPYING
            while not self._told_to_end() and self._copies.running:
                self._stopping.wait(_POLL)

    def _take_up_unknown(self, publisher: Publisher) -> None:
        """Go on with the tables that have joined the cuts since the node's state was copied: the
        older copy was put back, and the next cut would leave them out.

        A table that is not published may be of a publication that the older state does not name
        either. Its changes would not be sent, so it must be copied again.
        """
        name, publications = self.subscription.name, self.subscription.publications
        unknown = self._consistency.unknown(self._catalog.rels())
        lsn = INVALID if self._consistency.last_cut is None else self._consistency.last_cut.lsn
        published = publisher.tables(publications) if unknown else {}
        for table, pinned in unknown.items():
            there = table in published or pinned.relid in published.values()
            conflict = None if there else _NOT_PUBLISHED.format(", ".join(publications))
            if self._catalog.take_up(self.subscription.oid, table, pinned, lsn, conflict):
                log.warning(
                    'subscription "%s" goes on with table "%s", which the node\'s state did not '
                    "have: an older copy of it was put back",
                    name,
                    qualified(*table),
                )
            elif table in published:
                log.warning(
                    'table "%s" is in the last cut of subscription "%s", and is not in the '
                    "subscription any more; %s REFRESH PUBLICATION copies it again",
                    qualified(*table),
                    name,
                    alter(name),
                )

    def _refuse_lost_partitions(self) -> None:
        """Record a conflict for each table with partitions in the last cut that the node's state
        lacks: their rows would not be found. Partitions may have been detached or dropped since."""
        partitions = self._consistency.partitions()
        uris = self._catalog.table_uris() if partitions else ()
        for rel in self._catalog.rels() if partitions else ():
            joined = rel.state is SubscriptionRelState.READY and rel.lsn is not None
            if not joined or rel.conflict is not None or rel.relid not in partitions:
                continue
            tree = self._catalog.partition_tree(rel.table_name)
            lost = [
                f'"{qualified(*name)}"'
                for name, pinned in partitions[rel.relid]
                if not tree or (pinned.uri not in uris and self._is_there(pinned))
            ]
            if lost:
                self._catalog.record_conflict(rel, _LOST_PARTITIONS.format(", ".join(lost)))

    def _is_there(self, pinned: CutTable) -> bool:
        return self._warehouse.storage.exists(log_folder(pinned.uri))

    def _new_parking(self) -> Parking:
        catalog = self._catalog
        return Parking(self.subscription, self._warehouse, catalog.park, catalog.primary_key_name)

    def _warn_without_tables(self) -> None:
        """Warn of a subscription without tables. The subscription streams nevertheless, so that
        the publisher can recycle WAL."""
        if not self._catalog.rels():
            log.warning(
                'subscription "%s" has no tables; once its publications (%s) have some: '
                "%s REFRESH PUBLICATION",
                self.subscription.name,
                ", ".join(self.subscription.publications),
                alter(self.subscription.name),
            )

    def _told_to_end(self) -> bool:
        """Return whether the session ends: on request, or after tables have changed or were copied.

        Once True, the answer stays True for this session.
        """
        if self._copies.step():
            self._changed.set()
        events = (self._stopping, self._changed, self._terminated)
        return any(event.is_set() for event in events)

    def _members_hold(self, members: MembershipWatch) -> bool:
        """Return whether the subscription's tables are still those that this session opened.

        If not, the session ends, and changes after the last cut are sent again.
        """
        if members.holds():
            return True
        if members.altered:
            self._end_altered()
        else:
            log.info('subscription "%s" has other tables now', self.subscription.name)
            self._changed.set()
        return False

    def _goes_on(self, timeline: TimelineWatch) -> bool:
        """Return whether the publisher is still on this session's timeline; if not, the session
        ends.

        The timeline changes if a followed standby or its upstream server is promoted.
        """
        if timeline.holds():
            return True
        log.info('subscription "%s": its publisher has another timeline', self.subscription.name)
        self._changed.set()
        return False

    def _end_altered(self) -> None:
        """End this worker. The launcher starts another one for the altered subscription."""
        log.info('subscription "%s" was altered, its worker ends', self.subscription.name)
        self._stopping.set()

    def _open_targets(
        self,
        publisher: Publisher,
        rels: Sequence[SubscriptionRel],
        parking: Parking,
        definitions: DefinitionWatch,
    ) -> Targets:
        targets = Targets(
            self._warehouse,
            self.subscription,
            self._catalog,
            definitions,
            None if self._consistency.last_cut is None else self._consistency.last_cut.lsn,
            self._in_doubt,
            predecessors=self._consistency.predecessors(self._catalog.subscription_name),
        )
        followed = [rel for rel in rels if rel.state not in _CLOSED]
        self._consistency.check_cuts(followed)
        for rel in followed:
            try:
                self._open_target(targets, rel, publisher)
                self._open_history(targets.named(rel.table_name))
            except PenstockError as error:
                parking.refuse(rel, error)
                if (opened := targets.named(rel.table_name)) is not None:
                    targets.close(opened)
        unbound = [target for target in targets if target.rel.relid is None]
        published = publisher.tables(self.subscription.publications) if unbound else {}
        for target in unbound:
            if target.rel.table_name not in published:
                continue
            try:
                targets.bind(target, published[target.rel.table_name])
            except PenstockError as error:
                parking.refuse(target.rel, error)
                targets.close(target)
        return targets

    def _open_target(self, targets: Targets, rel: SubscriptionRel, publisher: Publisher) -> None:
        if targets.open(rel) is None:
            self._consistency.check_missing(rel)
            info = publisher.table_info(self.subscription.publications, rel.schema, rel.table)
            options = self.subscription
            table = ensure_table(self._warehouse, info, must_be_empty=False, options=options)
            targets.add(rel, table)

    def _open_history(self, target: Target | None) -> None:
        if target is not None and target.rel.table_name in self.subscription.history:
            app_id = self.subscription.app_id
            earlier = self._consistency.predecessors(self._catalog.subscription_name).same_publisher
            target.history = begin_history(self._spark, self._warehouse, target, app_id, earlier)

    def _look_at_definitions(
        self, publisher: Publisher, targets: Targets, parking: Parking
    ) -> None:
        """Find definitions that changed while the node was away. Raises the error of a table,
        unless the table is parked."""
        last_cut, definitions = targets.last_cut or INVALID, targets.definitions
        for target, difference in definitions.begin(publisher.connection, list(targets), last_cut):
            error = targets.settle(target, difference)
            if error is not None:
                parking.refuse(target.rel, error)
                targets.close(target)

    def _connect_publisher(self) -> Publisher:
        return Publisher.connect(
            self.subscription.conninfo, self.subscription.name, interrupt=self._interrupt
        )

    def _connect_walsender(self) -> Connection:
        conninfo, name = ConnInfo.parse(self.subscription.conninfo), self.subscription.name
        return Connection.connect(conninfo, name, interrupt=self._interrupt)

    def _connect_to_look(self) -> Connection:
        """Connect to read definitions while the stream has the session's connection.

        The connection is an ordinary one, so that it takes no walsender's place, unless the
        publisher lets only walsenders in.
        """
        conninfo, name = ConnInfo.parse(self.subscription.conninfo), self.subscription.name
        connect = partial(Connection.connect, conninfo, name, interrupt=self._interrupt)
        try:
            connection = connect(replication=False)
        except (AuthenticationFailure, ConnectionFailure):
            connection = connect()
        try:
            connection.query("SELECT pg_catalog.set_config('lock_timeout', '10s', false)")
            self._consistency.check_ordinary(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _record_joined(self, joined: Sequence[Target], lsn: Lsn) -> None:
        for target in joined:
            if target.rel.state is not SubscriptionRelState.READY:
                self._catalog.set_state(target.rel, SubscriptionRelState.SYNCDONE, lsn)
            self._catalog.set_state(target.rel, SubscriptionRelState.READY, lsn)
        if joined and self._catalog.two_phase().enable:
            log.info(
                'logical replication apply worker for subscription "%s" will restart so that '
                "two_phase can be enabled",
                self.subscription.name,
            )
            self._changed.set()


# Membership: check whether a subscription and its tables are still those of the session's start.
#
# A session ignores changes of tables that it has not opened, and cannot park such tables. If tables
# have been added since, an ignored change may belong to one of them. So each cut follows a check,
# and if the tables differ, no cut is made and nothing is acknowledged: the next session begins at
# the last cut and opens the new tables. If they are the same, the changes up to the cut were
# committed before REFRESH added a table, and that table's copy has them.
#
# The publications of the subscription say which columns and rows of a table are published, and are
# altered together with the tables. A session reads both at once, so that they match.
#
# Others may write to a table that has left. Staged changes are committed only while the tables are
# the same, and they lose to a commit that another writer makes first.
#
# Each batch reads the change counter twice. The rows are read only if the counter has moved.


class MembershipWatch:
    """A subscription and its tables, watched for one session from before it opens the tables."""

    def __init__(
        self,
        subscription: Subscription,
        generation: Callable[[], int],
        now: Callable[[], tuple[Subscription | None, Sequence[SubscriptionRel]]],
    ) -> None:
        """``subscription``: the session's. ``now``: returns the present subscription and its
        tables."""
        self._subscription = subscription
        self._generation = generation
        self._now = now
        # Read before the rows, so that a change between the two is seen later.
        self._looked_at = generation()
        found, rels = now()
        self.altered = not _same(found, subscription)
        """True if the subscription has changed since the worker began: no session of the worker may
        go on."""
        self.rels: Final = tuple(rels)
        self.sync_ids: Final = frozenset(rel.sync_id for rel in self.rels)

    def holds(self) -> bool:
        """Return whether subscription and tables are still the same. Raises StorageError."""
        now = self._generation()
        if now != self._looked_at:
            found, rels = self._now()
            self.altered = not _same(found, self._subscription)
            if self.altered or frozenset(rel.sync_id for rel in rels) != self.sync_ids:
                return False
            self._looked_at = now
        return True


def _same(found: Subscription | None, subscription: Subscription) -> bool:
    return found is not None and found.followed_as(subscription)


# The part of the catalog that an apply worker uses: a record of functions, which the node makes
# from its catalog. So a worker takes no part in the state store's transactions, and sees nothing
# else of the catalog.


@dataclass(frozen=True, slots=True)
class CatalogAccess:
    """The functions by which a worker reads and writes the catalog; ``node`` makes it."""

    generation: Callable[[], int]
    """Return a number that grows with every change of the catalog. Cheap."""
    rels: Callable[[], Sequence[SubscriptionRel]]
    take_up: Callable[[int, TableName, CutTable, Lsn, str | None], bool]
    """Add a table that is in the last cut, at an LSN, to a subscription's tables. The text says why
    it must be copied again. Return False if it has left the subscription, or is there already."""
    subscription_with_rels: Callable[[], tuple[Subscription | None, Sequence[SubscriptionRel]]]
    """Return the present subscription (None if dropped) and its tables, read together."""
    set_state: Callable[[SubscriptionRel, SubscriptionRelState, Lsn | None], object]
    check_origin: Callable[[], None]
    """Raise ConfigurationLimitExceeded if no state is free for the subscription's origin."""
    record_publisher: Callable[[PublisherIdentity], None]
    park: Callable[[SubscriptionRel, BaseException], object]
    """Record that a table no longer follows the publisher, and why."""
    bind: Callable[[SubscriptionRel, int | None, str | None], object]
    copy_again: Callable[[SubscriptionRel, int | None], object]
    record_definition: Callable[[SubscriptionRel, str], object]
    """Record the definitions at the publisher on which a table's rows depend."""
    record_conflict: Callable[[SubscriptionRel, str], object]
    member: Callable[
        [SubscriptionRel, Subscription],
        AbstractContextManager[Callable[[SubscriptionRelState, Lsn | None], object]],
    ]
    """Keep a table in the subscription, and the subscription unchanged, until the block is left.
    Yield a function that sets the table's state."""
    partition_tree: Callable[[TableName], tuple[LakeTable, ...]]
    """Return a partitioned table of the node and its partitions, root first; () if it has none."""
    table_uris: Callable[[], Collection[str]]
    """Return the URIs of all tables of the node."""
    enum_types: Callable[[], tuple[EnumType, ...]]
    """Return the enum types made on the node."""
    next_values: Callable[[TableName, str, int], Sequence[int]]
    """Draw the given number of values from the sequence of a table's column. Raises UndefinedTable
    (42P01), SequenceGeneratorLimitExceeded (2200H)."""
    restart_sequences: Callable[[TableName], object]
    """Restart the sequences of a table's columns, as for TRUNCATE RESTART IDENTITY."""
    primary_key_name: Callable[[TableName], str | None]
    """Return the name of a table's primary key; None if the catalogs lack the key or the table."""
    subscription_name: Callable[[str], str | None]
    """Return a subscription's name by its app id; None if the node has no such subscription."""
    dropped_subscriptions: Callable[[], Sequence[DroppedSubscription]]
    """Return all subscriptions that were dropped on the node."""
    origin_name: Callable[[str], str | None]
    """Return the replication origin's name by app id; None if the node has no such subscription."""
    requested_cuts: RequestedCuts
    two_phase: Callable[[], TwoPhaseOptions]
    """Return the present two-phase commit settings of a session."""
    follow_change: Callable[[SubscriptionRel, BaseException], object]
    """Have a table copied again after its relation has changed at the publisher. Raises the errors
    of REFRESH."""
    count: Callable[[SubscriptionCounts], object]
    """Count errors and conflicts. Never raises."""
    skip_lsns: SkipLsns
    advanced_origin: AdvancedOrigin
    record_stop: Callable[[BaseException, str | None, bool], None]
    """Record that the subscription has stopped because of an error, with the sync id of the error's
    table, and whether the subscription is disabled."""
