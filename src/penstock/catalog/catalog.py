"""The node's catalog: its tables joined into whole transactions.

In: the URL of a state store. Out: ``Catalog``. What belongs together is done in one transaction::

    with catalog.write() as t:
        subscription = t.subscriptions.create(...)
        t.relations.add(subscription.oid, tables, SubscriptionRelState.INIT)

Single steps have methods of their own. A change moves ``generation()``, which other processes
poll.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import Connection, Engine, text

from penstock.catalog.cut_requests import CutRequest
from penstock.catalog.engine import map_errors
from penstock.catalog.metadata import RecordedError
from penstock.catalog.pg_class import LakeTable
from penstock.catalog.pg_control import NodeInfo
from penstock.catalog.pg_stat_subscription import StatisticsStore
from penstock.catalog.pg_subscription import DroppedSubscription, Subscription, TwoPhaseState
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import PublisherIdentity
from penstock.catalog.sequences import Sequences
from penstock.catalog.store import Store
from penstock.catalog.transaction import CatalogTransaction, catalog_transaction
from penstock.enum_type import EnumType
from penstock.errors import ObjectInUse, PenstockError, UndefinedObject
from penstock.lsn import INVALID, Lsn
from penstock.relation import TableName


class Catalog:
    """An open catalog, for several threads; a context manager that closes it."""

    def __init__(self, store: Store, statistics: StatisticsStore) -> None:
        self._store = store
        self.statistics = statistics
        self.sequences = Sequences(store)
        self.node_lock = NodeLock(store.engine, store.node_info().node_id)

    @classmethod
    def create(cls, url: str) -> Catalog:
        """Make a new node's catalog. Raises DuplicateObject, ConfigurationError, StorageError."""
        return cls._with_statistics(Store.create(url), url)

    @classmethod
    def open(cls, url: str) -> Catalog:
        """Open a node's catalog. Raises ConfigurationError, StorageError."""
        return cls._with_statistics(Store.open(url), url)

    @classmethod
    def _with_statistics(cls, store: Store, url: str) -> Catalog:
        try:
            return cls(store, StatisticsStore(url))
        except BaseException:
            store.close()
            raise

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
        """Who this node is."""
        return self._store.node_info()

    def warehouse(self) -> str | None:
        """The URI of the warehouse that bears the node's id; None before it was written."""
        return self._store.warehouse()

    def record_warehouse(self, uri: str) -> None:
        """The node's id is in the warehouse there."""
        self._store.record_warehouse(uri)

    def next_values(self, table: TableName, column: str, count: int) -> Sequence[int]:
        """Of the sequence of a table's column, for rows of no session. Raises PenstockError (42P01,
        2200H)."""
        return self.sequences.next_values(table, column, count)

    def restart_sequences(self, table: TableName) -> None:
        """Those of a table's columns begin again."""
        self.sequences.restart_all(table)

    def generation(self) -> int:
        """Grows with every change by any process, but for what is not ``counted``; cheap enough to
        poll ten times a second."""
        return self._store.generation()

    @contextlib.contextmanager
    def read(self) -> Iterator[CatalogTransaction]:
        """A transaction that sees one state."""
        with self._store.read() as connection:
            yield catalog_transaction(connection)

    @contextlib.contextmanager
    def write(self, *, counted: bool = True) -> Iterator[CatalogTransaction]:
        """A transaction that changes things; durable when it ends, nothing when it raises.

        ``counted`` False: of the log's end, tables' places in it and slots' positions alone, which
        change with every commit, and nobody has to look at everything again for."""
        with self._store.write(counted=counted) as connection:
            yield catalog_transaction(connection)

    @contextlib.contextmanager
    def one_transaction(self, *, commit: bool) -> Iterator[Catalog]:
        """A catalog whose reading and writing, by this thread, are parts of one transaction that
        changes things. Nothing is changed without ``commit``, or when the block raises."""
        try:
            with self._store.write() as connection:
                yield _OneTransaction(self, connection)
                if not commit:
                    raise _TakenBack
        except _TakenBack:
            pass

    def subscriptions(self) -> tuple[Subscription, ...]:
        """All subscriptions in the order of creation."""
        with self.read() as transaction:
            return transaction.subscriptions.all()

    def subscription_name(self, app_id: str) -> str | None:
        """By its app id; None where there is no such subscription, or no more."""
        known = self.subscriptions()
        return next((found.name for found in known if found.app_id == app_id), None)

    def dropped_subscriptions(self) -> tuple[DroppedSubscription, ...]:
        """Those that the node has had."""
        with self.read() as transaction:
            return transaction.subscriptions.dropped()

    def relations(self, subid: int | None = None) -> tuple[SubscriptionRel, ...]:
        """Tables of one subscription, or of all."""
        with self.read() as transaction:
            return transaction.relations.all(subid)

    def subscription_with_relations(
        self, subid: int
    ) -> tuple[Subscription | None, tuple[SubscriptionRel, ...]]:
        """A subscription, None when it is gone, and its tables, at one state."""
        with self.read() as transaction:
            return transaction.subscriptions.find_oid(subid), transaction.relations.all(subid)

    def partition_tree(self, table: TableName) -> tuple[LakeTable, ...]:
        """A partitioned table with its partitions and theirs, root first; () for any other."""
        with self.read() as transaction:
            root = transaction.tables.find(*table)
            if root is None or root.partition_key is None:
                return ()
            return transaction.tables.family(root)

    def enum_types(self) -> tuple[EnumType, ...]:
        """The node's own types."""
        with self.read() as transaction:
            return transaction.types.all()

    def cut_requests(self, subid: int) -> tuple[CutRequest, ...]:
        """Where cuts of a subscription are wanted."""
        with self.read() as transaction:
            return transaction.cut_requests.all(subid)

    def forget_cut_request(self, request_id: str) -> None:
        """A cut is wanted no longer."""
        with self.write() as transaction:
            transaction.cut_requests.forget(request_id)

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> SubscriptionRel:
        """Record a table's transition. Raises UndefinedObject, NotInPrerequisiteState."""
        with self.write() as transaction:
            return transaction.relations.set_state(rel, state, lsn)

    def park(self, rel: SubscriptionRel, error: BaseException) -> SubscriptionRel:
        """Record that a table follows no more. Raises as ``set_state``."""
        with self.write() as transaction:
            return transaction.relations.park(rel, _record_of(error))

    def bind(self, rel: SubscriptionRel, relid: int | None, table_id: str | None) -> None:
        """Record what a table of a subscription is bound to."""
        with self.write() as transaction:
            transaction.relations.bind(rel, relid=relid, table_id=table_id)

    def copy_again(self, rel: SubscriptionRel, relid: int | None) -> None:
        """A table begins again with a copy. No effect when its membership has ended."""
        with self.write() as transaction:
            transaction.relations.copy_again(rel, relid)

    def record_definition(self, rel: SubscriptionRel, definition: str) -> None:
        """Record what a table's rows depend on at the publisher; nobody else need look again."""
        with self.write(counted=False) as transaction:
            transaction.relations.record_definition(rel, definition)

    def record_conflict(self, rel: SubscriptionRel, conflict: str) -> None:
        """Record that a relation may be another one than was copied."""
        with self.write() as transaction:
            transaction.relations.record_conflict(rel, conflict)

    @contextlib.contextmanager
    def member(
        self, rel: SubscriptionRel, subscription: Subscription
    ) -> Iterator[Callable[[SubscriptionRelState, Lsn | None], object]]:
        """Keep a table's membership: until the block is left, nobody can end it. Yields
        ``set_state`` for it. Other writers wait. Raises UndefinedObject when it has
        ended, or the subscription is being dropped or is not the given one any more: it may have
        other publications, whose columns and rows the table holds."""
        with self.write() as transaction:
            if not _is_member(transaction, rel, subscription):
                raise UndefinedObject(
                    f'table "{rel.qualified_name}" is no longer part of the subscription'
                )
            yield lambda state, lsn: transaction.relations.set_state(rel, state, lsn)

    def record_error(
        self,
        subid: int,
        error: BaseException,
        *,
        stopped: bool,
        table: str | None = None,
        disable: bool = False,
    ) -> None:
        """Keep what went wrong; ``stopped``: and start no worker until ENABLE. Gone: no effect.

        ``table``: the sync id of the table that it is an error of. ``disable``: DISABLE it, too
        (DisableSubscription).
        """
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is not None:
                changed = replace(
                    subscription,
                    enabled=subscription.enabled and not disable,
                    stopped=stopped,
                    error=_record_of(error),
                    stopped_by=table,
                )
                transaction.subscriptions.save(changed)

    def skip_lsns(self, subid: int) -> tuple[Lsn, Lsn]:
        """``skip_lsn`` and ``skipping_lsn``. Gone: INVALID."""
        with self.read() as transaction:
            found = transaction.subscriptions.find_oid(subid)
        return (INVALID, INVALID) if found is None else (found.skip_lsn, found.skipping_lsn)

    def begin_skipping(self, subid: int, lsn: Lsn) -> bool:
        """From now on the transaction is skipped, whatever SKIP says later. False: it is not to be
        skipped any more."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is None or subscription.skip_lsn != lsn:
                return False
            transaction.subscriptions.save(replace(subscription, skipping_lsn=lsn))
            return True

    def clear_skip_lsn(self, subid: int, lsn: Lsn) -> None:
        """The transaction is passed. Another one that is to be skipped by now stays so."""
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
        """Where a subscription's replication origin was put. Gone: INVALID."""
        with self.read() as transaction:
            found = transaction.subscriptions.find_oid(subid)
        return INVALID if found is None else found.origin_lsn

    def clear_origin_lsn(self, subid: int, lsn: Lsn) -> None:
        """The last cut is there. One that it was put to since stays."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is not None and subscription.origin_lsn == lsn:
                transaction.subscriptions.save(replace(subscription, origin_lsn=INVALID))

    def enable_two_phase(self, subid: int) -> None:
        """The publisher's slot has two-phase commit now (UpdateTwoPhaseState). Gone: no effect."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is not None:
                enabled = replace(subscription, two_phase_state=TwoPhaseState.ENABLED)
                transaction.subscriptions.save(enabled)

    def record_publisher(self, subid: int, publisher: PublisherIdentity) -> None:
        """Keep whom a subscription follows. Gone: no effect."""
        with self.write() as transaction:
            subscription = transaction.subscriptions.find_oid(subid)
            if subscription is not None:
                transaction.subscriptions.save(replace(subscription, publisher=publisher))


