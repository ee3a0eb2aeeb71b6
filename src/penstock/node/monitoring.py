"""``/metrics``: collect a node's numbers and serve them over HTTP."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from socketserver import ThreadingMixIn
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.catalog import Catalog, LakeTransaction
from penstock.errors import ConfigurationError
from penstock.lsn import Lsn
from penstock.node.serving import ServingNode
from penstock.node.status import SubscriptionStatus
from penstock.walsender.senders import Sender
from penstock.walsender.slots import SlotState

log = logging.getLogger(__name__)


# A node's numbers for Prometheus, under names that do not change (docs/operations.md,
# "Monitoring"). Every scrape asks for a new report; nothing is kept between scrapes. No socket is
# opened here. LSNs in reports are positions in bytes: in the node's own log for slots and
# walsenders, in the publisher's for subscriptions. Ages and lags are in seconds. None means not
# known.


@dataclass(frozen=True, slots=True)
class SlotReport:
    """A replication slot. ``waiting_transactions`` counts transactions of the log that are not
    confirmed; some of them may change nothing that is published. ``oldest_waiting_seconds`` is the
    age of the oldest, 0 if there is none. ``transactions`` and ``bytes`` count what was sent since
    the node started."""

    name: str
    active: bool
    temporary: bool
    lost: bool
    confirmed_flush_lsn: int
    lag_bytes: int
    waiting_transactions: int
    oldest_waiting_seconds: float
    inactive_seconds: float
    transactions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SenderReport:
    """A running stream; it is ``lag_bytes`` and ``lag_seconds`` behind the end of the log."""

    slot: str
    application_name: str
    sent_lsn: int
    flush_lsn: int | None
    lag_bytes: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class SequencerReport:
    """The node's log: its end, and the numbers of transactions that it keeps and of tables that it
    follows. ``unreadable`` counts tables that cannot be read at the moment.
    """

    lsn: int
    transactions: int
    tables: int
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class NodeReport:
    """All numbers of a node; ``sequencer`` is None for a node that does not publish."""

    version: str
    subscriptions: Sequence[SubscriptionStatus] = ()
    sequencer: SequencerReport | None = None
    slots: tuple[SlotReport, ...] = ()
    senders: tuple[SenderReport, ...] = ()
    wal_senders_limit: int = 0
    slots_limit: int = 0


_Field = tuple[str, str, str]
"""Name after the prefix, attribute of the record (``operator.attrgetter``), help text. A name that
ends in _total is a counter's."""

_SLOT: Final[Sequence[_Field]] = (
    ("active", "active", "Whether a client streams from the slot."),
    ("lost", "lost", "Whether the slot is invalid and its subscriber must be copied again."),
    ("confirmed_flush_lsn", "confirmed_flush_lsn", "Position that the client has confirmed."),
    ("lag_bytes", "lag_bytes", "From the confirmed position to the end of the node's log."),
    ("waiting_transactions", "waiting_transactions", "Transactions that are not confirmed."),
    ("oldest_waiting_seconds", "oldest_waiting_seconds", "Age of the first of them; 0: none."),
    ("inactive_seconds", "inactive_seconds", "How long nobody has used the slot; 0: in use."),
    ("transactions_total", "transactions", "Transactions decoded since the node started."),
    ("bytes_total", "bytes", "Bytes of decoded changes since the node started."),
)
_SENDER: Final[Sequence[_Field]] = (
    ("sent_lsn", "sent_lsn", "Position up to which was sent."),
    ("flush_lsn", "flush_lsn", "Position that the client has on disk."),
    ("lag_bytes", "lag_bytes", "From the flushed position to the end of the node's log."),
    ("lag_seconds", "lag_seconds", "Age of the first transaction that is not flushed; 0: none."),
)
_SUBSCRIPTION: Final[Sequence[_Field]] = (
    ("enabled", "enabled", "Whether the subscription is to run."),
    ("stopped", "stopped", "Whether an error has stopped it for good."),
    ("received_lsn", "received_lsn", "The publisher's position up to which was received."),
    ("cut_lsn", "cut_lsn", "The publisher's position of the last cut: durable and acknowledged."),
    ("publisher_lsn", "publisher_lsn", "The publisher's position that it told last."),
    ("lag_bytes", "lag_bytes", "From the last cut to the publisher's position."),
    ("lag_seconds", "lag_seconds", "How far readers are behind at most; 0 while nothing waits."),
    ("cut_age_seconds", "cut_age_seconds", "How long ago the last cut was written."),
    ("publisher_age_seconds", "publisher_age_seconds", "How long ago the publisher was heard of."),
    ("slot_gone", "slot_gone", "Whether the publisher's slot is lost or missing."),
    ("retained_wal_bytes", "retained_wal_bytes", "WAL that the slot keeps on the publisher."),
    ("transactions_total", "transactions_applied", "Transactions applied since the node started."),
    ("changes_total", "rows_applied", "Changes applied since the node started."),
    ("errors_total", "error_count", "Errors of the apply worker since the node started."),
    ("update_missing_total", "update_missing", "Updates skipped, their rows were not there."),
    ("delete_missing_total", "delete_missing", "Deletes skipped, their rows were not there."),
    (
        "apply_errors_total",
        "counts.apply_error_count",
        "Errors in applying since the statistics were reset.",
    ),
    (
        "sync_errors_total",
        "counts.sync_error_count",
        "Errors in copying since the statistics were reset.",
    ),
    (
        "values_out_of_range_total",
        "counts.values_out_of_range",
        "Values that were replaced since then.",
    ),
    ("tables_ready", "tables_ready", "Tables that are part of the cuts."),
    ("tables_parked", "tables_parked", "Tables that an error of their own keeps out of the cuts."),
    ("tables", "table_count", "Tables of the subscription."),
)

