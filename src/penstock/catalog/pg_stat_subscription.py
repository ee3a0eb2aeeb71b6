"""Live statistics of subscriptions (pg_stat_subscription, pgstat_subscription.c).

A running node reports statistics about once a second. A reader gets the last report, which counts
as out of date if the node does not run or its publisher does not answer. After a crash statistics
are worthless, so writes are not forced to disk. In SQLite they have a file of their own, which is
made again if it is damaged. No decision depends on them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    MetaData,
    Table,
    Text,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DatabaseError

from penstock.catalog.store import (
    add_what_is_missing,
    make_private_file,
    open_engine,
    parse_url,
    sqlite_path,
    transaction,
)
from penstock.lsn import Lsn

# Counts of errors and conflicts of subscriptions (pgstat_subscription.c, PgStat_StatSubEntry).
# They outlive workers and nodes; a crash may lose the last ones.

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
        """The counts of conflicts by type. Conflicts of several keys have no count of their own."""
        found = {n.removeprefix("confl_"): getattr(self, n) for n in _COUNTED if "confl_" in n}
        return {**found, "multiple_unique_conflicts": 0}


_COUNTED: Final = tuple(
    field.name for field in dataclasses.fields(SubscriptionCounts) if field.name != "stats_reset"
)
_STATS: Final = Table(
    "penstock_stat_subscription_stats",
    METADATA,
    Column("subid", BigInteger, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in _COUNTED),
    Column("stats_reset", Float(53)),
)


_TABLE: Final = Table(
    "penstock_stat_subscription",
    METADATA,
    Column("subid", BigInteger, primary_key=True, autoincrement=False),
    Column("numbers", Text, nullable=False),
)


_NODE: Final = Table(
    "penstock_stat_node",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("pid", BigInteger, nullable=False),
    Column("updated_at", Float(53), nullable=False),
)
"""One row: the process that has reported last. A node without subscriptions reports, too."""


STREAMING: Final = "streaming"
"""The state of a worker that has a stream."""

COPYING: Final = "copying"
"""The state of a worker whose tables are being copied, so that it has no stream yet."""

AT_WORK: Final = (STREAMING, COPYING)

_REPORTED_S: Final = 10.0
"""A running node has written its statistics within these seconds."""

_HEARD_S: Final = 15.0
"""A publisher that answers has sent something within these seconds, at least an answer to the
node's question, which it is asked every ten."""

