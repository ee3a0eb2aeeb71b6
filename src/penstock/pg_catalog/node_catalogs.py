"""Catalog queries of sessions: a snapshot of the node's catalogs, and DuckDB's answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeGuard, TypeVar

from penstock import pg_catalog
from penstock.attribute import TupleDesc
from penstock.catalog import Catalog, LakeTable, Sequenced, TableVerification
from penstock.catalog import Sequence as LakeSequence
from penstock.civil import print_interval
from penstock.errors import (
    FeatureNotSupported,
    InsufficientPrivilege,
    InvalidParameterValue,
    ValueNotRepresentable,
    WrongObjectType,
)
from penstock.interrupts import check_for_interrupts, note_open
from penstock.lakehouse.identity import EntryMark, entry_mark
from penstock.lakehouse.state import TableState, load
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pg_catalog import CatalogDatabase, CatalogTable, PythonFunction
from penstock.pg_catalog.database import Connections
from penstock.pg_catalog.origin_functions import ORIGIN_FUNCTIONS, OriginFunctions
from penstock.pg_catalog.relations import relation_oids
from penstock.pg_catalog.slot_functions import SLOT_FUNCTIONS, SlotFunctions
from penstock.pg_catalog.snapshot import NODE_OWNER, SessionFacts
from penstock.pg_catalog.subscription_views import (
    prepared_xacts,
    replication_origin_status,
    replication_origins,
    stat_lake_subscription,
    stat_lake_subscription_rel,
    stat_subscription,
    stat_subscription_stats,
)
from penstock.pg_catalog.wal_functions import (
    MESSAGE_FUNCTIONS,
    WAL_FUNCTIONS,
    MessageFunctions,
    WalFunctions,
)
from penstock.protocol.answers import ColumnRows, Description, Rows
from penstock.relation import TableName
from penstock.sql.grammar.parsenodes import PreparableStmt, SelectStmt
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction, TableFunction
from penstock.sql.typed.column_default import shown_default
from penstock.sqlstate import QueryCanceled, ReadOnlySqlTransaction, UndefinedTable
from penstock.stats.backend_status import IDLE, Activity, BackendType, Session, Sessions
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import columns_of, table_column
from penstock.walsender.logical_reading import LogicalReading
from penstock.walsender.senders import Sender, Senders
from penstock.walsender.slots import Slots, SlotState
from penstock.walsender.syncrep import ASYNC, SyncState
from penstock.walsender.troubles import Trouble, Troubles

_Rows = TypeVar("_Rows")


# Columns of tables for the catalogs. A table that cannot be read at the moment keeps its last known
# columns, and does not affect other tables. Columns are read again when a table has another
# version, or another Delta log.


@dataclass(frozen=True, slots=True)
class _Columns:
    columns: TupleDesc
    unpublishable: str | None = None


_Key = tuple[str, int, EntryMark | None]
_NONE: Final = _Columns(TupleDesc())
_REQUESTS: Final = 32
"""Requests to an object store at once."""


class TableColumns:
    """The columns of tables, kept once read, for the threads of all sessions."""

    def __init__(self, warehouse: Warehouse, troubles: Troubles) -> None:
        self._warehouse = warehouse
        self._troubles = troubles
        self._lock = threading.Lock()
        self._known: dict[int, tuple[_Key, _Columns]] = {}

    def within(self, warehouse: Warehouse) -> TableColumns:
        """Return a reader for another view of the warehouse, which starts with the columns known
        here."""
        own = TableColumns(warehouse, self._troubles)
        with self._lock:
            own._known = dict(self._known)
        return own

    def all(self, tables: Iterable[LakeTable]) -> tuple[CatalogTable, ...]:
        """Return tables as ``of`` does. Each needs two requests to the store, so those to an object
        store run side by side."""
        if self._warehouse.storage.is_local:
            return tuple(map(self.of, tables))
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return tuple(pool.map(self.of, tables))

    def of(self, table: LakeTable) -> CatalogTable:
        """Return the table with its columns. An error of this table alone is not raised."""
        check_for_interrupts()
        with self._lock:
            known = self._known.get(table.oid)
        found = _NONE if known is None else known[1]
        with self._troubles.kept("columns", table.qualified_name):
            uri = table.uri or self._warehouse.table_uri(table.schema, table.name)
            version = newest_version(self._warehouse.storage, uri)
            if version is not None:
                key = uri, version, entry_mark(uri, version)
                if known is None or known[0] != key:
                    state = load(self._warehouse.storage, uri)
                    found = _NONE if state is None else _columns(state)
                    with self._lock:
                        self._known[table.oid] = key, found
        return CatalogTable(table, found.columns, unpublishable=found.unpublishable)


def with_columns(table: LakeTable, state: TableState) -> CatalogTable:
    """Return a table with the columns of a loaded version."""
    found = _columns(state)
    return CatalogTable(table, found.columns, unpublishable=found.unpublishable)


def _columns(state: TableState) -> _Columns:
    """Return the columns of a version. A table with structs or maps is known, but has no columns to
    publish."""
    try:
        columns = map(table_column, columns_of(state))
        return _Columns(TupleDesc(replace(c, default=shown_default(c)) for c in columns))
    except FeatureNotSupported as error:
        return _Columns(TupleDesc(), error.message)


# Statistics by SQL functions (pgstatfuncs.c). A node has statistics of subscriptions and slots.
#
# The functions' effects last even if the query fails.

_RESET: Final = "pg_stat_reset_subscription_stats"
_RESET_SLOT: Final = "pg_stat_reset_replication_slot"
_HAVE: Final = "pg_stat_have_stats"
_SUBSCRIPTION: Final = "subscription"
_KINDS: Final = frozenset(
    {"database", "relation", "function", "replslot", _SUBSCRIPTION}
    | {"archiver", "bgwriter", "checkpointer", "slru", "wal"}
)
"""The kinds that every version since 15 has; 16 added ``io``, 18 ``backend``."""
_KINDS_SINCE: Final = {"io": 16, "backend": 18}

STATISTICS_FUNCTIONS: Final = frozenset({_RESET, _RESET_SLOT, _HAVE})


class StatisticsFunctions:
    """Functions about statistics, for one session."""

    def __init__(self, catalog: Catalog, shared: SharedState, facts: SessionFacts) -> None:
        self._catalog = catalog
        self._shared = shared
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """Return the functions by name."""
        signature = CatalogFunction(_RESET, ("oid",), "void")
        of_slot = CatalogFunction(_RESET_SLOT, ("text",), "void")
        have = CatalogFunction(_HAVE, ("text", "oid", "int8"), "bool")
        return {
            _RESET: PythonFunction(signature, self._reset, strict=False),
            _RESET_SLOT: PythonFunction(of_slot, self._reset_slot, strict=False),
            _HAVE: PythonFunction(have, self._have),
        }

    def _have(self, kind: str, database: int | None, subid: int | None) -> bool | None:
        """Tell whether an object has statistics: in a node only subscriptions do."""
        if database is None or subid is None:
            return None
        name = kind.lower()
        if name not in _KINDS and self._facts.version < _KINDS_SINCE.get(
            name, self._facts.version + 1
        ):
            raise InvalidParameterValue(f'invalid statistics kind: "{kind}"')
        known = {subscription.oid for subscription in self._catalog.subscriptions()}
        return name == _SUBSCRIPTION and database == 0 and subid in known

    def _reset_slot(self, name: str | None) -> str:
        """Reset the statistics of a slot, or of all for NULL."""
        self._check_superuser(_RESET_SLOT)
        names = [state.slot.name for state in self._shared.slots.all()]
        if name is not None and name not in names:
            raise InvalidParameterValue(f'replication slot "{name}" does not exist')
        now = time.time()
        for each in names:
            if name in (None, each):
                self._shared.senders.stats(each).reset(now)
        return ""

    def _check_superuser(self, function: str) -> None:
        """Only superusers may call a function that nobody was granted."""
        if not self._facts.superuser:
            raise InsufficientPrivilege(f"permission denied for function {function}")

    def _reset(self, subid: int | None) -> str:
        """Reset the statistics of a subscription, or of all for NULL."""
        self._check_superuser(_RESET)
        if subid == 0:
            raise InvalidParameterValue(f"invalid subscription OID {subid}")
        known = [subscription.oid for subscription in self._catalog.subscriptions()]
        chosen = [oid for oid in known if subid in (None, oid)]
        self._catalog.statistics.reset_counts(chosen, time.time())
        return ""


# nextval, currval, lastval, setval (sequence.c), and the function that views of sequences call.
#
# A value that was given out is never given out again, even if the query fails.

_SIGNATURES: Final = (
    CatalogFunction("nextval", ("regclass",), "int8"),
    CatalogFunction("currval", ("regclass",), "int8"),
    CatalogFunction("lastval", (), "int8"),
    CatalogFunction("setval", ("regclass", "int8", "bool"), "int8", "TRUE"),
    CatalogFunction("pg_sequence_last_value", ("regclass",), "int8"),
    CatalogFunction("penstock_sequence_state", ("regclass",), "_int8"),
)
SEQUENCE_FUNCTIONS: Final = frozenset(signature.name for signature in _SIGNATURES)


class SequenceFunctions:
    """Functions of sequences, for one session."""

    def __init__(self, catalog: Catalog, facts: SessionFacts) -> None:
        self._catalog = catalog
        self._values = catalog.sequences
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """Return the functions by name."""
        return {
            signature.name: PythonFunction(
                signature, getattr(self, signature.name), strict=bool(signature.arguments)
            )
            for signature in _SIGNATURES
        }

    def nextval(self, oid: int) -> int:
        """Return the next value. Raises PenstockError (25006, 42P01, 42501, 42809, 2200H)."""
        self._check(oid)
        self._check_writes("nextval()")
        (value,) = self._values.take(oid, 1, self._facts.sequences)
        return value

    def currval(self, oid: int) -> int:
        """Return the sequence's last value in this session. Raises PenstockError (42P01, 42501,
        42809, 55000)."""
        self._check(oid)
        return self._values.current(oid, self._facts.sequences)

    def lastval(self) -> int:
        """Return this session's last value of any sequence. Raises NotInPrerequisiteState
        (55000)."""
        return self._values.last(self._facts.sequences)

    def setval(self, oid: int, value: int | None, is_called: bool | None) -> int | None:
        """Set the value and return it. Raises PenstockError (25006, 42P01, 42501, 42809, 22003)."""
        if value is None or is_called is None:
            return None
        self._check(oid)
        self._check_writes("setval()")
        return self._values.set(oid, value, self._facts.sequences, is_called=is_called)

    def pg_sequence_last_value(self, oid: int) -> int | None:
        """Return the last value; NULL before the first value, and for a role without the right.
        Raises PenstockError (42P01, 42809)."""
        try:
            self._check(oid)
        except InsufficientPrivilege:
            return None
        value, is_called = self._values.state(oid)
        return value if is_called else None

    def penstock_sequence_state(self, oid: int) -> list[int | None]:
        """Return last_value and is_called as 0 or 1; NULLs for a role without the right, and for
        what is no sequence."""
        try:
            self._check(oid)
        except (InsufficientPrivilege, UndefinedTable, WrongObjectType):
            return [None, None]
        value, is_called = self._values.state(oid)
        return [value, int(is_called)]

    def table_functions(self) -> Mapping[str, TableFunction]:
        """Return the function in FROM by which pg_dump reads sequences."""
        state = "pg__penstock_sequence_state({0})"
        known = TableFunction(
            "pg_get_sequence_data",
            ("regclass",),
            (("last_value", "int8"), ("is_called", "bool")),
            f"SELECT s[1] AS o1, CAST(s[2] AS BOOLEAN) AS o2 FROM (SELECT {state} AS s)",
            functions=("penstock_sequence_state",),
        )
        return {known.name: known}

    def _check_writes(self, function: str) -> None:
        """Refuse a function in a read-only transaction (PreventCommandIfReadOnly)."""
        if self._facts.read_only:
            raise ReadOnlySqlTransaction(f"cannot execute {function} in a read-only transaction")

    def _check(self, oid: int) -> LakeSequence:
        """Return the sequence (init_sequence), if the role is a superuser or owns its table."""
        with self._catalog.read() as t:
            sequence, table = t.sequences.find_oid(oid), t.tables.find_oid(oid)
            owner = None if sequence is None else t.tables.find_oid(sequence.table)
        if sequence is None or owner is None:
            raise _not_a_sequence(oid, table)
        if not self._facts.superuser and owner.owner != self._facts.role_oid:
            raise InsufficientPrivilege(f"permission denied for sequence {sequence.name}")
        return sequence


def _not_a_sequence(oid: int, table: LakeTable | None) -> WrongObjectType | UndefinedTable:
    if table is None:
        return UndefinedTable(f"could not open relation with OID {oid}")
    kind = "partitioned tables" if table.partition_key is not None else "tables"
    return WrongObjectType(
        f'cannot open relation "{table.name}"',
        detail=f"This operation is not supported for {kind}.",
    )


# SQL functions that end sessions, or reload the node's parameters (signalfuncs.c).
#
# Rights are looked up at the call; only a superuser may end a superuser's session.

_CANCEL: Final = "pg_cancel_backend"
_TERMINATE: Final = "pg_terminate_backend"
_RELOAD: Final = "pg_reload_conf"
_DETAILS_SINCE: Final = 16
_BACKEND_SINCE: Final = 15
_MS: Final = 1000
_TICK_S: Final = 0.1

SIGNAL_FUNCTIONS: Final = frozenset({_CANCEL, _TERMINATE, _RELOAD})


@dataclass(frozen=True, slots=True)
class _Words:
    """PostgreSQL's wording about one of the functions, before version 16 and since."""

    denied: str
    superusers: str
    others: str
    before: str
    whose: str


