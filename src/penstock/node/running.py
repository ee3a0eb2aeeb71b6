"""A running node: the launcher's loop and the reports about its workers.

Each package declares its own options; this file builds them from the node's parameters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from penstock import kernel
from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_stat_subscription import STREAMING, SubscriptionCounts
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.commands.scope import CommandScope
from penstock.commands.subscriptioncmds import alter_refresh, refresh_tables
from penstock.errors import (
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    StorageError,
    UndefinedObject,
)
from penstock.lakehouse.cluster import Cluster
from penstock.lakehouse.cuts import CutTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node.guc import LiveParameters, Parameters
from penstock.node.reports import Reports
from penstock.node.session_commands import connect_publisher
from penstock.node.standing_proof import StandingProof
from penstock.pg_catalog.snapshot import NODE_OWNER
from penstock.pipeline.compact import CompactOptions
from penstock.pipeline.job import HERE_SECONDS, HERE_SECONDS_IF_NARROW, narrow_cores
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.pipeline.payload import remove_leftovers
from penstock.pipeline.table_copy import CopyOptions
from penstock.pipeline.table_work import ApplyOptions
from penstock.relation import TableName
from penstock.sql import AlterSubscriptionRefresh, AlterSubscriptionRefreshTables
from penstock.sql.grammar.parsenodes import RangeVar
from penstock.stats.backend_status import ACTIVE, IDLE, Activity, BackendType, Session, Sessions
from penstock.subscription.apply_error import SkipLsns
from penstock.subscription.applyparallelworker import remove_orphaned_files
from penstock.subscription.cut_requests import RequestedCuts
from penstock.subscription.in_doubt_commits import InDoubtCommits
from penstock.subscription.launcher import Launcher, WorkerSpec
from penstock.subscription.origin import AdvancedOrigin, check_state
from penstock.subscription.prepared import two_phase
from penstock.subscription.record import Records
from penstock.subscription.spool import empty_folder
from penstock.subscription.streaming import StreamOptions
from penstock.subscription.tablesync import NOT_COPIED, SyncOptions
from penstock.subscription.upkeep import UpkeepOptions
from penstock.subscription.worker import ApplyWorker, CatalogAccess
from penstock.subscription.worker_status import WorkerStatus
from penstock.wait_event import Patience

log = logging.getLogger(__name__)


def copy_options(parameters: Parameters) -> CopyOptions:
    """Return the options of the initial copy."""
    return CopyOptions(unit_bytes=parameters.copy_unit_size)


def sync_options(parameters: Parameters) -> SyncOptions:
    """Return the options of all copies of a subscription."""
    return SyncOptions(
        copy=copy_options(parameters),
        retry_interval=parameters.wal_retrieve_retry_interval,
        tables=parameters.max_sync_workers_per_subscription,
        snapshot_timeout=parameters.copy_snapshot_timeout,
    )


def stream_options(parameters: Parameters, spool: Path, indexes: KeyIndexes) -> StreamOptions:
    """Return the options of the stream and the upkeep beside it, and apply the size of
    ``indexes``."""
    indexes.disk_bytes = parameters.key_index_size
    cores = narrow_cores(parameters.spark.master)
    here = HERE_SECONDS if cores is None else HERE_SECONDS_IF_NARROW
    return StreamOptions(
        apply=ApplyOptions(here_seconds=here, narrow_cores=cores, indexes=indexes),
        track_commit_timestamp=parameters.track_commit_timestamp,
        upkeep=UpkeepOptions(
            compact=CompactOptions(
                small_files=parameters.compact_small_files,
                dead_ratio=parameters.compact_dead_ratio,
                batch_bytes=max(1, parameters.maintenance_work_mem // 4),
            ),
            checkpoint_commits=parameters.checkpoint_commits,
            cuts_kept=parameters.cuts_kept,
            cuts_kept_for=parameters.cuts_kept_for,
        ),
        spool_folder=spool,
        piece_bytes=parameters.logical_decoding_work_mem,
        piece_frames=parameters.apply_batch_rows,
        queue_bytes=parameters.apply_queue_mem,
        batch_delay=parameters.apply_batch_delay,
        batch_idle=parameters.apply_batch_idle,
        backlog_delay=parameters.apply_backlog_delay,
        backlog_threshold=parameters.backlog_copy_threshold,
        status_interval=parameters.wal_receiver_status_interval,
        receiver_timeout=parameters.wal_receiver_timeout,
    )


_LOOK_INTERVAL: Final = 0.2
"""Seconds between two readings of the catalog's change counter."""

