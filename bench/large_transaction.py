"""``make bench-large``: one very large transaction of a publisher, from COMMIT to readable.

In: how many rows it inserts. Out: a table, a line for each setting of ``streaming``: how long the
INSERT took at the publisher, seconds from the end of COMMIT until a cut has the rows, and the peak
resident memory of the node's JVM, its Python and the largest Python worker. Each setting has a
publisher and a node of its own. The exit status is 1 where rows are missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memory import Meter
from penstock import Node
from penstock.embedded import EmbeddedPostgres, NodeProcess
from penstock_node import rows_at_cut
from servers import Server

_SETTINGS: Final = ("parallel", "on", "off")
_LONG: Final = 3600.0
_TABLE: Final = "CREATE TABLE big (id bigint PRIMARY KEY, n integer, v text, at timestamptz)"
_ROWS: Final = (
    "INSERT INTO big SELECT i, i % 1000, 'row ' || i, timestamptz '2026-01-01' + i * interval '1s'"
    " FROM generate_series(1, {rows}) i"
)


@dataclass(frozen=True)
class Result:
    """Seconds; memory in MiB by process; rows of the first cut that has any."""

    insert: float
    readable: float
    peaks: dict[str, int]
    rows: int


def main() -> int:
    """Measure each setting; 0 when all rows came with the first cut that has any."""
    options = _options()
    print(f"{options.rows} rows in one transaction\n")
    print(f"{'streaming':<10} {'INSERT':>8} {'readable':>9} {'JVM':>8} {'driver':>8} {'worker':>8}")
    missing = False
    for setting in options.streaming:
        result = _measure(setting, options.rows)
        memory = " ".join(f"{result.peaks[kind]:>5} MB" for kind in ("jvm", "driver", "worker"))
        print(
            f"{setting:<10} {result.insert:>6.1f} s {result.readable:>7.1f} s {memory}", flush=True
        )
        if result.rows != options.rows:
            print(f"wrong: {result.rows} rows", flush=True)
            missing = True
    return int(missing)


def _measure(setting: str, rows: int) -> Result:
    settings: dict[str, str | int | bool] = {"autovacuum": False, "max_wal_size": "16GB"}
    with (
        EmbeddedPostgres(18, settings=settings) as cluster,
        closing(Server(cluster.conninfo())) as publisher,
        tempfile.TemporaryDirectory(prefix="penstock-large-") as scratch,
    ):
        publisher.execute(_TABLE)
        publisher.execute("CREATE PUBLICATION big FOR TABLE big")
        process = NodeProcess(Path(scratch) / "node")
        process.init({})
        process.start()
        try:
            return _stream(process, publisher, setting, rows)
        finally:
            process.stop()


def _stream(process: NodeProcess, publisher: Server, setting: str, rows: int) -> Result:
    node = Node(process.folder)
    node.sql(
        f"CREATE SUBSCRIPTION big CONNECTION '{publisher.conninfo}' PUBLICATION big"
        f" WITH (streaming = {setting})"
    )

    def found() -> int | None:
        return rows_at_cut(process, node, "big")

    process.wait_until(lambda: found() is not None, "the first cut", _LONG)
    meter = Meter(os.getpid())
    meter.leave_out(os.getpid())
    with meter:
        began = time.monotonic()
        publisher.execute("BEGIN")
        publisher.execute(_ROWS.format(rows=rows))
        inserted = time.monotonic()
        publisher.execute("COMMIT")
        committed = time.monotonic()
        process.wait_until(found, "rows", _LONG, pause=0.05)
        readable = time.monotonic()
    return Result(inserted - began, readable - committed, meter.peaks, found() or 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument(
        "--streaming", nargs="+", choices=_SETTINGS, default=["parallel", "on"], help="settings"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