_TABLE: Final[Sequence[_Field]] = (
    ("version", "version", "Delta version of the table in the last cut."),
    ("columns_unfilled", "unfilled_count", "Added columns that lack values in rows from before."),
    ("verified_seconds", "verified_seconds", "Since it was last found equal to the publisher's."),
    ("copied_rows", "rows_copied", "Rows that its copy has brought so far."),
    ("copied_bytes", "bytes_copied", "Bytes of the publisher's heap that are copied."),
    ("copy_bytes", "bytes_total", "Bytes of the publisher's heap that the copy is to read."),
    ("changes_total", "rows_applied", "Changes applied since the node started."),
    ("update_missing_total", "update_missing", "Updates skipped, their rows were not there."),
    ("delete_missing_total", "delete_missing", "Deletes skipped, their rows were not there."),
)


class NodeCollector(Collector):
    """A ``prometheus_client.registry.Collector`` of a node's reports."""

    def __init__(self, report: Callable[[], NodeReport]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield every family, also those without samples."""
        report = self._report()
        info = GaugeMetricFamily("penstock_build_info", "Always 1.", labels=["version"])
        info.add_metric([report.version], 1)
        yield info
        yield from _node(report)
        slots = [((slot.name,), slot) for slot in report.slots]
        yield from _families("penstock_replication_slot", ("slot_name",), _SLOT, slots)
        senders = [((sender.slot, sender.application_name), sender) for sender in report.senders]
        yield from _families(
            "penstock_walsender", ("slot_name", "application_name"), _SENDER, senders
        )
        subscriptions = [((one.name,), one) for one in report.subscriptions]
        yield from _families(
            "penstock_subscription", ("subscription",), _SUBSCRIPTION, subscriptions
        )
        state = GaugeMetricFamily(
            "penstock_subscription_state",
            "1 for what the subscription does at the moment, in words.",
            labels=["subscription", "state"],
        )
        for subscription in report.subscriptions:
            state.add_metric([subscription.name, subscription.state], 1)
        yield state
        conflicts = CounterMetricFamily(
            "penstock_subscription_conflicts_total",
            "Conflicts of a type since the statistics were reset.",
            labels=["subscription", "type"],
        )
        for subscription in report.subscriptions:
            for kind, count in subscription.counts.conflicts.items():
                conflicts.add_metric([subscription.name, kind], count)
        yield conflicts
        yield from _tables(report.subscriptions)


def application(report: Callable[[], NodeReport]) -> WSGIApplication:
    """Return an application, with its own registry, that answers GET /metrics, and any other path
    with 404."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(report))
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"metrics are at /metrics\n"]
        found: Iterable[bytes] = metrics(environ, start_response)
        return found

    return answer


