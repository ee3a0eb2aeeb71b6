"""Counts of errors and conflicts of subscriptions (pgstat_subscription.c, PgStat_StatSubEntry).

In: a connection to the statistics, each error that a worker meets. Out: counts since the last
reset. They outlive workers and nodes; a crash may lose the last ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Float, MetaData, Table, inspect, select

METADATA: Final = MetaData()
"""The collection of all tables of statistics."""


@dataclass(frozen=True, slots=True)
class SubscriptionCounts:
    """Counts named as the view's columns. ``stats_reset``: seconds since 1970; None: never."""

    apply_error_count: int = 0
    sync_error_count: int = 0
    confl_insert_exists: int = 0
    confl_update_exists: int = 0
    confl_update_missing: int = 0
    confl_delete_missing: int = 0
    confl_update_origin_differs: int = 0
    confl_delete_origin_differs: int = 0
    values_out_of_range: int = 0
    stats_reset: float | None = None

    @property
    def conflicts(self) -> dict[str, int]:
        """The counts of conflicts by type. Those of several keys at once are not counted apart."""
        found = {n.removeprefix("confl_"): getattr(self, n) for n in _COUNTED if "confl_" in n}
        return {**found, "multiple_unique_conflicts": 0}


_COUNTED: Final = tuple(
    field.name for field in dataclasses.fields(SubscriptionCounts) if field.name != "stats_reset"
)
_TABLE: Final = Table(
    "penstock_stat_subscription_stats",
    METADATA,
    Column("subid", BigInteger, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in _COUNTED),
    Column("stats_reset", Float(53)),
)


def is_complete(connection: Connection) -> bool:
    """Tell whether the table has a column for each count. One that an older version of Penstock
    made may lack some."""
    there = {column["name"] for column in inspect(connection).get_columns(_TABLE.name)}
    return there.issuperset(_COUNTED)


def add(connection: Connection, subid: int, more: SubscriptionCounts) -> None:
    """Add to the counts of a subscription."""
    found = _TABLE.c.subid == subid
    values = {name: _TABLE.c[name] + getattr(more, name) for name in _COUNTED}
    if not connection.execute(_TABLE.update().where(found).values(values)).rowcount:
        connection.execute(_TABLE.insert().values(subid=subid, **dataclasses.asdict(more)))


def reset(connection: Connection, subids: Collection[int], now: float) -> None:
    """Reset the counts to 0."""
    connection.execute(_TABLE.delete().where(_TABLE.c.subid.in_(subids)))
    nothing = dataclasses.asdict(SubscriptionCounts(stats_reset=now))
    for subid in subids:
        connection.execute(_TABLE.insert().values(subid=subid, **nothing))


def keep_only(connection: Connection, subids: Collection[int]) -> None:
    """Forget subscriptions that no longer exist."""
    connection.execute(_TABLE.delete().where(_TABLE.c.subid.not_in(subids)))


def all_counts(connection: Connection) -> dict[int, SubscriptionCounts]:
    """Return the counts by subscription oid."""
    rows = connection.execute(select(_TABLE)).mappings().all()
    names = (*_COUNTED, "stats_reset")
    return {row["subid"]: SubscriptionCounts(**{n: row[n] for n in names}) for row in rows}
