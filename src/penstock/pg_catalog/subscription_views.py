"""Rows of the views about subscriptions (pg_stat_subscription, pgstat_subscription.c).

A subscription without a worker has a row without numbers. While a subscription copies tables, it
has another row for each of these tables. Two more views show facts that a server does not have:
pg_stat_lake_subscription and pg_stat_lake_subscription_rel.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Final

from penstock.catalog import (
    PreparedBlock,
    PreparedXact,
    RecordedError,
    Subscription,
    SubscriptionCounts,
    SubscriptionRel,
    SubscriptionStatistics,
    TableVerification,
)
from penstock.catalog.pg_subscription import LakeOptions
from penstock.lsn import INVALID, Lsn
from penstock.pg_catalog.snapshot import NODE_OWNER
from penstock.relation import TableName
from penstock.stats.backend_status import Activity, BackendType

_LAKE_OPTIONS: Final = tuple(each.name for each in fields(LakeOptions))
Row = Mapping[str, object]
Numbers = Mapping[int, SubscriptionStatistics]


def stat_subscription(
    subscriptions: Iterable[Subscription],
    numbers: Numbers,
    workers: Iterable[Activity],
    oids: Mapping[TableName, int],
) -> list[Row]:
    """Return a row for each subscription and each table that is being copied. ``numbers``: by
    subscription oid. ``workers``: sessions of pg_stat_activity; their pids take precedence.
    ``oids``: oids of tables."""
    names = {subscription.oid: subscription.name for subscription in subscriptions}
    apply, copies = {}, []
    for worker in workers:
        if worker.backend_type is BackendType.APPLY:
            apply[worker.subscription] = worker.pid
        elif worker.subscription in names:
            copies.append(worker)
    return [_worker(oid, names[oid], numbers.get(oid), apply.get(oid)) for oid in names] + [
        _copy(worker.subscription, names[worker.subscription], worker.pid, oids[table])
        for worker in copies
        for table in worker.tables
        if worker.subscription is not None and table in oids
    ]


def _copy(subid: int, name: str, pid: int, relid: int) -> Row:
    """Return the row of a copy, without numbers: a server shows these in pg_stat_progress_copy."""
    return {
        "subid": subid,
        "subname": name,
        "worker_type": "table synchronization",
        "pid": pid,
        "relid": relid,
    }


def _worker(subid: int, name: str, told: SubscriptionStatistics | None, pid: int | None) -> Row:
    row = {"subid": subid, "subname": name}
    if told is None or not told.reported(time.time()):
        return row if pid is None else row | {"worker_type": "apply", "pid": pid}
    pid = told.pid if pid is None else pid
    if pid is None:
        return row
    return row | {
        "worker_type": "apply",
        "pid": pid,
        "received_lsn": told.received_lsn,
        "last_msg_send_time": told.last_msg_send_time,
        "last_msg_receipt_time": told.last_msg_receipt_time,
        "latest_end_lsn": told.cut_lsn,
        "latest_end_time": told.cut_time,
    }


def prepared_xacts(
    xacts: Iterable[PreparedXact],
    blocks: Iterable[PreparedBlock],
    names: Mapping[int, str],
    database: str,
) -> list[Row]:
    """Return the rows of pg_prepared_xacts: transactions of publishers, under the names that
    PostgreSQL's subscriber gives them and with the publisher's xids, and transactions of sessions.
    ``names``: roles' names, by oid."""
    owner = names[NODE_OWNER]
    found: list[tuple[int, str, int, str | None]]
    found = [(x.xid, x.local_gid, x.prepare_time, owner) for x in xacts]
    found += [(b.xid, b.gid, b.prepared, names.get(b.owner)) for b in blocks if b.in_doubt]
    return [
        {
            "transaction": xid,
            "gid": gid,
            "prepared": prepared / 1e6,
            "owner": name,
            "database": database,
        }
        for xid, gid, prepared, name in found
    ]


def replication_origins(subscriptions: Iterable[Subscription]) -> list[Row]:
    """Return the rows of pg_replication_origin: one for each subscription, as a subscriber of
    PostgreSQL has (ReplicationOriginNameForLogicalRep)."""
    return [{"roident": s.origin_id, "roname": s.origin_name} for s in subscriptions]


