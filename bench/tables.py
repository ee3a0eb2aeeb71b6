"""``make bench-tables``: what a node costs as the number of its tables grows.

In: numbers of tables. Out: for each, on a new node, seconds of the copy, of a start, of one
transaction that inserts a row into every table, of ``penstock status``, of a scrape and of a
catalog query, and memory. The exit status is 1 if a row is missing at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from cut_log import CutLog, Place
from penstock import Node
from penstock.embedded import EmbeddedPostgres, NodeProcess, free_port
from penstock_node import rows_at_cut
from process_tree import resident
from progress import say
from servers import VERSION, Server

_NAME: Final = "bench"
_LONG: Final = 3600.0
_EACH: Final = 500
"""Tables that the publisher makes in one transaction: each takes locks."""
_SETTINGS: Final[dict[str, Any]] = {"autovacuum": False, "max_locks_per_transaction": 12_800}


def main() -> int:
    """Run what the options ask for; return 0 if all rows have come."""
    counts = _counts()
    figures: list[dict[str, str]] = []
    for count in counts:
        with (
            EmbeddedPostgres(VERSION, settings=_SETTINGS) as process,
            closing(Server(process.conninfo())) as publisher,
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        ):
            figures.append(_measured(count, publisher, Path(scratch) / "node"))
    names = list(figures[0])
    print(f"{'tables':<40}" + "".join(f"{count:>14,}" for count in counts))
    for name in names:
        print(f"{name:<40}" + "".join(f"{each[name]:>14}" for each in figures))
    return 0


def _measured(count: int, publisher: Server, folder: Path) -> dict[str, str]:
    say(f"{count} tables: making them")
    for portion in _portions(count):
        publisher.execute(
            ";".join(
                f"CREATE TABLE t{n} (id bigint PRIMARY KEY, v text);"
                f"INSERT INTO t{n} SELECT i, 'row ' || i FROM generate_series(1, 10) i"
                for n in portion
            )
        )
    publisher.execute(f"CREATE PUBLICATION {_NAME} FOR ALL TABLES")
    port, metrics = free_port(), free_port()
    process = NodeProcess(folder)
    process.init(
        {"port": port, "metrics_port": metrics, "hba": ["host all all 127.0.0.1/32 trust"]}
    )
    Node(folder).sql("CREATE ROLE bench LOGIN SUPERUSER")
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=bench"
    cuts = CutLog(Place.local(process.warehouse), _NAME)
    process.start()
    try:
        return _figures(count, publisher, process, cuts, conninfo, metrics)
    finally:
        process.close()


def _figures(
    count: int,
    publisher: Server,
    process: NodeProcess,
    cuts: CutLog,
    conninfo: str,
    metrics: int,
) -> dict[str, str]:
    node = Node(process.folder)
    found: dict[str, str] = {}
    process.wait_until(lambda: _answers(conninfo), "the node's port", _LONG)
    ready = (
        f"SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r' HAVING count(*) = {count}"
    )

    say(f"{count} tables: copying them")
    began = time.monotonic()
    node.sql(f"CREATE SUBSCRIPTION {_NAME} CONNECTION '{publisher.conninfo}' PUBLICATION {_NAME}")
    with closing(Server(conninfo)) as session:
        process.wait_until(lambda: session.value(ready) == count, "copied tables", _LONG, pause=1.0)
    found["copy of 10 rows each"] = _seconds(time.monotonic() - began)

    say(f"{count} tables: start")
    process.stop()
    began = time.monotonic()
    process.start()
    process.wait_until(lambda: _answers(conninfo), "the node's port", _LONG, pause=0.02)
    found["start until the port answers"] = _seconds(time.monotonic() - began)
    _visible(process, cuts, publisher, ["INSERT INTO t0 VALUES (11, 'first')"])
    found["start until the first change is there"] = _seconds(time.monotonic() - began)

    say(f"{count} tables: a transaction")
    inserts = [
        ";".join(f"INSERT INTO t{n} VALUES (12, 'all')" for n in portion)
        for portion in _portions(count)
    ]
    found["one transaction over all tables"] = _visible(process, cuts, publisher, inserts)
    update = ["UPDATE t0 SET v = v || '!' WHERE id = 1"]
    found["one transaction of one row"] = _visible(process, cuts, publisher, update)

    found["penstock status"] = _timed(lambda: process.command("status", "-D", str(process.folder)))
    scrapes: list[int] = []
    found["scrape"] = _timed(lambda: scrapes.append(_scrape(metrics)))
    found["scrape, size"] = f"{scrapes[0] / 1e6:.1f} MB"
    with closing(Server(conninfo)) as session:
        found["SELECT 1"] = _timed(lambda: session.value("SELECT 1"))
        found["psql's \\dt"] = _timed(lambda: session.execute(_DT))
        rows = session.value("SELECT count(*) FROM t0")
    for kind, mib in resident(process.pid).items():
        found[f"memory: {kind}"] = f"{mib} MiB"
    last = f"t{count - 1}"
    if rows != 12 or rows_at_cut(process, node, last, _NAME) != 11:
        print("ROWS ARE MISSING")
        sys.exit(1)
    return found


_DT: Final = (
    "SELECT n.nspname, c.relname, c.relkind, pg_catalog.pg_get_userbyid(c.relowner)"
    " FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind IN ('r','p','') AND n.nspname <> 'pg_catalog' AND n.nspname !~ '^pg_toast'"
    " AND n.nspname <> 'information_schema' AND pg_catalog.pg_table_is_visible(c.oid)"
    " ORDER BY 1, 2"
)


def _visible(
    process: NodeProcess, cuts: CutLog, publisher: Server, statements: Sequence[str]
) -> str:
    """Return the time from COMMIT of a transaction until a cut has it."""
    with publisher.connection.transaction():
        for statement in statements:
            publisher.execute(statement)
        before = int(publisher.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))
    return _timed(
        lambda: process.wait_until(lambda: (cuts.newest() or 0) > before, "cut", _LONG, pause=0.005)
    )


def _timed(call: Callable[[], object]) -> str:
    began = time.monotonic()
    call()
    return _seconds(time.monotonic() - began)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _scrape(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return len(answer.read())


def _answers(conninfo: str) -> bool:
    with suppress(psycopg.OperationalError):
        Server(conninfo).close()
        return True
    return False


def _portions(count: int) -> Iterator[range]:
    return (range(first, min(first + _EACH, count)) for first in range(0, count, _EACH))


def _counts() -> Sequence[int]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tables", default="100,1000,10000", help="numbers of tables")
    return [int(each) for each in parser.parse_args().tables.split(",")]


if __name__ == "__main__":
    sys.exit(main())
