"""Live numbers of subscriptions (pg_stat_subscription, pgstat_subscription.c).

In: what a running node reports about once a second. Out: the numbers as they were told last. They
are worth nothing after a crash, so nothing is forced to disk: with SQLite they have a file of their
own, which is made anew when it is damaged. Nothing is decided upon them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, select, text
from sqlalchemy.exc import DatabaseError

from penstock.catalog.engine import (
    make_private_file,
    open_engine,
    parse_url,
    sqlite_path,
    transaction,
)
from penstock.lsn import Lsn

_METADATA: Final = MetaData()
_TABLE: Final = Table(
    "penstock_stat_subscription",
    _METADATA,
    Column("subid", BigInteger, primary_key=True, autoincrement=False),
    Column("numbers", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """One table. ``name``: qualified. ``rows_total``: the publisher's estimate of what to copy.
    ``update_missing``, ``delete_missing``: changes skipped because their rows are not there."""

    name: str
    rows_copied: int = 0
    bytes_copied: int = 0
    rows_total: int | None = None
    units_copied: int = 0
    units_total: int = 0
    rows_applied: int = 0
    version: int | None = None
    error: str | None = None
    error_detail: str | None = None
    error_hint: str | None = None
    update_missing: int = 0
    delete_missing: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription. Times are seconds since 1970; LSNs are None while unknown.

    ``pid``: the node's process, None when none runs. ``state``: what the worker does, in words.
    ``publisher_lsn``: end of the publisher's WAL as told last. ``lag_seconds``: how old the newest
    transaction in a cut is while others wait. ``retained_bytes``: WAL that the slot keeps.
    """

    subid: int
    pid: int | None
    state: str
    updated_at: float
    received_lsn: Lsn | None = None
    applied_lsn: Lsn | None = None
    cut_lsn: Lsn | None = None
    publisher_lsn: Lsn | None = None
    last_msg_send_time: float | None = None
    last_msg_receipt_time: float | None = None
    commit_time: float | None = None
    cut_time: float | None = None
    lag_seconds: float | None = None
    retained_bytes: int | None = None
    rows_applied: int = 0
    rows_per_second: float = 0.0
    transactions_applied: int = 0
    error_count: int = 0
    confl_insert_exists: int = 0
    error: str | None = None
    error_detail: str | None = None
    error_hint: str | None = None
    tables: tuple[TableStatistics, ...] = ()

    @property
    def confl_update_missing(self) -> int:
        """pg_stat_subscription_stats: updates of rows that were not there."""
        return sum(table.update_missing for table in self.tables)

    @property
    def confl_delete_missing(self) -> int:
        """pg_stat_subscription_stats: deletes of rows that were not there."""
        return sum(table.delete_missing for table in self.tables)

    @property
    def lag_bytes(self) -> int | None:
        """From the last cut to the end of the publisher's WAL."""
        if self.cut_lsn is None or self.publisher_lsn is None:
            return None
        return max(0, self.publisher_lsn - self.cut_lsn)


class StatisticsStore:
    """The numbers of all subscriptions of a node; ``close`` it."""

    def __init__(self, url: str) -> None:
        """``url``: the state store's; a SQLite file ``x.db`` gets ``x-stat.db`` beside it."""
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        self._file = None if path is None else path.with_name(f"{path.stem}-stat{path.suffix}")
        if self._file is not None:
            make_private_file(self._file)
            parsed = parsed.set(database=str(self._file))
        self._engine = open_engine(parsed, durable=False)
        self._prepare()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def report(self, statistics: Iterable[SubscriptionStatistics]) -> None:
        """Replace the numbers of the subscriptions given."""
        numbers = {s.subid: json.dumps(dataclasses.asdict(s)) for s in statistics}
        if not numbers:
            return
        with self._write() as connection:
            connection.execute(_TABLE.delete().where(_TABLE.c.subid.in_(list(numbers))))
            rows = [{"subid": subid, "numbers": text} for subid, text in numbers.items()]
            connection.execute(_TABLE.insert(), rows)

    def keep_only(self, subids: Collection[int]) -> None:
        """Forget subscriptions that there are no more."""
        with self._write() as connection:
            connection.execute(_TABLE.delete().where(_TABLE.c.subid.not_in(list(subids))))

    def all(self) -> dict[int, SubscriptionStatistics]:
        """Numbers by subscription oid."""
        with transaction(self._engine, write=False) as connection:
            rows = connection.execute(select(_TABLE.c.numbers)).scalars().all()
        found = [_statistics(json.loads(row)) for row in rows]
        return {statistics.subid: statistics for statistics in found}

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
            _METADATA.create_all(connection)
            connection.execute(select(_TABLE)).all()


def _files(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))]


def _statistics(numbers: Mapping[str, Any]) -> SubscriptionStatistics:
    """Fields that another version of Penstock wrote and this one does not know are left out."""
    known = {f.name for f in dataclasses.fields(SubscriptionStatistics)}
    known_of_table = {f.name for f in dataclasses.fields(TableStatistics)}
    values = {name: value for name, value in numbers.items() if name in known}
    for name, value in values.items():
        if name.endswith("_lsn") and value is not None:
            values[name] = Lsn(value)
    values["tables"] = tuple(
        TableStatistics(**{k: v for k, v in table.items() if k in known_of_table})
        for table in numbers.get("tables", ())
    )
    return SubscriptionStatistics(**values)
