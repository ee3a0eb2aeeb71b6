"""The initial copies of one subscription, round by round, beside its stream (tablesync.c).

Tables in state i or d of pg_subscription_rel are copied and reach state f; the apply worker takes
them to r. A round copies its tables at one snapshot, so they have one LSN and join the stream
together. It runs in a thread, and never waits for the stream.

A server's tablesync worker streams on its own until its table has caught up. Here the apply worker
restarts its stream at the oldest consistent point of the copied tables; the other tables skip
changes up to their own LSNs (``origin.start_lsn``). So there is no state between f and s.

    state  means                            durable as              set by
    i      to be copied                     the catalog's row       CREATE SUBSCRIPTION, REFRESH
    d      the copy may have begun          the catalog's row       a round, before it reads rows
    f      copied at point X                one Delta commit, then  a round, or ``recover`` after a
                                            the catalog's row       crash between the two
    s, r   part of the cuts                 a cut, then the row     the apply worker, after the
                                                                    first cut at X or later
    p      not followed any more            the catalog's row       the apply worker (``parking``)

A round, beside the apply worker and on the publisher:

    apply worker          round                                      publisher
    last cut L  --------> look at tables and locks; make targets
    (acknowledges no      create a temporary slot  --------------->  waits for all that write;
     more than L:                                                    point X, snapshot exported
     began_at)            read the definitions (_Definitions)
                          lock the tables; leave out tables
                          changed since the snapshot
                          i -> d
                          write files not in the Delta log  <------  rows at the snapshot
                          locks held, definitions the same?
                          one Delta commit: rows, X, this copy's
                          marker (leaves before their root)
    new session  <------- d -> f
    stream from X, or from the last cut if that is older
    cut at X or later: f -> s -> r

With copy_data = false a table is in r from the beginning. A table to be copied again gets a new
membership in state i (``pg_subscription_rel`` draws all steps).

A crash leaves i or d. A table in d whose Delta log has this copy's own marker was committed, and
becomes f. Any other table is copied again: a copy is invisible before its commit. Nobody can end
the table's membership during the step to f.

A table whose copy fails keeps its error in the status and is copied again, at least
``wal_retrieve_retry_interval`` after the start of the round (process_syncing_tables_for_apply).
Neither the stream nor other tables wait for it. With ``disable_on_error``, an error that does not
pass by itself ends the worker. If the publisher's role lacks a right, the hint has the GRANT. The
first round of a subscription copies all its tables side by side; a round beside a stream works on
``max_sync_workers_per_subscription`` of them at a time.

``Copies`` chooses the time and the tables of rounds, in the apply worker's thread; ``CopyRound``
and the code after it make up a round.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import pyarrow as pa

from penstock.catalog import LakeTable
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import alter
from penstock.enum_type import EnumType
from penstock.errors import (
    AuthenticationFailure,
    CommitConflict,
    ConnectionFailure,
    NotInPrerequisiteState,
    PenstockError,
)
from penstock.failpoint import AFTER_COPY_COMMIT, BETWEEN_COMMITS, failpoint
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.foreign import ADDING_COPY, COPY
from penstock.lakehouse.metadata_columns import add_metadata_columns
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.generated import generated_columns
from penstock.pipeline.parts import Part
from penstock.pipeline.rows_with_keys import KeyedTable, columns_of_files, rows_with_keys
from penstock.pipeline.scan import ScanColumn
from penstock.pipeline.table_copy import CopyOptions, CopyProgress, CopySource, run_copy
from penstock.relation import TableName
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import UniqueViolation
from penstock.subscription.copy_target import (
    added_marker,
    copy_leaves,
    copy_marker,
    copy_target,
    replaced_marker,
)
from penstock.subscription.definition_watch import (
    HeldColumns,
    Known,
    compare,
    first_known,
    questions,
)
from penstock.subscription.held_snapshot import HeldSnapshot, SnapshotHorizon
from penstock.subscription.parking import is_own
from penstock.subscription.retry import decide, disables
from penstock.subscription.worker_status import WorkerActivity, WorkerStatus
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.libpq_errors import hint_for
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.slots import sync_slot_prefix
from penstock.walreceiver.snapshot_holder import SnapshotHolder
from penstock.walreceiver.table_definition import Definitions, read_definitions
from penstock.walreceiver.table_info import RemoteTable
from penstock.walreceiver.table_locks import TableLocks

NO_RIGHT: Final = "42501"


def missing_right(rel: SubscriptionRel, conninfo: str) -> str:
    """Return a hint with the GRANTs for the table, and for tables that its owner makes later.

    Default privileges belong to the role that creates a table, so they are set for that role.
    """
    user = ConnInfo.parse(conninfo).parameters.get("user")
    role = "<the role of the connection>" if user is None else quote_identifier(user)
    schema, table = quote_identifier(rel.schema), quote_identifier(rel.table)
    return (
        f"On the publisher: GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON TABLE "
        f"{schema}.{table} TO {role}; the copy is tried again by itself. For tables to come, once "
        "for each role that creates some: ALTER DEFAULT PRIVILEGES FOR ROLE <that role> IN SCHEMA "
        f"{schema} GRANT SELECT ON TABLES TO {role};"
    )


log = logging.getLogger(__name__)

NOT_COPIED: Final = (SubscriptionRelState.INIT, SubscriptionRelState.DATASYNC)


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The options of copies.

    ``retry_interval``: seconds. ``tables``: how many are copied at a time beside the stream; 0: no
    table is copied, not even before there is a stream. ``snapshot_timeout``: seconds, 0 for none.
    """

    copy: CopyOptions
    retry_interval: float
    tables: int
    snapshot_timeout: float = 0.0


