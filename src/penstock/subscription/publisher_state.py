"""What a publisher says about itself and a slot, for ``agreement``.

In: a session. Out: a ``PublisherState``. Three small queries at each connection, and a fourth when
the timeline has changed.
"""

from __future__ import annotations

from penstock.catalog.publisher_identity import PublisherIdentity
from penstock.subscription.agreement import PublisherState
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.publisher import Publisher, database, identify_system
from penstock.walreceiver.slots import MISSING


def publisher_state(
    publisher: Publisher, slot: str | None, known: PublisherIdentity | None
) -> PublisherState:
    """Ask. Raises ConnectionFailure, PublisherError."""
    # The slot first: it can only move up, and never beyond a position that is read later.
    found = None if slot is None else publisher.slot_state(slot)
    system = publisher.identify_system()
    database_oid, in_recovery = publisher.database()
    changed = known is not None and known.timeline != system.timeline
    return PublisherState(
        identity=PublisherIdentity(system.system_id, system.timeline, database_oid),
        position=system.xlogpos,
        in_recovery=in_recovery,
        forks=publisher.timeline_history(system.timeline) if changed else {},
        confirmed=None if found is None else found.confirmed_flush_lsn,
        wal_status=MISSING if found is None else found.wal_status,
    )


def server_identity(connection: Connection) -> PublisherIdentity:
    """Which server a connection has led to. Raises ConnectionFailure, PublisherError."""
    system, (database_oid, _) = identify_system(connection), database(connection)
    return PublisherIdentity(system.system_id, system.timeline, database_oid)