_WORDS: Final = {
    _CANCEL: _Words(
        "permission denied to cancel query",
        "may cancel queries of roles with the SUPERUSER attribute.",
        'role whose query is being canceled or with privileges of the "pg_signal_backend" role '
        "may cancel this query.",
        "must be a superuser to cancel superuser query",
        "query is being canceled",
    ),
    _TERMINATE: _Words(
        "permission denied to terminate process",
        "may terminate processes of roles with the SUPERUSER attribute.",
        'role whose process is being terminated or with privileges of the "pg_signal_backend" role '
        "may terminate this process.",
        "must be a superuser to terminate superuser process",
        "process is being terminated",
    ),
}


class SignalFunctions:
    """Functions that signal processes, for one session."""

    def __init__(
        self,
        sessions: Sessions,
        catalog: Catalog,
        facts: SessionFacts,
        reload: Callable[[], None],
    ) -> None:
        """``reload`` asks the node's process to reload the parameters; raises OSError if none
        runs."""
        self._sessions = sessions
        self._reload = reload
        self._catalog = catalog
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """Return the functions by name."""
        return {
            _CANCEL: PythonFunction(CatalogFunction(_CANCEL, ("int4",), "bool"), self._cancel),
            _TERMINATE: PythonFunction(
                CatalogFunction(_TERMINATE, ("int4", "int8"), "bool"), self._terminate
            ),
            _RELOAD: PythonFunction(
                CatalogFunction(_RELOAD, (), "bool"), self._reload_conf, strict=False
            ),
        }

    def _cancel(self, pid: int) -> bool:
        session = self._found(pid)
        if session is None:
            return False
        self._check(session, _WORDS[_CANCEL])
        session.cancel()
        return True

    def _terminate(self, pid: int, timeout_ms: int | None) -> bool:
        if timeout_ms is not None and timeout_ms < 0:
            raise ValueNotRepresentable('"timeout" must not be negative')
        session = self._found(pid)
        if session is None:
            return False
        self._check(session, _WORDS[_TERMINATE])
        session.terminate()
        if not timeout_ms or pid == self._facts.pid or self._ends(session, timeout_ms / _MS):
            return True
        plural = "" if timeout_ms == 1 else "s"
        self._facts.warn(
            f"backend with PID {pid} did not terminate within {timeout_ms} millisecond{plural}"
        )
        return False

    def _reload_conf(self) -> bool:
        """Reload the parameters. As in PostgreSQL without a GRANT, only superusers may call it."""
        if not self._facts.superuser:
            raise InsufficientPrivilege(f"permission denied for function {_RELOAD}")
        try:
            self._reload()
        except OSError as error:
            self._facts.warn(f"failed to send signal to postmaster: {error.strerror or error}")
            return False
        return True

    def _ends(self, session: Session, timeout_s: float) -> bool:
        """Tell whether a session ends within the time. Raises PenstockError (57014) if the waiting
        query is cancelled."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if session.ended.wait(min(_TICK_S, left)):
                return True
            if self._facts.cancelled():
                raise QueryCanceled.by_user()
        return False

    def _found(self, pid: int) -> Session | None:
        session = self._sessions.find(pid)
        if session is None:
            kind = "backend" if self._facts.version >= _BACKEND_SINCE else "server"
            self._facts.warn(f"PID {pid} is not a PostgreSQL {kind} process")
        return session

    def _check(self, session: Session, words: _Words) -> None:
        """Check that the role may signal a session (pg_signal_backend)."""
        if self._facts.superuser:
            return
        with self._catalog.read() as t:
            role = t.roles.find_oid(session.activity.role)
        details = self._facts.version >= _DETAILS_SINCE
        owner = session.activity.role == NODE_OWNER
        if owner or (role is not None and role.superuser):
            if not details:
                raise InsufficientPrivilege(words.before)
            raise InsufficientPrivilege(
                words.denied,
                detail=f"Only roles with the SUPERUSER attribute {words.superusers}",
            )
        if session.activity.role == self._facts.role_oid:
            return
        if not details:
            raise InsufficientPrivilege(
                f"must be a member of the role whose {words.whose} or member of pg_signal_backend"
            )
        raise InsufficientPrivilege(
            words.denied, detail=f"Only roles with privileges of the {words.others}"
        )


_FUNCTIONS = (
    SLOT_FUNCTIONS
    | SIGNAL_FUNCTIONS
    | STATISTICS_FUNCTIONS
    | ORIGIN_FUNCTIONS
    | MESSAGE_FUNCTIONS
    | SEQUENCE_FUNCTIONS
    | {"pg_get_sequence_data"}
    | WAL_FUNCTIONS
)
_NEVER = ("spill_txns", "spill_count", "spill_bytes")
"""Columns of pg_stat_replication_slots that stay 0, since a node never spills."""


@dataclass(frozen=True)
class SharedState:
    """The state that a server has in shared memory: slots, walsenders, sessions. ``sync_states``
    returns the states of streams, by pid."""

    database_oid: int
    slots: Slots
    senders: Senders
    sessions: Sessions
    sync_states: Callable[[], Mapping[int, SyncState]] = dict


class NodeCatalogs:
    """``services.CatalogQueries`` for all sessions."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        shared: SharedState,
        connections: Connections | None = None,
        reload: Callable[[], None] = lambda: None,
        reading: LogicalReading | None = None,
    ) -> None:
        """``connections``: the node's pool; None to make one. ``reload`` reloads the node's
        parameters. ``reading`` reads slots; None if nothing decodes."""
        self._reading = reading
        self._reload = reload
        self._connections = connections or Connections()
        self._catalog = catalog
        self._warehouse = warehouse
        self._shared = shared
        self._troubles = shared.slots.sequencer.troubles
        self._columns = TableColumns(warehouse, self._troubles)

    def within(self, catalog: Catalog, warehouse: Warehouse) -> NodeCatalogs:
        """Return the catalogs for a statement of a block that has made tables, which ``catalog``
        and ``warehouse`` have."""
        own = copy(self)
        own._catalog, own._warehouse = catalog, warehouse
        own._columns = self._columns.within(warehouse)
        return own

    def reads_catalog_only(self, query: PreparableStmt) -> TypeGuard[SelectStmt]:
        """Tell whether the catalogs answer this query."""
        return pg_catalog.reads_catalog_only(query, _FUNCTIONS)

    def describe(self, query: SelectStmt, facts: SessionFacts, said: Sequence[int]) -> Description:
        """Return the parameters and fields of a SELECT. Raises PostgreSQL's errors."""
        with closing(self._database(facts)) as database:
            return database.describe(query, said)

    def query(
        self,
        query: SelectStmt,
        parameters: Sequence[bytes | None],
        facts: SessionFacts,
        said: Sequence[int] = (),
    ) -> Rows:
        """Answer a SELECT. Raises PostgreSQL's errors, some of them when the rows are read."""
        database = self._database(facts)
        try:
            fields, rows = database.query(query, parameters, said)
        except BaseException:
            database.close()
            raise
        if isinstance(rows, list):
            database.close()
            return Rows(fields, rows)
        if isinstance(rows, ColumnRows):
            batches = note_open(_closing(database, rows.batches))
            return Rows(fields, replace(rows, batches=batches))
        return Rows(fields, note_open(_closing(database, rows)))

    def column_types(self, schema: str, table: str) -> Mapping[str, int]:
        """Return the type oids of a table's columns, in its order; empty if there is no such
        table."""
        with self._catalog.read() as t:
            found = t.tables.find(schema, table)
        columns = () if found is None else self._columns.of(found).columns
        return {column.name: column.type_oid for column in columns}

    def _end(self) -> Lsn:
        with self._catalog.read() as t:
            return t.transactions.end()

    def _database(self, facts: SessionFacts) -> CatalogDatabase:
        slots = SlotFunctions(self._shared.slots, facts, self._shared.database_oid, self._reading)
        signals = SignalFunctions(self._shared.sessions, self._catalog, facts, self._reload)
        statistics = StatisticsFunctions(self._catalog, self._shared, facts)
        origins = OriginFunctions(self._catalog, self._warehouse, self._shared.sessions, facts)
        more = {**slots.functions(), **signals.functions(), **statistics.functions()}
        messages = MessageFunctions(self._shared.slots.sequencer.emit, self._end, facts)
        wal = WalFunctions(self._catalog, facts)
        sequences = SequenceFunctions(self._catalog, facts)
        more = {**more, **messages.functions(), **wal.functions(), **sequences.functions()}
        in_from = {
            **slots.table_functions(),
            **origins.table_functions(),
            **wal.table_functions(),
            **sequences.table_functions(),
        }
        return CatalogDatabase(
            self._snapshot(facts),
            facts,
            {**more, **origins.functions()},
            in_from,
            self._connections,
            slots.open_rows(),
        )

    def _snapshot(self, facts: SessionFacts) -> pg_catalog.CatalogSnapshot:
        states = self._shared.slots.all()
        with self._catalog.read() as t:
            publications = t.publications
            tables = self._columns.all(t.tables.all())
            roles = t.roles.all()
            subscriptions = t.subscriptions.all()
            sessions = self._shared.sessions.all()
            snapshot = pg_catalog.CatalogSnapshot(
                database=facts.database,
                database_oid=self._shared.database_oid,
                roles=roles,
                tables=tables,
                publications=publications.all(),
                publication_rels=publications.relations(),
                publication_namespaces=publications.namespaces(),
                subscriptions=subscriptions,
                subscription_rels=t.relations.all(),
                schemas=tuple(namespace.name for namespace in t.namespaces.all()),
                select_grants=t.roles.grants(),
                current_lsn=t.transactions.end(),
                types=t.types.all(),
                sequences=t.sequences.all(),
            )
            names = {role.oid: role.name for role in snapshot.all_roles}
            oids = relation_oids(snapshot)
            return replace(
                snapshot,
                views={
                    "pg_stat_lake_tables": self._stat_lake_tables(
                        facts, tables, t.transactions.sequenced()
                    ),
                    "pg_stat_activity": stat_activity(
                        sessions, names, facts, self._shared.database_oid
                    ),
                    **self._of_subscriptions(
                        snapshot, facts, sessions, oids, t.verifications.all()
                    ),
                    "pg_prepared_xacts": prepared_xacts(
                        t.prepared_xacts.all(), t.prepared_blocks.all(), names, facts.database
                    ),
                    "pg_stat_ssl": stat_ssl(sessions, facts),
                    "pg_stat_replication": stat_replication(
                        self._shared.senders.all(), names, facts, self._shared.sync_states()
                    ),
                    "pg_stat_replication_slots": self._stat_replication_slots(states),
                    "pg_replication_slots": self._slots(states, facts.database),
                },
            )

    def _of_subscriptions(
        self,
        snapshot: pg_catalog.CatalogSnapshot,
        facts: SessionFacts,
        sessions: Sequence[Activity],
        oids: Mapping[TableName, int],
        verified: Mapping[str, TableVerification],
    ) -> Mapping[str, list[Mapping[str, object]]]:
        subscriptions, rels = snapshot.subscriptions, snapshot.subscription_rels
        numbers, superuser = self._catalog.statistics.all(), facts.superuser
        counts = self._catalog.statistics.counts()
        status = replication_origin_status(subscriptions, numbers, snapshot.current_lsn)
        return {
            "pg_stat_lake_subscription": stat_lake_subscription(
                subscriptions, numbers, counts, superuser=superuser
            ),
            "pg_stat_lake_subscription_rel": stat_lake_subscription_rel(
                subscriptions, rels, oids, verified, superuser=superuser
            ),
            "pg_stat_subscription": stat_subscription(subscriptions, numbers, sessions, oids),
            "pg_replication_origin": replication_origins(subscriptions),
            "pg_replication_origin_status": status,
            "penstock_origin_status": status,
            "pg_stat_subscription_stats": stat_subscription_stats(subscriptions, counts),
        }

    def _stat_lake_tables(
        self, facts: SessionFacts, tables: Sequence[CatalogTable], followed: Mapping[int, Sequenced]
    ) -> list[Mapping[str, object]]:
        """Return a row for every known table, and for tables of the warehouse that cannot be
        read."""
        troubles = {trouble.name: trouble for trouble in self._troubles.all()}
        rows: list[Mapping[str, object]] = []
        for table in tables:
            at = followed.get(table.oid)
            trouble = troubles.pop(table.lake.qualified_name, None)
            row = {
                "relid": table.oid,
                "schemaname": table.lake.schema,
                "relname": table.lake.name,
                "version": None if at is None else at.version,
                "table_id": None if at is None else at.table_id,
            }
            rows.append(row | _condition(trouble, table.unpublishable, facts))
        for name, trouble in troubles.items():
            rows.append({"relname": name} | _condition(trouble, None, facts))
        return rows

    def _slots(self, states: Sequence[SlotState], database: str) -> Iterator[Mapping[str, object]]:
        """Yield the rows of pg_replication_slots. The WAL is read only if a query reads them."""
        with self._catalog.read() as t:
            for state in states:
                yield _slot(state, database, t.transactions.xid_at(state.slot.restart_lsn))

    def _stat_replication_slots(self, states: Sequence[SlotState]) -> list[Mapping[str, object]]:
        """Return counts since the node started. Nothing spills, since changes are read from the
        tables' files."""
        return [
            {
                "slot_name": state.slot.name,
                **dict.fromkeys(_NEVER, 0),
                **asdict(self._shared.senders.stats(state.slot.name)),
            }
            for state in states
        ]


