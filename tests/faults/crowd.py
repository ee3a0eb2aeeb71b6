"""Many sessions of one role that do their worst: ``python -m faults.crowd <conninfo> <sessions>``.

They ask until standard input ends. Errors are theirs alone: what needs too much memory or time is
refused, and they go on.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from typing import Final

import psycopg

_TYPES: Final = "pg_type a, pg_type b, pg_type c"
STATEMENTS: Final = {
    "join": f"SELECT count(*) FROM {_TYPES} WHERE a.oid < c.oid",
    "functions": "SELECT max(format_type(a.oid, NULL)) FROM pg_type a, pg_type b",
    "sort": f"SELECT a.oid FROM {_TYPES} ORDER BY a.typname, c.typname LIMIT 1",
    "values": "SELECT count(*) FROM (VALUES "
    + ", ".join(f"({n}, {n} + 1, 'x{n}')" for n in range(5_000))
    + ") AS v",
    "terms": "SELECT " + " + ".join(f"{n} * 2" for n in range(1_000)),
    "series": "SELECT n, repeat('x', 100) FROM generate_series(1, 30000) AS n",
    "text": "SELECT length(repeat('x', 1000000) || n) FROM generate_series(1, 50) AS n",
    "catalogs": "SELECT * FROM pg_attribute",
}
_IDLE_PRIORITY: Final = 19


def _ask(conninfo: str, seed: int, stop: threading.Event) -> None:
    rng = random.Random(seed)
    while not stop.is_set():
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(conninfo, autocommit=True) as session,
        ):
            for _ in range(10):
                statement = rng.choice(list(STATEMENTS.values()))
                with contextlib.suppress(psycopg.errors.OutOfMemory, psycopg.errors.QueryCanceled):
                    session.execute(statement)


def main(conninfo: str, sessions: int) -> None:
    """Ask until standard input ends."""
    os.nice(_IDLE_PRIORITY)  # the client's work is not the node's
    stop = threading.Event()
    threads = [
        threading.Thread(target=_ask, args=(conninfo, seed, stop), daemon=True)
        for seed in range(sessions)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
