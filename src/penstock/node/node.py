"""``Node``: the public object of the library, and the one place that joins the rooms.

Each room declares what it needs from others; ``Node`` supplies it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, TypeGuard

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import SubscriptionRelState
from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.store import make_private_file
from penstock.commands import CommandResult, execute
from penstock.commands.scope import CommandScope
from penstock.decoding.output import decode_text
from penstock.errors import (
    ConfigurationError,
    DuplicateObject,
    InvalidParameterValue,
    NotInPrerequisiteState,
    StorageError,
    UndefinedObject,
)
from penstock.lakehouse.cluster import Cluster, Spark
from penstock.lakehouse.cuts import Cut, CutOwner, CutTable
from penstock.lakehouse.identity import newest_table_id
from penstock.lakehouse.session import (
    build_session,
    check_session,
    end_start,
    running_session,
    session_jars,
)
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node import doctor, guc
from penstock.node.claims import FILE_NAME as LOCK_FILE
from penstock.node.claims import LockFile, running_process, take_warehouse
from penstock.node.guc import LiveParameters, Parameters, reload_told, signal_running
from penstock.node.lease import Lease, lease_on
from penstock.node.logical_decoding import logical_reading, plugin_finder
from penstock.node.monitoring import Monitoring, NodeReport, node_report
from penstock.node.reports import ask_all
from penstock.node.running import RunningNode, copy_options
from penstock.node.serving import DATABASE_OID, ServingNode
from penstock.node.session_commands import connect_publisher
from penstock.node.status import (
    CatchupState,
    ProcessSilence,
    SubscriptionStatus,
    check_not_stopped,
    process_silence,
    read_status,
    wait_for_all,
    wait_for_cut,
)
from penstock.node.verify import Verification, Verifier, VerifyOptions, check_follows
from penstock.pg_catalog.database import Connections
from penstock.pg_catalog.node_catalogs import NodeCatalogs, SharedState
from penstock.pg_catalog.snapshot import NODE_OWNER, SessionFacts
from penstock.pgtypes import find
from penstock.pgtypes.gather import cells_of
from penstock.pgtypes.pg_type import BOOL, FLOATS, INT8, INTEGERS, OID, XID
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.protocol.answers import Notice, Rows
from penstock.relation import TableName, qualified
from penstock.sql import QueryStatement, RangeVar, parse_script, parse_table_name
from penstock.sql.grammar.parsenodes import (
    PreparableStmt,
    RangeTable,
    ResTarget,
    SelectStmt,
    Star,
    Statement,
)
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import QueryCanceled, UndefinedTable
from penstock.stats.backend_status import Sessions
from penstock.wait_event import Patience
from penstock.walsender.logical_reading import LogicalReading, SlotRequest
from penstock.walsender.senders import Senders
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slots import Slots

log = logging.getLogger(__name__)

_POLL: Final = 0.05
_VERIFY_OPTIONS: Final = VerifyOptions()


class Node:
    """A node in a folder, and a context manager that stops and closes it.

    ``spark``: a session with Delta, as in a notebook. Without one the node builds its own when
    needed. Raises ConfigurationError when the folder does not belong to a node.
    """

    def __init__(self, path: str | Path, spark: SparkSession | None = None) -> None:
        self.folder: Final = Path(path).resolve()
        self._live: Final = LiveParameters(self.folder)
        self._given_spark = spark
        self._cluster = Cluster(self._session, end_start)
        self._running: RunningNode | None = None
        self.serving: ServingNode | None = None
        """The publishing half, while the node runs and has a port."""
        self._monitoring: Monitoring | None = None
        self._lock: LockFile | None = None
        self._lease: Lease | None = None
        self._others: Lease | None = None
        """The lease as a process sees it that does not run the node."""
        self._catalog = Catalog.open(guc.state_url(self.folder, self.parameters))
        self._warehouse = self._make_warehouse()
        self._connections = Connections()
        self._asked: NodeQueries | None = None
        """The queries of the last call of ``execute``; its caller may not have their rows yet."""

    @classmethod
    def init(
        cls, path: str | Path, *, warehouse: str | None = None, state: str | None = None
    ) -> Node:
        """Make a node in an empty or new folder. Raises DuplicateObject if the folder has one."""
        folder = Path(path).resolve()
        file = folder / guc.FILE_NAME
        if file.exists():
            raise DuplicateObject(
                f'"{folder}" is a Penstock node already',
                hint=f"Start it with: penstock start -D {folder}. If its state is lost: penstock "
                f"init --recover {folder}",
            )
        folder.mkdir(parents=True, exist_ok=True)
        text = guc.default_text()
        if warehouse is not None:
            text = guc.with_value(text, "warehouse", warehouse)
        if state is not None:
            text = guc.with_value(text, "state", state)
            make_private_file(file)  # the URL may contain a password
        file.write_text(text, encoding="utf-8")
        try:
            Catalog.create(guc.state_url(folder, guc.load(folder))).close()
        except BaseException:
            file.unlink()
            raise
        return cls(folder)

    @property
    def parameters(self) -> Parameters:
        """The present parameters."""
        return self._live.now

    def reload(self) -> None:
        """Read ``penstock.toml`` again. The log names the changed parameters, and those that need a
        restart. Raises PenstockError if the file has a mistake; then nothing has changed."""
        (self._live if self.serving is None else self.serving).reload()

    def _warehouse_uri(self) -> str:
        return guc.warehouse_uri(self.folder, self.parameters)

    def _make_warehouse(self) -> Warehouse:
        made = Warehouse(self._warehouse_uri(), fsync=self.parameters.fsync, spark=self._cluster)
        if self._catalog.warehouse() == made.uri:
            made.node_id = self._catalog.node_info.node_id
        made.check_lease = self._check_not_elsewhere
        return made

    def _check_not_elsewhere(self) -> None:
        """Check, in a process that does not run the node, that nobody else runs one on the
        warehouse: this folder may be a copy. Raises StorageError, ConfigurationError, ObjectInUse.
        """
        self._warehouse.check_there()
        if self._warehouse.node_id is None:  # it has not been recorded as this node's
            owner, node_id = self._warehouse.owner(), self._catalog.node_info.node_id
            if owner not in (None, node_id):
                raise self._warehouse.not_ours(owner, node_id)
        self._check_no_copy()
        if self._others is None:
            self._others = lease_on(self._warehouse, self.folder / LOCK_FILE)
        if self._others is not None and not self._catalog.node_lock.is_held():
            running = running_process(self.folder)
            self._others.check_free(None if running is None else running.pid)

    def _check_no_copy(self) -> None:
        """Check that no node runs on the warehouse that this one had before: this folder may be a
        copy, its warehouse with it. Raises ObjectInUse."""
        recorded, node_id = self._catalog.warehouse(), self._catalog.node_info.node_id
        if recorded in (None, self._warehouse.uri):
            return
        former = Warehouse(recorded, fsync=False)
        with contextlib.suppress(StorageError):  # it has been removed, or cannot be reached
            if former.owner() == node_id and (lease := lease_on(former, self.folder / LOCK_FILE)):
                lease.check_free(None)

    # Statements

    def execute(self, text: str) -> list[CommandResult]:
        """Run one or more SQL statements, separated by semicolons; each result has its notices.

        Raises PenstockError with PostgreSQL's message and SQLSTATE. Statements before the error
        keep their effects, but slots that they have read will return the rows again.
        """
        self._heard()
        try:
            return [self._execute(statement) for statement in parse_script(text)]
        except BaseException:
            self._heard(nothing=True)
            raise

    def _heard(self, *, nothing: bool = False) -> None:
        """Note that the caller continues and so has the last call's rows; ``nothing``: has none."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.failed() if nothing else asked.heard()

    def _execute(self, statement: Statement) -> CommandResult:
        if isinstance(statement, QueryStatement):
            self._asked = asked = self._asked or self._queries()
            if asked.answers(statement.query):
                return asked.query(statement.query)
        scope = CommandScope(
            warehouse=self._warehouse,
            database=self.parameters.database,
            version=self.parameters.server_version,
            running=self.running,
            unsent_changes=self.parameters.default_unsent_changes,
        )
        if self.serving is not None:  # earlier commits must precede the statement in the log
            self.serving.sequencer.step()
        return execute(statement, self._catalog, connect_publisher, scope)

    def _queries(self) -> NodeQueries:
        lake = (self._catalog, self._warehouse, self.parameters, self.serving)
        return NodeQueries(*lake, self._connections, self._reload_conf, self._cluster)

    def sql(self, text: str) -> CommandResult:
        """Run statements, log their notices, and return the last result."""
        results = self.execute(text)
        for result in results:
            for notice in result.notices:
                log.info("%s", notice.report())
        return results[-1] if results else CommandResult(tag="")

    def changes(
        self, slot: str, options: Mapping[str, str] | None = None, *, follow: bool = False
    ) -> SlotChanges:
        """Return the changes committed since a slot of the plugin ``arrow`` was last confirmed, as
        record batches; with ``follow`` the iteration waits for later changes too. Use the result in
        a ``with``, and ``confirm`` changes once they are safe.

        Raises UndefinedObject, ObjectInUse, NotInPrerequisiteState.
        """
        self._heard()
        return SlotChanges(self._queries().reading, slot, options or {}, follow=follow)

    # Running

    @property
    def spark(self) -> SparkSession:
        """The node's Spark session. Raises ConfigurationError."""
        return self._cluster.session

    def _session(self) -> SparkSession:
        if self._given_spark is not None:
            self._given_spark = running_session(self._given_spark)
            check_session(self._given_spark, self._warehouse_uri())
            return self._given_spark
        doctor.require()
        spark, uri = self.parameters.spark, self._warehouse_uri()
        return build_session(
            master=spark.master,
            driver_memory=spark.driver_memory,
            conf=spark.conf,
            warehouse=uri,
            log=self.folder / "spark.log",
        )

    def _check_spark(self) -> None:
        """Check Spark as far as possible before it is needed. Raises ConfigurationError."""
        if self._given_spark is not None:
            check_session(running_session(self._given_spark), self._warehouse_uri())
            return
        doctor.require()
        session_jars(self._warehouse_uri())

    def start(self, stop: threading.Event | None = None) -> None:
        """Start the workers in the background and return. ``stop``: ends a wait for another process
        that may run this node; then nothing has started.

        Raises ConfigurationError; ObjectInUse if another process runs this node;
        NotInPrerequisiteState after ``close``.
        """
        if self._running is not None:
            return
        self._catalog.check_open()
        self._lock = LockFile(self.folder)
        self._cluster.take_up()
        with contextlib.ExitStack() as undo:
            undo.callback(self._forget_running)
            self._catalog.node_lock.take()
            self._catalog.check()
            before = self._catalog.upgrade()
            if before is not None:
                log.info("the state store has been upgraded; a copy from before is %s", before)
            self._check_spark()
            self._warehouse = self._make_warehouse()
            self._check_no_copy()
            take_warehouse(self._catalog, self._warehouse)
            if not self._take_lease(stop):
                return
            subscriptions = self._catalog.subscriptions()
            self._warehouse.cuts.adopt([CutOwner(s.name, s.app_id) for s in subscriptions])
            indexes = KeyIndexes(self.folder / "key_index", self.parameters.key_index_size)
            shared = (
                self._live,
                self._cluster,
                self._warehouse,
                self._catalog,
                Sessions(),
                indexes,
            )
            self._running = RunningNode(self.folder, *shared)
            if self.parameters.port:
                self.serving = ServingNode(self.folder, *shared, self._connections)
                self.serving.start()
                undo.callback(self.serving.stop)
                self._running.ended = self.serving.stop
            if self.parameters.metrics_port:
                self._monitoring = Monitoring(
                    self.parameters.metrics_address, self.parameters.metrics_port, self._report
                )
                self._monitoring.start()
                undo.callback(self._monitoring.stop)
            self._running.check_claims = self._claims(self._lock, self._lease)
            self._running.start()
            undo.pop_all()
        log.info("node %s has started", self.folder)

    def _claims(self, lock: LockFile, lease: Lease | None) -> Callable[[], None]:
        """Return a check that raises ObjectInUse once this process must not run the node."""

        def check() -> None:
            lock.check()
            self._catalog.check_there()
            if lease is not None:
                lease.check_not_lost()

        return check

    def _take_lease(self, stop: threading.Event | None) -> bool:
        """Take the lease; return False if ``stop`` is set before."""
        self._lease = lease = lease_on(self._warehouse, self.folder / LOCK_FILE)
        if lease is None:
            self._warehouse.check_lease = lambda: None
            return True
        self._warehouse.check_lease, self._warehouse.confirm_lease = lease.check, lease.confirm
        return lease.take(stop)

    def _reload_conf(self) -> None:
        if self._running is None:
            signal_running(self.folder)
        else:
            reload_told(self.folder, self.reload)

    def _forget_running(self, patience: Patience | None = None) -> None:
        patience = patience or Patience()
        self.serving = self._running = self._monitoring = None
        patience.run(self._catalog.node_lock.release, "node's lock")
        if self._lease is not None:
            self._lease.release(patience)
            self._lease = None
            self._warehouse = self._closed_warehouse()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _closed_warehouse(self) -> Warehouse:
        """Return the warehouse for statements of a node that has stopped. Threads that still run
        have the former one, to which they cannot commit any more."""
        node_id = self._warehouse.node_id
        made = Warehouse(self._warehouse.uri, self.parameters.fsync, self._cluster, node_id)
        made.check_lease = self._check_not_elsewhere
        return made

    def stop(self) -> None:
        """Stop the workers after their current cuts. A Spark that is just starting is ended."""
        self._stop()
        self._cluster.take_up()  # the node can still be read

    def _stop(self) -> None:
        patience = Patience()
        self._cluster.give_up()
        if self._running is not None:
            self._running.begin_stop()
        if self._monitoring is not None:
            self._monitoring.stop()
            self._monitoring = None
        if self.serving is not None:
            self.serving.stop(patience)
            self.serving = None
        if self._running is not None:
            self._running.stop(patience)
            self._running = None
            log.info("node %s has stopped", self.folder)
        patience.run(self._catalog.sequences.close, "sequences")
        self._forget_running(patience)

    def close(self) -> None:
        """Stop, and end the Spark session that the node has built."""
        self._heard()
        self._stop()
        self._connections.close()
        self._catalog.close()
        if self._given_spark is None:
            self._cluster.stop()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *error: object) -> None:
        self._heard(nothing=error[:1] != (None,))
        self.close()

    # Waiting

    def wait_until(self, stop: threading.Event) -> None:
        """Run until ``stop`` is set. Raises the error that ended the launcher, if one did;
        SparkLost."""
        while not stop.wait(_POLL):
            self._check_running()

    def _check_running(self) -> None:
        if self._running is not None:
            self._running.check()
            self._cluster.check()

    def wait_for(
        self, lsn: Lsn | str, *, subscription: str | None = None, timeout: float = 60.0
    ) -> Cut:
        """Wait until the last cut is at or after ``lsn``, and return it.

        Any process may call this, not only the node's. Raises the error that has stopped the
        subscription or the node; raises NotInPrerequisiteState after ``timeout`` seconds.
        """
        wanted = Lsn.parse(lsn) if isinstance(lsn, str) else lsn
        name = self._subscription(subscription).name
        return wait_for_cut(self, name, wanted, timeout, self._raise_if_stopped)

    def wait_until_caught_up(
        self, timeout: float, stop: threading.Event | None = None
    ) -> Sequence[CatchupState]:
        """Wait until every enabled subscription has a cut at its publisher's present position.

        Return the progress of each; a subscription is behind only if ``stop`` was set. Raises the
        error that has stopped a subscription or the node, or NotInPrerequisiteState after
        ``timeout`` seconds.
        """
        wanted = {}
        for subscription in self._catalog.subscriptions():
            if subscription.enabled:
                self._raise_if_stopped(subscription.name)
                with connect_publisher(subscription.conninfo, subscription.name) as publisher:
                    wanted[subscription.name] = publisher.current_wal_lsn()
        return wait_for_all(self, wanted, timeout, stop)

    def _raise_if_stopped(self, name: str) -> None:
        self._check_running()
        check_not_stopped(self.status(), name)

    # Reading

    @property
    def _cut_choice(self) -> CutChoice:
        return CutChoice(self._catalog, self._warehouse)

    def cut(self, subscription: str | None = None) -> Cut | None:
        """Return the last cut of a subscription. Without a name, the node must have exactly one
        subscription."""
        return self._cut_choice.last(self._subscription(subscription))

    def cuts(self, subscription: str | None = None) -> Sequence[Cut]:
        """Return all cuts of a subscription that are kept (``cuts_kept``), the oldest first."""
        return self._cut_choice.all(self._subscription(subscription))

    def read(
        self,
        table: str | TableName,
        *,
        subscription: str | None = None,
        as_of: AsOf | None = None,
    ) -> DataFrame:
        """Return a table at the last cut; while the table is copied again, at the last cut that
        holds it. ``table``: ``schema.table`` as SQL reads it (``sales."Order Items"``), or the two
        names.

        ``as_of``: read at a Cut, or at the newest cut up to an LSN or a time. Raises
        UndefinedObject, SqlSyntaxError, NotInPrerequisiteState (no such cut).
        """
        name = parse_name(table)
        cut = self._cut_choice.choose(subscription, name, as_of)
        return read(self.spark, cut, name, self._cut_choice.leaves(name))

    def views(
        self,
        spark: SparkSession | None = None,
        *,
        subscription: str | None = None,
        as_of: AsOf | None = None,
    ) -> dict[TableName, str]:
        """Register every table of one cut as a temporary view. Return the views' names by (schema,
        table). ``as_of``: as in ``read``."""
        cut = self._cut_choice.choose(subscription, None, as_of)
        return register_views(spark or self.spark, cut, self._cut_choice.leaves)

    def statistics_views(self, spark: SparkSession | None = None) -> tuple[str, ...]:
        """Register the catalogs' views about subscriptions as temporary views, with the present
        rows. Return their names, pg_stat_subscription and others."""
        return register_statistics(spark or self.spark, self._queries())

    def verify(
        self,
        tables: Sequence[str | TableName] = (),
        *,
        subscription: str | None = None,
        options: VerifyOptions = _VERIFY_OPTIONS,
    ) -> Verification:
        """Compare all or some tables of a subscription with the publisher's at one LSN. The node
        must run, in this process or another. Raises as ``Verifier.run``."""
        chosen = self._subscription(subscription)

        def check() -> None:
            self._raise_if_stopped(chosen.name)
            check_follows(self._subscription(chosen.name), running=self.running)

        copy = replace(copy_options(self.parameters), connections=options.connections)
        lake = (self._catalog, self._warehouse, self._cluster)
        return Verifier(chosen, *lake, check, options, copy).run([*map(parse_name, tables)])

    @property
    def running(self) -> bool:
        """Tell whether a process, this one or another, runs the node."""
        return running_process(self.folder) is not None

    def status(self, *, patience: float = 0.0) -> Sequence[SubscriptionStatus]:
        """Return every subscription and its tables. Any process may call this.

        If the node does not run and ``patience`` is above 0, this call asks the publishers, which
        have that many seconds to answer.
        """
        process = running_process(self.folder)
        asked = () if process or not patience else self._catalog.subscriptions()
        told = ask_all(asked, patience)
        return read_status(self._catalog, process=process, told=told)

    def process_silence(self) -> ProcessSilence | None:
        """Return why the process that runs the node does not respond; None if it does, or none
        runs. Any process may call this."""
        return process_silence(self._catalog, running_process(self.folder))

    def _report(self) -> NodeReport:
        return node_report(self._catalog, self.status(), self.serving)

    def _subscription(self, name: str | None) -> Subscription:
        return find_subscription(self._catalog, name)


