"""The node's catalog: one transaction covers all its tables.

Changes that belong together are one transaction::

    with catalog.write() as t:
        subscription = t.subscriptions.create(...)
        t.relations.add(subscription.oid, tables, SubscriptionRelState.INIT)

Single steps have methods of their own. A change advances ``generation()``, which other processes
poll.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_type_hints

from sqlalchemy import Connection, Engine, text

from penstock.catalog import pg_control
from penstock.catalog.block_commits import BlockCommits, BlockMessages
from penstock.catalog.metadata import RecordedError
from penstock.catalog.pg_authid import PgAuthid
from penstock.catalog.pg_class import LakeTable, PgClass
from penstock.catalog.pg_control import NodeInfo
from penstock.catalog.pg_namespace import PgNamespace
from penstock.catalog.pg_prepared_xacts import PgPreparedXacts, PreparedBlocks
from penstock.catalog.pg_publication import PgPublication, Publication
from penstock.catalog.pg_replication_slots import PgReplicationSlots
from penstock.catalog.pg_sequence import PgSequence
from penstock.catalog.pg_stat_subscription import StatisticsStore
from penstock.catalog.pg_subscription import (
    CutRequest,
    CutRequests,
    DroppedSubscription,
    PgSubscription,
    Subscription,
    TwoPhaseState,
)
from penstock.catalog.pg_subscription_rel import (
    PgSubscriptionRel,
    SubscriptionRel,
    SubscriptionRelState,
    Verifications,
)
from penstock.catalog.pg_transactions import PgTransactions
from penstock.catalog.pg_type import PgType
from penstock.catalog.publisher_identity import PublisherIdentity
from penstock.catalog.sequences import Sequences
from penstock.catalog.store import Store, map_errors
from penstock.enum_type import EnumType
from penstock.errors import ObjectInUse, PenstockError, UndefinedObject
from penstock.lsn import INVALID, Lsn
from penstock.publication.members import Members
from penstock.relation import TableName

# All catalogs within one transaction of the state store.


@dataclass(frozen=True, slots=True)
class CatalogTransaction:
    """All catalogs at one state."""

    subscriptions: PgSubscription
    relations: PgSubscriptionRel
    roles: PgAuthid
    tables: PgClass
    publications: PgPublication
    slots: PgReplicationSlots
    transactions: PgTransactions
    namespaces: PgNamespace
    types: PgType
    cut_requests: CutRequests
    verifications: Verifications
    prepared_xacts: PgPreparedXacts
    block_commits: BlockCommits
    sequences: PgSequence
    prepared_blocks: PreparedBlocks
    block_messages: BlockMessages

    def generation(self) -> int:
        """Return the change counter (``Catalog.generation``)."""
        return pg_control.generation(self.tables.connection)

    def members(
        self,
        publications: Sequence[Publication] | None = None,
        tables: Sequence[LakeTable] | None = None,
    ) -> Members:
        """Return the members of publications among tables; None: all publications, all tables."""
        return Members(
            self.publications.all() if publications is None else publications,
            self.publications.relations(),
            self.publications.namespaces(),
            self.tables.all() if tables is None else tables,
        )

    def is_taken(self, schema: str, name: str) -> bool:
        """Return whether a table, an index or a sequence of the schema has the name, or will soon
        get it."""
        tables = {table.oid: table for table in self.tables.all() if table.schema == schema}
        sequences = (s.name for s in self.sequences.all() if s.table in tables)
        known = name in sequences or any(name in table.own_names for table in tables.values())
        return known or self.block_commits.makes(schema, name)

    def delete_table(self, table: LakeTable) -> None:
        """Delete a table with its grants, its sequences, its memberships in publications, and its
        version in the node's WAL (dependency.c). The Delta table is left to the caller."""
        for rel in self.publications.relations():
            if rel.relation == table.oid:
                self.publications.remove_relation(rel.publication, table.oid)
        self.roles.revoke_all(table.oid)
        self.transactions.forget(table.oid)
        self.sequences.delete_of(table.oid)
        self.tables.delete(table.oid)


_ACCESS: Final = get_type_hints(CatalogTransaction)
"""The classes of the fields, by their names."""


