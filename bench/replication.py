"""``make bench``: Penstock beside PostgreSQL 18's own subscriber, in one run on one machine.

In: an embedded publisher with pgbench_accounts. Out: a table of ratios for (a) the initial copy,
(b) a backlog of single-row updates of random keys, consumed by each subscriber alone, and (c) the
time from a commit to a reader who sees it, at a steady rate. Both sides have fsync on, or both off.
At the end rows and sums are compared on all three sides; a difference is exit status 1.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import latency
from native import NativeSubscriber, checksum, follow
from options import common_options, parsed
from penstock_node import CutLog, PenstockSubscriber
from report import Comparison, comparison_table, latency_table, phase_report
from servers import PUBLICATION, SUBSCRIPTION, Server, clusters
from workload import make_backlog, mark, read_raw

_PACKAGES: Final = ("penstock", "pyspark", "deltalake", "duckdb", "pyarrow", "psycopg")
_NATIVE_LOOK: Final = 0.001
_CUT_LOOK: Final = 0.005


def main() -> int:
    """Run what the options ask for; 0 when all sides are equal at the end."""
    options = _options()
    _say(_machine(options))
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        clusters(options.rows, fsync=options.fsync, shared_buffers=options.shared_buffers) as (
            publishing,
            subscribing,
        ),
        closing(Server(publishing.conninfo())) as publisher,
        closing(Server(subscribing.conninfo())) as subscriber,
    ):
        native = NativeSubscriber(publisher, subscriber)
        ours = PenstockSubscriber(
            Path(scratch) / "node",
            publisher,
            fsync=options.fsync,
            stream_backlog=options.stream_backlog,
        )
        try:
            _say(f"node: start to first cut {ours.start():.1f} s (not part of any figure below)")
            return _measure(options, publisher, native, ours)
        except BaseException:
            _say("node's log ends with:\n" + ours.log_tail())
            raise
        finally:
            ours.stop()


def _measure(
    options: argparse.Namespace,
    publisher: Server,
    native: NativeSubscriber,
    ours: PenstockSubscriber,
) -> int:
    comparisons = [_copies(options, native, ours)]
    comparisons.append(_backlogs(options, publisher, native, ours))
    _say(comparison_table(comparisons))
    if options.seconds:
        delays = _latencies(options, publisher, native, ours)
        _say(latency_table(delays, options.rate))
    sums = {"publisher": checksum(publisher), native.name: native.checksum()}
    sums[ours.name] = ours.checksum()
    for name, values in sums.items():
        _say(f"  {name:<11} rows {values[0]}  sum {values[1]}  weighted sum {values[2]}")
    equal = len(set(sums.values())) == 1
    _say("all sides are equal" if equal else "THE SIDES DIFFER")
    return 0 if equal else 1


def _copies(
    options: argparse.Namespace, native: NativeSubscriber, ours: PenstockSubscriber
) -> Comparison:
    """Each side alone; while one copies, the other has no subscription."""
    times: dict[str, list[float]] = {native.name: [], ours.name: []}
    for run in range(options.repeat):
        for side in (native, ours):
            times[side.name].append(side.copy())
            _say(f"copy, {side.name}: {times[side.name][-1]:.2f} s")
            if side is native or run < options.repeat - 1:
                side.drop()
    # The last native subscription was dropped so that ours copied alone; it is needed again.
    native.copy()
    return Comparison(
        f"initial copy of {options.rows} rows", options.rows, times[native.name], times[ours.name]
    )


def _backlogs(
    options: argparse.Namespace,
    publisher: Server,
    native: NativeSubscriber,
    ours: PenstockSubscriber,
) -> Comparison:
    """One backlog in both slots; then each side is enabled alone until it has consumed it."""
    times: dict[str, list[float]] = {native.name: [], ours.name: []}
    native.disable()
    ours.disable()
    for run in range(options.repeat):
        began = time.monotonic()
        behind = make_backlog(publisher, rows=options.rows, updates=options.updates)
        _say(f"backlog of {options.updates} updates made in {time.monotonic() - began:.1f} s")
        raw = read_raw(publisher, SUBSCRIPTION, PUBLICATION)
        _say(f"backlog, read from the walsender and thrown away: {raw:.2f} s")
        sides = (native, ours) if run % 2 == 0 else (ours, native)
        for side in sides:
            logged = ours.log_size()
            began = time.monotonic()
            side.enable()
            side.wait_behind(behind)
            times[side.name].append(time.monotonic() - began)
            side.disable()
            _say(f"backlog, {side.name}: {times[side.name][-1]:.2f} s")
            if side is ours:
                _say(phase_report(ours.batches(logged), times[side.name][-1], "backlog"))
    return Comparison(
        f"backlog of {options.updates} single-row updates",
        options.updates,
        times[native.name],
        times[ours.name],
    )


def _latencies(
    options: argparse.Namespace,
    publisher: Server,
    native: NativeSubscriber,
    ours: PenstockSubscriber,
) -> list[tuple[str, list[float]]]:
    """Each side alone: the other one is disabled meanwhile and catches up afterwards."""
    conninfo = publisher.conninfo
    measure = functools.partial(
        latency.measure,
        conninfo=conninfo,
        rows=options.rows,
        rate=options.rate,
        seconds=options.seconds,
    )
    found = []
    looks: list[tuple[NativeSubscriber | PenstockSubscriber, Callable[[], latency.Look], float]] = [
        (native, functools.partial(follow, native.conninfo), _NATIVE_LOOK),
        (ours, functools.partial(CutLog, ours.warehouse, SUBSCRIPTION), _CUT_LOOK),
    ]
    for side, make_look, pause in looks:
        side.enable()
        side.wait_behind(mark(publisher))
        logged = ours.log_size()
        began = time.monotonic()
        found.append((side.name, measure(make_look, pause=pause)))
        if side is ours:
            _say(phase_report(ours.batches(logged), time.monotonic() - began, "steady rate"))
        side.disable()
    native.enable()
    ours.enable()
    native.wait_behind(mark(publisher))
    ours.wait_behind(mark(publisher))
    return found


def _options() -> argparse.Namespace:
    parser = common_options(__doc__)
    parser.add_argument("--updates", type=int, default=1_000_000, help="updates in the backlog")
    parser.add_argument("--rate", type=float, default=100.0, help="transactions a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long; 0: not at all")
    parser.add_argument(
        "--shared-buffers", default="128MB", help="of both servers (128MB: PostgreSQL's default)"
    )
    parser.add_argument(
        "--stream-backlog",
        action="store_true",
        help="Penstock streams the backlog from the walsender and does not fetch it by COPY",
    )
    return parsed(parser)


def _machine(options: argparse.Namespace) -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, PostgreSQL 18 on both sides\n{versions}\n"
        f"fsync {'on' if options.fsync else 'off'} on all sides, autovacuum off,"
        f" shared_buffers {options.shared_buffers}, all processes on this machine;"
        f" Penstock's backlog {'streamed' if options.stream_backlog else 'by COPY'}"
    )


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
