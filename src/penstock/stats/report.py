"""The numbers of a node at one moment.

In: what the node puts together. Out: frozen values for views and metrics. LSNs are positions in
bytes: in the node's own log for slots and walsenders, in the publisher's for subscriptions. Ages
and lags are in seconds. None means not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
class SubscriptionReport:
    """A subscription as ``penstock status`` shows it. Counts begin when the node starts.

    Those of pg_stat_subscription_stats begin when they are reset instead: ``apply_errors``,
    ``sync_errors``, ``conflicts`` (by type) and ``values_out_of_range``.
    """

    name: str
    state: str
    enabled: bool
    stopped: bool
    received_lsn: int | None
    cut_lsn: int | None
    publisher_lsn: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    retained_wal_bytes: int | None
    transactions: int
    changes: int
    errors: int
    tables_ready: int
    tables_parked: int
    tables: int
    update_missing: int = 0
    delete_missing: int = 0
    cut_age_seconds: float | None = None
    publisher_age_seconds: float | None = None
    slot_gone: bool | None = None
    apply_errors: int = 0
    sync_errors: int = 0
    conflicts: Mapping[str, int] = field(default_factory=dict)
    values_out_of_range: int = 0


@dataclass(frozen=True, slots=True)
class TableReport:
    """A table of a subscription; ``state`` is as in pg_subscription_rel. The running copy, or the
    last one, has read ``bytes_copied`` of the ``bytes_total`` bytes of the publisher's heap."""

    subscription: str
    table: str
    state: str
    version: int | None
    rows_copied: int
    bytes_copied: int
    bytes_total: int
    changes: int
    update_missing: int
    delete_missing: int
    unfilled: int = 0
    verified_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """All numbers of a node; ``sequencer`` is None for a node that does not publish."""

    version: str
    subscriptions: tuple[SubscriptionReport, ...] = ()
    sequencer: SequencerReport | None = None
    slots: tuple[SlotReport, ...] = ()
    senders: tuple[SenderReport, ...] = ()
    wal_senders_limit: int = 0
    slots_limit: int = 0
    tables: tuple[TableReport, ...] = ()
