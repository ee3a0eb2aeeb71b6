"""``/metrics``: a node's numbers, put together and served over HTTP.

In: the catalog, and the publishing half if there is one. Out: a server with its thread, from
``start`` to ``stop``. The format for Prometheus is left to ``prometheus``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
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
    application,
)
from penstock.node.serving import ServingNode
from penstock.node.status import SubscriptionStatus
from penstock.walsender.senders import Sender
from penstock.walsender.slots import SlotState

log = logging.getLogger(__name__)

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


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # Penstock runs from its source, not installed
        return "unknown"