class _TakenBack(Exception):
    """Rolls a transaction back that nothing is wrong with."""


class _OneTransaction(Catalog):
    """Part of a catalog's transaction."""

    def __init__(self, catalog: Catalog, connection: Connection) -> None:
        self._store = catalog._store
        self.statistics = catalog.statistics
        self.sequences = catalog.sequences
        self.node_lock = catalog.node_lock
        self._connection = connection

    def close(self) -> None:
        """The catalog that it is part of stays open."""

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


# One running node per state store, where that is a PostgreSQL.
#
# In: the store's engine and the node's id. Out: a held advisory lock, or an error that another
# process runs this node. The lock belongs to a session: it goes with the process, however that
# dies, and with the server; ``keep`` takes it again then. A node in its folder is locked by
# ``claims`` too, which is all that SQLite needs.

_TRY: Final = text("SELECT pg_try_advisory_lock(:key)")
_HOLDER: Final = text(
    "SELECT a.pid, coalesce(host(a.client_addr), 'local socket') FROM pg_locks l "
    "JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted "
    "AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = :key "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_STILL_THERE: Final = text("SELECT 1")


class NodeLock:
    """Held from ``take`` to ``release``. Without effect where the store is no PostgreSQL."""

    def __init__(self, engine: Engine, node_id: str) -> None:
        self._engine = engine if engine.dialect.name == "postgresql" else None
        digest = hashlib.sha256(f"penstock {node_id}".encode()).digest()
        self._key = int.from_bytes(digest[:8], "big") >> 1
        self._connection: Connection | None = None
        self._guard = threading.Lock()

    def take(self) -> None:
        """Raises ObjectInUse where another process runs the node, StorageError."""
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
        """Take it again where the session has ended. Raises as ``take``."""
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

    def release(self) -> None:
        """End the session that holds it."""
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
