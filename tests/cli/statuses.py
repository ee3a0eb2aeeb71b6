"""Statuses out of nothing, for what is shown of them."""

from __future__ import annotations

from penstock.lsn import Lsn
from penstock.node.status import SubscriptionStatus, TableStatus


def table(name: str, state: str, rows: int = 0, done: int = 0, total: int = 0) -> TableStatus:
    """``done`` of ``total`` bytes are copied, in one part for each kB."""
    return TableStatus(
        name,
        state,
        None,
        rows_copied=rows,
        bytes_copied=done,
        bytes_total=total,
        units_copied=done >> 10,
        units_total=max(1, total >> 10),
    )


def subscription(name: str, state: str, *tables: TableStatus) -> SubscriptionStatus:
    return SubscriptionStatus(
        name=name,
        enabled=True,
        state=state,
        publications=("p",),
        slot_name=name,
        received_lsn=None,
        applied_lsn=None,
        cut_lsn=Lsn(0x10),
        publisher_lsn=None,
        lag_bytes=None,
        lag_seconds=None,
        rows_applied=0,
        rows_per_second=0.0,
        cut_age_seconds=None,
        publisher_age_seconds=None,
        retained_wal_bytes=None,
        wal_status=None,
        transactions_applied=0,
        error_count=0,
        error=None,
        error_detail=None,
        error_hint=None,
        updated_at=None,
        tables=tables,
    )