_TOLD_S: Final = 30.0
"""A publisher that answers has told of its slot within these seconds."""


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """The statistics of one table.

    ``name``: qualified. ``bytes_copied``, ``bytes_total``: bytes of the publisher's heap, in whole
    units. ``error``: the last error of its copy, which is retried. ``update_missing``,
    ``delete_missing``: changes that were skipped because their rows are missing. ``unfilled``:
    columns that were added and lack the publisher's values in older rows.
    """

    name: str
    rows_copied: int = 0
    bytes_copied: int = 0
    bytes_total: int = 0
    units_copied: int = 0
    units_total: int = 0
    rows_applied: int = 0
    version: int | None = None
    error: str | None = None
    error_detail: str | None = None
    error_hint: str | None = None
    update_missing: int = 0
    delete_missing: int = 0
    unfilled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription's statistics. Times are seconds since 1970; LSNs are None while unknown.

    ``pid``: the node's process, None when none runs. ``state``: the worker's activity, in words.
    ``publisher_lsn``: the end of the publisher's WAL as last reported, at ``publisher_at``.
    ``caught_up_at``: the last time at which a cut was known to hold everything committed.
    ``waiting``: changes wait to be applied. ``retained_bytes``: WAL that the slot keeps;
    ``wal_status``: as in pg_replication_slots (``missing``: there is no such slot); the publisher
    reported both at ``slot_at``.
    """

    subid: int
    pid: int | None
    state: str
    updated_at: float | None
    received_lsn: Lsn | None = None
    applied_lsn: Lsn | None = None
    cut_lsn: Lsn | None = None
    publisher_lsn: Lsn | None = None
    last_msg_send_time: float | None = None
    last_msg_receipt_time: float | None = None
    commit_time: float | None = None
    cut_time: float | None = None
    publisher_at: float | None = None
    caught_up_at: float | None = None
    waiting: bool = True
    retained_bytes: int | None = None
    wal_status: str | None = None
    slot_at: float | None = None
    rows_applied: int = 0
    rows_per_second: float = 0.0
    transactions_applied: int = 0
    error_count: int = 0
    error: str | None = None
    error_detail: str | None = None
    error_hint: str | None = None
    copy_snapshot_at: float | None = None
    """The time since which a running copy holds its snapshot. The two fields below are the xmin and
    the bytes of WAL that the snapshot holds back, as the publisher reports them."""
    copy_snapshot_xmin: int | None = None
    copy_retained_bytes: int | None = None
    wait_event: str | None = None
    """What has kept the worker from applying changes since ``wait_since``; None while it works."""
    wait_since: float | None = None
    tables: tuple[TableStatistics, ...] = ()

    def reported(self, now: float) -> bool:
        """Return whether a node has reported recently. ``now``: seconds since 1970."""
        return is_recent(self.updated_at, now)

    def heard(self, now: float) -> bool:
        """Return whether the publisher has sent something recently."""
        return self.publisher_at is not None and now - self.publisher_at < _HEARD_S

    def lag_bytes_at(self, now: float) -> int | None:
        """Return the bytes from the last cut to the end of the publisher's WAL; None while that is
        unknown."""
        if self.cut_lsn is None or self.publisher_lsn is None or not self.heard(now):
            return None
        return max(0, self.publisher_lsn - self.cut_lsn)

    def lag_seconds_at(self, now: float) -> float | None:
        """Return an upper limit of the seconds by which readers are behind. It is 0 while the
        publisher is heard on an open stream and nothing waits, else the time since readers were
        last known to have everything. None if readers have never had everything."""
        if self.caught_up_at is None:
            return None
        follows = self.state == STREAMING and self.reported(now) and self.heard(now)
        if follows and not self.waiting:
            return 0.0
        return max(0.0, now - self.caught_up_at)

    def slot(self, now: float) -> tuple[int | None, str | None]:
        """Return ``retained_bytes`` and ``wal_status``; both are None without a recent report of
        the publisher."""
        if self.slot_at is None or now - self.slot_at >= _TOLD_S:
            return None, None
        return self.retained_bytes, self.wal_status


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """A node's process, and when it has reported, in seconds since 1970."""

    pid: int
    updated_at: float


def is_recent(updated_at: float | None, now: float) -> bool:
    """Return whether a running node may have reported last at this time."""
    return updated_at is not None and now - updated_at < _REPORTED_S


