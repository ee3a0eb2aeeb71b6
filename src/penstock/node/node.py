"""``Node``: the public object of the library, and the one place that joins the rooms.

In: a node's folder, and the caller's SparkSession where there is one. Out: statements run, workers
started and stopped, tables read at a cut. What the rooms need from one another they declare; here
it is handed to them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.catalog import Catalog
from penstock.catalog.engine import make_private_file
from penstock.catalog.pg_subscription import Subscription
from penstock.commands import CommandResult, execute
from penstock.commands.scope import CommandScope
from penstock.errors import DuplicateObject
from penstock.lakehouse.cluster import Cluster
from penstock.lakehouse.cuts import Cut, CutOwner
from penstock.lakehouse.session import build_session, check_session, session_jars
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node import doctor, guc, reading
from penstock.node.catalog_queries import NodeQueries
from penstock.node.catching_up import CaughtUp, check_not_stopped, wait_for_all, wait_for_cut
from penstock.node.claims import LockFile, running_process, take_warehouse
from penstock.node.cut_choice import AsOf, CutChoice
from penstock.node.guc import Parameters
from penstock.node.monitoring import Monitoring, node_report
from penstock.node.reloading import LiveParameters, reload_told, signal_running
from penstock.node.running import RunningNode, copy_options
from penstock.node.serving import ServingNode
from penstock.node.session_commands import connect_publisher
from penstock.node.slot_changes import SlotChanges
from penstock.node.slot_watch import ask_all
from penstock.node.statistics_views import register_statistics
from penstock.node.status import SubscriptionStatus, read_status
from penstock.node.verification import Verification
from penstock.node.verify import Verifier, VerifyOptions, check_follows
from penstock.pg_catalog.connections import Connections
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.relation import TableName
from penstock.sql import QueryStatement, parse_script
from penstock.sql.grammar.statements import Statement
from penstock.stats.backend_status import Sessions
from penstock.stats.report import NodeReport

log = logging.getLogger(__name__)

_POLL: Final = 0.05
_VERIFY_OPTIONS: Final = VerifyOptions()


class Node:
    """A node in a folder. A context manager that stops and closes it.

    ``spark``: a session with Delta, as in a notebook; without one the node builds its own when it
    needs it. Raises ConfigurationError when the folder is not a node.
    """

    def __init__(self, path: str | Path, spark: SparkSession | None = None) -> None:
        self.folder: Final = Path(path).resolve()
        self._live: Final = LiveParameters(self.folder)
        self._given_spark = spark
        self._cluster = Cluster(self._session)
        self._running: RunningNode | None = None
        self.serving: ServingNode | None = None
        """The publishing half, while the node runs and has a port."""
        self._monitoring: Monitoring | None = None
        self._lock: LockFile | None = None
        self._catalog = Catalog.open(guc.state_url(self.folder, self.parameters))
        self._warehouse = self._make_warehouse()
        self._connections = Connections()
        self._asked: NodeQueries | None = None
        """Of the last call of ``execute``: its caller may not have the rows."""

    @classmethod
    def init(
        cls, path: str | Path, *, warehouse: str | None = None, state: str | None = None
    ) -> Node:
        """Make a node in an empty or new folder. Raises DuplicateObject when there is one."""
        folder = Path(path).resolve()
        file = folder / guc.FILE_NAME
        if file.exists():
            raise DuplicateObject(
                f'"{folder}" is a Penstock node already',
                hint=f"Start it with: penstock start -D {folder}",
            )
        folder.mkdir(parents=True, exist_ok=True)
        text = guc.default_text()
        if warehouse is not None:
            text = guc.with_value(text, "warehouse", warehouse)
        if state is not None:
            text = guc.with_value(text, "state", state)
            make_private_file(file)  # a password may be in it
        file.write_text(text, encoding="utf-8")
        try:
            Catalog.create(guc.state_url(folder, guc.load(folder))).close()
        except BaseException:
            file.unlink()
            raise
        return cls(folder)

    @property
    def parameters(self) -> Parameters:
        """Those that hold now."""
        return self._live.now

    def reload(self) -> None:
        """Read ``penstock.toml`` again. What holds from now on, and what needs a restart, is in the
        log. Raises PenstockError: the file has a mistake, and nothing has changed."""
        (self._live if self.serving is None else self.serving).reload()

    def _warehouse_uri(self) -> str:
        uri = self.parameters.warehouse
        return uri if ":" in uri else str(self.folder / uri)

    def _make_warehouse(self) -> Warehouse:
        made = Warehouse(self._warehouse_uri(), fsync=self.parameters.fsync, spark=self._cluster)
        if self._catalog.warehouse() == made.uri:
            made.node_id = self._catalog.node_info.node_id
        return made

    # Statements

    def execute(self, text: str) -> list[CommandResult]:
        """Run one or more SQL statements, separated by semicolons; each result has its notices.

        Raises PenstockError with PostgreSQL's message and SQLSTATE; statements before it hold, but
        slots that they have read give the rows again.
        """
        self._heard()
        try:
            return [
                self._execute(statement, text[slice(*statement.span)])
                for statement in parse_script(text)
            ]
        except BaseException:
            self._heard(nothing=True)
            raise

    def _heard(self, *, nothing: bool = False) -> None:
        """The caller goes on, and so has the rows of the last call; or ``nothing``."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.failed() if nothing else asked.heard()

    def _execute(self, statement: Statement, text: str) -> CommandResult:
        if isinstance(statement, QueryStatement):
            self._asked = asked = self._asked or self._queries()
            if asked.answers(text):
                return asked.query(text)
        scope = CommandScope(
            warehouse=self._warehouse,
            database=self.parameters.database,
            version=self.parameters.server_version,
            running=self.running,
            unsent_changes=self.parameters.default_unsent_changes,
        )
        if self.serving is not None:  # what was committed before stands in the log before it
            self.serving.sequencer.step()
        return execute(statement, self._catalog, connect_publisher, scope)

    def _queries(self) -> NodeQueries:
        lake = (self._catalog, self._warehouse, self.parameters, self.serving)
        return NodeQueries(*lake, self._connections, self._reload_conf, self._cluster)

    def sql(self, text: str) -> CommandResult:
        """Run statements, log their notices, return the last result."""
        results = self.execute(text)
        for result in results:
            for notice in result.notices:
                log.info("%s", notice.report())
        return results[-1] if results else CommandResult(tag="")

    def changes(
        self, slot: str, options: Mapping[str, str] | None = None, *, follow: bool = False
    ) -> SlotChanges:
        """What has been committed since a slot of the plugin ``arrow`` was confirmed, as record
        batches; ``follow``: and what will be. Use it in a ``with``, and ``confirm`` what is safe.

        Raises UndefinedObject, ObjectInUse, NotInPrerequisiteState.
        """
        self._heard()
        return SlotChanges(self._queries().reading, slot, options or {}, follow=follow)

    # Running

    @property
    def spark(self) -> SparkSession:
        """The session that the node works with. Raises ConfigurationError."""
        return self._cluster.session

    def _session(self) -> SparkSession:
        if self._given_spark is not None:
            check_session(self._given_spark, self._warehouse_uri())
            return self._given_spark
        doctor.require()
        spark, uri = self.parameters.spark, self._warehouse_uri()
        return build_session(
            master=spark.master, driver_memory=spark.driver_memory, conf=spark.conf, warehouse=uri
        )

    def _check_spark(self) -> None:
        """What can be said of Spark before it is needed. Raises ConfigurationError."""
        if self._given_spark is not None:
            check_session(self._given_spark, self._warehouse_uri())
            return
        doctor.require()
        session_jars(self._warehouse_uri())

    def start(self) -> None:
        """Start the workers in the background; the caller goes on.

        Raises ObjectInUse when another process runs this node, ConfigurationError.
        """
        if self._running is not None:
            return
        self._lock = LockFile(self.folder)
        with contextlib.ExitStack() as undo:
            undo.callback(self._forget_running)
            self._catalog.node_lock.take()
            self._check_spark()
            self._warehouse = self._make_warehouse()
            take_warehouse(self._catalog, self._warehouse)
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
            self._running.start()
            undo.pop_all()
        log.info("node %s has started", self.folder)

    def _reload_conf(self) -> None:
        if self._running is None:
            signal_running(self.folder)
        else:
            reload_told(self.folder, self.reload)

    def _forget_running(self) -> None:
        self.serving = self._running = self._monitoring = None
        self._catalog.node_lock.release()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def stop(self) -> None:
        """Stop the workers after their current cuts."""
        if self._monitoring is not None:
            self._monitoring.stop()
            self._monitoring = None
        if self.serving is not None:
            self.serving.stop()
            self.serving = None
        if self._running is not None:
            self._running.stop()
            self._running = None
            log.info("node %s has stopped", self.folder)
        self._catalog.sequences.close()
        self._forget_running()

    def close(self) -> None:
        """Stop, and end the Spark session that the node has built."""
        self._heard()
        self.stop()
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
        """Run until ``stop`` is set. Raises the error that ended the launcher, if one did."""
        while not stop.wait(_POLL):
            if self._running is not None:
                self._running.check()

    def wait_for(
        self, lsn: Lsn | str, *, subscription: str | None = None, timeout: float = 60.0
    ) -> Cut:
        """Wait until the last cut is at or after ``lsn``; the cut.

        Works beside the process that runs the node too. Raises the error that has stopped the
        subscription or the node, NotInPrerequisiteState after ``timeout`` seconds.
        """
        wanted = Lsn.parse(lsn) if isinstance(lsn, str) else lsn
        name = self._subscription(subscription).name
        return wait_for_cut(self, name, wanted, timeout, self._raise_if_stopped)

    def wait_until_caught_up(
        self, timeout: float, stop: threading.Event | None = None
    ) -> Sequence[CaughtUp]:
        """Wait until every enabled subscription has a cut at its publisher's present position.

        How far each is: all have got there, unless ``stop`` was set before. Raises the error that
        has stopped a subscription or the node, NotInPrerequisiteState after ``timeout`` seconds.
        """
        wanted = {}
        for subscription in self._catalog.subscriptions():
            if subscription.enabled:
                self._raise_if_stopped(subscription.name)
                with connect_publisher(subscription.conninfo, subscription.name) as publisher:
                    wanted[subscription.name] = publisher.current_wal_lsn()
        return wait_for_all(self, wanted, timeout, stop)

    def _raise_if_stopped(self, name: str) -> None:
        if self._running is not None:
            self._running.check()
        check_not_stopped(self.status(), name)

    # Reading

    @property
    def _cut_choice(self) -> CutChoice:
        return CutChoice(self._catalog, self._warehouse)

    def cut(self, subscription: str | None = None) -> Cut | None:
        """The last cut of a subscription; of the only one when none is named."""
        return self._cut_choice.last(self._subscription(subscription))

    def cuts(self, subscription: str | None = None) -> Sequence[Cut]:
        """All cuts of a subscription that are kept (``cuts_kept``), the oldest first."""
        return self._cut_choice.all(self._subscription(subscription))

    def read(
        self,
        table: str | TableName,
        *,
        subscription: str | None = None,
        as_of: AsOf | None = None,
    ) -> DataFrame:
        """A table at the last cut: ``schema.table`` as SQL reads it (``sales."Order Items"``), or
        the two names. While a table is copied again, at the last cut that holds it.

        ``as_of``: at the newest cut up to an LSN or a time instead, or at a Cut. Raises
        UndefinedObject, SqlSyntaxError, NotInPrerequisiteState (no such cut any more)."""
        name = reading.parse_name(table)
        cut = self._cut_choice.wanted(subscription, name, as_of)
        return reading.read(self.spark, cut, name, self._cut_choice.leaves(name))

    def views(
        self,
        spark: SparkSession | None = None,
        *,
        subscription: str | None = None,
        as_of: AsOf | None = None,
    ) -> dict[TableName, str]:
        """Register every table of one cut as a temporary view; (schema, table) -> view name.
        ``as_of``: as of ``read``."""
        cut = self._cut_choice.wanted(subscription, None, as_of)
        return reading.register_views(spark or self.spark, cut, self._cut_choice.leaves)

    def statistics_views(self, spark: SparkSession | None = None) -> tuple[str, ...]:
        """Register the catalogs' views about subscriptions as temporary views, with the rows of
        now; their names, pg_stat_subscription and others."""
        return register_statistics(spark or self.spark, self._queries())

    def verify(
        self,
        tables: Sequence[str | TableName] = (),
        *,
        subscription: str | None = None,
        options: VerifyOptions = _VERIFY_OPTIONS,
    ) -> Verification:
        """Compare the tables of a subscription, or some, with the publisher's at one LSN, while the
        node runs, in this process or another. Raises as ``Verifier.run``."""
        chosen = self._subscription(subscription)

        def check() -> None:
            self._raise_if_stopped(chosen.name)
            check_follows(self._subscription(chosen.name), running=self.running)

        copy = replace(copy_options(self.parameters), connections=options.connections)
        lake = (self._catalog, self._warehouse, self._cluster)
        return Verifier(chosen, *lake, check, options, copy).run([*map(reading.parse_name, tables)])

    @property
    def running(self) -> bool:
        """Whether a process runs the node, this one or another."""
        return running_process(self.folder) is not None

    def status(self, *, patience: float = 0.0) -> Sequence[SubscriptionStatus]:
        """Every subscription and its tables, from any process.

        While nobody runs the node nobody asks the publishers: they are asked now, and have
        ``patience`` seconds to answer.
        """
        running = self.running
        asked = () if running or not patience else self._catalog.subscriptions()
        return read_status(self._catalog, running=running, told=ask_all(asked, patience))

    def _report(self) -> NodeReport:
        return node_report(self._catalog, self.status(), self.serving)

    def _subscription(self, name: str | None) -> Subscription:
        return reading.find_subscription(self._catalog, name)
