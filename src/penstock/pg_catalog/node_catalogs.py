"""Catalog queries of sessions: a snapshot of the node's catalogs, and DuckDB's answers.

In: the node's catalog, the columns of its tables, its slots and senders. Out: descriptions and rows
for the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime

from penstock import pg_catalog
from penstock.catalog import Catalog, Sequenced, TableVerification
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pg_catalog import CatalogDatabase, CatalogTable
from penstock.pg_catalog.connections import Connections
from penstock.pg_catalog.message_functions import MESSAGE_FUNCTIONS, MessageFunctions
from penstock.pg_catalog.origin_functions import ORIGIN_FUNCTIONS, OriginFunctions
from penstock.pg_catalog.relations import relation_oids
from penstock.pg_catalog.sequence_functions import SEQUENCE_FUNCTIONS, SequenceFunctions
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.session_views import stat_activity, stat_replication
from penstock.pg_catalog.signal_functions import SIGNAL_FUNCTIONS, SignalFunctions
from penstock.pg_catalog.slot_functions import SLOT_FUNCTIONS, SlotFunctions
from penstock.pg_catalog.statistics_functions import STATISTICS_FUNCTIONS, StatisticsFunctions
from penstock.pg_catalog.subscription_views import (
    prepared_xacts,
    replication_origin_status,
    replication_origins,
    stat_lake_subscription,
    stat_lake_subscription_rel,
    stat_subscription,
    stat_subscription_stats,
)
from penstock.pg_catalog.table_columns import TableColumns
from penstock.pg_catalog.wal_functions import WAL_FUNCTIONS, WalFunctions
from penstock.protocol.answers import Cells, Description, Rows
from penstock.protocol.backend_messages import FieldDescription
from penstock.relation import TableName
from penstock.stats.backend_status import Activity, Sessions
from penstock.walsender.logical_reading import LogicalReading
from penstock.walsender.senders import Senders
from penstock.walsender.slots import Slots, SlotState
from penstock.walsender.syncrep import SyncState
from penstock.walsender.troubles import Trouble, Troubles

_FUNCTIONS = (
    SLOT_FUNCTIONS
    | SIGNAL_FUNCTIONS
    | STATISTICS_FUNCTIONS
    | ORIGIN_FUNCTIONS
    | MESSAGE_FUNCTIONS
    | SEQUENCE_FUNCTIONS
    | WAL_FUNCTIONS
)
_NEVER = ("spill_txns", "spill_count", "spill_bytes")
"""Columns of pg_stat_replication_slots about what a node does not do."""


class NodeCatalogs:
    """``services.CatalogQueries``; for every session."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        slots: Slots,
        senders: Senders,
        database_oid: int,
        troubles: Troubles,
        sessions: Sessions,
        connections: Connections | None = None,
        reload: Callable[[], None] = lambda: None,
        reading: LogicalReading | None = None,
        sync_states: Callable[[], Mapping[int, SyncState]] = dict,
    ) -> None:
        """``connections``: of the node; None: kept here. ``reload``: of its parameters.
        ``reading``: of slots, None where nothing decodes. ``sync_states``: of streams, by their
        pids."""
        self._reading = reading
        self._sync_states = sync_states
        self._reload = reload
        self._connections = connections or Connections()
        self._catalog = catalog
        self._warehouse = warehouse
        self._troubles = troubles
        self._columns = TableColumns(warehouse, troubles)
        self._slots = slots
        self._senders = senders
        self._sessions = sessions
        self._database_oid = database_oid

    def within(self, catalog: Catalog, warehouse: Warehouse) -> NodeCatalogs:
        """For a statement of a block that has made tables, which are in these."""
        own = copy(self)
        own._catalog, own._warehouse = catalog, warehouse
        own._columns = self._columns.within(warehouse)
        return own

    def reads_catalog_only(self, text: str) -> bool:
        """Whether this is a query for us."""
        return pg_catalog.reads_catalog_only(text, _FUNCTIONS)

    def describe(self, text: str, facts: SessionFacts, said: Sequence[int]) -> Description:
        """Parameters and fields of a SELECT. Raises PostgreSQL's errors."""
        database = self._database(facts)
        try:
            fields = _fields(database.describe(text, said))
            return Description(database.parameter_types(text, said), fields)
        finally:
            database.close()

    def query(
        self,
        text: str,
        parameters: Sequence[bytes | None],
        facts: SessionFacts,
        said: Sequence[int] = (),
    ) -> Rows:
        """Answer a SELECT. Raises PostgreSQL's errors, some of them when the rows are drawn."""
        database = self._database(facts)
        try:
            fields, rows = database.query(text, parameters, said)
        except BaseException:
            database.close()
            raise
        if isinstance(rows, list):
            database.close()
            return Rows(_fields(fields), rows)
        return Rows(_fields(fields), _closing(database, rows))

    def column_types(self, schema: str, table: str) -> Mapping[str, int]:
        """Type oids of a table's columns, in its order; empty where there is no such table."""
        with self._catalog.read() as t:
            found = t.tables.find(schema, table)
        columns = () if found is None else self._columns.of(found).columns
        return {column.name: column.type_oid for column in columns}

    def _end(self) -> Lsn:
        with self._catalog.read() as t:
            return t.transactions.end()

    def _database(self, facts: SessionFacts) -> CatalogDatabase:
        slots = SlotFunctions(self._slots, facts, self._database_oid, self._reading)
        signals = SignalFunctions(self._sessions, self._catalog, facts, self._reload)
        statistics = StatisticsFunctions(self._catalog, facts)
        origins = OriginFunctions(self._catalog, self._warehouse, self._sessions, facts)
        more = {**slots.functions(), **signals.functions(), **statistics.functions()}
        messages = MessageFunctions(self._slots.sequencer.emit, self._end, facts)
        wal = WalFunctions(self._catalog, facts)
        sequences = SequenceFunctions(self._catalog, facts)
        more = {**more, **messages.functions(), **wal.functions(), **sequences.functions()}
        in_from = {
            **slots.table_functions(),
            **origins.table_functions(),
            **wal.table_functions(),
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
        states = self._slots.all()
        with self._catalog.read() as t:
            publications = t.publications
            tables = tuple(self._columns.of(table) for table in t.tables.all())
            roles = t.roles.all()
            subscriptions = t.subscriptions.all()
            sessions = self._sessions.all()
            snapshot = pg_catalog.CatalogSnapshot(
                database=facts.database,
                database_oid=self._database_oid,
                roles=roles,
                tables=tables,
                publications=publications.all(),
                publication_rels=publications.relations(),
                publication_namespaces=publications.namespaces(),
                subscriptions=subscriptions,
                subscription_rels=t.relations.all(),
                slots=tuple(state.slot for state in states),
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
                    "pg_stat_activity": stat_activity(sessions, names, facts, self._database_oid),
                    **self._of_subscriptions(
                        snapshot, facts, sessions, oids, t.verifications.all()
                    ),
                    "pg_prepared_xacts": prepared_xacts(
                        t.prepared_xacts.all(), t.prepared_blocks.all(), names, facts.database
                    ),
                    "pg_stat_replication": stat_replication(
                        self._senders.all(), names, facts, self._sync_states()
                    ),
                    "pg_stat_replication_slots": self._stat_replication_slots(states),
                    "pg_replication_slots": [_slot(state, facts.database) for state in states],
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
        """Every table that is known, and what is in the warehouse and cannot be read."""
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

    def _stat_replication_slots(self, states: Sequence[SlotState]) -> list[Mapping[str, object]]:
        """Since the node started. Nothing spills: what is sent is read from the tables' files."""
        names = [state.slot.name for state in states if not state.temporary]
        totals = {name: self._senders.totals(name) for name in names}
        return [
            {
                "slot_name": name,
                **dict.fromkeys(_NEVER, 0),
                "stream_txns": totals[name].streamed,
                "stream_count": totals[name].blocks,
                "stream_bytes": totals[name].streamed_bytes,
                "total_txns": totals[name].transactions,
                "total_bytes": totals[name].bytes,
            }
            for name in names
        ]


def _closing(database: CatalogDatabase, rows: Iterable[Cells]) -> Iterator[Cells]:
    try:
        yield from rows
    finally:
        database.close()


def _condition(
    trouble: Trouble | None, unpublishable: str | None, facts: SessionFacts
) -> dict[str, object]:
    """Reasons name files: they are for superusers."""
    if trouble is not None:
        return {
            "state": "unreadable",
            "error": trouble.reason if facts.superuser else None,
            "error_since": datetime.fromtimestamp(trouble.since, UTC),
        }
    if unpublishable is not None:
        return {"state": "unpublishable", "error": unpublishable}
    return {"state": "followed"}


def _slot(state: SlotState, database: str) -> Mapping[str, object]:
    slot = state.slot
    since = slot.inactive_since
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
        "restart_lsn": None if slot.invalidation_reason else slot.restart_lsn,
        "confirmed_flush_lsn": slot.confirmed_flush_lsn,
        "wal_status": "lost" if slot.invalidation_reason else "reserved",
        "two_phase": slot.two_phase,
        "two_phase_at": slot.two_phase_at,
        "inactive_since": None if active or since is None else datetime.fromtimestamp(since, UTC),
        "conflicting": False,
        "invalidation_reason": slot.invalidation_reason,
        "failover": slot.failover,
        "synced": False,
    }


def _fields(fields: Sequence[pg_catalog.Field]) -> tuple[FieldDescription, ...]:
    return tuple(FieldDescription(f.name, f.type_oid, f.type_size, typmod=f.typmod) for f in fields)