_STEP_INTERVAL: Final = 5.0
"""Seconds after which the launcher reads the catalog even if the change counter has not moved."""
_REPORT_INTERVAL: Final = 1.0
"""Seconds between two reports of the workers' numbers, and the launcher's pause after it failed to
read the catalog."""
_LONGEST_CONNECT: Final = 3.0
"""Seconds for which ``stop`` waits for a worker that is connecting: an answer takes less, and who
sends SIGTERM does not wait longer for one that does not come."""

_OLDEST_JOB: Final = timedelta(hours=1)
"""No Spark job of a batch takes longer: files of older jobs are leftovers of a crash."""


class RunningNode:
    """The threads of a started node."""

    def __init__(
        self,
        folder: Path,
        parameters: LiveParameters,
        spark: Cluster,
        warehouse: Warehouse,
        catalog: Catalog,
        sessions: Sessions,
        indexes: KeyIndexes,
    ) -> None:
        """Prepare the threads. ``sessions``: the list in which workers are shown. ``stop`` closes
        ``indexes``."""
        self.ended: Callable[[], None] = lambda: None
        """Called when an error ends the launcher: another process may run the node now."""
        self.check_claims: Callable[[], None] = lambda: None
        """Raises ObjectInUse once another process has taken the warehouse, or may run the node."""
        self._live = parameters
        self._spark = spark
        self._warehouse = warehouse
        self._catalog = catalog
        self._sessions = sessions
        self._spool = folder / "spool"
        self._indexes = indexes
        self._launcher = Launcher(
            self._specs,
            self._make_worker,
            lambda: self._parameters.max_logical_replication_workers,
        )
        self._in_doubt: defaultdict[int, InDoubtCommits] = defaultdict(InDoubtCommits)
        """Commits in doubt by subscription oid: they outlive the subscription's workers."""
        self._records = Records(warehouse)
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)
        self._reporter = threading.Thread(target=self._report_all, name="stats", daemon=True)
        self._reports = Reports(catalog, lambda: spark.starved)
        self._proof = StandingProof(
            catalog,
            warehouse,
            spark,
            lambda: copy_options(self._parameters),
            self._primary_key_name,
            self._tables_changed,
            lambda: self._parameters.verifications_kept_for,
        )

    @property
    def _parameters(self) -> Parameters:
        return self._live.now

    def start(self) -> None:
        """Start the threads."""
        remove_orphaned_files(self._warehouse.storage, self._spool)
        empty_folder(self._spool)
        remove_leftovers(self._warehouse.storage, datetime.now(UTC) - _OLDEST_JOB)
        self._thread.start()
        threading.Thread(target=kernel.prepare, name="kernels", daemon=True).start()
        self._reporter.start()
        self._proof.start()

    def begin_stop(self) -> None:
        """Ask every worker to end after its current cut, and the threads to end."""
        self._stopping.set()
        self._proof.stop()
        self._launcher.stop()  # the launcher itself may be waiting for the state store

    def stop(self, patience: Patience) -> None:
        """Wait until all that ``begin_stop`` has asked have ended."""
        self.begin_stop()
        patience.join(self._thread, "launcher")
        patience.join(self._proof.thread, "standing proof")
        patience.join(self._reporter, "statistics")
        patience.run(self._indexes.close, "key indexes")

    def check(self) -> None:
        """Raise the error that has ended the launcher, if any."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        looked: tuple[int, float] | None = None
        try:
            while not self._stopping.wait(_LOOK_INTERVAL):
                try:
                    looked = self._look(looked)
                except ObjectInUse:
                    raise  # another process has taken the node over meanwhile
                except PenstockError as error:
                    # The workers continue; they only notice changes late.
                    log.warning("could not look at the subscriptions: %s", error.message)
                    self._stopping.wait(_REPORT_INTERVAL)
        except BaseException as error:
            log.exception("the launcher has ended")
            self._error = error
            self.ended()
        finally:
            self._launcher.stop()
            self._launcher.join(_LONGEST_CONNECT)

    def _look(self, before: tuple[int, float] | None) -> tuple[int, float]:
        """Bring the workers in step with the catalog, when it has changed and at intervals."""
        self.check_claims()
        now, at = self._catalog.generation(), time.monotonic()
        recent = before is not None and now == before[0] and at - before[1] < _STEP_INTERVAL
        if before is not None and recent and not self._launcher.has_work:
            return before
        self._catalog.node_lock.keep()
        self._launcher.step()
        try:
            self._records.keep(self._catalog.subscriptions())
        except StorageError as error:
            log.warning("the records of the subscriptions are not up to date: %s", error.message)
        return now, at

    def _specs(self) -> Iterable[WorkerSpec]:
        with self._catalog.read() as catalog:
            rels = catalog.relations.all()
            return [
                WorkerSpec(s, frozenset(r.sync_id for r in rels if r.subid == s.oid))
                for s in catalog.subscriptions.all()
                if s.should_run
            ]

    def _make_worker(self, subscription: Subscription) -> ApplyWorker:
        oid = subscription.oid
        return ApplyWorker(
            subscription,
            spark=self._spark,
            warehouse=self._warehouse,
            catalog=CatalogAccess(
                generation=self._catalog.generation,
                rels=lambda: self._catalog.relations(oid),
                subscription_with_rels=lambda: self._catalog.subscription_with_relations(oid),
                take_up=self._take_up,
                set_state=self._set_state,
                check_origin=lambda: self._check_origin(subscription),
                record_publisher=lambda identity: self._catalog.record_publisher(oid, identity),
                park=self._park,
                bind=self._catalog.bind,
                copy_again=self._catalog.copy_again,
                record_definition=self._catalog.record_definition,
                record_conflict=self._catalog.record_conflict,
                member=self._catalog.member,
                partition_tree=self._catalog.partition_tree,
                table_uris=self._catalog.table_uris,
                enum_types=self._catalog.enum_types,
                next_values=self._catalog.next_values,
                restart_sequences=self._catalog.restart_sequences,
                primary_key_name=self._primary_key_name,
                subscription_name=self._catalog.subscription_name,
                dropped_subscriptions=self._catalog.dropped_subscriptions,
                origin_name=self._origin_name,
                requested_cuts=self._requested_cuts(oid),
                two_phase=lambda: two_phase(
                    self._catalog, self._warehouse, subscription, self._spool / str(oid)
                ),
                follow_change=lambda rel, error: follow_change(
                    self._catalog, self._warehouse, rel, error
                ),
                count=lambda more: self._count(oid, more),
                skip_lsns=self._skip_lsns(oid),
                advanced_origin=AdvancedOrigin(
                    lambda: self._catalog.origin_lsn(oid),
                    lambda lsn: self._catalog.clear_origin_lsn(oid, lsn),
                ),
                record_stop=lambda error, table, disable: self._catalog.record_error(
                    subscription, error, stopped=True, table=table, disable=disable
                ),
            ),
            sync_options=lambda: sync_options(self._parameters),
            stream_options=lambda: stream_options(self._parameters, self._spool, self._indexes),
            activity=ShownWorkers(
                self._sessions, self._parameters.database, oid, lambda: self._owner(oid)
            ),
            in_doubt=self._in_doubt[oid],
        )

    def _check_origin(self, subscription: Subscription) -> None:
        with self._catalog.read() as catalog:
            followed = {r.subid for r in catalog.relations.all() if r.state not in NOT_COPIED}
            known = catalog.subscriptions.all()
        most = self._parameters.max_active_replication_origins
        check_state(subscription, known, followed, most)

    def _tables_changed(self, subid: int) -> None:
        worker = self._launcher.workers.get(subid)
        if worker is not None:
            worker.tables_changed()

    def _requested_cuts(self, subid: int) -> RequestedCuts:
        catalog = self._catalog
        return RequestedCuts(
            catalog.generation, lambda: catalog.cut_requests(subid), catalog.forget_cut_request
        )

    def _count(self, subid: int, more: SubscriptionCounts) -> None:
        try:
            self._catalog.statistics.count(subid, more)
        except Exception as error:
            log.warning("could not write statistics: %s", error)

    def _skip_lsns(self, subid: int) -> SkipLsns:
        catalog = self._catalog
        return SkipLsns(
            catalog.generation,
            lambda: catalog.skip_lsns(subid),
            lambda lsn: catalog.begin_skipping(subid, lsn),
            lambda lsn: catalog.clear_skip_lsn(subid, lsn),
        )

    def _owner(self, oid: int) -> int | None:
        with self._catalog.read() as transaction:
            found = transaction.subscriptions.find_oid(oid)
        return None if found is None else found.owner

    def _origin_name(self, app_id: str) -> str | None:
        known = self._catalog.subscriptions()
        return next((found.origin_name for found in known if found.app_id == app_id), None)

    def _primary_key_name(self, table: TableName) -> str | None:
        with self._catalog.read() as transaction:
            found = transaction.tables.find(*table)
        return found.primary_key_name if found is not None and found.primary_key else None

    def _set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> None:
        try:
            self._catalog.set_state(rel, state, lsn)
        except UndefinedObject as gone:
            # REFRESH has removed the table meanwhile; the worker notices that.
            log.info("%s", gone.message)

    def _take_up(
        self, subid: int, table: TableName, pinned: CutTable, lsn: Lsn, conflict: str | None
    ) -> bool:
        return self._catalog.take_up(
            subid, table, lsn, relid=pinned.relid, table_id=pinned.id, conflict=conflict
        )

    def _park(self, rel: SubscriptionRel, error: BaseException) -> None:
        try:
            self._catalog.park(rel, error)
        except UndefinedObject as gone:
            # REFRESH came first: the subscription has other tables now, so no cut can leave these
            # changes out (``subscription.worker.MembershipWatch``).
            log.info("%s", gone.message)

    def _report_all(self) -> None:
        while not self._stopping.is_set():
            self._reports.write(self._launcher.told_of)
            self._stopping.wait(_REPORT_INTERVAL)
        self._thread.join()
        self._reports.write(self._launcher.told_of)


# ``schema_change = follow``: a table that cannot follow a change by itself is copied again, by the
# statement that a user would run. That is REFRESH TABLE, or REFRESH PUBLICATION if the publisher's
# table of this name is now another relation, or gone. The copy has everything committed so far;
# later changes follow. Each try is recorded with the copy: a node that is killed before that finds
# the change again.


def follow_change(
    catalog: Catalog, warehouse: Warehouse, rel: SubscriptionRel, error: BaseException
) -> None:
    """Copy a table again after ``error``. Raises the statements' errors, and NotInPrerequisiteState
    if the table has left its subscription."""
    now = next((r for r in catalog.relations(rel.subid) if r.table_name == rel.table_name), None)
    with catalog.read() as transaction:
        subscription = transaction.subscriptions.find_oid(rel.subid)
    if subscription is None or now is None:
        raise NotInPrerequisiteState(f'table "{rel.qualified_name}" has left its subscription')
    log.info(
        'subscription "%s" follows a change of table "%s", which is copied again: %s',
        subscription.name,
        rel.qualified_name,
        error,
    )
    scope = CommandScope(warehouse=warehouse)
    if now.conflict is None:
        table = RangeVar(rel.table, rel.schema)
        refresh = AlterSubscriptionRefreshTables(subscription.name, (table,))
        try:
            refresh_tables(refresh, catalog, connect_publisher, scope)
            return
        except NotInPrerequisiteState:  # it was renamed, or removed from the publications
            log.info('table "%s" is not published under its name', rel.qualified_name)
    alter_refresh(AlterSubscriptionRefresh(subscription.name), catalog, connect_publisher, scope)


# Workers of subscriptions, shown among the sessions of the port (pg_stat_activity). Each worker is
# a session with a pid. ``pg_terminate_backend`` ends it, and the next worker begins at once.

_NO_NAME: Final = ""
"""A worker's application_name here; only its session at the publisher has one."""