def catalog_transaction(connection: Connection) -> CatalogTransaction:
    """Return all catalogs over one connection."""
    return CatalogTransaction(**{name: kind(connection) for name, kind in _ACCESS.items()})


class Catalog:
    """An open catalog, for several threads; a context manager that closes it."""

    def __init__(self, store: Store, statistics: StatisticsStore) -> None:
        self._store = store
        self.statistics = statistics
        self.sequences = Sequences(store)
        self.node_lock = NodeLock(store.engine, self.node_info.node_id)

    @classmethod
    def create(cls, url: str) -> Catalog:
        """Make a new node's catalog. Raises DuplicateObject, ConfigurationError, StorageError."""
        catalog = cls._with_statistics(Store.create(url), url)
        try:
            # A state store that was here before has left the numbers of other subscriptions.
            catalog.statistics.keep_only(())
        except BaseException:
            catalog.close()
            raise
        return catalog

    @classmethod
    def open(cls, url: str) -> Catalog:
        """Open a node's catalog; that of an older Penstock can only tell who it is before
        ``upgrade``. Raises ConfigurationError, StorageError."""
        return cls._with_statistics(Store.open(url), url)

    @classmethod
    def _with_statistics(cls, store: Store, url: str) -> Catalog:
        try:
            return cls(store, StatisticsStore(url))
        except BaseException:
            store.close()
            raise

    def check(self) -> None:
        """Check a SQLite file's structure. Raises StorageError (XX001)."""
        self._store.check()

    def check_there(self) -> None:
        """Check that a SQLite file has not been removed. Raises ObjectInUse."""
        self._store.check_there()

    def upgrade(self) -> Path | None:
        """Bring the schema up to date, as the process that runs the node. Return the copy of a
        SQLite file as it was; None if nothing was done, or there is no such file."""
        return self._store.upgrade()

    def check_open(self) -> None:
        """Raise NotInPrerequisiteState if the catalog has been closed."""
        self._store.check_open()

    def close(self) -> None:
        """Close every connection."""
        self.sequences.close()
        self.statistics.close()
        self._store.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def node_info(self) -> NodeInfo:
        """The identity of this node."""
        with self._store.control() as connection:
            return pg_control.node_info(connection)

    def warehouse(self) -> str | None:
        """Return the URI of the warehouse that bears the node's id; None before it is written."""
        with self._store.control() as connection:
            return pg_control.warehouse(connection)

    def record_warehouse(self, uri: str) -> None:
        """Record that the warehouse at ``uri`` bears the node's id."""
        with self._store.write() as connection:
            pg_control.set_warehouse(connection, uri)

    def next_values(self, table: TableName, column: str, count: int) -> Sequence[int]:
        """Take values from the sequence of a table's column, for rows that no session writes.
        Raises PenstockError (42P01, 2200H)."""
        return self.sequences.next_values(table, column, count)

    def restart_sequences(self, table: TableName) -> None:
        """Restart the sequences of a table's columns."""
        self.sequences.restart_all(table)

    def generation(self) -> int:
        """Return a number that grows with every ``counted`` change by any process. It is cheap
        enough to poll ten times a second."""
        with self._store.read() as connection:
            return pg_control.generation(connection)

    @contextlib.contextmanager
    def read(self) -> Iterator[CatalogTransaction]:
        """Begin a transaction that sees one state."""
        with self._store.read() as connection:
            yield catalog_transaction(connection)

    @contextlib.contextmanager
    def write(self, *, counted: bool = True) -> Iterator[CatalogTransaction]:
        """Begin a transaction that writes. It is durable when the block ends, and rolled back when
        the block raises.

        Pass ``counted`` False for numbers that change with every commit (the WAL's end, tables'
        versions in it, slots' LSNs): pollers then need not reread the catalog."""
        with self._store.write(counted=counted) as connection:
            yield catalog_transaction(connection)

    @contextlib.contextmanager
    def one_transaction(self, *, commit: bool) -> Iterator[Catalog]:
        """Yield a catalog whose reads and writes, by this thread, are parts of one transaction.
        Nothing is changed without ``commit``, or when the block raises."""
        try:
            with self._store.write() as connection:
                yield _OneTransaction(self, connection)
                if not commit:
                    raise _TakenBack
        except _TakenBack:
            pass

    def subscriptions(self) -> tuple[Subscription, ...]:
        """Return all subscriptions in the order of creation."""
        with self.read() as transaction:
            return transaction.subscriptions.all()

    def subscription_name(self, app_id: str) -> str | None:
        """Return the name of the subscription with this app id; None if there is none any more."""
        known = self.subscriptions()
        return next((found.name for found in known if found.app_id == app_id), None)

    def dropped_subscriptions(self) -> tuple[DroppedSubscription, ...]:
        """Return the subscriptions that were dropped on this node."""
        with self.read() as transaction:
            return transaction.subscriptions.dropped()

    def relations(self, subid: int | None = None) -> tuple[SubscriptionRel, ...]:
        """Return the tables of one subscription, or of all."""
        with self.read() as transaction:
            return transaction.relations.all(subid)

    def subscription_with_relations(
        self, subid: int
    ) -> tuple[Subscription | None, tuple[SubscriptionRel, ...]]:
        """Return a subscription (None when it is gone) and its tables, from one snapshot."""
        with self.read() as transaction:
            return transaction.subscriptions.find_oid(subid), transaction.relations.all(subid)

    def partition_tree(self, table: TableName) -> tuple[LakeTable, ...]:
        """Return a partitioned table and all partitions below it, root first; () for any other."""
        with self.read() as transaction:
            root = transaction.tables.find(*table)
            if root is None or root.partition_key is None:
                return ()
            return transaction.tables.family(root)

    def table_uris(self) -> frozenset[str]:
        """Return the URIs of all Delta tables of the node."""
        with self.read() as transaction:
            return frozenset(t.uri for t in transaction.tables.all() if t.uri is not None)

    def enum_types(self) -> tuple[EnumType, ...]:
        """Return the node's enum types."""
        with self.read() as transaction:
            return transaction.types.all()

    def cut_requests(self, subid: int) -> tuple[CutRequest, ...]:
        """Return the requests for a cut of a subscription."""
        with self.read() as transaction:
            return transaction.cut_requests.all(subid)

    def forget_cut_request(self, request_id: str) -> None:
        """Withdraw a request for a cut."""
        with self.write() as transaction:
            transaction.cut_requests.forget(request_id)

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> SubscriptionRel:
        """Record a table's transition. Raises UndefinedObject, NotInPrerequisiteState."""
        with self.write() as transaction:
            return transaction.relations.set_state(rel, state, lsn)

    def take_up(
        self,
        subid: int,
        table: TableName,
        lsn: Lsn,
        *,
        relid: int | None,
        table_id: str | None,
        conflict: str | None,
    ) -> bool:
        """Add a table that the last cut, at ``lsn``, has to the tables of a subscription. Return
        False if it is there already or has left, or the subscription is gone."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is None or subscription.dropping or None in (relid, table_id):
                return False
            return transaction.relations.take_up(
                subid, table, lsn, relid=relid, table_id=table_id, conflict=conflict
            )

    def park(self, rel: SubscriptionRel, error: BaseException) -> SubscriptionRel:
        """Record that a table no longer follows its publisher. Raises as ``set_state``."""
        with self.write() as transaction:
            return transaction.relations.park(rel, _record_of(error))

    def bind(self, rel: SubscriptionRel, relid: int | None, table_id: str | None) -> None:
        """Record the objects to which a table of a subscription is bound."""
        with self.write() as transaction:
            transaction.relations.bind(rel, relid=relid, table_id=table_id)

    def copy_again(self, rel: SubscriptionRel, relid: int | None) -> None:
        """Have a table begin again with a copy. No effect when its membership has ended."""
        with self.write() as transaction:
            transaction.relations.copy_again(rel, relid)

    def record_definition(self, rel: SubscriptionRel, definition: str) -> None:
        """Record the publisher's definitions on which a table's rows depend. Not counted: no other
        process needs to reread the catalog for it."""
        with self.write(counted=False) as transaction:
            transaction.relations.record_definition(rel, definition)

    def record_conflict(self, rel: SubscriptionRel, conflict: str) -> None:
        """Record why the relation may no longer be the one that was copied."""
        with self.write() as transaction:
            transaction.relations.record_conflict(rel, conflict)

    @contextlib.contextmanager
    def member(
        self, rel: SubscriptionRel, subscription: Subscription
    ) -> Iterator[Callable[[SubscriptionRelState, Lsn | None], object]]:
        """Hold a table's membership: nobody can end it until the block is left, and other writers
        wait. Yields ``set_state`` for the table.

        Raises UndefinedObject when the membership has ended, or the subscription is being dropped
        or has changed: other publications, for example, may mean other columns and rows.
        """
        with self.write() as transaction:
            if not _is_member(transaction, rel, subscription):
                raise UndefinedObject(
                    f'table "{rel.qualified_name}" is no longer part of the subscription'
                )
            yield lambda state, lsn: transaction.relations.set_state(rel, state, lsn)

    def record_error(
        self,
        subscription: Subscription,
        error: BaseException,
        *,
        stopped: bool,
        table: str | None = None,
        disable: bool = False,
    ) -> None:
        """Record an error of a worker of ``subscription``. No effect when the subscription is gone
        or has changed: then another worker begins, and the error may be one of the former
        connection.

        ``stopped``: start no worker until ENABLE. ``table``: the sync id of the table in which the
        error occurred. ``disable``: disable the subscription, too (DisableSubscription).
        """
        told = _record_of(error)

        def changed(now: Subscription) -> Subscription:
            if not now.followed_as(subscription):
                return now
            enabled = now.enabled and not disable
            return replace(now, enabled=enabled, stopped=stopped, error=told, stopped_by=table)

        self._change(subscription.oid, changed)

    def _change(self, subid: int, changed: Callable[[Subscription], Subscription]) -> None:
        """Change the row of a subscription; no effect when it is gone."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is not None:
                transaction.subscriptions.save(changed(subscription))

    def skip_lsns(self, subid: int) -> tuple[Lsn, Lsn]:
        """Return ``skip_lsn`` and ``skipping_lsn``; INVALID when the subscription is gone."""
        with self.read() as transaction:
            found = transaction.subscriptions.find_oid(subid)
        return (INVALID, INVALID) if found is None else (found.skip_lsn, found.skipping_lsn)

    def begin_skipping(self, subid: int, lsn: Lsn) -> bool:
        """Record that a transaction is being skipped; a later SKIP does not change that. Return
        False if the transaction must no longer be skipped."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is None or subscription.skip_lsn != lsn:
                return False
            transaction.subscriptions.save(replace(subscription, skipping_lsn=lsn))
            return True

    def clear_skip_lsn(self, subid: int, lsn: Lsn) -> None:
        """Forget a transaction that was skipped. A later SKIP of another transaction is kept."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is None:
                return
            if subscription.skip_lsn == lsn:
                subscription = replace(subscription, skip_lsn=INVALID)
            if subscription.skipping_lsn == lsn:
                subscription = replace(subscription, skipping_lsn=INVALID)
            transaction.subscriptions.save(subscription)

    def origin_lsn(self, subid: int) -> Lsn:
        """Return the LSN to which a subscription's replication origin was set; INVALID when the
        subscription is gone."""
        with self.read() as transaction:
            found = transaction.subscriptions.find_oid(subid)
        return INVALID if found is None else found.origin_lsn

    def clear_origin_lsn(self, subid: int, lsn: Lsn) -> None:
        """Forget the LSN to which the origin was set, since the last cut has it now. Keep it if it
        was set again meanwhile."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is not None and subscription.origin_lsn == lsn:
                transaction.subscriptions.save(replace(subscription, origin_lsn=INVALID))

    def enable_two_phase(self, subid: int) -> None:
        """Record that the publisher's slot has two-phase commit now (UpdateTwoPhaseState). No
        effect when the subscription is gone."""
        self._change(subid, lambda found: replace(found, two_phase_state=TwoPhaseState.ENABLED))

    def record_publisher(self, subid: int, publisher: PublisherIdentity) -> None:
        """Record which publisher a subscription follows. No effect when the subscription is
        gone."""
        self._change(subid, lambda found: replace(found, publisher=publisher))


class _TakenBack(Exception):
    """Rolls back a transaction in which nothing failed."""


class _OneTransaction(Catalog):
    """A catalog that takes part in another catalog's transaction."""

    def __init__(self, catalog: Catalog, connection: Connection) -> None:
        self._store = catalog._store
        self.statistics = catalog.statistics
        self.sequences = catalog.sequences
        self.node_lock = catalog.node_lock
        self._connection = connection

    def close(self) -> None:
        """Leave the other catalog open."""

    @contextlib.contextmanager
    def read(self) -> Iterator[CatalogTransaction]:
        yield catalog_transaction(self._connection)

    @contextlib.contextmanager
    def write(self, *, counted: bool = True) -> Iterator[CatalogTransaction]:
        yield catalog_transaction(self._connection)


