"""Databases that hold state: SQLite files shared by several processes, or any other by its URL.

In: an SQLAlchemy URL. Out: an engine with transactions that begin as we say, and our errors instead
of the driver's. Which tables there are is left to ``store`` and ``pg_stat_subscription``.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, StatementError

from penstock.errors import ConfigurationError, PenstockError, StorageError

BUSY_TIMEOUT_S: Final = 30.0
"""How long a process waits for another one's transaction."""

_POSTGRESQL: Final = ("postgresql", "postgres")
_CONNECT_SECONDS: Final = 10
"""How long a PostgreSQL may take to answer; a URL may say otherwise."""

_BEGIN: Final = "penstock_begin"
_DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
"""Whatever the server, the database or the role is set to."""


def parse_url(url: str) -> URL:
    """Raises ConfigurationError for what is no SQLAlchemy URL; never shows its password."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None:
        raise ConfigurationError(
            "the URL of the state store is malformed",
            hint="Leave the parameter state empty for SQLite in the node's folder, "
            "or write postgresql://user@host/database.",
        )
    if parsed.drivername in _POSTGRESQL:  # psycopg is what we come with
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed


def sqlite_path(url: URL) -> Path | None:
    """The file of an SQLite URL; None for other databases."""
    if url.get_backend_name() != "sqlite":
        return None
    return Path(url.database or "")


def make_private_file(path: Path) -> None:
    """An empty file that only its owner reads, since connection strings go into it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def open_engine(url: URL, *, durable: bool) -> Engine:
    """``durable``: every commit is on disk when it returns; else it may be lost, never torn.

    SQLite runs in WAL mode, so that readers and one writer do not wait for each other. Its driver
    would begin transactions late and by itself; here BEGIN is ours, and a writer's is IMMEDIATE.
    """
    options: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql":
        # connections of before a restart of the server are found out, not used
        options["pool_pre_ping"] = True
        if "connect_timeout" not in url.query:
            options["connect_args"] = {"connect_timeout": _CONNECT_SECONDS}
    try:
        engine = create_engine(url, **options)
    except (ImportError, NoSuchModuleError) as error:
        raise ConfigurationError(
            f"no driver for the state store: {error}",
            hint="Install the Python package of the driver that the URL names.",
        ) from None
    if url.get_backend_name() == "sqlite":
        synchronous = "FULL" if durable else "OFF"

        @event.listens_for(engine, "connect")
        def _connected(dbapi_connection: Any, _record: Any) -> None:
            dbapi_connection.isolation_level = None
            dbapi_connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
            dbapi_connection.execute("PRAGMA journal_mode = WAL")
            dbapi_connection.execute(f"PRAGMA synchronous = {synchronous}")
            dbapi_connection.execute("PRAGMA foreign_keys = ON")

        @event.listens_for(engine, "begin")
        def _begun(connection: Connection) -> None:
            mode = connection.get_execution_options().get(_BEGIN, "DEFERRED")
            connection.exec_driver_sql(f"BEGIN {mode}")

    if url.get_backend_name() == "postgresql" and durable:

        @event.listens_for(engine, "connect")
        def _durable(dbapi_connection: Any, _record: Any) -> None:
            with dbapi_connection.cursor() as cursor:
                cursor.execute(_DURABLE)
            dbapi_connection.commit()

    return engine


@contextlib.contextmanager
def transaction(engine: Engine, *, write: bool) -> Iterator[Connection]:
    """One transaction: committed at the end, rolled back when an exception comes out.

    Raises StorageError when the database cannot be reached, is locked for too long, or is full.
    """
    options: dict[str, Any] = {_BEGIN: "IMMEDIATE"} if write else {}
    if not write and engine.dialect.name != "sqlite":
        options = {"isolation_level": "REPEATABLE READ"}
    with errors_mapped(), engine.execution_options(**options).begin() as connection:
        yield connection


@contextlib.contextmanager
def errors_mapped() -> Iterator[None]:
    """Database errors as StorageError; SQLAlchemy's own text would show statement and values."""
    try:
        yield
    except StatementError as error:
        if isinstance(error.orig, PenstockError):  # a value that a column type refuses
            raise error.orig from None
        if not isinstance(error, DBAPIError):
            raise
        raise _storage_error(error) from None


def _storage_error(error: DBAPIError) -> PenstockError:
    text = str(error.orig).strip()
    message = f"could not use the node's state store: {text}"
    if "locked" in text:
        return StorageError(
            message, hint="Another process keeps it locked; end that process.", sqlstate="55P03"
        )
    if "full" in text or "No space" in text:
        return StorageError(message, hint="Free disk space in the node's folder.", sqlstate="53100")
    if not isinstance(error.orig, sqlite3.Error):
        return StorageError(
            message, hint="Check that the database of the parameter state can be reached."
        )
    return StorageError(message, hint="Check the node's folder and its permissions.")
