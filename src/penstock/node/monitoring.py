"""``/metrics``: a node's numbers, put together and served over HTTP.

In: the catalog, and the publishing half if there is one. Out: a server with its thread, from
``start`` to ``stop``. The format for Prometheus is left to ``prometheus``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from socketserver import ThreadingMixIn
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from penstock.catalog import Catalog, LakeTransaction
from penstock.errors import ConfigurationError
from penstock.lsn import Lsn
from penstock.node.prometheus import (
    NodeReport,
    SenderReport,
    SequencerReport,
    SlotReport,
    SubscriptionReport,
    TableReport,
    application,
)
from penstock.node.serving import ServingNode
from penstock.node.status import SLOT_GONE, SubscriptionStatus, TableStatus
from penstock.pg_catalog.subscription_views import stat_subscription_stats
from penstock.walsender.senders import Sender
from penstock.walsender.slots import SlotState

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S: Final = 10
_CONFLICT: Final = "confl_"
"""The prefix of columns of pg_stat_subscription_stats that count conflicts of a type."""


class Monitoring:
    """The HTTP server of a running node."""

    def __init__(self, address: str, port: int, report: Callable[[], NodeReport]) -> None:
        self._address = address
        self._port = port
        self._report = report
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen. Raises ConfigurationError if the port is taken or the address is not ours."""
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
    """Return all present numbers. Raises what the catalog raises."""
    tables = tuple(_table(s.name, table) for s in statuses for table in s.tables)
    known, counts = catalog.subscriptions(), catalog.statistics.counts()
    stats = {str(row["subname"]): row for row in stat_subscription_stats(known, counts)}
    out_of_range = {s.name: counts[s.oid].values_out_of_range for s in known if s.oid in counts}
    subscriptions = tuple(
        _subscription(s, stats.get(s.name, {}), out_of_range.get(s.name, 0)) for s in statuses
    )
    report = NodeReport(_version(), subscriptions, tables=tables)
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
        report.tables,
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
    totals = serving.senders.totals(slot.name)
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
        transactions=totals.transactions,
        bytes=totals.bytes,
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


def _subscription(
    status: SubscriptionStatus, stats: Mapping[str, object], out_of_range: int
) -> SubscriptionReport:
    """Return a subscription's numbers. ``stats``: its row of pg_stat_subscription_stats."""
    counts = {name: value for name, value in stats.items() if isinstance(value, int)}
    return SubscriptionReport(
        name=status.name,
        state=status.state,
        enabled=status.enabled,
        stopped=status.stopped,
        received_lsn=status.received_lsn,
        cut_lsn=status.cut_lsn,
        publisher_lsn=status.publisher_lsn,
        lag_bytes=status.lag_bytes,
        lag_seconds=status.lag_seconds,
        retained_wal_bytes=status.retained_wal_bytes,
        transactions=status.transactions_applied,
        changes=status.rows_applied,
        errors=status.error_count,
        tables_ready=sum(table.ready for table in status.tables),
        tables_parked=sum(table.parked for table in status.tables),
        tables=len(status.tables),
        update_missing=sum(table.update_missing for table in status.tables),
        delete_missing=sum(table.delete_missing for table in status.tables),
        cut_age_seconds=status.cut_age_seconds,
        publisher_age_seconds=status.publisher_age_seconds,
        apply_errors=counts.get("apply_error_count", 0),
        sync_errors=counts.get("sync_error_count", 0),
        conflicts={
            name.removeprefix(_CONFLICT): value
            for name, value in counts.items()
            if name.startswith(_CONFLICT)
        },
        values_out_of_range=out_of_range,
        slot_gone=None if status.wal_status is None else status.wal_status in SLOT_GONE,
    )


def _table(subscription: str, table: TableStatus) -> TableReport:
    return TableReport(
        subscription=subscription,
        table=table.name,
        state=table.state,
        version=table.version,
        rows_copied=table.rows_copied,
        bytes_copied=table.bytes_copied,
        bytes_total=table.bytes_total,
        changes=table.rows_applied,
        update_missing=table.update_missing,
        delete_missing=table.delete_missing,
        unfilled=len(table.unfilled),
        verified_seconds=table.verified_seconds,
    )


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # Penstock runs from its source, not installed
        return "unknown"