class Copies:
    """The rounds of copies of one subscription, one at a time."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        spark: Spark,
        warehouse: Warehouse,
        catalog: RelStates,
        options: Callable[[], SyncOptions],
        status: WorkerStatus,
        cancelled: Callable[[], bool],
        check_connection: Callable[[Connection], None],
        activity: WorkerActivity,
    ) -> None:
        """``options``: returns the present options."""
        self._subscription = subscription
        self._cut_owner = CutOwner(subscription.name, subscription.app_id)
        self._warehouse = warehouse
        self._catalog = catalog
        self._status = status
        self._options = options
        self._work = CopyRound(
            spark=spark,
            warehouse=warehouse,
            states=catalog,
            subscription=subscription,
            options=options().copy,
            progress=status.copying,
            held=status.holding,
            snapshot_timeout=lambda: options().snapshot_timeout,
            cancelled=lambda: cancelled() or self._terminated.is_set() or self._closing,
            check_connection=check_connection,
            failed=self._failed,
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tablesync")
        self._activity = activity
        self._closing = False
        self._terminated = threading.Event()
        self._round: Future[bool] | None = None
        self.disabling: Exception | None = None
        """The error that ends the worker because of disable_on_error."""
        self._again_at: dict[str, float] = {}
        """The time of the next try of each table that failed, by sync id."""
        self._began = -math.inf
        """The time at which the last round began."""
        self._error: Exception | None = None
        self._refusals = 0
        """The error that has ended the last round, and how many refused logins it is by now."""
        self._due = math.inf
        self._finished = False
        self._members: frozenset[str] = frozenset()
        self._outdated = False
        """The subscription has tables to copy that the session does not know."""
        self._alone = False
        """True: copy one table per round, after an unexpected error without a table's name has
        ended the last round."""
        self.began_at: Lsn | None = None
        """The last cut before a round whose tables have not joined the stream yet. Nothing after it
        may be acknowledged."""

    def go_on_for(self, earlier: Copies) -> None:
        """Continue for another worker that has ended: tables that failed wait out their pauses.

        Call it before ``begin``.
        """
        self._again_at = dict(earlier._again_at)
        self._began, self._alone = earlier._began, earlier._alone
        self._error, self._refusals = earlier._error, earlier._refusals

    @property
    def running(self) -> bool:
        """True while a round is under way."""
        return self._round is not None

    def begin(self) -> None:
        """Accept copied tables. Call it before a session opens its tables. Raises errors of catalog
        and warehouse."""
        self._outdated = False
        self._settle()
        if self._round is None:
            # Before any streaming: the point of a committed copy lies in the past, and nothing
            # after it may be acknowledged.
            self._recover()
            self.began_at = None
            self._finished = False

    def start(self, members: frozenset[str]) -> None:
        """Start a round if one is due. Call it once a session knows that publisher and tables
        belong together.

        ``members``: sync ids that the session knows. No other table is copied: the session may have
        its Delta table open for an earlier membership. Raises errors of catalog and warehouse.
        """
        self._members = members
        self._start()

    def step(self) -> bool:
        """Start a round if one is due; return whether a new session must begin.

        A new session must begin if tables were copied since ``begin``, or if the session lacks
        tables to copy. Call it repeatedly.
        """
        if self._settle() and not self._finished:
            self.began_at = None
            self._start()
        elif self._round is None and time.monotonic() >= self._due:
            self._start()
        return self._finished or self._outdated

    def close(self) -> None:
        """Cancel the running round, and wait for its end. It may wait for transactions on the
        publisher, and no other worker of the subscription begins before this one has ended."""
        self._closing = True
        self._pool.shutdown(cancel_futures=True)

    def _settle(self) -> bool:
        """Accept a finished round; return whether there was one. Raises the error that disables the
        subscription, and the round's own error."""
        if self.disabling is not None:
            raise self.disabling
        if self._round is None or not self._round.done():
            return False
        ended, self._round = self._round, None
        self._finished = ended.result() or self._finished
        return True

    def _start(self) -> None:
        # Copied tables must join the stream before the next round: ``began_at`` is still theirs.
        if self._round is not None or self._finished:
            return
        rels = self._catalog.rels()
        waiting = [rel for rel in rels if rel.state in NOT_COPIED]
        if not self._members.issuperset(rel.sync_id for rel in waiting):
            self._outdated = True
            return
        self._status.only_failed({rel.qualified_name for rel in waiting})
        self._again_at = {
            rel.sync_id: self._again_at[rel.sync_id]
            for rel in waiting
            if rel.sync_id in self._again_at
        }
        now = time.monotonic()
        due = [rel for rel in waiting if self._again_at.get(rel.sync_id, now) <= now]
        self._alone = self._alone and bool(waiting)
        if not due:
            self._due = min(self._again_at.values(), default=math.inf)
            return
        options = self._options()
        if not options.tables:
            self._due = now + options.retry_interval
            return
        first = len(waiting) == len(rels)
        work = options.copy if first else replace(options.copy, tables=options.tables)
        cut = self._warehouse.cuts.last(self._cut_owner)
        # Set before the round gets its point, which the slot must not pass.
        self.began_at = INVALID if cut is None else cut.lsn
        self._due, self._began = math.inf, now
        self._round = self._pool.submit(
            self._run, replace(self._work, options=work), due[:1] if self._alone else due
        )

    def _run(self, work: CopyRound, rels: Sequence[SubscriptionRel]) -> bool:
        """Run a round in its thread; return whether it has copied tables."""
        error: Exception | None = None
        self._terminated.clear()
        try:
            with self._activity.copies([rel.table_name for rel in rels], self._terminated.set):
                run_round(work, rels)
        except CopyCancelled as cancelled:
            log.info('subscription "%s": %s', self._subscription.name, cancelled)
        except Exception as ended:
            error = ended
        self._recover()
        ids = {rel.sync_id for rel in rels}
        now = [rel for rel in self._catalog.rels() if rel.sync_id in ids]
        self._error = error
        self._refusals = self._refusals + 1 if isinstance(error, AuthenticationFailure) else 0
        if error is not None:
            self._ended(error, [rel for rel in now if rel.state in NOT_COPIED])
            self._alone = not isinstance(error, PenstockError)
        return any(rel.state is SubscriptionRelState.FINISHEDCOPY for rel in now)

    def _recover(self) -> None:
        recover(self._catalog.rels(), self._warehouse, self._catalog, self._subscription.app_id)

    def _failed(self, rel: SubscriptionRel, error: PenstockError) -> None:
        """Report an error of one table of a round, and let the table wait."""
        error = error.with_statement(alter(self._subscription.name))
        if error.sqlstate == NO_RIGHT and error.hint == hint_for(NO_RIGHT):
            error = error.changed(hint=missing_right(rel, self._subscription.conninfo))
        if self._disables(rel, error):
            return
        log.warning("%s", error.report())
        log.info(
            'subscription "%s": table "%s" is copied again in %.1f s',
            self._subscription.name,
            rel.qualified_name,
            self._pause(),
        )
        self._wait(rel, error)

    def _ended(self, error: Exception, rels: Sequence[SubscriptionRel]) -> None:
        """Report an error that has ended a round, and let the rest of its tables wait."""
        if any(self._disables(rel, error) for rel in rels):
            return
        if isinstance(error, PenstockError):
            error = error.with_statement(alter(self._subscription.name))
            log.warning("%s", error.report())
        else:
            log.warning("ERROR:  %s", error, exc_info=error)
        log.info(
            'subscription "%s": %d tables are copied again in %.1f s',
            self._subscription.name,
            len(rels),
            self._pause(),
        )
        for rel in rels:
            self._wait(rel, error)

    def _disables(self, rel: SubscriptionRel, error: Exception) -> bool:
        """Return whether the error disables the subscription (DisableSubscriptionAndExit), and keep
        it for the worker if so."""
        if not (self._subscription.disable_on_error and disables(error)):
            return False
        self._wait(rel, error)
        self.disabling = error
        return True

    def _wait(self, rel: SubscriptionRel, error: Exception) -> None:
        self._again_at[rel.sync_id] = time.monotonic() + self._pause()
        self._status.copy_failed(rel.qualified_name, error)

    def _pause(self) -> float:
        """Return the seconds before a table that failed in the last round may begin again."""
        interval = self._options().retry_interval
        pause = max(0.0, self._began + interval - time.monotonic())
        if isinstance(self._error, AuthenticationFailure):
            pause = max(pause, decide(self._error, self._refusals, interval, 1.0).pause)
        return pause


