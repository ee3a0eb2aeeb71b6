"""``make bench``: Penstock beside PostgreSQL 18, in one run on one machine.

In: which workloads, and how large. Out: a table of ratios, printed and, where a file is named,
added to the history. Both sides have fsync on, or both off. Where rows or sums differ at the end of
a workload, the exit status is 1 and the history stays as it was.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

import history
from budget import Budget
from context import Bench, Outcome, Sizes
from cut_log import Place
from distance import distant
from figure import table
from fix_object_store import object_store
from options import parsed, parser_of, size_options, sizes_of
from penstock_node import BenchNode
from progress import say
from servers import Server, clusters
from workloads import accounts, inserts, many_tables, publishing, real_rows, ten_tables, tpcb, uuids

Where = TypeVar("Where")


@dataclass(frozen=True, slots=True)
class Workload(Generic[Where]):
    """``seconds``: about what it takes on 2 cores with one run of each figure."""

    run: Callable[[Where], Outcome]
    seconds: float


SUBSCRIBING: Final[Mapping[str, Workload[Bench]]] = {
    "copy": Workload(functools.partial(accounts.copy, binary=False), 25),
    "copy-binary": Workload(functools.partial(accounts.copy, binary=True), 25),
    "updates": Workload(functools.partial(accounts.updates, binary=False), 110),
    "updates-binary": Workload(functools.partial(accounts.updates, binary=True), 85),
    "inserts-1": Workload(functools.partial(inserts.narrow, each=1), 25),
    "inserts-10": Workload(functools.partial(inserts.narrow, each=10), 20),
    "inserts-1000": Workload(functools.partial(inserts.narrow, each=1000), 15),
    "mixed": Workload(inserts.mixed, 20),
    **{
        f"copy-{what}{form}": Workload(
            functools.partial(real_rows.copy, what=what, binary=bool(form)), 25
        )
        for what in real_rows.TABLES
        for form in ("", "-binary")
    },
    "wide-updates": Workload(real_rows.updates, 40),
    "wide-inserts-1": Workload(functools.partial(real_rows.inserts, each=1), 20),
    "wide-inserts-10": Workload(functools.partial(real_rows.inserts, each=10), 15),
    "wide-inserts-1000": Workload(functools.partial(real_rows.inserts, each=1000), 15),
    "ten-tables": Workload(ten_tables.backlog, 30),
    "tpcb": Workload(tpcb.backlog, 45),
    "uuids": Workload(uuids.backlog, 20),
    "growth": Workload(uuids.growth, 110),
    "steady": Workload(accounts.steady, 110),
    "steady-20": Workload(functools.partial(many_tables.steady, tables=20, rate=100), 105),
    "steady-1000": Workload(functools.partial(many_tables.steady, tables=1000, rate=50), 240),
    "steady-tpcb": Workload(tpcb.steady, 115),
}
PUBLISHING: Final[Mapping[str, Workload[publishing.Publishers]]] = {
    "publishing": Workload(publishing.large, 140),
    "publishing-small": Workload(publishing.small, 105),
}
_IF_NAMED: Final = ("steady-1000",)
"""Workloads that take long, and run only if they are named."""
_PACKAGES: Final = ("penstock", "pyspark", "deltalake", "duckdb", "pyarrow", "psycopg")


def main() -> int:
    """Run what the options ask for; 0 when all sides are equal at the end of each workload."""
    options = _options()
    sizes = sizes_of(options)
    say(_machine(options))
    outcomes: dict[str, Outcome] = {}
    chosen, published = _chosen(SUBSCRIBING, options.only), _chosen(PUBLISHING, options.only)
    planned = {name: workload.seconds for name, workload in chosen.items()}
    planned |= {name: workload.seconds for name, workload in published.items()}
    budget = Budget(options.minutes * 60, planned)
    if chosen:
        with _subscribers(options, sizes, budget) as bench:
            outcomes |= _run(chosen, bench, budget)
    if published:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
            where = Path(scratch) / "node"
            with publishing.publishers(options, sizes, budget, where) as place:
                outcomes |= _run(published, place, budget)
    beside = _where(options)
    figures = [
        replace(figure, workload=figure.workload + beside)
        for outcome in outcomes.values()
        for figure in outcome.figures
    ]
    say(table(figures))
    differing = [name for name, outcome in outcomes.items() if not outcome.equal]
    say(f"THE SIDES DIFFER: {', '.join(differing)}" if differing else "all sides are equal")
    if not differing and options.history:
        path = Path(options.history)
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        commit = history.commit_of(Path(__file__).parent, path.name)
        history.append(path, day, commit, figures)
        say(f"{len(figures)} rows added to {options.history}")
    return 1 if differing else 0


def _run(
    chosen: Mapping[str, Workload[Where]], place: Where, budget: Budget
) -> Iterator[tuple[str, Outcome]]:
    for name, workload in chosen.items():
        say(f"--- {name}")
        began = time.monotonic()
        budget.begin(name)
        outcome = workload.run(place)
        say(f"{name} took {time.monotonic() - began:.0f} s\n{table(outcome.figures)}")
        yield name, outcome


@contextmanager
def _subscribers(options: argparse.Namespace, sizes: Sizes, budget: Budget) -> Iterator[Bench]:
    """Both servers with pgbench's tables, and a warm node."""
    buffers = options.shared_buffers
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        clusters(sizes.rows, fsync=options.fsync, shared_buffers=buffers) as (first, second),
        _way(first.port, options.round_trip) as port,
        closing(Server(first.conninfo(), f"{first.conninfo()} port={port}")) as publisher,
        closing(Server(second.conninfo())) as subscriber,
        _bucket(Path(scratch) / "s3", wanted=options.s3) as bucket,
    ):
        tpcb.publish(publisher)
        running = BenchNode(
            Path(scratch) / "node",
            publisher,
            fsync=options.fsync,
            stream_backlog=options.stream_backlog,
            bucket=bucket,
        )
        try:
            say(f"node: start to first cut {running.start():.1f} s (not part of any figure below)")
            yield Bench(sizes, budget, first, publisher, subscriber, running)
        except BaseException:
            say("node's log ends with:\n" + running.process.log_tail())
            raise
        finally:
            running.stop()


