"""``make bench-publishing``: a lake as the publisher beside PostgreSQL 18, to one subscriber.

In: pgbench_accounts in an embedded PostgreSQL 18 and the same rows in a node's lake. Out: a table
of ratios for (a) the initial copy and (b) a stream of changes in transactions of many rows, as a
lake has them, each publisher alone to the same PostgreSQL 18. At the end rows and sums are compared
on both ends; a difference is exit status 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from lake import Lake, lake
from native import NAME, NativeSubscriber, checksum
from options import common_options, parsed
from report import Comparison, comparison_table, logged
from servers import Server, clusters

_LAKE: Final = "Penstock"


def main() -> int:
    """Run what the options ask for; 0 when both ends are equal after each run."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        clusters(options.rows, fsync=options.fsync, shared_buffers="128MB") as (
            publishing,
            subscribing,
        ),
        closing(Server(publishing.conninfo())) as postgres,
        closing(Server(subscribing.conninfo())) as subscriber,
        lake(Path(scratch) / "node", postgres, fsync=options.fsync) as published,
    ):
        sides = (
            NativeSubscriber(postgres, subscriber, NAME),
            NativeSubscriber(published, subscriber, _LAKE),
        )
        _warm(sides[1], published)
        runs = itertools.count()
        copies: dict[str, list[float]] = {NAME: [], _LAKE: []}
        streams: dict[str, list[float]] = {NAME: [], _LAKE: []}
        for _ in range(options.repeat):
            for side, publisher in zip(sides, (postgres, published), strict=True):
                copies[side.name].append(_copy(side, publisher))
                _say(f"copy from {side.name}: {copies[side.name][-1]:.2f} s")
                streams[side.name].append(_stream(options, side, publisher, next(runs) // 2))
                _say(f"stream from {side.name}: {streams[side.name][-1]:.2f} s")
                if checksum(publisher) != side.checksum():
                    _say(f"THE SIDES DIFFER: {checksum(publisher)} {side.checksum()}")
                    return 1
                side.drop()
        _say(
            comparison_table(
                [
                    _comparison(f"initial copy of {options.rows} rows", options.rows, copies),
                    _comparison(f"stream of {options.changes} changes", options.changes, streams),
                ]
            )
        )
        _say("all sides are equal")
    return 0


def _warm(side: NativeSubscriber, published: Server) -> None:
    """A node's first copy and first stream also start Spark's workers; no figure has that."""
    side.copy()
    side.disable()
    published.execute("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid <= 1000")
    behind = _end(published)
    published.execute("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 1")
    side.catch_up(behind)
    side.drop()


def _comparison(what: str, count: int, times: dict[str, list[float]]) -> Comparison:
    return Comparison(what, count, times[NAME], times[_LAKE])


def _copy(side: NativeSubscriber, publisher: Server) -> float:
    """A new subscription until its table is copied; seconds."""
    log = publisher.process.log_path if isinstance(publisher, Lake) else None
    since = log.stat().st_size if log else 0
    taken = side.copy()
    if log:
        _say(_copy_profile(logged(log, "copied", since), taken))
    return taken


def _stream(
    options: argparse.Namespace, side: NativeSubscriber, publisher: Server, run: int
) -> float:
    """The changes wait in the slot, then the subscriber is enabled; seconds."""
    side.disable()
    for statement in _changes(options, run):
        publisher.execute(statement)
    behind = _end(publisher)
    publisher.execute("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 1")
    log = publisher.process.log_path if isinstance(publisher, Lake) else None
    since = log.stat().st_size if log else 0
    taken = side.catch_up(behind)
    if log:
        _say(_stream_profile(logged(log, "handed out", since), taken))
    return taken


def _changes(options: argparse.Namespace, run: int) -> Iterator[str]:
    """Half of the changes are updates, a quarter inserts, a quarter deletes of those inserted."""
    size = options.changes // options.transactions
    for number in range(options.transactions):
        if number % 4 == 1:
            first = options.rows + 1 + (run * options.transactions + number) * size
            yield (
                "INSERT INTO pgbench_accounts (aid, bid, abalance, filler) SELECT id, 1, 0, 'new' "
                f"FROM generate_series({first}, {first + size - 1}) AS t(id)"
            )
        elif number % 4 == 3:
            first = options.rows + 1 + (run * options.transactions + number - 2) * size
            yield f"DELETE FROM pgbench_accounts WHERE aid BETWEEN {first} AND {first + size - 1}"
        else:
            first = 1 + (number * size) % options.rows
            yield (
                "UPDATE pgbench_accounts SET abalance = abalance + 1 + aid % 7 "
                f"WHERE aid BETWEEN {first} AND {first + size - 1}"
            )


def _end(publisher: Server) -> int:
    if isinstance(publisher, Lake):
        return publisher.end()
    return int(publisher.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))


def _copy_profile(copies: list[dict[str, float]], seconds: float) -> str:
    """Where the copy's time went; what is neither are queries, connections and the commit."""
    spark = sum(copy["spark"] for copy in copies)
    client = sum(copy["client"] for copy in copies)
    rows = int(sum(copy["rows"] for copy in copies))
    parts = {
        "waiting for Spark": spark,
        "the subscriber": client,
        "the rest": max(0, seconds - spark - client),
    }
    return _parts(f"copy: {rows} rows, {seconds:.1f} s", parts)


def _stream_profile(bundles: list[dict[str, float]], seconds: float) -> str:
    """Where the stream's time went. Spark decodes one bundle ahead, beside the sending."""
    changes = int(sum(bundle["changes"] for bundle in bundles))
    size = sum(bundle["bytes"] for bundle in bundles) / (1 << 20)
    client = sum(bundle["waiting"] for bundle in bundles)
    parts = {"the subscriber": client, "the rest": max(0, seconds - client)}
    decoding = sum(bundle["decoding"] for bundle in bundles)
    return _parts(
        f"stream: {len(bundles)} bundles of transactions, {changes} changes, {size:.0f} MiB, "
        f"{seconds:.1f} s, of which Spark was decoding for {decoding:.1f} s",
        parts,
    )


def _parts(head: str, parts: dict[str, float]) -> str:
    lines = [f"  {name:<18} {value:6.2f} s" for name, value in parts.items()]
    worst = max(parts, key=lambda name: parts[name])
    return "\n".join([head, *lines, f"  next bottleneck: {worst}"])


def _options() -> argparse.Namespace:
    parser = common_options(__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000, help="changes of the stream")
    parser.add_argument("--transactions", type=int, default=20, help="transactions of the stream")
    options = parsed(parser)
    if options.transactions % 4:
        parser.error("--transactions must be a multiple of 4")
    return options


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