def _closing(database: CatalogDatabase, rows: Iterable[_Rows]) -> Generator[_Rows, None, None]:
    try:
        yield from rows
    finally:
        database.close()


def _condition(
    trouble: Trouble | None, unpublishable: str | None, facts: SessionFacts
) -> dict[str, object]:
    """Return the state of a table, and its error, which only superusers see, since it names
    files."""
    if trouble is not None:
        return {
            "state": "unreadable",
            "error": trouble.reason if facts.superuser else None,
            "error_since": trouble.since,
        }
    if unpublishable is not None:
        return {"state": "unpublishable", "error": unpublishable}
    return {"state": "followed"}


def _slot(state: SlotState, database: str, xid: int) -> Mapping[str, object]:
    """Return a row of pg_replication_slots. ``xid``: of the first transaction that the slot
    needs, whose catalogs are kept."""
    slot = state.slot
    active = state.active_pid is not None
    return {
        "slot_name": slot.name,
        "plugin": slot.plugin,
        "slot_type": "logical",
        "datoid": slot.database,
        "database": database,
        "temporary": state.temporary,
        "active": active,
        "active_pid": state.active_pid,
        "catalog_xmin": None if slot.invalidation_reason else xid,
        "restart_lsn": None if slot.invalidation_reason else slot.restart_lsn,
        "confirmed_flush_lsn": slot.confirmed_flush_lsn,
        "wal_status": "lost" if slot.invalidation_reason else "reserved",
        "two_phase": slot.two_phase,
        "two_phase_at": slot.two_phase_at,
        "inactive_since": None if active else slot.inactive_since,
        "conflicting": False,
        "invalidation_reason": slot.invalidation_reason,
        "failover": slot.failover,
        "synced": False,
    }


