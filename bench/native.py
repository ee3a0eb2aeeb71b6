"""PostgreSQL's own subscriber: what the ratios are ratios to.

In: the publisher and the subscribing cluster. Out: seconds. A change counts as applied when the
replication origin has passed it, which the server keeps in shared memory, so that looking costs it
next to nothing.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Final

import psycopg

from penstock.embedded import wait_until
from servers import Server
from side import Side
from subject import Checksum, Subject

NAME: Final = "PostgreSQL"
_LONG: Final = 3600.0
_LOOK: Final = 0.001


class NativeSubscriber(Side):
    """The subscription of a stock PostgreSQL 18 to one subject."""

    def __init__(
        self,
        publisher: Server,
        subscriber: Server,
        subject: Subject,
        *,
        name: str = NAME,
        binary: bool = False,
    ) -> None:
        """``name``: whose figures these are."""
        super().__init__(name, subject.name, _LOOK)
        self._publisher = publisher
        self._subscriber = subscriber
        self._subject = subject
        self._binary = binary

    def copy(self) -> float:
        """CREATE SUBSCRIPTION until the copied rows are committed; seconds."""
        self._subscriber.execute(f"TRUNCATE {self._subject.table_names}")
        self._subscriber.execute("CHECKPOINT")
        began = time.monotonic()
        self._subscriber.execute(
            f"CREATE SUBSCRIPTION {self._subject.name}"
            f" CONNECTION '{self._publisher.seen_at}' PUBLICATION {self._subject.name}"
            f" WITH (binary = {self._binary})"
        )
        self._wait_states("'f', 's', 'r'")
        taken = time.monotonic() - began
        self._wait_states("'r'")
        return taken

    def drop(self) -> None:
        self._subscriber.execute(f"DROP SUBSCRIPTION {self._subject.name}")

    def disable(self) -> None:
        self._subscriber.execute(f"ALTER SUBSCRIPTION {self._subject.name} DISABLE")
        self._publisher.wait_for(
            f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{self.slot}'", 60
        )

    def enable(self) -> None:
        self._subscriber.execute(f"ALTER SUBSCRIPTION {self._subject.name} ENABLE")

    def wait_behind(self, lsn: int) -> None:
        """Wait until a transaction that ended behind ``lsn`` is applied."""
        wait_until(
            lambda: (self._applied() or 0) > lsn, "native subscriber caught up", _LONG, pause=0.005
        )

    def checksum(self) -> Checksum:
        return self._subject.checksum(self._subscriber)

    def cpu_seconds(self) -> Mapping[int, float]:
        return {0: self._subscriber.cpu_seconds()}

    def make_look(self) -> Callable[[], Callable[[], int | None]]:
        """For a reader in another process: up to where the subscriber has applied."""
        return functools.partial(follow, self._subscriber.conninfo, _origin_sql(self._subject.name))

    def _applied(self) -> int | None:
        value = self._subscriber.value(_origin_sql(self._subject.name))
        return None if value is None else int(value)

    def _wait_states(self, states: str) -> None:
        self._subscriber.wait_for(
            f"SELECT bool_and(srsubstate IN ({states})) FROM pg_subscription_rel r"
            f" JOIN pg_subscription s ON s.oid = srsubid WHERE subname = '{self._subject.name}'",
            _LONG,
        )


def follow(conninfo: str, sql: str) -> Callable[[], int | None]:
    """A reader's look at a server: the number that a query returns."""
    connection = psycopg.connect(conninfo, autocommit=True)

    def look() -> int | None:
        row = connection.execute(sql).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    return look


def _origin_sql(subscription: str) -> str:
    return (
        "SELECT remote_lsn - '0/0' FROM pg_replication_origin_status o"
        " JOIN pg_subscription s ON o.external_id = 'pg_' || s.oid"
        f" WHERE s.subname = '{subscription}'"
    )