# Choose a reader's cut: the last cut, or the cut that shows an LSN or a time. ``read``, below,
# reads tables at a cut.

AsOf = Cut | Lsn | int | str | datetime
"""An LSN as a number or as PostgreSQL writes it (``16/B374D848``), or a time with its zone."""


class CutChoice:
    """The choice among the cuts of a node's subscriptions."""

    def __init__(self, catalog: Catalog, warehouse: Warehouse) -> None:
        self._catalog = catalog
        self._warehouse = warehouse

    def last(self, subscription: Subscription) -> Cut | None:
        """Return the newest cut, or None."""
        return self._warehouse.cuts.last(_owner(subscription))

    def all(self, subscription: Subscription) -> tuple[Cut, ...]:
        """Return the cuts that are kept, the oldest first."""
        return self._warehouse.cuts.all(_owner(subscription))

    def choose(self, subscription: str | None, table: TableName | None, as_of: AsOf | None) -> Cut:
        """Return the cut for a reader of a table, or of all. Raises InvalidParameterValue,
        UndefinedObject, ConfigurationError; NotInPrerequisiteState without such a cut."""
        if isinstance(as_of, Cut):
            return as_of
        if as_of is not None:
            return self._as_of(find_subscription(self._catalog, subscription), _moment(as_of))
        cut = self._newest(subscription, table)
        if table is not None and table not in cut.tables:
            known = find_subscription(self._catalog, cut.subscription)
            return older_cut(self._catalog, self._warehouse, known, table) or cut
        return cut

    def leaves(self, table: TableName) -> tuple[TableName, ...]:
        """Return the partitions that hold a table's rows."""
        return leaves(self._catalog, table)

    def _newest(self, subscription: str | None, table: TableName | None) -> Cut:
        known = self._catalog.subscriptions()
        if subscription is None and table is not None and len(known) > 1:
            cuts = [self.last(each) for each in known]
            holding = [cut for cut in cuts if cut is not None and table in cut.tables]
            if len(holding) == 1:
                return holding[0]
        chosen = find_subscription(self._catalog, subscription)
        return existing(self.last(chosen), chosen)

    def _as_of(self, subscription: Subscription, moment: Lsn | datetime) -> Cut:
        found = self._warehouse.cuts.as_of(_owner(subscription), moment)
        if found is not None:
            return found
        oldest = next(iter(self.all(subscription)), None)
        raise NotInPrerequisiteState(
            f'subscription "{subscription.name}" has no cut of {moment} or before',
            detail="There is none yet."
            if oldest is None
            else f"The oldest one is at {oldest.lsn}, made at {oldest.cut_time}.",
            hint="The parameter cuts_kept says how many are kept.",
        )


