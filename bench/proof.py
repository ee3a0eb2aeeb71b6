"""``make bench-proof``: what comparing tables in the background costs, while transactions commit.

In: how many tables of how many rows, a rate, how long. Out: CPU seconds of the publisher and of the
node, and commit to visible, without ``verify_interval`` and with it; how long it took until each
table was found equal. The exit status is 1 where one was not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from changes import Commit, steady
from cut_log import CutLog
from lag import Follower
from options import parser_of
from penstock.embedded import EmbeddedPostgres
from penstock_node import BenchNode
from percentiles import SHARES, percentile
from process_tree import cpu_seconds, server_cpu_seconds
from progress import say
from servers import Server

_NAME: Final = "proof"
_LONG: Final = 3600.0
_LOOK_S: Final = 1.0
_FILLER: Final = 100
"""Characters of a row besides its numbers."""


@dataclass(frozen=True, slots=True)
class Run:
    """``publisher``, ``node``: CPU seconds; ``lags``: from COMMIT until a cut has it; ``proved``:
    seconds until the last table was found equal, None: not all were, or nobody looked."""

    seconds: float
    commits: int
    publisher: float
    node: float
    lags: list[float]
    proved: float | None = None

    def __str__(self) -> str:
        lags = " / ".join(f"{percentile(self.lags, share) * 1000:.0f}" for share in SHARES)
        return (
            f"{self.seconds:.0f} s, {self.commits:,} commits; CPU of the publisher "
            f"{self.publisher:.1f} s, of the node {self.node:.1f} s; commit to visible {lags} ms"
        )


def main() -> int:
    """Run what the options ask for; 0 when all tables were found equal."""
    options = _options()
    settings: dict[str, str | int | bool] = {"fsync": options.fsync, "max_wal_size": "16GB"}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-proof-") as scratch,
        EmbeddedPostgres(18, settings=settings, fsync=options.fsync) as cluster,
        closing(Server(cluster.conninfo())) as publisher,
    ):
        _fill(publisher, options)
        running = BenchNode(Path(scratch) / "node", publisher, fsync=options.fsync)
        try:
            running.start()
            running.subscribe(_NAME, f"penstock_{_NAME}")
            cuts = CutLog(running.warehouse, _NAME)
            running.wait(lambda: cuts.newest() is not None, _LONG, "copies")
            running.wait(lambda: _states(running) == {"r"}, _LONG, "tables in cuts")
            before = options.seconds if options.before is None else options.before
            without = _run(options, cluster, running, before)
            say(f"without: {without}")
            running.node.sql(
                f"ALTER SUBSCRIPTION {_NAME} SET (verify_interval = '{options.interval}',"
                f" verify_rate = '{options.verify_rate}')"
            )
            proof = _run(options, cluster, running, options.seconds, looks=True)
            say(f"with {options.verify_rate} a second: {proof}")
        finally:
            running.stop()
    added = proof.publisher / proof.seconds - without.publisher / without.seconds
    size = options.tables * options.rows
    if proof.proved is None:
        say(f"of {options.tables} tables not all were found equal in {proof.seconds:.0f} s")
        return 1
    say(f"{size:,} rows of {options.tables} tables proved in {proof.proved:.0f} s")
    say(f"CPU of the publisher for it: {added * 100:+.1f} % of a core")
    return 0


def _fill(publisher: Server, options: argparse.Namespace) -> None:
    for number in range(options.tables):
        name = f"{_NAME}_{number}"
        publisher.execute(f"CREATE TABLE {name} (id integer, n integer, filler text)")
        publisher.execute(
            f"INSERT INTO {name} SELECT i, 0, repeat('x', {_FILLER})"
            f" FROM generate_series(1, {options.rows}) i"
        )
        publisher.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
        publisher.execute(f"ANALYZE {name}")
    names = ", ".join(f"{_NAME}_{number}" for number in range(options.tables))
    publisher.execute(f"CREATE PUBLICATION {_NAME} FOR TABLE {names}")


def _states(running: BenchNode) -> set[str]:
    (status,) = running.node.status()
    return {table.state for table in status.tables}


def _run(
    options: argparse.Namespace,
    cluster: EmbeddedPostgres,
    running: BenchNode,
    seconds: float,
    *,
    looks: bool = False,
) -> Run:
    """Run the load for so long. ``looks``: and whether all tables are found equal meanwhile."""
    commits: list[Commit] = []
    failed: list[BaseException] = []

    def load() -> None:
        try:
            steady(
                cluster.conninfo(),
                _transactions(options),
                rate=options.rate,
                seconds=seconds,
                commits=commits,
            )
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=load, daemon=True)
    proved: float | None = None
    before = server_cpu_seconds(cluster.pid), _node_cpu(running)
    with Follower(CutLog(running.warehouse, _NAME), commits) as follower:
        began = time.monotonic()
        writer.start()
        while writer.is_alive():
            writer.join(_LOOK_S)
            if looks and proved is None and _is_proved(running):
                proved = time.monotonic() - began
            running.process.require_running()
        took = time.monotonic() - began
        after = server_cpu_seconds(cluster.pid), _node_cpu(running)
        lags = follower.interval()
    if failed:
        raise failed[0]
    publisher, node = (now - then for now, then in zip(after, before, strict=True))
    return Run(took, len(commits), publisher, node, lags, proved)


def _node_cpu(running: BenchNode) -> float:
    return sum(cpu_seconds(running.process.pid).values())


def _is_proved(running: BenchNode) -> bool:
    (status,) = running.node.status()
    return all(table.verified_seconds is not None for table in status.tables)


def _transactions(options: argparse.Namespace) -> Iterator[str]:
    draw = random.Random(42)
    while True:
        number, row = draw.randrange(options.tables), draw.randint(1, options.rows)
        yield f"UPDATE {_NAME}_{number} SET n = n + 1 WHERE id = {row}"


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--tables", type=int, default=4, help="how many")
    parser.add_argument("--rows", type=int, default=100_000, help="of each")
    parser.add_argument("--rate", type=float, default=100.0, help="transactions a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, without and with")
    parser.add_argument("--before", type=float, help="how long without, where it differs")
    parser.add_argument("--interval", default="1 day", help="verify_interval")
    parser.add_argument("--verify-rate", default="2MB", help="verify_rate")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
