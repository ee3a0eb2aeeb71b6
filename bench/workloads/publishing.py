"""A lake as the publisher beside PostgreSQL 18, each alone to the same PostgreSQL 18.

In: pgbench_accounts in an embedded PostgreSQL 18 and the same rows in a node's lake. Out: figures
for the initial copy, a stream of changes in transactions of many rows, as a lake has them, and the
delay of small commits, made by a session on the port of either.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import latency
from budget import Budget
from changes import steady
from context import Outcome, Sizes, compared
from figure import of_delays, of_runs
from kinds import first_against_last
from lake import Lake, lake
from native import NAME, NativeSubscriber, follow
from percentiles import Delay
from progress import say
from report import logged, parts_report
from servers import Server, clusters
from subject import Subject, Table
from workloads.accounts import ACCOUNTS

_LAKE: Final = "Penstock"
_RATE: Final = 5.0
_LOOK: Final = 0.001
_SMALL: Final = Subject(
    "bench_small",
    (Table("small", ("id", "id * n"), "id bigint, n bigint", "id"),),
    touch="UPDATE small SET n = n WHERE id = 0",
    fill=("INSERT INTO small VALUES (0, 0)",),
)


@dataclass(frozen=True, slots=True)
class Publishers:
    """Two publishers of the same tables, and their subscriber."""

    sizes: Sizes
    budget: Budget
    postgres: Server
    published: Lake
    subscriber: Server

    def sides(self, subject: Subject) -> tuple[tuple[NativeSubscriber, Server], ...]:
        return (
            (NativeSubscriber(self.postgres, self.subscriber, subject, name=NAME), self.postgres),
            (
                NativeSubscriber(self.published, self.subscriber, subject, name=_LAKE),
                self.published,
            ),
        )


@contextmanager
def publishers(
    options: argparse.Namespace, sizes: Sizes, budget: Budget, scratch: Path
) -> Iterator[Publishers]:
    """Both publishers with their tables; the lake has published once."""
    buffers = options.shared_buffers
    with (
        clusters(sizes.rows, fsync=options.fsync, shared_buffers=buffers) as (first, second),
        closing(Server(first.conninfo())) as postgres,
        closing(Server(second.conninfo())) as subscriber,
    ):
        _SMALL.publish(postgres)
        _SMALL.create_empty(subscriber)
        with lake(scratch, postgres, (ACCOUNTS, _SMALL), fsync=options.fsync) as published:
            found = Publishers(sizes, budget, postgres, published, subscriber)
            _warm(found.sides(ACCOUNTS)[1][0], published)
            yield found


def _warm(side: NativeSubscriber, published: Server) -> None:
    """A node's first copy and first stream also start Spark's workers; no figure has that."""
    side.copy()
    side.disable()
    published.execute("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid <= 1000")
    behind = _end(published)
    published.execute("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 1")
    side.catch_up(behind)
    side.drop()


def large(bench: Publishers) -> Outcome:
    """Copy and stream, in turns."""
    sizes = bench.sizes
    sides = bench.sides(ACCOUNTS)
    copies: tuple[list[float], list[float]] = ([], [])
    streams: tuple[list[float], list[float]] = ([], [])
    equal = True
    for run, at in ((run, at) for run in bench.budget.runs(sizes.repeat) for at in (0, 1)):
        side, publisher = sides[at]
        copies[at].append(_copy(side, publisher))
        say(f"copy from {side.name}: {copies[at][-1]:.2f} s")
        streams[at].append(_stream(sizes, side, publisher, run))
        say(f"stream from {side.name}: {streams[at][-1]:.2f} s")
        sums = {side.name: ACCOUNTS.checksum(publisher), "subscriber": side.checksum()}
        equal = compared("publishing", sums) and equal
        side.drop()
    stream = f"publishing: {sizes.changes} changes in {sizes.transactions} transactions"
    figures = [
        of_runs(f"publishing: copy of {sizes.rows} accounts", sizes.rows, *copies),
        of_runs(stream, sizes.changes, *streams),
    ]
    return Outcome(figures, equal)


def small(bench: Publishers) -> Outcome:
    """Commits of one row each until the subscriber shows the row."""
    what = f"publishing: commits of 1 row to visible, {_RATE:.0f}/s"
    found: list[list[Delay]] = []
    notes: list[str] = []
    equal = True
    make_look = functools.partial(follow, bench.subscriber.conninfo, "SELECT max(id) FROM small")
    for side, publisher in bench.sides(_SMALL):
        side.copy()
        write = functools.partial(
            steady,
            publisher.conninfo,
            (f"INSERT INTO small VALUES ({id}, {id % 7})" for id in itertools.count(1)),
            rate=_RATE,
            seconds=bench.sizes.seconds,
            position="SELECT max(id) FROM small",
        )
        since, began = _log_size(publisher), time.monotonic()
        delays = latency.measure(make_look, write, pause=_LOOK)
        found.append(delays)
        notes.append(f"{what}, {side.name}: {first_against_last(delays)}")
        say(notes[-1])
        if isinstance(publisher, Lake):
            bundles = logged(publisher.process.log_path, "handed out", since)
            say(_stream_profile(bundles, time.monotonic() - began))
        sums = {side.name: _SMALL.checksum(publisher), "subscriber": side.checksum()}
        equal = compared("small commits", sums) and equal
        side.drop()
    return Outcome([of_delays(what, *found, notes=notes)], equal)


def _copy(side: NativeSubscriber, publisher: Server) -> float:
    """A new subscription until its table is copied; seconds."""
    since = _log_size(publisher)
    taken = side.copy()
    if isinstance(publisher, Lake):
        say(_copy_profile(logged(publisher.process.log_path, "copied", since), taken))
    return taken


def _stream(sizes: Sizes, side: NativeSubscriber, publisher: Server, run: int) -> float:
    """The changes wait in the slot, then the subscriber is enabled; seconds."""
    side.disable()
    for statement in _changes(sizes, run):
        publisher.execute(statement)
    behind = _end(publisher)
    publisher.execute("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 1")
    since = _log_size(publisher)
    taken = side.catch_up(behind)
    if isinstance(publisher, Lake):
        say(_stream_profile(logged(publisher.process.log_path, "handed out", since), taken))
    return taken


def _changes(sizes: Sizes, run: int) -> Iterator[str]:
    """Half of the changes are updates, a quarter inserts, a quarter deletes of those inserted."""
    size = sizes.changes // sizes.transactions
    for number in range(sizes.transactions):
        if number % 4 == 1:
            first = sizes.rows + 1 + (run * sizes.transactions + number) * size
            yield (
                "INSERT INTO pgbench_accounts (aid, bid, abalance, filler) SELECT id, 1, 0, 'new' "
                f"FROM generate_series({first}, {first + size - 1}) AS t(id)"
            )
        elif number % 4 == 3:
            first = sizes.rows + 1 + (run * sizes.transactions + number - 2) * size
            yield f"DELETE FROM pgbench_accounts WHERE aid BETWEEN {first} AND {first + size - 1}"
        else:
            first = 1 + (number * size) % sizes.rows
            yield (
                "UPDATE pgbench_accounts SET abalance = abalance + 1 + aid % 7 "
                f"WHERE aid BETWEEN {first} AND {first + size - 1}"
            )


def _end(publisher: Server) -> int:
    if isinstance(publisher, Lake):
        return publisher.end()
    return int(publisher.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))


def _log_size(publisher: Server) -> int:
    return publisher.process.log_path.stat().st_size if isinstance(publisher, Lake) else 0


def _copy_profile(copies: Sequence[dict[str, float]], seconds: float) -> str:
    """Where the copy's time went; what is neither are queries, connections and the commit."""
    spark = sum(copy["spark"] for copy in copies)
    client = sum(copy["client"] for copy in copies)
    rows = int(sum(copy["rows"] for copy in copies))
    parts = {
        "waiting for Spark": spark,
        "the subscriber": client,
        "the rest": max(0, seconds - spark - client),
    }
    return parts_report(f"copy: {rows} rows, {seconds:.1f} s", parts)


def _stream_profile(bundles: Sequence[dict[str, float]], seconds: float) -> str:
    """Where the stream's time went. Spark decodes one bundle ahead, beside the sending."""
    changes = int(sum(bundle["changes"] for bundle in bundles))
    size = sum(bundle["bytes"] for bundle in bundles) / (1 << 20)
    client = sum(bundle["waiting"] for bundle in bundles)
    parts = {"the subscriber": client, "the rest": max(0, seconds - client)}
    decoding = sum(bundle["decoding"] for bundle in bundles)
    return parts_report(
        f"stream: {len(bundles)} bundles of transactions, {changes} changes, {size:.0f} MiB, "
        f"{seconds:.1f} s, of which decoding took {decoding:.1f} s",
        parts,
    )