def replication_origin_status(
    subscriptions: Iterable[Subscription], numbers: Numbers, local_lsn: Lsn
) -> list[Row]:
    """Return the rows of pg_replication_origin_status: the last reported cut, or the position to
    which the origin was advanced if that is greater. ``local_lsn``: the node's LSN."""
    return [
        {
            "local_id": subscription.origin_id,
            "external_id": subscription.origin_name,
            "remote_lsn": remote_lsn,
            "local_lsn": local_lsn,
        }
        for subscription in subscriptions
        if (remote_lsn := _remote_lsn(subscription, numbers.get(subscription.oid))) is not None
    ]


def _remote_lsn(subscription: Subscription, told: SubscriptionStatistics | None) -> Lsn | None:
    cut = None if told is None else told.cut_lsn
    if cut is None and subscription.origin_lsn == INVALID:
        return None
    return max(cut or INVALID, subscription.origin_lsn)


def stat_subscription_stats(
    subscriptions: Iterable[Subscription], counts: Mapping[int, SubscriptionCounts]
) -> list[Row]:
    """Return the counts of errors and conflicts since they were reset."""
    return [_stats(s, _counted(counts, s)) for s in subscriptions]


def _counted(
    counts: Mapping[int, SubscriptionCounts], subscription: Subscription
) -> SubscriptionCounts:
    return counts.get(subscription.oid) or SubscriptionCounts()


def _stats(subscription: Subscription, counts: SubscriptionCounts) -> Row:
    return {
        "subid": subscription.oid,
        "subname": subscription.name,
        "apply_error_count": counts.apply_error_count,
        "sync_error_count": counts.sync_error_count,
        **{f"confl_{kind}": count for kind, count in counts.conflicts.items()},
        "stats_reset": counts.stats_reset,
    }


def stat_lake_subscription(
    subscriptions: Iterable[Subscription],
    numbers: Numbers,
    counts: Mapping[int, SubscriptionCounts],
    *,
    superuser: bool,
) -> list[Row]:
    """Return the rows of pg_stat_lake_subscription. Errors name rows and files, so only superusers
    see them."""
    return [
        {
            "subid": subscription.oid,
            "subname": subscription.name,
            "app_id": subscription.app_id,
            **{name: getattr(subscription, name) for name in _LAKE_OPTIONS},
            "history": str(subscription.history),
            "values_out_of_range": _counted(counts, subscription).values_out_of_range,
            "stopped": subscription.stopped,
            **(_error(subscription.error) if superuser else {}),
            **_progress(numbers.get(subscription.oid)),
        }
        for subscription in subscriptions
    ]


def _progress(told: SubscriptionStatistics | None) -> Row:
    if told is None:
        return {}
    now = time.time()
    copies = told.reported(now)
    return {
        "copy_snapshot_at": told.copy_snapshot_at if copies else None,
        "copy_snapshot_xmin": told.copy_snapshot_xmin if copies else None,
        "copy_retained_bytes": told.copy_retained_bytes if copies else None,
        "state": told.state,
        "applied_lsn": told.applied_lsn,
        "cut_lsn": told.cut_lsn,
        "publisher_lsn": told.publisher_lsn,
        "lag_bytes": told.lag_bytes_at(now),
        "lag_seconds": told.lag_seconds_at(now),
        "retained_bytes": told.slot(now)[0],
        "rows_applied": told.rows_applied,
        "rows_per_second": told.rows_per_second,
    }


def stat_lake_subscription_rel(
    subscriptions: Iterable[Subscription],
    tables: Iterable[SubscriptionRel],
    oids: Mapping[TableName, int],
    verified: Mapping[str, TableVerification],
    *,
    superuser: bool,
) -> list[Row]:
    """Return the tables of subscriptions by name, with the errors that have parked them and the
    results of their last comparison. ``verified``: results by the tables' sync ids."""
    names = {subscription.oid: subscription.name for subscription in subscriptions}
    return [
        {
            "subid": table.subid,
            "subname": names.get(table.subid),
            "relid": oids[table.table_name],
            "schemaname": table.schema,
            "relname": table.table,
            "state": table.state.value,
            "lsn": table.lsn,
            "sync_id": table.sync_id,
            **(_error(table.error) if superuser else {}),
            **_verified(verified.get(table.sync_id)),
        }
        for table in tables
    ]


def _verified(found: TableVerification | None) -> Row:
    if found is None:
        return {}
    return {
        "verify_result": found.result,
        "verify_lsn": found.lsn,
        "verified_at": found.verified,
    }


def _error(error: RecordedError | None) -> Row:
    if error is None:
        return {}
    return {
        "error": error.message,
        "error_detail": error.detail,
        "error_hint": error.hint,
        "error_time": error.time,
    }