def _owner(subscription: Subscription) -> CutOwner:
    return CutOwner(subscription.name, subscription.app_id)


def _moment(as_of: Lsn | int | str | datetime) -> Lsn | datetime:
    if isinstance(as_of, datetime):
        if as_of.tzinfo is None:
            raise InvalidParameterValue(
                f"time {as_of} has no time zone",
                hint="For example: datetime(2026, 1, 31, 12, tzinfo=UTC).",
            )
        return as_of
    return Lsn.parse(as_of) if isinstance(as_of, str) else Lsn(as_of)


# ``Node.changes``: a Python program reads a slot of the plugin ``arrow``, as Arrow record batches.
#
# The batches come in order and begin at the slot's position. The iterator holds the slot, which
# moves only to positions that the program has confirmed.

PLUGIN: Final = "arrow"
_END: Final = b"end_lsn"
"""The metadata key under which a batch has a commit's end."""
_PID: Final = 0
_WAIT_S: Final = 1.0
"""Seconds after which a following reader checks again whether it must end."""


def _log(notice: Notice) -> None:
    log.warning("%s", notice.message)


class SlotChanges:
    """An iterator over a slot's changes, and a context manager. ``stop`` ends the iteration, from
    any thread."""

    def __init__(
        self, reading: LogicalReading, slot: str, options: Mapping[str, str], *, follow: bool
    ) -> None:
        """Open the slot. Raises UndefinedObject, ObjectInUse, NotInPrerequisiteState (another
        plugin's slot)."""
        self._reading = reading
        self._follow = follow
        self._stopping = threading.Event()
        with reading.catalog.read() as t:
            found = t.slots.get(slot)
        if found.plugin != PLUGIN:
            raise NotInPrerequisiteState(
                f'replication slot "{slot}" was not created for the output plugin "{PLUGIN}"',
                detail=f'It is of the plugin "{found.plugin}".',
                hint=f"Make one: pg_create_logical_replication_slot(name, '{PLUGIN}').",
            )
        self._slot = slot
        self._given = found.confirmed_flush_lsn
        request = SlotRequest("Node.changes", True, False, slot, None, None, tuple(options.items()))
        self._stream = reading.open(request, _PID, self._check, _log)
        self._batches = self._drawn()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Return the batches as the plugin writes them; with ``follow`` they do not end. Each
        iterator continues where the last one stopped."""
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def _drawn(self) -> Iterator[pa.RecordBatch]:
        while not self._stopping.is_set():
            for some in self._stream.batches():
                for data in some.column(2):
                    batch = _batch(data.as_buffer())
                    end = (batch.schema.metadata or {}).get(_END)
                    if end is not None:
                        self._given = Lsn.parse(end.decode())
                    yield batch
            if not self._follow:
                return
            self._reading.sequencer.wait(self._stream.position, _WAIT_S, self._stopping)
            self._stream.go_on()

    def confirm(self, lsn: Lsn | int | str) -> Lsn:
        """Confirm that everything up to ``lsn`` is safe: the slot begins there the next time, even
        after a crash. Pass the ``end_lsn`` in a commit's metadata. Return the slot's new position,
        which is never beyond the returned batches."""
        wanted = Lsn.parse(lsn) if isinstance(lsn, str) else Lsn(lsn)
        return self._reading.slots.confirm(self._slot, min(wanted, self._given))

    def stop(self) -> None:
        """End the iteration soon. Any thread may call it."""
        self._stopping.set()
        self._reading.sequencer.wake()

    def close(self) -> None:
        """Release the slot."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise QueryCanceled.by_user()