# A round of copies.
#
# A temporary replication slot gives the consistent point and an exported snapshot. Its session is
# idle and holds the snapshot while Spark copies, and another session holds locks on the tables
# (``walreceiver.table_locks``). A table that cannot be copied is reported and left to the next
# round, whose time ``Copies`` chooses.

_LOCK_PATIENCE: Final = "1s"
"""Time that a query about a table may wait for a lock. The round's other tables wait too."""

_LOCK_NOT_AVAILABLE: Final = "55P03"


class RelStates(Protocol):
    """The part of the catalog that a copy reads and writes."""

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> object:
        """Record a transition."""

    @property
    def rels(self) -> Callable[[], Sequence[SubscriptionRel]]:
        """Return the subscription's present tables; none if the subscription is gone."""

    def member(
        self, rel: SubscriptionRel, subscription: Subscription
    ) -> AbstractContextManager[Callable[[SubscriptionRelState, Lsn | None], object]]:
        """Keep a table in the subscription until the block is left; yield ``set_state``.

        Raises UndefinedObject if the table is gone, or if the subscription is being dropped or is
        no longer as given.
        """

    def bind(self, rel: SubscriptionRel, relid: int | None, table_id: str | None) -> object:
        """Record the publisher's relation and the Delta table that a row stands for."""

    def record_definition(self, rel: SubscriptionRel, definition: str) -> object:
        """Record the publisher's definitions on which a table's rows depend."""

    def copy_again(self, rel: SubscriptionRel, relid: int | None) -> object:
        """Give the table a new membership, which begins with a copy."""

    @property
    def partition_tree(self) -> Callable[[TableName], tuple[LakeTable, ...]]:
        """Return a partitioned table of the node with all its partitions, root first; () if it has
        none."""

    @property
    def enum_types(self) -> Callable[[], tuple[EnumType, ...]]:
        """Return the enum types made on the node."""

    @property
    def next_values(self) -> Callable[[TableName, str, int], Sequence[int]]:
        """Draw the given number of values from the sequence of a table's column."""

    @property
    def primary_key_name(self) -> Callable[[TableName], str | None]:
        """Return the name of a table's primary key if the catalog has one."""

    @property
    def subscription_name(self) -> Callable[[str], str | None]:
        """Return the name of the node's subscription with the given app id."""


