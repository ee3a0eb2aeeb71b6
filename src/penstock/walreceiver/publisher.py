"""The publisher as other packages see it: one session with a method for each query.

Methods about one table and about slots call a function of ``table_info`` or ``slots``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.relation import TableName
from penstock.walreceiver import slots, table_info
from penstock.walreceiver.connection import Connection, literal_list
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.slots import CreatedSlot, RemoteSlot, Snapshot
from penstock.walreceiver.table_info import RemoteTable, different_column_lists


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The answer to IDENTIFY_SYSTEM. ``xlogpos``: the end of the flushed WAL."""

    system_id: str
    timeline: int
    xlogpos: Lsn
    database: str | None


LOCK_PATIENCE: Final = "10s"
"""The longest time that a query waits for a lock on the publisher. The server opens tables to
answer; from version 16 on, a query about one table opens every table of the publication
(pg_get_publication_tables)."""


def identify_system(connection: Connection, timeout_s: float | None = None) -> SystemIdentity:
    """Run IDENTIFY_SYSTEM. Raises PublisherError, ConnectionFailure."""
    rows = connection.query(
        "IDENTIFY_SYSTEM",
        prefix="could not receive database system identifier and timeline ID "
        "from the primary server: ",
        timeout_s=timeout_s,
    )
    system_id, timeline, position, name = rows[0][:4]
    return SystemIdentity(
        str(system_id), int(str(timeline)), Lsn.parse(str(position)).storable(), name
    )


def database(connection: Connection) -> tuple[int, bool]:
    """Return the database's OID, and whether the server is in recovery."""
    ((oid, recovery),) = connection.query(
        "SELECT oid, pg_catalog.pg_is_in_recovery() FROM pg_catalog.pg_database"
        " WHERE datname = pg_catalog.current_database()"
    )
    return int(str(oid)), recovery == "t"


# Publications of the publisher, and the tables in them, listed by the queries that PostgreSQL's own
# subscriber sends to each server version (subscriptioncmds.c: check_publications,
# fetch_table_list). ``table_info`` describes one table.

_TABLES_16: Final = """\
SELECT DISTINCT n.nspname, c.relname, c.oid, gpt.attrs
       FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
                FROM pg_publication
                WHERE pubname IN ( {names} )) AS gpt
             ON gpt.relid = c.oid
"""

_TABLES_15: Final = """\
SELECT DISTINCT t.schemaname, t.tablename, c.oid, t.attnames
FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname IN ( {names} )
"""

_TABLES_14: Final = """\
SELECT DISTINCT t.schemaname, t.tablename, c.oid
FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname IN ( {names} )
"""

# CheckCmdReplicaIdentity (execReplication.c) as a query. Partition roots are left out: their leaves
# count.
_NO_IDENTITY: Final = """\
SELECT DISTINCT n.nspname, c.relname
FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p USING (pubname)
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE p.pubname IN ( {names} ) AND (p.pubupdate OR p.pubdelete)
  AND c.relkind = 'r' AND c.relreplident <> 'f'
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
ORDER BY 1, 2
"""

_OPERATIONS: Final = """\
SELECT t.schemaname, t.tablename, bool_or(p.pubinsert), bool_or(p.pubupdate), bool_or(p.pubdelete),
       bool_or(p.pubtruncate)
FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_publication p USING (pubname)
WHERE p.pubname IN ( {names} )
GROUP BY t.schemaname, t.tablename
"""

_DIFFERENT_ORIGIN: Final = """\
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR
     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION
                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ({names})
"""


def missing_publications_message(missing: Sequence[str]) -> str:
    """Return PostgreSQL's warning (42704) about missing publications."""
    quoted = ", ".join(f'"{name}"' for name in missing)
    if len(missing) == 1:
        return f"publication {quoted} does not exist on the publisher"
    return f"publications {quoted} do not exist on the publisher"


