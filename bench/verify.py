"""``make bench-verify``: ``penstock verify`` of pgbench's tables while pgbench writes to them.

In: rows of pgbench_accounts, transactions per second. Out: how long the command took and what it
printed, some times; then a row of the node's is changed by another writer, and it must find just
that one. The exit status is 1 where it finds anything else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from cut_log import CutLog, Place
from options import common_options, parsed
from penstock import Node
from penstock.embedded import EmbeddedPostgres, NodeProcess
from penstock.embedded.node_process import CommandFailed
from servers import ROWS_PER_SCALE, SUBSCRIPTION, Server

_LONG: Final = 600.0
_DAMAGED: Final = 4242
"""The account whose balance is changed."""


def main() -> int:
    """Run what the options ask for; 0 when all comparisons came out as they should."""
    options = _options()
    with (
        EmbeddedPostgres(18, settings={"max_wal_size": "16GB"}) as publisher,
        closing(Server(publisher.conninfo())) as server,
        tempfile.TemporaryDirectory(prefix="penstock-verify-") as scratch,
    ):
        publisher.pgbench("-i", "-q", "-s", str(options.rows // ROWS_PER_SCALE))
        server.execute(f"CREATE PUBLICATION {SUBSCRIPTION} FOR ALL TABLES")
        process = NodeProcess(Path(scratch) / "node")
        process.init({})
        process.start()
        try:
            _subscribe(process, server)
            with _load(publisher, options.rate):
                good = [_verify(process) for _ in range(options.repeat)]
                _damage(process)
                found = _verify(process)
        finally:
            process.stop()
    named = f"aid = '{_DAMAGED}' in abalance"
    return int(not all(equal for equal, _ in good) or found[0] or named not in found[1])


def _subscribe(process: NodeProcess, server: Server) -> None:
    cuts = CutLog(Place.local(process.warehouse), SUBSCRIPTION)
    Node(process.folder).sql(
        f"CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION '{server.conninfo}'"
        f" PUBLICATION {SUBSCRIPTION}"
    )
    process.wait_until(lambda: cuts.newest() is not None, "the copy", _LONG)


@contextmanager
def _load(publisher: EmbeddedPostgres, rate: int) -> Iterator[None]:
    """pgbench's transactions at a rate, in turns of five seconds, until the block is left."""
    stop = threading.Event()
    reports: list[str] = []

    def work() -> None:
        while not stop.is_set():
            reports.append(publisher.pgbench("-n", "-c", "4", "-T", "5", "-R", str(rate)))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    print(next(line for line in reports[0].splitlines() if line.startswith("tps")))


def _verify(process: NodeProcess) -> tuple[bool, str]:
    """Whether it said that all is equal, and what it said."""
    began = time.monotonic()
    try:
        said, equal = process.command("verify", "-D", str(process.folder)), True
    except CommandFailed as error:
        said, equal = error.detail or "", False
    print(f"{time.monotonic() - began:.1f} s\n{said}", flush=True)
    return equal, said


def _damage(process: NodeProcess) -> None:
    """By another writer, who tries again where the node's own commits come in between."""
    while True:
        table = DeltaTable(process.warehouse / "public" / "pgbench_accounts")
        with suppress(CommitFailedError):
            table.update(updates={"abalance": "999999999"}, predicate=f"aid = {_DAMAGED}")
            return


def _options() -> argparse.Namespace:
    parser = common_options(__doc__)
    parser.add_argument("--rate", type=int, default=300, help="transactions per second of pgbench")
    return parsed(parser)


if __name__ == "__main__":
    sys.exit(main())