@dataclass(frozen=True, slots=True)
class CopyRound:
    """The resources of a round of copies."""

    spark: Spark
    warehouse: Warehouse
    states: RelStates
    subscription: Subscription
    options: CopyOptions
    progress: Callable[[CopyProgress], None]
    held: Callable[[SnapshotHorizon | None], None]
    """Report the horizon that the round's snapshot holds back at the publisher; None at the end."""
    snapshot_timeout: Callable[[], float]
    """Return the present copy_snapshot_timeout in seconds, 0 for none (``held_snapshot``)."""
    cancelled: Callable[[], bool]
    """Return True when the worker stops: the copy is given up, and made again at the next start."""
    check_connection: Callable[[Connection], None]
    """Raise StateMismatch if a connection's server is not the followed one."""
    failed: Callable[[SubscriptionRel, PenstockError], None]
    """Report a table that this round does not copy, and the reason; the other tables go on."""

    def check(self) -> None:
        """Raise CopyCancelled if the worker stops."""
        if self.cancelled():
            raise CopyCancelled("canceling the copy because the worker stops")


class CopyCancelled(Exception):
    """The worker stops. This is not recorded as an error of any table."""


def finished_point(table: DeltaTable | None, rel: SubscriptionRel, app_id: str) -> Lsn | None:
    """Return the consistent point of a copy that was committed before its state was recorded, or
    None."""
    if table is None:
        return None
    point = table.transaction_version(copy_marker(rel, app_id))
    return None if point is None else Lsn(point)


