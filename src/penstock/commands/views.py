"""SELECT on the node's catalogs and views (system_views.sql).

In: a ``Select`` and the catalog. Out: rows of Python values, with PostgreSQL's column names where
it has the column. Connection strings come without secrets (law 9).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from penstock.catalog import Catalog, Subscription, SubscriptionStatistics
from penstock.commands.result import CommandResult
from penstock.errors import PenstockError, UndefinedObject
from penstock.sql import Select
from penstock.sql.array_literals import join_array
from penstock.walreceiver.conninfo import ConnInfo

Row = dict[str, Any]


def select(statement: Select, catalog: Catalog) -> CommandResult:
    """Raises UndefinedObject: 42P01 for an unknown relation, 42703 for an unknown column."""
    view = _VIEWS.get(statement.relation)
    if view is None:
        raise UndefinedObject(
            f'relation "{statement.relation}" does not exist',
            hint=f"There are {', '.join(_VIEWS)}.",
            sqlstate="42P01",
        )
    names, rows = view
    for column in statement.columns or ():
        if column not in names:
            raise UndefinedObject(
                f'column "{column}" does not exist',
                hint=f"There are {', '.join(names)}.",
                sqlstate="42703",
            )
    columns = names if statement.columns is None else statement.columns
    found = tuple(tuple(row[column] for column in columns) for row in rows(catalog))
    return CommandResult(f"SELECT {len(found)}", columns=columns, rows=found)


def is_view(relation: str) -> bool:
    """Whether ``select`` knows it."""
    return relation in _VIEWS


def _pg_subscription(catalog: Catalog) -> list[Row]:
    return [
        {
            "oid": s.oid,
            "subname": s.name,
            "subenabled": s.enabled,
            "subbinary": s.binary,
            "subconninfo": _without_secrets(s.conninfo),
            "subslotname": s.slot_name,
            "subsynccommit": s.synchronous_commit,
            "subpublications": join_array(s.publications),
            "subappid": s.app_id,
            "substopped": s.stopped,
            "suberror": s.error and s.error.message,
            "suberrordetail": s.error and s.error.detail,
            "suberrorhint": s.error and s.error.hint,
            "suberrortime": _time(s.error.time if s.error else None),
            "subontableerror": s.on_table_error,
        }
        for s in catalog.subscriptions()
    ]


def _pg_subscription_rel(catalog: Catalog) -> list[Row]:
    return [
        {
            "srsubid": rel.subid,
            "srrelname": rel.qualified_name,
            "srsubstate": rel.state.value,
            "srsublsn": rel.lsn,
            "srsyncid": rel.sync_id,
            "srerror": rel.error and rel.error.message,
            "srerrordetail": rel.error and rel.error.detail,
            "srerrorhint": rel.error and rel.error.hint,
            "srerrortime": _time(rel.error.time if rel.error else None),
        }
        for rel in catalog.relations()
    ]


def _pg_stat_subscription(catalog: Catalog) -> list[Row]:
    """One row per subscription; without numbers where no node has reported any."""
    numbers = catalog.statistics.all()
    return [_stat_row(s, numbers.get(s.oid)) for s in catalog.subscriptions()]


def _stat_row(subscription: Subscription, stat: SubscriptionStatistics | None) -> Row:
    row: Row = dict.fromkeys(_STAT_COLUMNS)
    row |= {"subid": subscription.oid, "subname": subscription.name}
    if stat is None:
        return row
    for name in _STAT_COLUMNS:
        if hasattr(stat, name):
            row[name] = getattr(stat, name)
    now = time.time()
    works = stat.pid is not None and stat.reported(now)
    return row | {
        "worker_type": "apply" if works else None,
        "pid": stat.pid if works else None,
        "lag_bytes": stat.lag_bytes(now),
        "lag_seconds": stat.lag_seconds(now),
        "retained_bytes": stat.slot(now)[0],
        "last_msg_send_time": _time(stat.last_msg_send_time),
        "last_msg_receipt_time": _time(stat.last_msg_receipt_time),
        "latest_end_lsn": stat.cut_lsn,
        "latest_end_time": _time(stat.cut_time),
    }


def _pg_stat_subscription_stats(catalog: Catalog) -> list[Row]:
    """Counts of errors and conflicts since the node started."""
    numbers = catalog.statistics.all()
    return [
        {
            "subid": s.oid,
            "subname": s.name,
            "apply_error_count": stat.error_count if (stat := numbers.get(s.oid)) else 0,
            "confl_insert_exists": stat.confl_insert_exists if stat else 0,
            "confl_update_missing": stat.confl_update_missing if stat else 0,
            "confl_delete_missing": stat.confl_delete_missing if stat else 0,
        }
        for s in catalog.subscriptions()
    ]


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _without_secrets(conninfo: str) -> str:
    try:
        return str(ConnInfo.parse(conninfo))
    except PenstockError:
        return "********"


_SUBSCRIPTION_COLUMNS: Final = (
    "oid",
    "subname",
    "subenabled",
    "subbinary",
    "subconninfo",
    "subslotname",
    "subsynccommit",
    "subpublications",
    "subappid",
    "substopped",
    "suberror",
    "suberrordetail",
    "suberrorhint",
    "suberrortime",
    "subontableerror",
)
_REL_COLUMNS: Final = (
    "srsubid",
    "srrelname",
    "srsubstate",
    "srsublsn",
    "srsyncid",
    "srerror",
    "srerrordetail",
    "srerrorhint",
    "srerrortime",
)
_STAT_COLUMNS: Final = (
    "subid",
    "subname",
    "worker_type",
    "pid",
    "received_lsn",
    "last_msg_send_time",
    "last_msg_receipt_time",
    "latest_end_lsn",
    "latest_end_time",
    "state",
    "applied_lsn",
    "cut_lsn",
    "publisher_lsn",
    "lag_bytes",
    "lag_seconds",
    "retained_bytes",
    "rows_applied",
    "rows_per_second",
)

_STATS_COLUMNS: Final = (
    "subid",
    "subname",
    "apply_error_count",
    "confl_insert_exists",
    "confl_update_missing",
    "confl_delete_missing",
)

_VIEWS: Final[dict[str, tuple[tuple[str, ...], Callable[[Catalog], list[Row]]]]] = {
    "pg_subscription": (_SUBSCRIPTION_COLUMNS, _pg_subscription),
    "pg_subscription_rel": (_REL_COLUMNS, _pg_subscription_rel),
    "pg_stat_subscription": (_STAT_COLUMNS, _pg_stat_subscription),
    "pg_stat_subscription_stats": (_STATS_COLUMNS, _pg_stat_subscription_stats),
}
