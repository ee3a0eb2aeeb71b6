"""``make bench-slots``: changes read from a slot by SQL, of a node beside PostgreSQL 17.

In: how many rows one transaction inserts. Out: a ratio for ``pg_logical_slot_get_changes`` with the
plugin test_decoding, each read by COPY to one client, and the most memory that the node's processes
had before and after. Both must give every change; otherwise the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
from deltalake import write_deltalake

from figure import of_runs, table
from memory import Meter
from native import NAME
from penstock import Node
from penstock.embedded import EmbeddedPostgres, NodeProcess, free_port
from servers import Server

_LAKE: Final = "Penstock"
_TABLE: Final = "CREATE TABLE big (id integer PRIMARY KEY, v text)"
_SLOTS: Final = "abcdefghi"
_WARM: Final = "warm"
"""Of the first reading, which also starts Spark; no figure has that."""
_VERSION: Final = 17
"""Of the servers here, 18 has no test_decoding."""


def main() -> int:
    """Run what the options ask for; 0 when both sides gave the same number of changes."""
    options = _options()
    slots = _SLOTS[: options.repeat]
    every = (_WARM, *slots)
    times: dict[str, list[float]] = {NAME: [], _LAKE: []}
    with (
        EmbeddedPostgres(_VERSION, settings={"wal_level": "logical"}) as process,
        closing(Server(process.conninfo())) as server,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        Meter(os.getpid()) as meter,
        _node(Path(scratch) / "node") as lake,
    ):
        meter.leave_out(os.getpid())
        for side in (server, lake):
            side.execute(_TABLE)
            for slot in every:
                side.execute(
                    f"SELECT 1 FROM pg_create_logical_replication_slot('{slot}', 'test_decoding')"
                )
        server.execute(
            f"INSERT INTO big SELECT i, 'row ' || i FROM generate_series(0, {options.rows - 1}) i"
        )
        _fill(Path(scratch) / "node" / "warehouse" / "public" / "big", options.rows)
        _drawn(lake, _WARM)
        before = dict(meter.peaks)
        for slot in slots:
            for name, side in ((NAME, server), (_LAKE, lake)):
                changes, taken = _drawn(side, slot)
                print(f"{name}: {changes} changes in {taken:.2f} s", flush=True)
                if changes != options.rows:
                    print("THE SIDES DIFFER")
                    return 1
                times[name].append(taken)
        figure = of_runs("get_changes of one commit", options.rows, times[NAME], times[_LAKE])
        print(table([figure], native=f"PostgreSQL {_VERSION}"))
        for kind, after in meter.peaks.items():
            print(f"  peak of the node's {kind:<7} {before[kind]:6} MB before, {after:6} MB after")
    return 0


@contextmanager
def _node(folder: Path) -> Iterator[Server]:
    port = free_port()
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=bench"
    process = NodeProcess(folder)
    process.init({"port": port, "hba": ["host all all 127.0.0.1/32 trust"]})
    Node(folder).sql("CREATE ROLE bench LOGIN REPLICATION SUPERUSER")
    process.start()
    try:
        process.wait_until(lambda: _answers(conninfo), "the node's port")
        with closing(Server(conninfo)) as session:
            yield session
    finally:
        process.stop()


def _answers(conninfo: str) -> bool:
    with suppress(psycopg.OperationalError):
        Server(conninfo).close()
        return True
    return False


def _fill(folder: Path, rows: int) -> None:
    """One commit, as another writer makes it."""
    ids = pa.array(range(rows), pa.int32())
    texts = pa.array([f"row {i}" for i in range(rows)])
    write_deltalake(str(folder), pa.table({"id": ids, "v": texts}), mode="append")


def _drawn(side: Server, slot: str) -> tuple[int, float]:
    """Changes, and seconds."""
    call = f"pg_logical_slot_get_changes('{slot}', NULL, NULL, 'include-xids', '0')"
    began, changes = time.monotonic(), 0
    query = f"COPY (SELECT data FROM {call}) TO STDOUT"
    with side.connection.cursor() as cursor, cursor.copy(query) as copy:
        for message in copy:  # of whole rows
            changes += bytes(message).count(b": INSERT: ")
    return changes, time.monotonic() - began


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the transaction")
    parser.add_argument("--repeat", type=int, default=1, help="readings of each side (median)")
    options = parser.parse_args()
    if not 1 <= options.repeat <= len(_SLOTS):
        parser.error(f"--repeat must be from 1 to {len(_SLOTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
