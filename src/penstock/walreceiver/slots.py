"""Replication slots on the publisher (libpqrcv_create_slot, ReplicationSlotDropAtPubNode).

Callers pass the name of the slot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import NotInPrerequisiteState, ObjectInUse, PenstockError, UndefinedObject
from penstock.identifiers import quote_literal, quoted
from penstock.lsn import Lsn
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.libpq_errors import hint_for

Snapshot = Literal["export", "nothing", "use"]

_OLD_SNAPSHOT = {
    "export": "EXPORT_SNAPSHOT",
    "nothing": "NOEXPORT_SNAPSHOT",
    "use": "USE_SNAPSHOT",
}


PREPARED: Final = "SELECT gid, prepared, owner FROM pg_prepared_xacts;"
"""The query, for hints, of transactions that no session shows."""
WRITING: Final = (
    "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL; " + PREPARED
)
"""The queries, for hints, of the transactions that keep a slot from being made."""

LOST: Final = "lost"
"""The wal_status of a slot whose WAL is gone (slotfuncs.c)."""
UNRESERVED: Final = "unreserved"
"""The wal_status of a slot whose WAL the next checkpoint may remove."""
MISSING: Final = "missing"
"""Our own status of a slot that does not exist."""


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new slot. ``snapshot_name`` is valid until the next command on the connection that created
    it."""

    name: str
    consistent_point: Lsn
    snapshot_name: str | None


@dataclass(frozen=True, slots=True)
class RemoteSlot:
    """A row of pg_replication_slots. ``retained_bytes``: WAL that the publisher keeps for the slot;
    ``safe_wal_size``: bytes of WAL until the slot may be lost, None without a limit."""

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    retained_bytes: int
    safe_wal_size: int | None
    catalog_xmin: int | None = None
    """The oldest transaction whose effects on the catalogs the slot needs."""

    @property
    def in_danger(self) -> bool:
        """True if less than a fifth is left of the WAL that the slot may keep."""
        if self.wal_status == UNRESERVED:
            return True
        return self.safe_wal_size is not None and self.safe_wal_size < self.retained_bytes / 4


def sync_slot_prefix(app_id: str, purpose: str = "sync") -> str:
    """Return the prefix of the names of a subscription's temporary slots
    (ReplicationSlotNameForTablesync). ``app_id`` distinguishes the subscriptions of several nodes,
    ``purpose`` distinguishes copies from other work."""
    return f"penstock_{re.sub('[^0-9a-z]', '', app_id.removeprefix('penstock-'))[:16]}_{purpose}_"


def sync_slots(connection: Connection, app_id: str) -> list[str]:
    """Return the temporary slots of copies that run for a subscription."""
    rows = connection.query(
        "SELECT slot_name FROM pg_catalog.pg_replication_slots"
        f" WHERE pg_catalog.starts_with(slot_name, {quote_literal(sync_slot_prefix(app_id))})"
    )
    return [str(name) for (name,) in rows]


def check_wal_level(connection: Connection) -> None:
    """Raise NotInPrerequisiteState (55000) unless wal_level is logical."""
    ((level,),) = connection.query("SHOW wal_level")
    if level == "logical":
        return
    quoted = '"wal_level" >= "logical"' if connection.server_version >= 170000 else None
    raise NotInPrerequisiteState(
        f"logical decoding requires {quoted or 'wal_level >= logical'}",
        detail=f"The publisher runs with wal_level = {level}.",
        hint="On the publisher: ALTER SYSTEM SET wal_level = logical; then restart it.",
    )


