"""Changes on a publisher: a backlog as fast as it goes, and transactions at a steady rate.

In: statements, counts and rates. Out: committed transactions and where the publisher then is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq

from servers import Server

_KEEPALIVE: Final = ord("k")
_INSERT_LSN: Final = "SELECT pg_current_wal_insert_lsn() - '0/0'"

# In the server: a backlog arises as fast as the server commits.
_LOOP: Final = """
DO $$
DECLARE
    base bigint := {base};
BEGIN
    FOR i IN 1..{transactions} LOOP
        {statement};
        COMMIT;
    END LOOP;
END $$
"""


def make_backlog(
    publisher: Server, statement: str, *, transactions: int, base: str = "0", touch: str
) -> int:
    """``transactions`` of one PL/pgSQL statement each, in which i is the transaction's number and
    ``base`` what that expression was at the beginning.

    Returns the LSN behind which one more transaction (``touch``) has ended: whoever has applied
    something behind it has applied them all.
    """
    publisher.execute("SET synchronous_commit = off")
    publisher.execute(_LOOP.format(base=base, transactions=transactions, statement=statement))
    publisher.execute("SET synchronous_commit = on")
    return mark(publisher, touch)


def mark(publisher: Server, touch: str) -> int:
    """Commit one more transaction; the LSN in front of it."""
    lsn = int(publisher.value(_INSERT_LSN))
    publisher.execute(touch)
    return lsn


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


def read_copy(publisher: Server, table: str, *, binary: bool) -> float:
    """Read a table by one COPY and throw it away; seconds. No subscriber can be faster than this,
    except by several of them."""
    form = " (FORMAT binary)" if binary else ""
    connection = pq.PGconn.connect(publisher.conninfo.encode())
    began = time.monotonic()
    connection.exec_(f"COPY {table} TO STDOUT{form}".encode())
    while connection.get_copy_data(0)[0] >= 0:
        pass
    taken = time.monotonic() - began
    connection.finish()
    return taken


def _ends_before(frame: memoryview, end: int) -> bool:
    """Whether a frame is not a keepalive with the position ``end`` (walsender.c)."""
    return frame[0] != _KEEPALIVE or int.from_bytes(frame[1:9], "big") < end


@dataclass(frozen=True, slots=True)
class Commit:
    """``at``: seconds since the epoch when COMMIT was sent; ``position``: the WAL's end behind it,
    or what else grows with each commit."""

    at: float
    position: int


def steady(
    conninfo: str,
    transactions: Iterable[str],
    *,
    rate: float,
    seconds: float,
    position: str = _INSERT_LSN,
    commits: list[Commit] | None = None,
) -> list[Commit]:
    """Transactions at ``rate`` a second; late ones are not left out.

    ``transactions``: the statements between BEGIN and COMMIT. ``position``: a query that runs after
    the commit. ``commits``: gets each of them when it is done.
    """
    commits = [] if commits is None else commits
    with psycopg.connect(conninfo, autocommit=True) as connection:
        began = time.monotonic()
        for number, statements in zip(range(int(rate * seconds)), transactions, strict=False):
            pause = began + number / rate - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            connection.pgconn.exec_(f"BEGIN; {statements}".encode())
            at = time.time()
            # The second statement runs after the commit, in the same round trip.
            result = connection.pgconn.exec_(f"COMMIT; {position}".encode())
            value = result.get_value(0, 0)
            if value is None:
                raise RuntimeError(f"transaction failed: {result.error_message!r}")
            commits.append(Commit(at, int(value)))
    return commits
