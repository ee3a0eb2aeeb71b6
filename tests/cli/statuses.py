"""Statuses out of nothing, for what is shown of them."""

from __future__ import annotations

from penstock.lsn import Lsn
from penstock.node.status import SubscriptionStatus, TableStatus


def table(name: str, state: str, rows: int = 0, done: int = 0, total: int = 0) -> TableStatus:
    """``done`` of ``total`` bytes are copied, in one part for each kB."""
    return TableStatus(
        name,
        state=state,
        rows_copied=rows,
        bytes_copied=done,
        bytes_total=total,
        units_copied=done >> 10,
        units_total=max(1, total >> 10),
    )


def subscription(name: str, state: str, *tables: TableStatus) -> SubscriptionStatus:
    return SubscriptionStatus(
        1,
        None,
        state,
        None,
        name=name,
        enabled=True,
        publications=("p",),
        slot_name=name,
        cut_lsn=Lsn(0x10),
        tables=tables,
    )
