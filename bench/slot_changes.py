"""``make bench-slots``: changes read from a slot by SQL, of a node beside PostgreSQL.

In: how many rows one transaction inserts. Out: a ratio for each plugin, read by COPY to one client,
and the most memory that the node's processes had before and after. pgoutput is compared with 18,
test_decoding with 17, since no 18 here has it. wal2json is compared with a server's if
``PENSTOCK_WAL2JSON`` names the folder of its library (``PENSTOCK_WAL2JSON_VERSION``: its server, 18
by default), otherwise with test_decoding. Both sides must give every change; if not, the exit
status is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
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
"""The slot that is read first, which also starts Spark; this reading is no figure."""
_WAL2JSON: Final = os.environ.get("PENSTOCK_WAL2JSON")


@dataclass(frozen=True)
class _Reading:
    """A plugin with its options; ``mark`` is in the output once for each change. ``version``: the
    server's. ``theirs``: what the server reads in its place."""

    plugin: str
    version: int
    mark: bytes
    options: str
    binary: bool = False
    theirs: _Reading | None = None

    def call(self, slot: str) -> str:
        kind = "binary_changes" if self.binary else "changes"
        return f"pg_logical_slot_get_{kind}('{slot}', NULL, NULL, {self.options})"


_TEST_DECODING: Final = _Reading("test_decoding", 17, b": INSERT: ", "'include-xids', '0'")
_PGOUTPUT: Final = _Reading(
    "pgoutput", 18, b"x49", "'proto_version', '1', 'publication_names', 'big'", binary=True
)
_JSON: Final = tuple(
    _Reading(
        "wal2json",
        int(os.environ.get("PENSTOCK_WAL2JSON_VERSION", "18")) if _WAL2JSON else 17,
        mark,
        f"'format-version', '{version}'",
        theirs=None if _WAL2JSON else _TEST_DECODING,
    )
    for version, mark in ((1, b'"kind":"insert"'), (2, b'"action":"I"'))
)
_READINGS: Final = (_TEST_DECODING, _PGOUTPUT, *_JSON)


def main() -> int:
    """Run what the options ask for; 0 when both sides gave the same number of changes."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        Meter(os.getpid()) as meter,
        _node(Path(scratch) / "node") as lake,
    ):
        meter.leave_out(os.getpid())
        slots = options.repeat + 1
        _prepare(lake, [reading for reading in _READINGS for _ in range(slots)])
        _fill(Path(scratch) / "node" / "warehouse" / "public" / "big", options.rows)
        _drawn(lake, _TEST_DECODING, "s0", options.rows)
        before = dict(meter.peaks)
        figures = []
        for number, reading in enumerate(_READINGS):
            names = [f"s{number * slots + each}" for each in range(slots)]
            ours = [_drawn(lake, reading, name, options.rows) for name in names[1:]]
            theirs = _of_server(reading.theirs or reading, options.rows, options.repeat)
            what = f"{reading.plugin} ({reading.options})"
            beside = (reading.theirs or reading).plugin
            what += f" beside {beside} of {reading.version}"
            figures.append(of_runs(what, options.rows, theirs, ours))
            print(figures[-1].line(), flush=True)
        print(table(figures, native=NAME))
        for kind, after in meter.peaks.items():
            print(f"  peak of the node's {kind:<7} {before[kind]:6} MB before, {after:6} MB after")
    return 0


def _prepare(side: Server, readings: Sequence[_Reading]) -> None:
    side.execute(_TABLE)
    side.execute("CREATE PUBLICATION big FOR TABLE big")
    for number, reading in enumerate(readings):
        side.execute(f"SELECT pg_create_logical_replication_slot('s{number}', '{reading.plugin}')")


def _of_server(reading: _Reading, rows: int, repeat: int) -> list[float]:
    settings = {"wal_level": "logical", "max_replication_slots": "20"}
    if _WAL2JSON:
        settings["dynamic_library_path"] = f"{_WAL2JSON}:$libdir"
    with (
        EmbeddedPostgres(reading.version, settings=settings) as process,
        closing(Server(process.conninfo())) as server,
    ):
        _prepare(server, [reading] * (repeat + 1))
        server.execute(
            f"INSERT INTO big SELECT i, 'row ' || i FROM generate_series(0, {rows - 1}) i"
        )
        return [_drawn(server, reading, f"s{number}", rows) for number in range(repeat + 1)][1:]


@contextmanager
def _node(folder: Path) -> Iterator[Server]:
    port = free_port()
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=bench"
    process = NodeProcess(folder)
    process.init(
        {"port": port, "max_replication_slots": 50, "hba": ["host all all 127.0.0.1/32 trust"]}
    )
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


def _drawn(side: Server, reading: _Reading, slot: str, rows: int) -> float:
    """Return the seconds of reading a slot. Raises SystemExit if a change is missing."""
    began, changes = time.monotonic(), 0
    query = f"COPY (SELECT data FROM {reading.call(slot)}) TO STDOUT"
    with side.connection.cursor() as cursor, cursor.copy(query) as copy:
        for message in copy:  # of whole rows
            data = bytes(message)
            changes += data.count(reading.mark, 0, None if len(data) > 1 << 20 else 80)
    taken = time.monotonic() - began
    if changes != rows:
        raise SystemExit(f"{changes} changes instead of {rows} by {reading}")
    return taken


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
