"""Changes on the publisher: a backlog as fast as it goes, and transactions at a steady rate.

In: counts and rates. Out: committed transactions and where the publisher's WAL then is.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq

from servers import Server

_KEEPALIVE: Final = ord("k")
_INSERT_LSN: Final = "SELECT pg_current_wal_insert_lsn() - '0/0'"

# One transaction a row, in the server: the backlog arises as fast as the server commits.
_BACKLOG: Final = """
DO $$
DECLARE
    key int;
BEGIN
    FOR i IN 1..{updates} LOOP
        key := 1 + floor(random() * {rows});
        UPDATE pgbench_accounts SET abalance = abalance + 1 + i % 7 WHERE aid = key;
        COMMIT;
    END LOOP;
END $$
"""


def make_backlog(publisher: Server, *, rows: int, updates: int) -> int:
    """``updates`` transactions of one update of a random row each.

    Returns the LSN behind which one more transaction has ended: whoever has applied something
    behind it has applied them all.
    """
    publisher.execute("SET synchronous_commit = off")
    publisher.execute(_BACKLOG.format(rows=rows, updates=updates))
    publisher.execute("SET synchronous_commit = on")
    return mark(publisher)


def read_raw(publisher: Server, slot: str, publication: str) -> float:
    """Read what waits in a slot and throw it away; seconds. The slot itself stays where it is.

    No subscriber that streams from a walsender can be faster than this.
    """
    end = int(publisher.value(_INSERT_LSN))
    publisher.execute(f"SELECT pg_copy_logical_replication_slot('{slot}', 'raw')")
    conninfo = f"{publisher.conninfo} replication=database"
    connection = pq.PGconn.connect(conninfo.encode())
    began = time.monotonic()
    options = f"proto_version '1', publication_names '{publication}'"
    connection.exec_(f"START_REPLICATION SLOT raw LOGICAL 0/0 ({options})".encode())
    while _ends_before(connection.get_copy_data(0)[1], end):
        pass
    taken = time.monotonic() - began
    connection.finish()
    publisher.wait_for("SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'raw'", 60)
    publisher.execute("SELECT pg_drop_replication_slot('raw')")
    return taken


def _ends_before(frame: memoryview, end: int) -> bool:
    """Whether a frame is not a keepalive with the position ``end`` (walsender.c)."""
    return frame[0] != _KEEPALIVE or int.from_bytes(frame[1:9], "big") < end


def mark(publisher: Server) -> int:
    """Commit one more transaction; the LSN in front of it."""
    lsn = int(publisher.value(_INSERT_LSN))
    publisher.execute("UPDATE pgbench_accounts SET abalance = abalance WHERE aid = 1")
    return lsn


@dataclass(frozen=True, slots=True)
class Commit:
    """``at``: seconds since the epoch when COMMIT was sent; ``lsn``: the WAL's end behind it."""

    at: float
    lsn: int


_UPDATE: Final = "BEGIN; UPDATE pgbench_accounts SET abalance = abalance + {} WHERE aid = {}"
# The second statement runs after the commit, in the same round trip.
_COMMIT: Final = f"COMMIT; {_INSERT_LSN}"


def steady(conninfo: str, *, rows: int, rate: float, seconds: float) -> list[Commit]:
    """Transactions of one update each at ``rate`` a second; late ones are not left out."""
    draw = random.Random(42)
    commits: list[Commit] = []
    with psycopg.connect(conninfo, autocommit=True) as connection:
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            pause = began + number / rate - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            update = _UPDATE.format(draw.randint(1, 99), draw.randint(1, rows))
            connection.pgconn.exec_(update.encode())
            at = time.time()
            result = connection.pgconn.exec_(_COMMIT.encode())
            lsn = result.get_value(0, 0)
            if lsn is None:
                raise RuntimeError(f"transaction failed: {result.error_message!r}")
            commits.append(Commit(at, int(lsn)))
    return commits