# Rows of the views about sessions (pgstatfuncs.c, walsender.c).
#
# Everybody sees that a session exists and its role; only that role and superusers see its activity.

_TYPED_SINCE: Final = 17
_WORKER: Final = "logical replication worker"
"""The backend_type of every worker of a subscription before version 17."""
_WORKERS: Final = (BackendType.APPLY, BackendType.TABLESYNC)
_WAITS: Final = {BackendType.APPLY: ("Activity", "LogicalApplyMain")}
"""The wait event of an idle worker, which waits for its publisher; all others wait for clients."""
_SECOND: Final = 1_000_000
_NO_PRIVILEGE: Final = "<insufficient privilege>"

Row = Mapping[str, object]


def stat_activity(
    sessions: Iterable[Activity], roles: Mapping[int, str], facts: SessionFacts, database_oid: int
) -> list[Row]:
    """Return the rows of pg_stat_activity (pg_stat_get_activity). ``roles``: names by oid; a
    session may outlive its role."""
    return [
        {
            "datid": database_oid if session.database else None,
            "datname": session.database or None,
            "pid": session.pid,
            "usesysid": session.role,
            "usename": roles.get(session.role),
            "application_name": session.application_name,
            **(
                _activity(session, facts.version)
                if _may_see(session.role, facts)
                else {"query": _NO_PRIVILEGE}
            ),
        }
        for session in sessions
    ]