@contextmanager
def _way(port: int, round_trip_ms: float) -> Iterator[int]:
    """The port at which subscribers find the publisher."""
    if not round_trip_ms:
        yield port
        return
    with distant(port, round_trip_ms / 1000) as other:
        yield other


@contextmanager
def _bucket(folder: Path, *, wanted: bool) -> Iterator[Place | None]:
    """A bucket for the node's warehouse; None: it is on this machine."""
    if not wanted:
        yield None
        return
    folder.mkdir()
    with object_store(folder) as store:
        os.environ.update(store.environment)
        yield Place(store.filesystem(), store.bucket())


def _chosen(
    workloads: Mapping[str, Workload[Where]], only: Sequence[str]
) -> dict[str, Workload[Where]]:
    return {name: workload for name, workload in workloads.items() if name in only}


def _options() -> argparse.Namespace:
    names = (*SUBSCRIBING, *PUBLISHING)
    parser = parser_of(__doc__)
    parser.add_argument(
        "--only",
        default=tuple(name for name in names if name not in _IF_NAMED),
        type=lambda text: tuple(text.split(",")),
        help="workloads, joined by commas: " + ", ".join(names),
    )
    parser.add_argument("--history", help="a file that gets the ratios; without it they are shown")
    parser.add_argument(
        "--minutes",
        type=float,
        default=28.0,
        help="after which no figure gets a second run (28)",
    )
    size_options(parser)
    parser.add_argument(
        "--shared-buffers", default="128MB", help="of the servers (128MB: PostgreSQL's default)"
    )
    parser.add_argument(
        "--stream-backlog",
        action="store_true",
        help="Penstock streams backlogs from the walsender and does not fetch them by COPY",
    )
    parser.add_argument(
        "--s3", action="store_true", help="the node's warehouse is in an S3 on this machine"
    )
    parser.add_argument(
        "--round-trip",
        type=float,
        default=0.0,
        help="milliseconds from the subscribers to the publisher and back, more than there are (0)",
    )
    options = parsed(parser)
    if unknown := set(options.only) - set(names):
        parser.error(f"no workload is called {', '.join(sorted(unknown))}")
    if sizes_of(options).transactions % 4:
        parser.error("--transactions must be a multiple of 4")
    return options


def _where(options: argparse.Namespace) -> str:
    """What of the machine is not as usual, for the names of figures."""
    found = ["warehouse in S3"] * options.s3
    found += [f"round trip {options.round_trip:g} ms"] * bool(options.round_trip)
    return "".join(f", {each}" for each in found)


def _machine(options: argparse.Namespace) -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, PostgreSQL 18 on both sides\n{versions}\n"
        f"fsync {'on' if options.fsync else 'off'} on all sides, autovacuum off,"
        f" shared_buffers {options.shared_buffers}, all processes on this machine;"
        f" Penstock's backlogs {'streamed' if options.stream_backlog else 'by COPY'}"
    )


if __name__ == "__main__":
    sys.exit(main())
