"""The state store: its schema and version, its transactions, its change counter.

Writers run one after the other (the row of ``pg_control`` is their lock); readers see one state and
never wait. Rows are on disk when a writing transaction ends.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, Engine, inspect

from penstock.catalog import pg_control
from penstock.catalog.engine import (
    add_what_is_missing,
    make_private_file,
    map_errors,
    open_engine,
    parse_url,
    sqlite_path,
    transaction,
)
from penstock.catalog.metadata import METADATA
from penstock.errors import ConfigurationError, DuplicateObject

SCHEMA_VERSION: Final = 27
"""The version of the tables in METADATA, where the package's import has put all of them. Each
version so far has only added tables and columns, so one step upgrades from any of them."""


class Store:
    """An open state store, for several threads. The owner must call ``close``."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def create(cls, url: str) -> Store:
        """Make the tables of a new node. Raises DuplicateObject when the store holds one."""
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        if path is not None:
            make_private_file(path)
        store = cls(open_engine(parsed, durable=True))
        try:
            with transaction(store.engine, write=True) as connection:
                if _is_initialized(connection):
                    raise DuplicateObject(
                        "the state store holds a node already",
                        hint="Use that node, or give the new one a store of its own.",
                    )
                METADATA.create_all(connection)
                pg_control.initialize(
                    connection,
                    schema_version=SCHEMA_VERSION,
                    created_by=importlib.metadata.version("penstock"),
                    now=int(time.time()),
                )
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, url: str) -> Store:
        """Open a node's store and bring its schema up to date.

        Raises ConfigurationError if it holds no node, or one of a newer Penstock.
        """
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        if path is not None and not path.is_file():
            raise _no_node()
        store = cls(open_engine(parsed, durable=True))
        try:
            store._upgrade()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Begin a transaction that sees one state."""
        with transaction(self.engine, write=False) as connection:
            yield connection

    @contextlib.contextmanager
    def write(self, *, counted: bool = True) -> Iterator[Connection]:
        """Begin a transaction that changes the catalog. Unless ``counted`` is False it counts as a
        change even if it changes nothing."""
        with transaction(self.engine, write=True) as connection:
            # This comes first: the row is the lock of all writers, so that the rest of the
            # transaction reads the newest state.
            if counted:
                pg_control.advance_generation(connection)
            else:
                pg_control.lock_writers(connection)
            yield connection

    def _upgrade(self) -> None:
        with self.read() as connection:
            if not _is_initialized(connection):
                raise _no_node()
            version = pg_control.schema_version(connection)
        if version == SCHEMA_VERSION:
            return
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"the state store has schema version {version}, this Penstock knows up to "
                f"{SCHEMA_VERSION}",
                hint="Install the version of Penstock that used it last, or a newer one.",
            )
        with self.write() as connection:
            # Read the version again under the writers' lock: another process may have upgraded.
            if pg_control.schema_version(connection) < SCHEMA_VERSION:
                add_what_is_missing(connection, METADATA)
                pg_control.set_schema_version(connection, SCHEMA_VERSION)


def _is_initialized(connection: Connection) -> bool:
    with map_errors():
        return inspect(connection).has_table("penstock_control")


def _no_node() -> ConfigurationError:
    return ConfigurationError(
        "the state store holds no node", hint="Make the node first: penstock init DIR"
    )