def stat_replication(
    senders: Iterable[Sender],
    roles: Mapping[int, str],
    facts: SessionFacts,
    sync: Mapping[int, SyncState],
) -> list[Row]:
    """Return the rows of pg_stat_replication. Everybody sees pid, user and application; superusers
    see the rest, and the stream's own user sees a part of it. ``sync``: states of the streams for
    which commits may wait, by pid."""
    return [
        {
            "pid": sender.pid,
            "usesysid": sender.role,
            "usename": roles.get(sender.role),
            "application_name": sender.application_name,
            **(_connection(sender) if _may_see(sender.role, facts) else {}),
            **(_progress(sender, sync.get(sender.pid, ASYNC)) if facts.superuser else {}),
        }
        for sender in senders
    ]


def _may_see(role: int, facts: SessionFacts) -> bool:
    """Tell whether the session may see what a role's sessions do (HAS_PGSTAT_PERMISSIONS)."""
    return facts.superuser or facts.role_oid == role


def _activity(session: Activity, version: int) -> Row:
    waits = session.state is not None and session.state.startswith(IDLE)
    kind, event = _WAITS.get(session.backend_type, ("Client", "ClientRead"))
    if session.waits_for_turn:
        waits, kind, event = True, "Extension", "PenstockTurn"
    untyped = session.backend_type in _WORKERS and version < _TYPED_SINCE
    return {
        **_connection(session),
        "xact_start": session.transaction_started,
        "query_start": session.query_started,
        "state_change": None if session.state is None else session.state_changed,
        "wait_event_type": kind if waits else None,
        "wait_event": event if waits else None,
        "state": session.state,
        "query": session.query,
        "backend_type": _WORKER if untyped else session.backend_type.value,
    }


