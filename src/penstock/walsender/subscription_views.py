"""Rows of the views about subscriptions (pg_stat_subscription, pgstat_subscription.c).

In: subscriptions and what the node that runs them has told of them last. Out: rows of the views
with PostgreSQL's columns. The apply workers run in the node's own process, which is their pid; a
subscription without a worker has a row without numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from penstock.catalog import Subscription, SubscriptionStatistics

Row = Mapping[str, object]
Numbers = Mapping[int, SubscriptionStatistics]


def stat_subscription(subscriptions: Iterable[Subscription], numbers: Numbers) -> list[Row]:
    """One row a subscription. ``numbers``: by its oid."""
    return [_worker(subscription, numbers.get(subscription.oid)) for subscription in subscriptions]


def _worker(subscription: Subscription, told: SubscriptionStatistics | None) -> Row:
    row = {"subid": subscription.oid, "subname": subscription.name}
    if told is None or told.pid is None or not told.reported(time.time()):
        return row
    return row | {
        "worker_type": "apply",
        "pid": told.pid,
        "received_lsn": told.received_lsn,
        "last_msg_send_time": _time(told.last_msg_send_time),
        "last_msg_receipt_time": _time(told.last_msg_receipt_time),
        "latest_end_lsn": told.cut_lsn,
        "latest_end_time": _time(told.cut_time),
    }


def stat_subscription_stats(subscriptions: Iterable[Subscription], numbers: Numbers) -> list[Row]:
    """Counts of errors and conflicts since the node started."""
    return [_stats(subscription, numbers.get(subscription.oid)) for subscription in subscriptions]


def _stats(subscription: Subscription, told: SubscriptionStatistics | None) -> Row:
    return {
        "subid": subscription.oid,
        "subname": subscription.name,
        "apply_error_count": 0 if told is None else told.error_count,
        "sync_error_count": 0,
        "confl_insert_exists": 0 if told is None else told.confl_insert_exists,
        "confl_update_origin_differs": 0,
        "confl_update_exists": 0,
        "confl_update_missing": 0 if told is None else told.confl_update_missing,
        "confl_delete_origin_differs": 0,
        "confl_delete_missing": 0 if told is None else told.confl_delete_missing,
        "confl_multiple_unique_conflicts": 0,
    }


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