def run_round(work: CopyRound, rels: Sequence[SubscriptionRel]) -> None:
    """Copy tables side by side. Raises errors that end the round for all of its tables."""
    subscription = work.subscription
    conninfo = ConnInfo.parse(subscription.conninfo)
    slot = f"{sync_slot_prefix(subscription.app_id)}{uuid.uuid4().hex[:12]}"
    with (
        Publisher.connect(
            conninfo, slot, lock_timeout=_LOCK_PATIENCE, interrupt=work.check
        ) as publisher,
        TableLocks(conninfo, slot, work.check) as locks,
        SnapshotHolder(conninfo, slot, check_server=work.check_connection) as holder,
    ):
        # Sessions that lock or copy need no check: they import the holder's snapshot, which no
        # other server has.
        work.check_connection(publisher.connection)
        sources = _prepare(work, _lockable(work, locks, rels), publisher)
        if not sources:
            return
        snapshot_name, point = holder.open(work.check)
        work.check_connection(publisher.connection)  # a standby may have been promoted meanwhile
        held = HeldSnapshot(
            publisher,
            slot,
            holder.backend_pid,
            subscription=subscription.name,
            timeout=work.snapshot_timeout,
            tell=work.held,
        )
        definitions = _Definitions(work, publisher, [source.info for _, source in sources])
        running = _RunningRound(
            work, publisher, locks, holder, held, point, definitions, _members(work)
        )
        with held:
            running.begin(snapshot_name, sources)
            run_copy(
                work.spark,
                [replace(s, point=point) for _, s in sources if s.table.uri in running.tables],
                conninfo=conninfo,
                snapshot_name=snapshot_name,
                options=work.options,
                progress=running.progress,
                finished=running.finished,
                failed=running.failed,
                is_needed=running.is_needed,
                check=running.check,
            )