def stat_ssl(sessions: Iterable[Activity], facts: SessionFacts) -> list[Row]:
    """Return the rows of pg_stat_ssl: the clients' sessions that the role may see. No client has a
    certificate."""
    return [
        {
            "pid": session.pid,
            "ssl": (tls := session.encryption) is not None,
            "version": tls and tls.version,
            "cipher": tls and tls.cipher,
            "bits": tls and tls.bits,
        }
        for session in sessions
        if session.port is not None and _may_see(session.role, facts)
    ]


def _connection(session: Activity | Sender) -> Row:
    return {
        "client_addr": session.address,
        "client_port": session.port,
        "backend_start": session.started,
    }


def _interval(seconds: float | None) -> str | None:
    return None if seconds is None else print_interval(0, 0, round(seconds * _SECOND))


def _progress(sender: Sender, sync: SyncState) -> Row:
    """Return the columns that pg_stat_get_wal_senders shows to pg_read_all_stats."""
    state = sender.state
    return {
        "state": "streaming",
        "sent_lsn": state.sent,
        "write_lsn": state.write,
        "flush_lsn": state.flush,
        "replay_lsn": state.apply,
        "write_lag": _interval(state.lags.write),
        "flush_lag": _interval(state.lags.flush),
        "replay_lag": _interval(state.lags.replay),
        "sync_priority": sync.priority,
        "sync_state": sync.state,
        "reply_time": None if state.reply_time is None else state.reply_time / _SECOND,
    }
