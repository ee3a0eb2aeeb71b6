"""PostgreSQL's own subscriber: what the ratios are ratios to.

In: the publisher and the subscribing cluster. Out: seconds. A change counts as applied when the
replication origin has passed it, which the server keeps in shared memory, so that looking costs it
next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import psycopg

from penstock.embedded import wait_until
from servers import PUBLICATION, SUBSCRIPTION, Server

NAME: Final = "PostgreSQL"
_LONG: Final = 3600.0

ORIGIN_SQL: Final = (
    "SELECT remote_lsn - '0/0' FROM pg_replication_origin_status o"
    " JOIN pg_subscription s ON o.external_id = 'pg_' || s.oid"
    f" WHERE s.subname = '{SUBSCRIPTION}'"
)


class NativeSubscriber:
    """The subscription of a stock PostgreSQL 18."""

    def __init__(self, publisher: Server, subscriber: Server, name: str = NAME) -> None:
        """``name``: whose figures these are."""
        self.name = name
        self._publisher = publisher
        self._subscriber = subscriber

    def copy(self) -> float:
        """CREATE SUBSCRIPTION until the copied rows are committed; seconds."""
        self._subscriber.execute("TRUNCATE pgbench_accounts")
        self._subscriber.execute("CHECKPOINT")
        began = time.monotonic()
        self._subscriber.execute(
            f"CREATE SUBSCRIPTION {SUBSCRIPTION}"
            f" CONNECTION '{self._publisher.conninfo}' PUBLICATION {PUBLICATION}"
        )
        self._subscriber.wait_for(
            "SELECT bool_and(srsubstate IN ('f', 's', 'r')) FROM pg_subscription_rel", _LONG
        )
        taken = time.monotonic() - began
        self._subscriber.wait_for(
            "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel", _LONG
        )
        return taken

    def catch_up(self, lsn: int) -> float:
        """Enable it until it is behind ``lsn``; seconds. It is disabled again."""
        began = time.monotonic()
        self.enable()
        self.wait_behind(lsn)
        taken = time.monotonic() - began
        self.disable()
        return taken

    def drop(self) -> None:
        self._subscriber.execute(f"DROP SUBSCRIPTION {SUBSCRIPTION}")

    def disable(self) -> None:
        self._subscriber.execute(f"ALTER SUBSCRIPTION {SUBSCRIPTION} DISABLE")
        self._publisher.wait_for(
            f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{SUBSCRIPTION}'", 60
        )

    def enable(self) -> None:
        self._subscriber.execute(f"ALTER SUBSCRIPTION {SUBSCRIPTION} ENABLE")

    def wait_behind(self, lsn: int) -> None:
        """Wait until a transaction that ended behind ``lsn`` is applied."""
        wait_until(
            lambda: (self.applied() or 0) > lsn, "native subscriber caught up", _LONG, pause=0.005
        )

    def applied(self) -> int | None:
        value = self._subscriber.value(ORIGIN_SQL)
        return None if value is None else int(value)

    def checksum(self) -> tuple[int, ...]:
        return checksum(self._subscriber)

    @property
    def conninfo(self) -> str:
        return self._subscriber.conninfo


def follow(conninfo: str) -> Callable[[], int | None]:
    """A reader's look at the subscriber: up to where it has applied."""
    connection = psycopg.connect(conninfo, autocommit=True)

    def look() -> int | None:
        row = connection.execute(ORIGIN_SQL).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    return look


CHECKSUM_SQL: Final = (
    "SELECT count(*), sum(CAST(abalance AS bigint)),"
    " sum(CAST(aid AS bigint) * CAST(abalance AS bigint)) FROM {table}"
)


def checksum(server: Server) -> tuple[int, ...]:
    """Rows and two sums of pgbench_accounts, equal on publisher and subscribers."""
    sql = CHECKSUM_SQL.format(table="pgbench_accounts")
    row = server.connection.execute(sql).fetchone()
    return tuple(int(value) for value in row or ())