def create_slot(
    connection: Connection,
    name: str,
    *,
    snapshot: Snapshot = "nothing",
    temporary: bool = False,
    two_phase: bool = False,
    failover: bool = False,
) -> CreatedSlot:
    """Run CREATE_REPLICATION_SLOT for pgoutput. It waits for running transactions on the publisher.

    ``failover`` needs a server of version 17. Raises NotInPrerequisiteState (wal_level),
    DuplicateObject, PublisherError (all slots in use 53400, no right 42501).
    """
    flags = [word for word, on in (("TWO_PHASE", two_phase), ("FAILOVER", failover)) if on]
    if connection.server_version >= 150000:
        options = f"({', '.join([*flags, f'SNAPSHOT {quote_literal(snapshot)}'])})"
    else:
        options = " ".join([*flags, _OLD_SNAPSHOT[snapshot]])
    kind = " TEMPORARY" if temporary else ""
    command = f"CREATE_REPLICATION_SLOT {quoted(name)}{kind} LOGICAL pgoutput {options}"
    prefix = f'could not create replication slot "{name}": '
    try:
        rows = connection.query(command, prefix=prefix)
    except PenstockError as error:
        if error.sqlstate == "55000" and connection.is_open:
            check_wal_level(connection)
        raise
    slot_name, consistent_point, snapshot_name = rows[0][:3]
    try:
        point = Lsn.parse(str(consistent_point)).storable()
    except PenstockError:
        drop_slot(connection, name, missing_ok=True)
        raise
    return CreatedSlot(str(slot_name), point, snapshot_name)


def alter_slot(
    connection: Connection,
    name: str,
    *,
    failover: bool | None = None,
    two_phase: bool | None = None,
) -> None:
    """Run ALTER_REPLICATION_SLOT with the options that are not None. Servers know ``failover`` from
    version 17 on, and ``two_phase`` from 18 on. Raises PublisherError; ObjectInUse while somebody
    streams from the slot."""
    given = (("FAILOVER", failover), ("TWO_PHASE", two_phase))
    options = ", ".join(f"{word} {str(on).lower()}" for word, on in given if on is not None)
    command = f"ALTER_REPLICATION_SLOT {quoted(name)} ({options})"
    connection.execute(command, prefix=f'could not alter replication slot "{name}": ')


def drop_slot(
    connection: Connection, name: str, *, missing_ok: bool = False, timeout_s: float | None = None
) -> bool:
    """Run DROP_REPLICATION_SLOT ... WAIT, which waits until nobody streams from the slot. Return
    False if there was no such slot.

    Raises UndefinedObject unless ``missing_ok``; ObjectInUse if somebody still holds the slot after
    ``timeout_s`` (the connection is closed then).
    """
    command = f"DROP_REPLICATION_SLOT {quoted(name)} WAIT"
    prefix = f'could not drop replication slot "{name}" on publisher: '
    try:
        connection.query(command, prefix=prefix, timeout_s=timeout_s)
    except UndefinedObject:
        if missing_ok:
            return False
        raise
    except PenstockError as error:
        if error.sqlstate == "57014":
            raise ObjectInUse(
                f'{prefix}replication slot "{name}" is active', hint=hint_for("55006")
            ) from None
        raise
    return True


def slot_state(connection: Connection, name: str) -> RemoteSlot | None:
    """Return the slot as pg_replication_slots shows it; None if it does not exist."""
    rows = connection.query(
        "SELECT slot_name, plugin, database, temporary, active_pid, restart_lsn,"
        " confirmed_flush_lsn, wal_status,"
        " coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()"
        " ELSE pg_current_wal_lsn() END, restart_lsn), 0)::int8, safe_wal_size,"
        " catalog_xmin::text"
        f" FROM pg_catalog.pg_replication_slots WHERE slot_name = {quote_literal(name)}"
    )
    if not rows:
        return None
    _, plugin, database, temporary, pid, restart, confirmed = rows[0][:7]
    wal_status, retained, safe, xmin = rows[0][7:]
    return RemoteSlot(
        name=name,
        plugin=plugin,
        database=database,
        temporary=temporary == "t",
        active_pid=int(pid) if pid else None,
        restart_lsn=Lsn.parse(restart) if restart else None,
        confirmed_flush_lsn=Lsn.parse(confirmed) if confirmed else None,
        wal_status=wal_status,
        retained_bytes=max(0, int(retained or 0)),
        safe_wal_size=int(safe) if safe else None,
        catalog_xmin=int(xmin) if xmin else None,
    )
