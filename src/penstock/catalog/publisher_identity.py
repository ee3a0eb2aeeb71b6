"""The identity of a subscription's publisher, and the check that a server is that publisher.

A process that relies on a server's answers checks the server's identity on the same connection: a
worker on each of its connections, and REFRESH PUBLICATION. As in PostgreSQL, DROP SUBSCRIPTION does
not check: it drops the slot of that name on the server to which the connection string leads.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import StateMismatch
from penstock.identifiers import simple_quote_literal
from penstock.lsn import Lsn
from penstock.sql.text.quoting import quote_identifier


@dataclass(frozen=True, slots=True)
class PublisherIdentity:
    """The cluster and database that a subscription follows, as IDENTIFY_SYSTEM reports them.

    A database is identified by OID, since it can be renamed. The timeline changes with a promotion.
    ``standby``: it was a standby whose timeline could not be watched (``TimelineWatch``), so the
    subscription may have followed it to another timeline.
    """

    system_id: str
    timeline: int
    database_oid: int
    standby: bool = False


@dataclass(frozen=True, slots=True)
class PublisherUpgrade:
    """The start of a publisher's stream after pg_upgrade. ``lsn``: the LSN in its new WAL at which
    the slot was made again; ``xid``: the first transaction after those that restored its catalogs.
    """

    lsn: Lsn
    xid: int


def check_identity(
    subscription: str, known: PublisherIdentity | None, server: PublisherIdentity
) -> None:
    """Raise StateMismatch unless the server is the known one. ``known`` None: accept any server."""
    if known is None:
        return
    upgraded = ""
    if known.system_id != server.system_id:
        found = f"system identifier {server.system_id}, it follows {known.system_id}"
        upgraded = (
            "If it is the same publisher after pg_upgrade, which keeps slots from PostgreSQL 17 "
            f"on: {alter(subscription)} SET (system_identifier = '{server.system_id}'). "
        )
    elif known.database_oid != server.database_oid:
        found = f"database with OID {server.database_oid}, it follows {known.database_oid}"
    else:
        return
    raise StateMismatch(
        f'subscription "{subscription}" is connected to another publisher than it follows',
        detail=f"The server has the {found}. Positions of one mean nothing to the other.",
        hint=f"{upgraded}{alter(subscription)} CONNECTION '...' leads back to the one that it "
        "follows. A database that was dumped and restored is another one. "
        f"{copy_anew(subscription)}",
    )


def copy_anew(subscription: str, slot: str | None = None) -> str:
    """Return a hint to copy everything again, the last resort that always works. ``slot``: the
    slot's name, if it is not the subscription's."""
    command = alter(subscription)
    return (
        f"To copy its tables again: {command} DISABLE; {command} SET (slot_name = NONE); DROP "
        f"SUBSCRIPTION {quote_identifier(subscription)}; {create_anew(slot or subscription)}"
    )


def create_anew(slot: str) -> str:
    """Return how a subscription that is gone from the node is created again, for hints."""
    return (
        "on the publisher SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        f"WHERE slot_name = {simple_quote_literal(slot)}; remove the folders of its tables from "
        "the warehouse; and then CREATE SUBSCRIPTION as before."
    )


def alter(subscription: str) -> str:
    """Return the beginning of ALTER SUBSCRIPTION statements, for hints."""
    return f"ALTER SUBSCRIPTION {quote_identifier(subscription)}"
