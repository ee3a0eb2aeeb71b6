"""``make bench-hour``: pgbench's transaction at a steady rate against a node, for an hour.

In: a rate and how long. Out: every ten seconds a sample (lag, memory, files of each table), as CSV
and as a plot; the first quarter of the run beside the last. When rows or sums differ at the end,
the exit status is 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from changes import Commit, mark, steady
from context import compared
from cut_log import CutLog
from lag import Follower
from options import parsed, parser_of
from penstock.embedded import EmbeddedPostgres
from penstock_node import BenchNode, PenstockSubscriber
from process_tree import resident
from progress import say
from samples import Sample, TableSize, panels, quarters, size_of, write_csv
from servers import ROWS_PER_SCALE, Server
from svg import plot
from vacuum import vacuuming
from workloads import tpcb

_SIDE_TABLES: Final = ("_penstock/cuts",)


def main() -> int:
    """Run what the options ask for; 0 when publisher and node are equal at the end."""
    options = _options()
    settings: dict[str, str | int | bool] = {"fsync": options.fsync, "max_wal_size": "4GB"}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-hour-") as scratch,
        EmbeddedPostgres(18, settings=settings, fsync=options.fsync) as cluster,
        closing(Server(cluster.conninfo())) as publisher,
    ):
        cluster.pgbench("-i", "-q", "-s", str(options.rows // ROWS_PER_SCALE))
        tpcb.publish(publisher)
        running = BenchNode(Path(scratch) / "node", publisher, fsync=options.fsync)
        try:
            say(f"node: start to first cut {running.start():.1f} s")
            side = PenstockSubscriber(running, tpcb.TPCB)
            say(f"copy: {side.copy():.1f} s")
            _retain(options.retention, running)
            with vacuuming([*_folders(running).values()], options.vacuum):
                samples = _samples(options, publisher, running)
            _write(options, samples)
            side = PenstockSubscriber(running, tpcb.TPCB)  # the first entries of the log are gone
            side.wait_behind(mark(publisher, tpcb.TPCB.touch))
            sums = {"publisher": tpcb.TPCB.checksum(publisher), side.name: side.checksum()}
        finally:
            running.stop()
    return 0 if compared("TPC-B", sums) else 1


def _write(options: argparse.Namespace, samples: list[Sample]) -> None:
    write_csv(options.csv, samples)
    options.svg.write_text(plot(panels(samples), x_label="minutes"), encoding="utf-8")
    say(f"{len(samples)} samples in {options.csv}, plotted in {options.svg}")
    say(quarters(samples))


def _samples(options: argparse.Namespace, publisher: Server, running: BenchNode) -> list[Sample]:
    """While the load goes on."""
    commits: list[Commit] = []
    failed: list[BaseException] = []

    def load() -> None:
        try:
            steady(
                publisher.conninfo,
                tpcb.transactions(options.rows),
                rate=options.rate,
                seconds=options.seconds,
                commits=commits,
            )
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=load, daemon=True)
    found: list[Sample] = []
    with Follower(CutLog(running.warehouse, tpcb.TPCB.name), commits) as follower:
        began = time.monotonic()
        writer.start()
        while writer.is_alive():
            writer.join(began + (len(found) + 1) * options.every - time.monotonic())
            found.append(_sample(time.monotonic() - began, commits, follower, running))
            say(_line(found[-1]))
            running.process.require_running()
    if failed:
        raise failed[0]
    return found


def _retain(minutes: float, running: BenchNode) -> None:
    """So that an hour shows what comes after: by default, logs and tombstones stay for 2 days."""
    interval = f"interval {minutes:.0f} minutes"
    names = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
    for folder in _folders(running).values():
        table = DeltaTable(folder)
        table.alter.set_table_properties(dict.fromkeys(names, interval))


def _folders(running: BenchNode) -> dict[str, Path]:
    """By the names of the tables."""
    tables = (f"public/{table.name}" for table in tpcb.TPCB.tables)
    found = (Path(running.warehouse.path, folder) for folder in (*tables, *_SIDE_TABLES))
    return {folder.name: folder for folder in found}


def _sample(at: float, commits: list[Commit], follower: Follower, running: BenchNode) -> Sample:
    mib = resident(running.process.pid)
    return Sample(at, len(commits), tuple(follower.interval()), mib, _sizes(running))


def _sizes(running: BenchNode) -> dict[str, TableSize]:
    return {name: size_of(folder) for name, folder in _folders(running).items()}


def _line(sample: Sample) -> str:
    lag = " / ".join(f"{value * 1000:.0f}" for value in sample.lag().values())
    files = ", ".join(f"{name} {size.live}" for name, size in sample.tables.items())
    memory = ", ".join(f"{kind} {mib}" for kind, mib in sample.mib.items())
    return (
        f"{sample.at:.0f} s of load, {sample.commits} commits, lag {lag} ms (p50 / p99 / max),"
        f" MiB: {memory}, data files: {files}"
    )


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of pgbench_accounts")
    parser.add_argument("--rate", type=float, default=200.0, help="transactions a second")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument(
        "--retention", type=float, default=10.0, help="minutes of log entries and tombstones"
    )
    parser.add_argument(
        "--vacuum", type=float, default=10.0, help="minutes between two VACUUMs of the tables"
    )
    parser.add_argument("--csv", type=Path, default=Path("build/bench-hour.csv"))
    parser.add_argument("--svg", type=Path, default=Path("docs/bench-hour.svg"))
    options = parsed(parser)
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
