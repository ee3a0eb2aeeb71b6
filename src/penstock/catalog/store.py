"""The state store: its schema and version, its transactions, its change counter.

In: an SQLAlchemy URL. Out: connections inside transactions, on which the catalogs work. Writers run
one after the other (the row of ``pg_control`` is their lock); readers see one state and never wait.
Rows are on disk when a writing transaction ends.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from sqlalchemy import Connection, Engine, inspect

from penstock.catalog import (
    block_commits,
    cut_requests,
    pg_authid,
    pg_class,
    pg_control,
    pg_namespace,
    pg_prepared_xacts,
    pg_publication,
    pg_replication_slots,
    pg_sequence,
    pg_subscription,
    pg_subscription_rel,
    pg_transactions,
    pg_type,
    verifications,
)
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
from penstock.catalog.pg_control import NodeInfo
from penstock.errors import ConfigurationError, DuplicateObject

SCHEMA_VERSION: Final = 27


def _add_what_is_missing(connection: Connection) -> None:
    add_what_is_missing(connection, METADATA)


_UPGRADES: Final[Mapping[int, Callable[[Connection], None]]] = {
    # The catalogs of publishing, then the log of transactions: create_all makes missing tables.
    1: METADATA.create_all,
    2: METADATA.create_all,
    # Identities of publishers, relations and Delta tables.
    3: _add_what_is_missing,
    # Tables that have left a subscription.
    4: _add_what_is_missing,
    # The OIDs of their relations.
    5: _add_what_is_missing,
    # Unique indexes, tables moved to another schema, former states of tables, enum types.
    6: _add_what_is_missing,
    # Requests for cuts.
    7: METADATA.create_all,
    # Dropped slots that can be brought back.
    8: _add_what_is_missing,
    # More options of subscriptions, prepared transactions.
    9: _add_what_is_missing,
    # Options of subscriptions: disable_on_error, and SKIP.
    10: _add_what_is_missing,
    # Options of subscriptions that PostgreSQL 16 and 17 added.
    11: _add_what_is_missing,
    # The option for tables whose columns change at the publisher.
    12: _add_what_is_missing,
    # The options for histories of tables and for messages.
    13: _add_what_is_missing,
    # The option for columns that tell which change wrote a row.
    14: _add_what_is_missing,
    # The option for values that are out of range.
    15: _add_what_is_missing,
    # Owners and origins of subscriptions, and the options for soft deletes and the layout of new
    # tables.
    16: _add_what_is_missing,
    # The option for columns of jsonb.
    17: _add_what_is_missing,
    # Messages that sessions emit.
    18: _add_what_is_missing,
    # Transaction blocks whose commits are under way.
    19: METADATA.create_all,
    # Sequences of columns.
    20: METADATA.create_all,
    # Prepared transaction blocks.
    21: _add_what_is_missing,
    # Tables that transaction blocks make.
    22: _add_what_is_missing,
    # Places of prepared blocks in the log.
    23: _add_what_is_missing,
    # Messages of transaction blocks.
    24: _add_what_is_missing,
    # The tables of such a block.
    25: _add_what_is_missing,
    # Comparisons in the background, and their interval.
    # Dropped subscriptions, publishers that were a standby, and positions after pg_upgrade.
    # Definitions at the publisher on which the rows of followed tables depend.
    # The end of the PREPARE of a publisher's transaction, and whether its rows are left out.
    # Former publications, and the places from which on publications are valid.
    # The option for copies into a target that has rows.
    26: _add_what_is_missing,
}
"""The step, by version, that upgrades a schema of that version to the next."""

_TABLES: Final = (
    block_commits,
    cut_requests,
    pg_authid,
    pg_class,
    pg_control,
    pg_namespace,
    pg_prepared_xacts,
    pg_publication,
    pg_replication_slots,
    pg_sequence,
    pg_subscription,
    pg_subscription_rel,
    pg_transactions,
    pg_type,
    verifications,
)
"""Modules whose import puts their tables into METADATA."""


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

    def generation(self) -> int:
        """Return the change counter: two equal answers mean that nothing has changed. It is
        cheap."""
        with self.read() as connection:
            return pg_control.generation(connection)

    def node_info(self) -> NodeInfo:
        """Return this node's identity."""
        with self.read() as connection:
            return pg_control.node_info(connection)

    def warehouse(self) -> str | None:
        """Return the URI of the warehouse that bears the node's id; None before it is written."""
        with self.read() as connection:
            return pg_control.warehouse(connection)

    def record_warehouse(self, uri: str) -> None:
        """Record the URI of the warehouse that bears the node's id."""
        with self.write() as connection:
            pg_control.set_warehouse(connection, uri)

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
            for step in range(pg_control.schema_version(connection), SCHEMA_VERSION):
                _UPGRADES[step](connection)
            pg_control.set_schema_version(connection, SCHEMA_VERSION)


def _is_initialized(connection: Connection) -> bool:
    with map_errors():
        return inspect(connection).has_table("penstock_control")


def _no_node() -> ConfigurationError:
    return ConfigurationError(
        "the state store holds no node", hint="Make the node first: penstock init DIR"
    )
