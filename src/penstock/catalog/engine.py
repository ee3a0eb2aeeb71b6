"""Databases that hold state: SQLite files shared by several processes, or any other by its URL.

In: an SQLAlchemy URL. Out: an engine with transactions that begin as we say, and our errors instead
of the driver's. Which tables there are is left to ``store`` and ``pg_stat_subscription``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, StatementError

from penstock.errors import ConfigurationError, PenstockError, StorageError

BUSY_TIMEOUT_S: Final = 30.0
"""How long a process waits for another one's transaction."""

_BEGIN: Final = "penstock_begin"


def parse_url(url: str) -> URL:
    """Raises ConfigurationError for what is no SQLAlchemy URL; never shows its password."""
    try:
        return make_url(url)
    except ArgumentError:
        raise ConfigurationError(
            "the URL of the state store is malformed",
            hint="Leave the parameter state empty for SQLite in the node's folder, "
            "or write dialect+driver://user@host/database.",
        ) from None


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
    try:
        engine = create_engine(url)
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
    return StorageError(message, hint="Check the node's folder and its permissions.")