def _is_member(
    transaction: CatalogTransaction, rel: SubscriptionRel, subscription: Subscription
) -> bool:
    now = transaction.subscriptions.find_oid(rel.subid)
    if now is None or now.dropping or not now.followed_as(subscription):
        return False
    return any(one.sync_id == rel.sync_id for one in transaction.relations.all(rel.subid))


def _record_of(error: BaseException) -> RecordedError:
    if isinstance(error, PenstockError):
        return RecordedError(error.message, error.detail, error.hint, error.sqlstate, time.time())
    message = f"{type(error).__name__}: {error}"
    return RecordedError(message, None, None, PenstockError.default_sqlstate, time.time())


# The lock that lets only one node run on a state store in PostgreSQL: an advisory lock, held by a
# session. It ends when the process dies. It also ends with the server; ``keep`` then takes it
# again. ``penstock.node.claims`` also locks the node's folder, which is enough for SQLite.

_TRY: Final = text("SELECT pg_try_advisory_lock(:key)")
_HOLDER: Final = text(
    "SELECT a.pid, coalesce(host(a.client_addr), 'local socket') FROM pg_locks l "
    "JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted "
    "AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = :key "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_STILL_THERE: Final = text("SELECT 1")


class NodeLock:
    """The node's lock, held from ``take`` to ``release``. It has no effect unless the store is in
    PostgreSQL."""

    def __init__(self, engine: Engine, node_id: str) -> None:
        self._engine = engine if engine.dialect.name == "postgresql" else None
        digest = hashlib.sha256(f"penstock {node_id}".encode()).digest()
        self._key = int.from_bytes(digest[:8], "big") >> 1
        self._connection: Connection | None = None
        self._guard = threading.Lock()

    def take(self) -> None:
        """Take the lock. Raises StorageError; ObjectInUse if another process runs the node."""
        if self._engine is None:
            return
        with self._guard, map_errors():
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                if not connection.execute(_TRY, {"key": self._key}).scalar_one():
                    raise self._in_use(connection)
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
            self._connection = connection

    def keep(self) -> None:
        """Take the lock again if its session has ended. Raises as ``take``."""
        if self._engine is None:
            return
        try:
            with self._guard, map_errors():
                if self._connection is not None:
                    self._connection.execute(_STILL_THERE)
                    return
        except BaseException:
            self.release()
            raise
        self.take()

    def is_held(self) -> bool:
        """Return whether any process holds the lock. Raises StorageError."""
        if self._engine is None:
            return False
        with map_errors(), self._engine.connect() as connection:
            return connection.execute(_HOLDER, {"key": self._key}).first() is not None

    def release(self) -> None:
        """End the session that holds the lock."""
        with self._guard:
            held, self._connection = self._connection, None
        if held is not None:
            held.invalidate()
            held.close()

    def _in_use(self, connection: Connection) -> ObjectInUse:
        holder = connection.execute(_HOLDER, {"key": self._key}).first()
        detail = None
        if holder is not None:
            detail = f"Its session in the state store has PID {holder[0]}, from {holder[1]}."
        return ObjectInUse(
            "the node of this state store is already running",
            detail=detail,
            hint="Stop it there first, or give this node a state store of its own.",
        )