def _batch(data: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        for batch in reader:
            return batch.replace_schema_metadata(reader.schema.metadata)
        return pa.RecordBatch.from_pylist([], schema=reader.schema)


# The catalogs' views about subscriptions as temporary views of Spark, under the same names and with
# the present rows. LSNs are text, as SQL prints them; oids are numbers, times are timestamps.

STATISTICS_VIEWS: Final = (
    "pg_subscription",
    "pg_subscription_rel",
    "pg_stat_subscription",
    "pg_stat_subscription_stats",
    "pg_replication_origin_status",
    "pg_stat_lake_subscription",
    "pg_stat_lake_subscription_rel",
)
_NUMBERS: Final = (OID, XID)


def register_statistics(spark: SparkSession, queries: NodeQueries) -> tuple[str, ...]:
    """Register all these views in place of earlier ones. Return their names."""
    for name in STATISTICS_VIEWS:
        view = SelectStmt((ResTarget(Star()),), (RangeTable(RangeVar(name)),))
        rows = _table(queries.rows(view))
        spark.createDataFrame(rows).createOrReplaceTempView(name)
    return STATISTICS_VIEWS


def _table(rows: Rows) -> pa.Table:
    """Return the rows as Arrow, in the types that PostgreSQL's types have in the lake."""
    cells = list(zip(*rows.rows, strict=True)) or [()] * len(rows.fields)
    arrays = {}
    for field, values in zip(rows.fields, cells, strict=True):
        texts = pa.array([None if v is None else bytes(v) for v in values], pa.binary())
        family = find(INT8 if field.attribute.type_oid in _NUMBERS else field.attribute.type_oid)
        arrays[field.attribute.name] = family.text_column(cells_of(texts), field.attribute.typmod)
    return pa.table(arrays)


# SELECT on PostgreSQL's catalogs and views for the library and the command line.
#
# Results have Python values: numbers, booleans, None for NULL, and PostgreSQL's text for everything
# else. They equal the answers that sessions on the port get, with one exception: only the process
# that runs the node knows which sessions use slots. In other processes slots show no ``active_pid``
# and ``pg_stat_replication`` is empty.

_OWNER: Final = "penstock"
"""The superuser that runs these queries: whoever may write the node's folder is a superuser."""
_PYTHON: Final[Mapping[int, Callable[[str], Any]]] = {
    BOOL: lambda text: text == "t",
    **dict.fromkeys((*INTEGERS, OID, XID), int),
    **dict.fromkeys(FLOATS, float),
}


class NodeQueries:
    """Catalog queries without a session."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        parameters: Parameters,
        serving: ServingNode | None,
        connections: Connections,
        reload: Callable[[], None],
        spark: Spark,
    ) -> None:
        """Prepare the answers. ``serving``: the publishing half, if this process runs it.
        ``reload`` reads the parameters again (pg_reload_conf)."""
        if serving is None:
            sequencer = Sequencer(catalog, warehouse)
            slots = Slots(
                catalog,
                sequencer,
                parameters.max_replication_slots,
                plugin=plugin_finder(lambda: parameters),
                check_warehouse=warehouse.check_there,
            )
            shared = SharedState(DATABASE_OID, slots, Senders(), Sessions())
            self.reading = logical_reading(
                spark,
                warehouse,
                catalog,
                sequencer,
                slots,
                lambda: parameters,
                shared.senders.stats,
            )
        else:
            shared, self.reading = serving.shared, serving.reading
        self._slots = shared.slots
        self._catalogs = NodeCatalogs(catalog, warehouse, shared, connections, reload, self.reading)
        self._parameters = parameters

    def answers(self, query: PreparableStmt) -> TypeGuard[SelectStmt]:
        """Tell whether the query reads catalogs only."""
        return self._catalogs.reads_catalog_only(query)

    def rows(self, query: SelectStmt, notify: Callable[[Notice], None] = _log) -> Rows:
        """Run one SELECT, with rows as sessions get them. Raises PostgreSQL's errors."""
        return self._catalogs.query(query, (), replace(self._facts(), notify=notify))

    def query(self, query: SelectStmt) -> CommandResult:
        """Run one SELECT as ``rows`` does, with Python values in the result."""
        notices: list[Notice] = []
        found = self.rows(query, notices.append)
        readers = [_PYTHON.get(field.attribute.type_oid, str) for field in found.fields]
        rows = tuple(
            tuple(
                None if cell is None else read(decode_text(bytes(cell)))
                for read, cell in zip(readers, row, strict=True)
            )
            for row in list(found.rows)  # an error of a text must not leave a slot in use
        )
        self._slots.answered(_PID)
        return CommandResult(
            f"SELECT {len(rows)}",
            tuple(notices),
            columns=tuple(field.attribute.name for field in found.fields),
            rows=rows,
        )

    def heard(self) -> None:
        """Note that the caller has the rows: slots will not return them again."""
        self._slots.heard(_PID)

    def failed(self) -> None:
        """Note that the caller did not get the rows: slots will return them again."""
        self._slots.take_back(_PID, sent=True)

    def _facts(self) -> SessionFacts:
        version = self._parameters.server_version
        return SessionFacts(
            pid=_PID,
            user=_OWNER,
            role_oid=NODE_OWNER,
            superuser=True,
            replication=True,
            database=self._parameters.database,
            version=version,
            settings={"server_version": f"{version}.0"},
            set_config=lambda name, value, is_local: value or "",
        )


# Tables at a cut as Spark DataFrames and views. They are pinned to the cut's Delta versions, so all
# of them show the publisher at one LSN. Readers without Penstock do the same with the cuts table
# (docs/reading-at-a-cut.md).

_NOT_A_WORD: Final = re.compile(r"\W")
_IN_CUTS: Final = (SubscriptionRelState.READY, SubscriptionRelState.SYNCDONE)


def parse_name(table: str | TableName) -> TableName:
    """Read a table's name as PostgreSQL does: names are folded to lower case unless quoted. A name
    without a schema is in "public". Raises SqlSyntaxError.
    """
    if not isinstance(table, str):
        return table
    name = parse_table_name(table)
    return name.schema or "public", name.name


def find_subscription(catalog: Catalog, name: str | None) -> Subscription:
    """Return the subscription of a name, or the only one. Raises UndefinedObject,
    ConfigurationError."""
    known = catalog.subscriptions()
    if name is not None:
        if (found := next((s for s in known if s.name == name), None)) is None:
            raise UndefinedObject(f'subscription "{name}" does not exist')
        return found
    if len(known) == 1:
        return known[0]
    raise ConfigurationError(
        "the node has no subscription" if not known else "the node has several subscriptions",
        hint="Name one: subscription=..." if known else "CREATE SUBSCRIPTION first.",
    )


def existing(cut: Cut | None, subscription: Subscription) -> Cut:
    """Return a subscription's last cut. Raises NotInPrerequisiteState if there is none."""
    if cut is None:
        raise NotInPrerequisiteState(
            f'subscription "{subscription.name}" has no cut yet',
            detail="The initial copy of its tables has not finished.",
            hint="Look at: penstock status",
        )
    return cut


def leaves(catalog: Catalog, table: TableName) -> tuple[TableName, ...]:
    """Return the partitions that hold a partitioned table's rows; () for any other table."""
    tree = catalog.partition_tree(table)
    return tuple((t.schema, t.name) for t in tree if t.partition_key is None)


def read(
    spark: SparkSession, cut: Cut, table: TableName, partitions: Sequence[TableName] = ()
) -> DataFrame:
    """Return a table as of the cut. ``partitions``: its leaves (``leaves``). Raises UndefinedObject
    (42P01)."""
    rows = _read(spark, cut, table)
    for leaf in partitions:
        if leaf in cut.tables:
            rows = rows.unionByName(_read(spark, cut, leaf))
    return rows


def _read(spark: SparkSession, cut: Cut, table: TableName) -> DataFrame:
    pinned = cut.tables.get(table)
    if pinned is None:
        raise UndefinedTable(
            f'table "{qualified(*table)}" is not in the cut at {cut.lsn}',
            detail="Tables in it: " + ", ".join(map(_write_name, sorted(cut.tables))) + ".",
            hint="Quote names unless they consist of a-z, 0-9 and _.",
        )
    _check_same(qualified(*table), cut, pinned)
    return spark.read.format("delta").option("versionAsOf", pinned.version).load(pinned.uri)


def older_cut(
    catalog: Catalog, warehouse: Warehouse, subscription: Subscription, table: TableName
) -> Cut | None:
    """Return the last cut that holds a table, if newer cuts lack it while it is copied again."""
    for rel in catalog.relations(subscription.oid):
        if rel.table_name == table and rel.state not in _IN_CUTS and rel.table_id is not None:
            owner = CutOwner(subscription.name, subscription.app_id)
            return warehouse.cuts.last_with(owner, table)
    return None


def _check_same(name: str, cut: Cut, pinned: CutTable) -> None:
    """Raise NotInPrerequisiteState if another table is in the pinned one's place: its versions
    count from 0 again, and show other rows."""
    found = None if pinned.id is None else newest_table_id(Storage(pinned.uri), pinned.uri)
    if found != pinned.id:
        raise NotInPrerequisiteState(
            f'table "{name}" of the cut at {cut.lsn} is no longer there',
            detail=f'At "{pinned.uri}" there is '
            + ("none now." if found is None else "another table now: it was copied again."),
            hint="Read a newer cut: Node.cut tells the last one.",
        )


def view_name(table: TableName) -> str:
    """Return a table's view name: ``t`` for ``public.t``, ``schema_t`` for ``schema.t``. Characters
    other than letters, digits and ``_`` become ``_``."""
    schema, name = table
    return _NOT_A_WORD.sub("_", name if schema == "public" else f"{schema}_{name}")


def register_views(
    spark: SparkSession,
    cut: Cut,
    partitions: Callable[[TableName], Sequence[TableName]] = lambda table: (),
) -> dict[TableName, str]:
    """Register all tables of the cut as temporary views. Raises DuplicateObject before the first.

    ``partitions``: the leaves of a table (``leaves``)."""
    names: dict[TableName, str] = {}
    for table in sorted(cut.tables):
        name = view_name(table)
        clash = next((t for t, n in names.items() if n.lower() == name.lower()), None)
        if clash is not None:
            raise DuplicateObject(
                f'tables "{qualified(*clash)}" and "{qualified(*table)}" would both become the '
                f'view "{name}"',
                hint="Read them with node.read(...) instead.",
            )
        names[table] = name
    for table, name in names.items():
        read(spark, cut, table, partitions(table)).createOrReplaceTempView(name)
    return names


def _write_name(table: TableName) -> str:
    """Return a table's name as ``parse_name`` reads it."""
    return ".".join(map(quote_identifier, table))
