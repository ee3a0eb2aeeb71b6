"""A node's numbers for Prometheus, under names that stay (docs/operations.md, "Monitoring").

In: a function that gives a report. Out: a collector, and a WSGI application that answers a scrape.
Every scrape asks for a new report; nothing is kept between scrapes. No socket is opened here.

LSNs in reports are positions in bytes: in the node's own log for slots and walsenders, in the
publisher's for subscriptions. Ages and lags are in seconds. None means not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.node.status import SubscriptionStatus


@dataclass(frozen=True, slots=True)
class SlotReport:
    """A replication slot. ``waiting_transactions`` counts transactions of the log that are not
    confirmed; some of them may hold nothing that is published. ``oldest_waiting_seconds`` is the
    age of the first one, 0 if none waits. ``transactions`` and ``bytes`` count what was sent since
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
    """A running stream, ``lag_bytes`` and ``lag_seconds`` behind the end of the log."""

    slot: str
    application_name: str
    sent_lsn: int
    flush_lsn: int | None
    lag_bytes: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class SequencerReport:
    """The log: its end, the transactions that it keeps, and the tables that are followed.

    ``unreadable`` counts tables that cannot be read at the moment.
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
"""Name after the prefix, attribute of the record (``operator.attrgetter``), help text. Names in
_total are counters."""

_SLOT: Final[Sequence[_Field]] = (
    ("active", "active", "Whether a client streams from the slot."),
    ("lost", "lost", "Whether the slot is invalid and its subscriber must be copied again."),
    ("confirmed_flush_lsn", "confirmed_flush_lsn", "Position that the client has confirmed."),
    ("lag_bytes", "lag_bytes", "From the confirmed position to the end of the node's log."),
    ("waiting_transactions", "waiting_transactions", "Transactions that are not confirmed."),
    ("oldest_waiting_seconds", "oldest_waiting_seconds", "Age of the first of them; 0: none."),
    ("inactive_seconds", "inactive_seconds", "How long nobody has used the slot; 0: in use."),
    ("transactions_total", "transactions", "Transactions sent since the node started."),
    ("bytes_total", "bytes", "Bytes of changes sent since the node started."),
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
    """Return an application that answers GET /metrics, and 404 to every other path. It has a
    registry of its own."""
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
    """Yield a family for each field. ``records``: each with the values of its labels."""
    for name, attribute, text in fields:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(f"{prefix}_{name}", text, labels=labels)
        read = attrgetter(attribute)
        for values, record in records:
            value = read(record)
            if value is not None:
                family.add_metric(values, float(value))
        yield family
