"""Fixtures with real PostgreSQL servers: one per major version and session, a database per test.

A test that uses one of them gets the marker ``postgres`` by itself, and one that uses Spark
``spark``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.embedded.installation import pinned_server
from penstock.errors import ConfigurationError

_FIXTURES = {"postgres", "postgres_version", "database", "database_on"}
_SHORT_WAITS = {
    "wal_retrieve_retry_interval": "200ms",
    "wal_receiver_status_interval": "1s",
    "wal_writer_delay": "20ms",
}
"""What a server that subscribes would wait for with nothing to do meanwhile."""
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if _FIXTURES & names:
            item.add_marker(pytest.mark.postgres)
        if "spark" in names:
            item.add_marker(pytest.mark.spark)


class Database:
    """A fresh database on a server; ``connect`` hands out connections that the fixture closes."""

    def __init__(self, server: EmbeddedPostgres, name: str) -> None:
        self.server = server
        self.name = name
        self._stack = contextlib.ExitStack()

    @property
    def conninfo(self) -> str:
        return self.server.conninfo(self.name)

    def connect(self, *, autocommit: bool = True, **options: Any) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self.conninfo, autocommit=autocommit, **options)
        return self._stack.enter_context(contextlib.closing(connection))

    def execute(self, sql: str, parameters: Any = None) -> None:
        """Runs SQL (several statements when there are no parameters) in a connection of its own."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(sql, parameters)

    def rows(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(sql, parameters).fetchall()

    def value(self, sql: str, parameters: Any = None) -> Any:
        ((value,),) = self.rows(sql, parameters)
        return value

    def wait_confirmed(self, slot: str, timeout: float) -> None:
        """Wait until the slot's subscriber has confirmed everything committed until now."""
        lsn = self.value("SELECT pg_current_wal_flush_lsn()")
        confirmed = (
            f"SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots"
            f" WHERE slot_name = '{slot}'"
        )
        wait_until(lambda: self.value(confirmed), f"the confirmation of slot {slot}", timeout)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def postgres_version() -> Iterator[Callable[[int], EmbeddedPostgres]]:
    """``postgres_version(15)``: the running server of a version, one per session."""
    with contextlib.ExitStack() as stack:
        servers: dict[int, EmbeddedPostgres] = {}

        def of(version: int) -> EmbeddedPostgres:
            if version not in servers:
                if version in (14, 15, 17):
                    try:
                        pinned_server(version)
                    except ConfigurationError as error:
                        pytest.skip(error.message)
                servers[version] = stack.enter_context(
                    EmbeddedPostgres(version, settings=_SHORT_WAITS)
                )
            return servers[version]

        yield of


@pytest.fixture(scope="session")
def postgres(postgres_version: Callable[[int], EmbeddedPostgres]) -> EmbeddedPostgres:
    """PostgreSQL 18 with wal_level=logical. Do not stop it: other tests use it too."""
    return postgres_version(18)


@pytest.fixture
def database_on(
    postgres_version: Callable[[int], EmbeddedPostgres],
) -> Iterator[Callable[..., Database]]:
    """``database_on(15)`` or ``database_on(server)``: a fresh database there, dropped later."""
    with contextlib.ExitStack() as stack:

        def create(where: int | EmbeddedPostgres = 18) -> Database:
            server = postgres_version(where) if isinstance(where, int) else where
            return stack.enter_context(_database(server))

        yield create


@pytest.fixture
def database(database_on: Callable[..., Database]) -> Database:
    """A fresh database on PostgreSQL 18, dropped afterwards with its slots."""
    return database_on(18)


@contextlib.contextmanager
def _database(server: EmbeddedPostgres) -> Iterator[Database]:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
    database = Database(server, name)
    try:
        yield database
    finally:
        database.close()
        if server.running:
            _drop(server, name)


def _drop(server: EmbeddedPostgres, name: str) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        # A node that still runs would connect to its slot again between the next two statements.
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        # Who connected just before may take a slot after one look, so look until nobody is there.
        terminated = (
            "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity"
            " WHERE datname = %s AND backend_type IN ('client backend', 'walsender')"
        )
        wait_until(
            lambda: not admin.execute(terminated, (name,)).fetchall(),
            f"everybody to leave {name}",
            60,
        )
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s AND NOT temporary",
            (name,),
        )
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