@dataclass(frozen=True, slots=True)
class _RunningRound:
    """A round that has its snapshot.

    ``members``: sync ids of the tables that are still wanted. ``tables``: the tables by the URI of
    their targets. ``done``: sync ids of the tables that are copied.
    """

    work: CopyRound
    publisher: Publisher
    locks: TableLocks
    holder: SnapshotHolder
    held: HeldSnapshot
    point: Lsn
    definitions: _Definitions
    members: set[str]
    tables: dict[str, SubscriptionRel] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    def begin(
        self, snapshot_name: str, sources: Sequence[tuple[SubscriptionRel, CopySource]]
    ) -> None:
        """Lock the tables, and put the tables that can be copied into state d."""
        work = self.work
        names = [(rel.schema, rel.table) for rel, _ in sources]
        refused = self.locks.hold(snapshot_name, names, self.publisher.connection)
        self.members.intersection_update(_members(work))
        for rel, source in sources:
            error = refused.get((rel.schema, rel.table)) or self.definitions.changed(rel, source)
            if error is not None:
                work.failed(rel, error)
            elif rel.sync_id in self.members:
                work.states.bind(rel, source.info.relation.oid, source.table.id)
                work.states.set_state(rel, SubscriptionRelState.DATASYNC, None)
                self.tables[source.table.uri] = rel

    def check(self) -> None:
        self.work.check()
        self.holder.check()
        self.locks.check()
        self.held.look()
        self.members.intersection_update(_members(self.work))
        for name, error in self.locks.let_pass(self.publisher.connection).items():
            for rel in self.tables.values():
                waits = rel.sync_id in self.members - self.done
                waits = waits and self.held.waits_for(rel.qualified_name)
                if (rel.schema, rel.table) == name and waits:
                    self.members.discard(rel.sync_id)
                    self.work.failed(rel, error)

    def progress(self, copy: CopyProgress) -> None:
        self.held.progress(copy)
        self.work.progress(copy)

    def is_needed(self, source: CopySource) -> bool:
        member = self.tables[source.table.uri].sync_id in self.members
        return member and self.held.waits_for(source.table.name)

    def finished(self, source: CopySource) -> None:
        rel = self.tables[source.table.uri]
        self.locks.confirm()
        if (error := self.definitions.changed(rel, source)) is not None:
            self.work.failed(rel, error)
            return
        self.definitions.record(rel, source)
        _finish(self.work, rel, source, self.point)
        self.done.add(rel.sync_id)

    def failed(self, source: CopySource, error: PenstockError) -> None:
        self.work.failed(self.tables[source.table.uri], error)


class _Definitions:
    """The definitions on which the rows of a round's tables depend.

    The definitions are read after the snapshot is taken and before the first row, and compared when
    the table is locked and at the end of its copy. A change in between affects only some rows, or
    none, so the copy is made again. A change before the first row affects all rows, because output
    functions read the present catalogs, not the snapshot's.
    """

    def __init__(
        self, work: CopyRound, publisher: Publisher, tables: Sequence[RemoteTable]
    ) -> None:
        self._work, self._publisher = work, publisher
        self._tables = {info.relation.oid: info for info in tables}
        self._known: dict[int, Known] = {}
        found = self._read(list(self._tables))
        for oid, info in self._tables.items():
            if found is not None and oid in found.tables:
                self._known[oid] = first_known(found, oid, _held(info).names)

    def _read(self, oids: Sequence[int]) -> Definitions | None:
        return read_definitions(
            self._publisher.connection, self._work.subscription.publications, oids
        )

    def changed(self, rel: SubscriptionRel, source: CopySource) -> PenstockError | None:
        """Return the error for a table that was changed during its copy, or None."""
        oid = source.info.relation.oid
        known = self._known.get(oid)
        if known is None:
            return None  # the publisher is a node; or the table was dropped: reported elsewhere
        connection, found = self._publisher.connection, self._read([oid])
        if found is None or oid not in found.tables:
            return None
        publications = self._work.subscription.publications
        ask = questions(connection)
        difference = compare(known, found, oid, _held(source.info), publications, ask)
        if not (difference.reasons or difference.labels or difference.notices):
            return None
        return NotInPrerequisiteState(
            f'table "{rel.qualified_name}" was changed at the publisher while it was copied',
            hint="The copy is made again.",
        )

    def record(self, rel: SubscriptionRel, source: CopySource) -> None:
        """Record a table's definitions in the catalog. Call it before the copy is committed."""
        known = self._known.get(source.info.relation.oid)
        if known is not None:
            self._work.states.record_definition(rel, known.text())