class StatisticsStore:
    """The statistics of all subscriptions of a node. The owner must call ``close``."""

    def __init__(self, url: str) -> None:
        """Open the statistics beside the state store at ``url``: for a SQLite file ``x.db`` they
        are in ``x-stat.db``."""
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        self._file = None if path is None else path.with_name(f"{path.stem}-stat{path.suffix}")
        if self._file is not None:
            make_private_file(self._file)
            parsed = parsed.set(database=str(self._file))
        self._engine = open_engine(parsed, durable=False)
        self._prepare()

    @property
    def folder(self) -> Path | None:
        """The folder of a SQLite file."""
        return None if self._file is None else self._file.parent

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def report(
        self, statistics: Iterable[SubscriptionStatistics], node: NodeStatistics | None = None
    ) -> None:
        """Replace the statistics of these subscriptions. ``node``: the process that reports."""
        numbers = {s.subid: json.dumps(dataclasses.asdict(s)) for s in statistics}
        if not numbers and node is None:
            return
        with self._write() as connection:
            if node is not None:
                connection.execute(_NODE.delete())
                connection.execute(_NODE.insert().values(id=0, **dataclasses.asdict(node)))
            if not numbers:
                return
            connection.execute(_TABLE.delete().where(_TABLE.c.subid.in_(list(numbers))))
            rows = [{"subid": subid, "numbers": text} for subid, text in numbers.items()]
            connection.execute(_TABLE.insert(), rows)

    def keep_only(self, subids: Collection[int]) -> None:
        """Forget subscriptions that no longer exist."""
        with self._write() as connection:
            connection.execute(_TABLE.delete().where(_TABLE.c.subid.not_in(list(subids))))
            connection.execute(_STATS.delete().where(_STATS.c.subid.not_in(subids)))

    def node(self) -> NodeStatistics | None:
        """Return the last report of a process about itself; None if there was none."""
        with transaction(self._engine, write=False) as connection:
            row = connection.execute(select(_NODE.c.pid, _NODE.c.updated_at)).first()
        return None if row is None else NodeStatistics(*row)

    def all(self) -> dict[int, SubscriptionStatistics]:
        """Return the statistics by subscription oid, without those that are damaged: the node
        reports them again."""
        with transaction(self._engine, write=False) as connection:
            rows = connection.execute(select(_TABLE.c.subid, _TABLE.c.numbers)).all()
        found = {}
        for subid, numbers in rows:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                found[subid] = replace(_statistics(json.loads(numbers)), subid=subid)
        return found

    def count(self, subid: int, more: SubscriptionCounts) -> None:
        """Add errors and conflicts to a subscription's counts."""
        with self._write() as connection:
            found = _STATS.c.subid == subid
            values = {name: _STATS.c[name] + getattr(more, name) for name in _COUNTED}
            if not connection.execute(_STATS.update().where(found).values(values)).rowcount:
                connection.execute(_STATS.insert().values(subid=subid, **dataclasses.asdict(more)))

    def reset_counts(self, subids: Collection[int], now: float) -> None:
        """Reset the counts to 0."""
        with self._write() as connection:
            connection.execute(_STATS.delete().where(_STATS.c.subid.in_(subids)))
            nothing = dataclasses.asdict(SubscriptionCounts(stats_reset=now))
            for subid in subids:
                connection.execute(_STATS.insert().values(subid=subid, **nothing))

    def counts(self) -> dict[int, SubscriptionCounts]:
        """Return the counts by subscription oid, without subscriptions that have none."""
        with transaction(self._engine, write=False) as connection:
            rows = connection.execute(select(_STATS)).mappings().all()
        names = (*_COUNTED, "stats_reset")
        return {row["subid"]: SubscriptionCounts(**{n: row[n] for n in names}) for row in rows}

    @contextlib.contextmanager
    def _write(self) -> Iterator[Connection]:
        with transaction(self._engine, write=True) as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL synchronous_commit = off"))
            yield connection

    def _prepare(self) -> None:
        try:
            self._create()
        except DatabaseError:
            if self._file is None:
                raise
            self._engine.dispose()
            for path in _files(self._file):
                path.unlink(missing_ok=True)
            make_private_file(self._file)
            self._create()

    def _create(self) -> None:
        with self._engine.begin() as connection:
            METADATA.create_all(connection)
            connection.execute(select(_TABLE)).all()
            there = {column["name"] for column in inspect(connection).get_columns(_STATS.name)}
        if not there.issuperset(_COUNTED):  # an older version of Penstock has made it
            with self._write() as connection:
                add_what_is_missing(connection, METADATA)
        with self._engine.begin() as connection:
            connection.execute(select(_STATS)).all()


def _files(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))]


def _table(numbers: Mapping[str, Any], known: Collection[str]) -> TableStatistics:
    values = {name: value for name, value in numbers.items() if name in known}
    return TableStatistics(**{**values, "unfilled": tuple(values.get("unfilled", ()))})


def _statistics(numbers: Mapping[str, Any]) -> SubscriptionStatistics:
    """Return the statistics of a row. Fields that only another version of Penstock knows are left
    out."""
    known = {f.name for f in dataclasses.fields(SubscriptionStatistics)}
    known_of_table = {f.name for f in dataclasses.fields(TableStatistics)}
    values = {name: value for name, value in numbers.items() if name in known}
    for name, value in values.items():
        if name.endswith("_lsn") and value is not None:
            values[name] = Lsn(value)
    values["tables"] = tuple(_table(table, known_of_table) for table in numbers.get("tables", ()))
    return SubscriptionStatistics(**values)
