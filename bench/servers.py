"""The publisher and PostgreSQL's own subscriber: two embedded PostgreSQL 18 clusters.

In: how many rows pgbench_accounts shall have, and whether to force data to disk. Out: servers with
the tables in place, and statements run on them. What is measured is left to others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import psycopg

from penstock.embedded import EmbeddedPostgres, wait_until
from process_tree import server_cpu_seconds

VERSION: Final = 18
SUBSCRIPTION: Final = "bench"
"""Where there is only one; its publication is called alike."""
ROWS_PER_SCALE: Final = 100_000

_SETTINGS: Final[dict[str, str | int | bool]] = {
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    # It would fall upon one of the two subscribers by chance.
    "autovacuum": False,
}


@contextlib.contextmanager
def clusters(
    rows: int, *, fsync: bool, shared_buffers: str
) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """A publisher with filled pgbench tables and a subscriber with the same tables, empty."""
    scale = str(max(1, rows // ROWS_PER_SCALE))
    settings = {
        **_SETTINGS,
        "fsync": fsync,
        "full_page_writes": fsync,
        "shared_buffers": shared_buffers,
    }
    with (
        EmbeddedPostgres(VERSION, settings=settings, fsync=fsync) as publisher,
        EmbeddedPostgres(VERSION, settings=settings, fsync=fsync) as subscriber,
    ):
        publisher.pgbench("-i", "-q", "-I", "dtGvp", "-s", scale)
        publisher.psql(f"CREATE PUBLICATION {SUBSCRIPTION} FOR TABLE pgbench_accounts; CHECKPOINT")
        subscriber.pgbench("-i", "-q", "-I", "dtp", "-s", scale)
        yield publisher, subscriber


class Server:
    """One connection to a server; every statement is a transaction of its own.

    ``seen_at``: the connection string of its subscribers, whose way may be longer.
    """

    def __init__(self, conninfo: str, seen_at: str | None = None) -> None:
        self.conninfo = conninfo
        self.seen_at = seen_at or conninfo
        self.connection: psycopg.Connection[Any] = psycopg.connect(conninfo, autocommit=True)

    def close(self) -> None:
        self.connection.close()

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    def value(self, sql: str) -> Any:
        row = self.connection.execute(sql).fetchone()
        return None if row is None else row[0]

    def cpu_seconds(self) -> float:
        """Of the whole server so far, which is a PostgreSQL on this machine."""
        return server_cpu_seconds(self._postmaster)

    @cached_property
    def _postmaster(self) -> int:
        """The first line of postmaster.pid (miscadmin.h)."""
        return int(self.value("SELECT pg_read_file('postmaster.pid')").split()[0])

    def wait_for(self, sql: str, seconds: float, pause: float = 0.005) -> None:
        """Wait until the query returns true. Raises TimeoutError."""
        wait_until(lambda: self.value(sql), sql, seconds, pause=pause)