def _held(info: RemoteTable) -> HeldColumns:
    return HeldColumns(frozenset(attribute.name for attribute in info.relation.attributes))


def _members(work: CopyRound) -> set[str]:
    return {rel.sync_id for rel in work.states.rels()}


def _lockable(
    work: CopyRound, locks: TableLocks, rels: Sequence[SubscriptionRel]
) -> list[SubscriptionRel]:
    """Return the tables that can probably be locked soon. Report the others as failed."""
    refused = locks.look([(rel.schema, rel.table) for rel in rels])
    for rel in rels:
        if (error := refused.get((rel.schema, rel.table))) is not None:
            work.failed(rel, error)
    return [rel for rel in rels if (rel.schema, rel.table) not in refused]


def _prepare(
    work: CopyRound, rels: Sequence[SubscriptionRel], publisher: Publisher
) -> list[tuple[SubscriptionRel, CopySource]]:
    """Return the tables that can be copied, each with the target that takes its rows."""
    sources: list[tuple[SubscriptionRel, CopySource]] = []
    locked: PenstockError | None = None
    for rel in rels:
        try:
            if locked is not None:  # the next query would wait as long again
                raise locked
            info = publisher.table_info(work.subscription.publications, rel.schema, rel.table)
            app_id, name_of = work.subscription.app_id, work.states.subscription_name
            tree = work.states.partition_tree(rel.table_name)
            mode = rel.copy_target or work.subscription.copy_target
            target = (work.warehouse, info, rel, app_id, name_of)
            table = copy_target(*target, options=work.subscription, mode=mode)
            add_metadata_columns(
                table,
                metadata_columns=work.subscription.metadata_columns,
                soft_delete=work.subscription.soft_delete,
            )
            leaves = copy_leaves(work.warehouse, tree, table, rel, app_id, name_of, mode)
            for each in (table, *(() if leaves is None else leaves.tables)):
                generated_columns(each.schema, each.name)  # only to find errors of this table now
        except ConnectionFailure:
            raise
        except PenstockError as error:
            locked = error if error.sqlstate == _LOCK_NOT_AVAILABLE else None
            work.failed(rel, error)
        else:
            draw = partial(work.states.next_values, rel.table_name)
            source = CopySource(
                *(info, table, leaves, tree),
                out_of_range=work.subscription.out_of_range,
                draw=draw,
                enums=work.states.enum_types(),
            )
            sources.append((rel, source))
    return sources


def _finish(work: CopyRound, rel: SubscriptionRel, source: CopySource, point: Lsn) -> None:
    """Commit a copy and record its state.

    One Delta commit contains the copy, the table's LSN and this copy's own marker. The partitions
    of a partitioned table, which alone have rows, are committed before the table itself.
    """
    app_id = work.subscription.app_id
    added: AddedCopy | None = None
    if any(table.kept for table in source.tables):
        name = work.states.primary_key_name(rel.table_name)
        added = AddedCopy(work.spark, source, name)
        added.check()
    with work.states.member(rel, work.subscription) as record:
        if work.states.partition_tree(rel.table_name) != source.tree:
            raise NotInPrerequisiteState(
                f'partitions of table "{source.table.name}" were attached or detached while it was '
                "copied"
            )
        for table in source.tables:
            markers = {copy_marker(rel, app_id): point}
            if added is not None:
                markers[added_marker(app_id)] = point
            elif table.transaction_version(added_marker(app_id)) is not None:
                markers[replaced_marker(app_id)] = point
            commit = partial(
                table.commit,
                app_id=app_id,
                version_marker=point,
                operation=COPY if added is None else ADDING_COPY,
                extra_markers=markers,
            )
            if added is None:
                commit()
            else:
                added.commit(table, commit)
            if table is not source.table:
                failpoint(BETWEEN_COMMITS)
        failpoint(AFTER_COPY_COMMIT)
        record(SubscriptionRelState.FINISHEDCOPY, point)
    log.info(
        'table synchronization for subscription "%s", table "%s" has finished',
        work.subscription.name,
        rel.qualified_name,
    )


