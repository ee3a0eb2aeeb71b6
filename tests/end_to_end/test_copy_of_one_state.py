"""A copy is of one state: what rewrites, empties or locks a table meanwhile, and who ends it.

Each case stops a copy at a certain moment by a lock or an open transaction on the publisher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.node.status import SubscriptionStatus, TableStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_LEFT = (
    "SELECT (SELECT count(*) FROM pg_replication_slots"
    "        WHERE database = current_database() AND temporary)"
    " + (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    "    AND pid <> pg_backend_pid() AND application_name LIKE 'penstock%%')"
)
"""Slots and sessions of copies."""


def until(what: str, true: Callable[[], object], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"no {what} in {timeout} s"
        time.sleep(0.02)


def table(status: SubscriptionStatus, name: str) -> TableStatus:
    (found,) = [one for one in status.tables if one.name == f"public.{name}"]
    return found


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for name in tables:
            wanted = publisher_rows(connection, f"public.{name}")
            assert not (lack := difference(name, wanted, node.rows(name))), str(lack)


@contextmanager
def held(database: Database, sql: str) -> Iterator[psycopg.Connection[Any]]:
    """An open transaction that has run ``sql``."""
    with closing(psycopg.connect(database.conninfo)) as connection:
        connection.execute(sql)  # type: ignore[call-overload]
        yield connection


class Meanwhile:
    """A statement in a session of its own, which waits for whatever the copy holds."""

    def __init__(self, database: Database, sql: str) -> None:
        self.error: Exception | None = None
        self._connection = psycopg.connect(database.conninfo, autocommit=True)
        self.pid = self._connection.info.backend_pid
        self._thread = threading.Thread(target=self._run, args=(sql,))
        self._thread.start()

    def _run(self, sql: str) -> None:
        try:
            with closing(self._connection):
                self._connection.execute(sql)  # type: ignore[call-overload]
        except Exception as error:
            self.error = error

    def join(self, timeout: float = 90) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the statement still waits"
        if self.error is not None:
            raise self.error


REWRITES = (
    "CLUSTER t USING t_pkey",
    "VACUUM FULL t",
    "ALTER TABLE t ADD COLUMN r double precision DEFAULT random()",
    "TRUNCATE t",
)


@pytest.mark.parametrize("version", [14, 18])
def test_rewrites_between_the_snapshot_and_the_reading(
    version: int, local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    """Making the slot waits for an open transaction; the rewrite, which began before it, ends in
    the moment in which the snapshot is made, or just after it."""
    database = database_on(version)
    node = local_node(copy_unit_size="256kB", wal_retrieve_retry_interval="500ms")
    for number, rewrite in enumerate(REWRITES):
        database.execute(
            "DROP TABLE IF EXISTS t; DROP TABLE IF EXISTS other; DROP PUBLICATION IF EXISTS p;"
            "CREATE TABLE t (id integer PRIMARY KEY, v text);"
            "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i"
            " ORDER BY random();"
            "CREATE TABLE other (id integer PRIMARY KEY);"
            "CREATE PUBLICATION p FOR TABLE t, other"
        )
        schema = f"s{number}"
        with held(database, "INSERT INTO other VALUES (1)") as writer:
            node.subscribe(
                schema, database, "p", f"enabled = false, slot_name = '{schema}_{database.name}'"
            ) if False else None
            writer.rollback()
        node.subscribe("s", database, "p")
        meanwhile = Meanwhile(database, rewrite)
        meanwhile.join()
        node.caught_up("s", database)
        assert_equal(node, database, "t", "other")
        node.node.sql("DROP SUBSCRIPTION s")
        node.node.sql("DROP TABLE t")
        node.node.sql("DROP TABLE other")