@dataclass(frozen=True, slots=True)
class ShownWorkers:
    """The ``worker_status.WorkerActivity`` of one subscription. ``subid``: its oid; ``owner``
    returns its owner's oid when a worker begins, None for the node itself."""

    sessions: Sessions
    database: str
    subid: int
    owner: Callable[[], int | None] = lambda: None

    @contextmanager
    def apply(self, status: WorkerStatus, end: Callable[[], None]) -> Iterator[int]:
        """Show the apply worker; yield its pid."""
        session = self._session(BackendType.APPLY, end)
        session.look = lambda activity: _now(activity, status)
        with self._open(session) as pid:
            yield pid

    @contextmanager
    def copies(self, tables: Sequence[TableName], end: Callable[[], None]) -> Iterator[int]:
        """Show the worker that copies tables; yield its pid."""
        session = self._session(BackendType.TABLESYNC, end)
        session.activity = replace(session.activity, tables=tuple(tables))
        with self._open(session) as pid:
            yield pid

    def _session(self, backend_type: BackendType, end: Callable[[], None]) -> Session:
        owner = self.owner()
        activity = Activity(
            pid=self.sessions.next_pid(),
            role=NODE_OWNER if owner is None else owner,
            database=self.database,
            application_name=_NO_NAME,
            address=None,
            port=None,
            backend_type=backend_type,
            started=time.time(),
            state=None,
            subscription=self.subid,
        )
        # On a server, a cancelled worker also ends, with an error.
        return Session(activity, cancel=end, terminate=end)

    @contextmanager
    def _open(self, session: Session) -> Iterator[int]:
        self.sessions.open(session)
        try:
            yield session.activity.pid
        finally:
            self.sessions.close(session)


def _now(activity: Activity, worker: WorkerStatus) -> Activity:
    """Return the worker's activity, which has no state before it streams, as on a server."""
    if worker.state != STREAMING:
        return replace(activity, state=None)
    state = ACTIVE if worker.waiting else IDLE
    return replace(activity, state=state, state_changed=worker.changed_at)