def _node(report: NodeReport) -> Iterator[Metric]:
    log = report.sequencer
    if log is None:
        return
    yield _gauge("penstock_sequencer_lsn", "End of the node's log.", log.lsn)
    yield _gauge(
        "penstock_sequencer_transactions", "Transactions that the log keeps.", log.transactions
    )
    yield _gauge("penstock_sequencer_tables", "Tables of the lake that are followed.", log.tables)
    yield _gauge(
        "penstock_sequencer_tables_unreadable",
        "Tables that cannot be read; their changes wait.",
        log.unreadable,
    )
    yield _gauge("penstock_max_wal_senders", "Parameter max_wal_senders.", report.wal_senders_limit)
    yield _gauge(
        "penstock_max_replication_slots", "Parameter max_replication_slots.", report.slots_limit
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _tables(subscriptions: Sequence[SubscriptionStatus]) -> Iterator[Metric]:
    tables = [((one.name, table.name), table) for one in subscriptions for table in one.tables]
    yield from _families("penstock_table", ("subscription", "table"), _TABLE, tables)
    state = GaugeMetricFamily(
        "penstock_table_state",
        "1 for the state of the table, as in pg_subscription_rel.",
        labels=["subscription", "table", "state"],
    )
    for labels, table in tables:
        state.add_metric([*labels, table.state], 1)
    yield state


def _families(
    prefix: str,
    labels: tuple[str, ...],
    fields: Sequence[_Field],
    records: Sequence[tuple[tuple[str, ...], object]],
) -> Iterator[Metric]:
    """Yield a family for each field. ``records``: label values and record, in pairs."""
    for name, attribute, text in fields:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(f"{prefix}_{name}", text, labels=labels)
        read = attrgetter(attribute)
        for values, record in records:
            value = read(record)
            if value is not None:
                family.add_metric(values, float(value))
        yield family


_REQUEST_TIMEOUT_S: Final = 10


class Monitoring:
    """The HTTP server of a running node."""

    def __init__(self, address: str, port: int, report: Callable[[], NodeReport]) -> None:
        self._address = address
        self._port = port
        self._report = report
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen. Raises ConfigurationError if the port is taken or the address is not local."""
        try:
            self._server = make_server(
                self._address,
                self._port,
                application(self._report),
                server_class=_Server,
                handler_class=_Handler,
            )
        except OSError as error:
            raise ConfigurationError(
                f"could not serve metrics on {self._address}:{self._port}: {error.strerror}",
                hint='Set "metrics_port" and "metrics_address" in penstock.toml.',
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        log.debug("metrics: " + format, *args)


def node_report(
    catalog: Catalog, statuses: Sequence[SubscriptionStatus], serving: ServingNode | None
) -> NodeReport:
    """Return all present numbers. Raises the catalog's errors."""
    report = NodeReport(_version(), statuses)
    return report if serving is None else _with_publishing(report, catalog, serving)


def _with_publishing(report: NodeReport, catalog: Catalog, serving: ServingNode) -> NodeReport:
    states, senders = serving.slots.all(), serving.senders.all()
    positions = {state.slot.confirmed_flush_lsn for state in states}
    positions |= {sender.state.flush or Lsn(0) for sender in senders}
    with catalog.read() as t:
        end = t.transactions.end()
        kept, tables = t.transactions.count_after(Lsn(0)), len(t.transactions.versions())
        waiting = {at: t.transactions.count_after(at) for at in positions}
        first = {at: next(iter(t.transactions.after(at, 1)), None) for at in positions}
    now = time.time()
    ages = {at: _age(transaction, now) for at, transaction in first.items()}
    return NodeReport(
        report.version,
        report.subscriptions,
        SequencerReport(int(end), kept, tables, len(serving.sequencer.troubles.all())),
        tuple(_slot(s, serving, end, waiting, ages, now) for s in states),
        tuple(_sender(s, end, ages) for s in senders),
        serving.max_wal_senders,
        serving.max_replication_slots,
    )


def _slot(
    state: SlotState,
    serving: ServingNode,
    end: Lsn,
    waiting: dict[Lsn, int],
    ages: dict[Lsn, float],
    now: float,
) -> SlotReport:
    slot, active = state.slot, state.active_pid is not None
    at = slot.confirmed_flush_lsn
    stats = serving.senders.stats(slot.name)
    idle = 0.0 if active or slot.inactive_since is None else max(0.0, now - slot.inactive_since)
    return SlotReport(
        name=slot.name,
        active=active,
        temporary=state.temporary,
        lost=slot.invalidation_reason is not None,
        confirmed_flush_lsn=int(at),
        lag_bytes=max(0, end - at),
        waiting_transactions=waiting[at],
        oldest_waiting_seconds=ages[at],
        inactive_seconds=idle,
        transactions=stats.total_txns,
        bytes=stats.total_bytes,
    )


def _sender(sender: Sender, end: Lsn, ages: dict[Lsn, float]) -> SenderReport:
    state = sender.state
    flush = state.flush or Lsn(0)
    return SenderReport(
        slot=state.slot,
        application_name=sender.application_name,
        sent_lsn=int(state.sent),
        flush_lsn=int(flush) or None,
        lag_bytes=max(0, end - flush) if flush else 0,
        lag_seconds=ages.get(flush, 0.0) if flush else 0.0,
    )


def _age(transaction: LakeTransaction | None, now: float) -> float:
    return 0.0 if transaction is None else max(0.0, now - transaction.commit_time / 1e6)


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # Penstock runs from its source, not installed
        return "unknown"