class Publisher:
    """A session on the publisher; a context manager that closes it."""

    def __init__(self, connection: Connection, lock_timeout: str | None = None) -> None:
        """Limit waits for locks by ``lock_timeout``, LOCK_PATIENCE by default."""
        self.connection = connection
        self._lock_timeout = lock_timeout or LOCK_PATIENCE
        self._wait_for_locks(self._lock_timeout)

    @classmethod
    def connect(
        cls,
        conninfo: ConnInfo | str,
        application_name: str = "penstock",
        *,
        lock_timeout: str | None = None,
        interrupt: Callable[[], None] | None = None,
    ) -> Publisher:
        """Open the session as a walsender of the named database. ``interrupt``: as for
        ``Connection.connect``.

        Raises SqlSyntaxError (42601), AuthenticationFailure, ConnectionFailure.
        """
        parsed = ConnInfo.parse(conninfo) if isinstance(conninfo, str) else conninfo
        connection = Connection.connect(parsed, application_name, interrupt=interrupt)
        try:
            return cls(connection, lock_timeout)
        except BaseException:
            connection.close()
            raise

    def _wait_for_locks(self, limit: str) -> None:
        self.connection.query(
            f"SELECT pg_catalog.set_config('lock_timeout', {quote_literal(limit)}, false)"
        )

    @property
    def server_version(self) -> int:
        """The server's version as PQserverVersion has it: 150018 for 15.18."""
        return self.connection.server_version

    def identify_system(self) -> SystemIdentity:
        return identify_system(self.connection)

    def database(self) -> tuple[int, bool]:
        """Return the database's OID, and whether the server is in recovery."""
        return database(self.connection)

    def timeline_history(self, timeline: int) -> dict[int, Lsn]:
        """Return the earlier timelines, and the LSN at which each ended (TIMELINE_HISTORY)."""
        if timeline == 1:
            return {}  # the first timeline has no history file
        ((_, content),) = self.connection.query(f"TIMELINE_HISTORY {timeline}")
        lines = (line.split() for line in str(content).splitlines())
        return {
            int(fields[0]): Lsn.parse(fields[1])
            for fields in lines
            if len(fields) > 1 and fields[0].isdigit()
        }

    def check_wal_level(self) -> None:
        slots.check_wal_level(self.connection)

    def current_wal_lsn(self) -> Lsn:
        """Return the end of WAL (pg_current_wal_lsn), or of the received WAL on a standby."""
        ((text,),) = self.connection.query(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
            " THEN pg_catalog.pg_last_wal_receive_lsn()"
            " ELSE pg_catalog.pg_current_wal_lsn() END"
        )
        return Lsn.parse(str(text)).storable()

    def missing_publications(self, names: Sequence[str]) -> list[str]:
        """Return the names that do not exist on the publisher, in the order given
        (check_publications)."""
        rows = self.connection.query(
            "SELECT t.pubname FROM pg_catalog.pg_publication t"
            f" WHERE t.pubname IN ({literal_list(names)})",
            prefix="could not receive list of publications from the publisher: ",
        )
        existing = {row[0] for row in rows}
        return [name for name in names if name not in existing]

    def publications_of_different_origin(
        self, publications: Sequence[str], besides: Iterable[TableName] = ()
    ) -> list[str]:
        """Return the publications with tables that the publisher subscribes to itself
        (check_publications_origin). ``besides``: tables that do not count."""
        query = _DIFFERENT_ORIGIN.format(names=literal_list(publications))
        for schema, table in besides:
            place = f"N.nspname = {quote_literal(schema)} AND C.relname = {quote_literal(table)}"
            query += f"AND NOT ({place})\n"
        rows = self.connection.query(
            query, prefix="could not receive list of replicated tables from the publisher: "
        )
        return [str(name) for (name,) in rows]

    def tables(self, publications: Sequence[str]) -> dict[TableName, int]:
        """Return all tables in the publications with their OIDs, sorted. A partition root that is
        published as a root is listed itself.

        Raises FeatureNotSupported if a table has different column lists in the publications.
        """
        version = self.connection.server_version
        query = _TABLES_16 if version >= 160000 else _TABLES_15 if version >= 150000 else _TABLES_14
        rows = self.connection.query(
            query.format(names=literal_list(publications)),
            prefix="could not receive list of replicated tables from the publisher: ",
        )
        oids = {(str(row[0]), str(row[1])): int(str(row[2])) for row in rows}
        counts = Counter((str(row[0]), str(row[1])) for row in rows)
        for (schema, table), count in counts.items():
            if count > 1:
                raise different_column_lists(schema, table)
        return {name: oids[name] for name in sorted(oids)}

    def tables_without_replica_identity(self, publications: Sequence[str]) -> list[tuple[str, str]]:
        """Return (schema, table) of tables whose updates and deletes are published, but would be
        refused."""
        rows = self.connection.query(_NO_IDENTITY.format(names=literal_list(publications)))
        return [(str(schema), str(table)) for schema, table in rows]

    def operations_left_out(self, publications: Sequence[str]) -> dict[TableName, frozenset[str]]:
        """Return for each table in the publications the operations that none of these publishes."""
        words = ("insert", "update", "delete", "truncate")
        rows = self.connection.query(_OPERATIONS.format(names=literal_list(publications)))
        return {
            (str(schema), str(table)): frozenset(
                word for word, published in zip(words, flags, strict=True) if published != "t"
            )
            for schema, table, *flags in rows
        }

    def table_info(self, names: Sequence[str], schema: str, table: str) -> RemoteTable:
        return table_info.fetch_table_info(self.connection, names, schema, table)

    def create_slot(
        self,
        name: str,
        *,
        snapshot: Snapshot = "nothing",
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
    ) -> CreatedSlot:
        # Creating a slot waits for the locks of running transactions. As in PostgreSQL, the wait
        # has no limit.
        self._wait_for_locks("0")
        created = slots.create_slot(
            self.connection,
            name,
            snapshot=snapshot,
            temporary=temporary,
            two_phase=two_phase,
            failover=failover,
        )
        if snapshot == "nothing":  # a snapshot would be lost with the next command
            self._wait_for_locks(self._lock_timeout)
        return created

    def alter_slot(
        self, name: str, *, failover: bool | None = None, two_phase: bool | None = None
    ) -> None:
        slots.alter_slot(self.connection, name, failover=failover, two_phase=two_phase)

    def drop_slot(
        self, name: str, *, missing_ok: bool = False, timeout_s: float | None = None
    ) -> bool:
        return slots.drop_slot(self.connection, name, missing_ok=missing_ok, timeout_s=timeout_s)

    def slot_state(self, name: str) -> RemoteSlot | None:
        return slots.slot_state(self.connection, name)

    def backend_xmin(self, pid: int) -> int | None:
        """Return the oldest transaction that a session's snapshot needs; None if the server does
        not report it."""
        rows = self.connection.query(
            f"SELECT backend_xmin FROM pg_catalog.pg_stat_activity WHERE pid = {pid}"
        )
        return int(str(rows[0][0])) if rows and rows[0][0] is not None else None

    def sync_slots(self, app_id: str) -> list[str]:
        """Return the temporary slots of copies that run for a subscription."""
        return slots.sync_slots(self.connection, app_id)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