def recover(
    rels: Sequence[SubscriptionRel], warehouse: Warehouse, states: RelStates, app_id: str
) -> None:
    """Record as state f the copies that were committed before a crash.

    If a table cannot be read, it is unknown whether its copy was committed, so it is copied again
    with a new membership. Other tables need not wait for it: its new point will lie after all LSNs
    acknowledged meanwhile.
    """
    for rel in rels:
        if rel.state is not SubscriptionRelState.DATASYNC:
            continue
        try:
            point = finished_point(warehouse.open(rel.schema, rel.table), rel, app_id)
        except PenstockError as error:
            if not is_own(error):
                raise
            log.warning("%s", error.report())
            states.copy_again(rel, rel.relid)
            continue
        if point is not None:
            states.set_state(rel, SubscriptionRelState.FINISHEDCOPY, point)


# A copy that is added to the rows of its target (copy_target = append), as PostgreSQL's COPY is.
#
# The files of the copy are staged on tables that keep their rows, and each table is committed once.
# An existing key raises PostgreSQL's error (23505), and nothing of the copy is in that table.
# Others may commit meanwhile, even another subscription. Then the keys of their files are checked,
# and the same staged files are committed after theirs.

_TRIES: Final = 100
"""The number of times that others may commit to a table first."""


@dataclass(frozen=True)
class AddedCopy:
    """A staged copy to be added to the rows of its target. ``constraint``: the name of the target's
    primary key if the catalog has one."""

    spark: Spark
    source: CopySource
    constraint: str | None
    _seen: dict[str, Mapping[str, DataFile]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise UniqueViolation if a key of the copy is in the target already."""
        for part in self.source.parts:
            kept = part.table.kept
            self._check(part, kept)
            self._seen[part.table.uri] = {file.path: file for file in kept}

    def commit(self, table: DeltaTable, commit: Callable[[], object]) -> None:
        """Commit a table of the copy. ``commit``: the call of the table's own commit.

        Raises the errors of ``commit``; UniqueViolation; CommitConflict if the table's columns have
        changed.
        """
        for _ in range(_TRIES):
            try:
                commit()
                return
            except CommitConflict:
                table.reload_below()
            for part in self.source.parts:
                if part.table is table:
                    before, kept = self._seen[table.uri], table.kept
                    self._check(part, [f for f in kept if f != before.get(f.path)])
                    self._seen[table.uri] = {file.path: file for file in kept}
        commit()

    def _check(self, there: Part, files: Collection[DataFile]) -> None:
        """Raise UniqueViolation if some files of a part have a key of the copy."""
        relation = self.source.table.schema
        if not (relation.key and files):
            return
        names = tuple(there.names[name] for name in relation.key)
        schema = TableSchema(there.table.schema.columns, names)
        table = KeyedTable(there.table.storage, there.table.uri, schema)
        types = {column.name: column.type for column in relation.columns}
        for part in self.source.parts:
            columns = [
                ScanColumn(here, part.names[name], types[name])
                for name, here in zip(relation.key, names, strict=True)
            ]
            storage, uri = part.table.storage, part.table.uri
            for rows, _ in columns_of_files(storage, uri, part.table.added, columns):
                keys = rows.drop_null()
                found = rows_with_keys(table, files, keys, self.spark, None) if len(keys) else {}
                if found:
                    first = min(int(hits.probe.min()) for hits in found.values())
                    raise self._error(keys.slice(first, 1))

    def _error(self, row: pa.Table) -> UniqueViolation:
        """Return the error with which the COPY of a table synchronization worker would end."""
        schema = self.source.table.schema
        name = self.constraint or f"{self.source.info.relation.name}_pkey"
        sources = ", ".join(map(quote_identifier, schema.source_key))
        cells = [text_output(column.combine_chunks())[0].as_py() for column in row.columns]
        values = ", ".join(cell.decode() for cell in cells)
        return UniqueViolation(
            f'duplicate key value violates unique constraint "{name}"',
            detail=f"Key ({sources})=({values}) already exists.",
            context=f"COPY {self.source.info.relation.name}",
        )
