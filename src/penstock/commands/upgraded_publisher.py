"""ALTER SUBSCRIPTION ... SET (system_identifier): the publisher was moved by pg_upgrade.

In: the subscription, its tables and its last cut, a session on the server that the connection
string leads to. Out: the row with another publisher, or the error that says why that server cannot
be what pg_upgrade has made of the one that is followed. pg_upgrade refuses a server whose logical
slots have not sent all changes, keeps OIDs of databases and tables, and makes each slot again where
the new cluster's WAL begins, beyond the old one's. So the cuts hold all that there was, and the
stream goes on at the slot.

PostgreSQL: check_old_cluster_for_valid_slots (pg_upgrade/check.c), create_logical_replication_slots
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.catalog import CatalogTransaction, Subscription, SubscriptionRel
from penstock.catalog.publisher_identity import (
    PublisherIdentity,
    PublisherUpgrade,
    alter,
    copy_anew,
)
from penstock.commands.scope import PublisherSession, notice
from penstock.commands.subscription_options import SYSTEM_IDENTIFIER
from penstock.errors import (
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    StateMismatch,
    UndefinedObject,
)
from penstock.identifiers import simple_quote_literal
from penstock.lsn import INVALID, Lsn
from penstock.protocol.answers import Notice
from penstock.relation import TableName
from penstock.walreceiver.publisher import SystemIdentity
from penstock.walreceiver.slots import RemoteSlot


@dataclass(frozen=True, slots=True)
class UpgradedPublisher:
    """What a server has said. ``slot``: the subscription's; ``missing``: publications that it has
    not; ``tables``: published ones with their OIDs."""

    system: SystemIdentity
    database_oid: int
    in_recovery: bool
    slot: RemoteSlot | None
    missing: tuple[str, ...]
    tables: Mapping[TableName, int]

    @classmethod
    def ask(cls, subscription: Subscription, publisher: PublisherSession) -> UpgradedPublisher:
        """Raises PublisherError, ConnectionFailure."""
        slot, names = subscription.slot_name, subscription.publications
        found = None if slot is None else publisher.slot_state(slot)
        system, (database_oid, in_recovery) = publisher.identify_system(), publisher.database()
        missing = tuple(publisher.missing_publications(names))
        there = [name for name in names if name not in missing]
        tables = publisher.tables(there) if there else {}
        return cls(system, database_oid, in_recovery, found, missing, tables)


def follow(
    transaction: CatalogTransaction,
    subscription: Subscription,
    system_id: str,
    server: UpgradedPublisher,
    last_cut: Lsn | None,
) -> tuple[Subscription, list[Notice]]:
    """Check, and have the subscription go on there. Raises StateMismatch, UndefinedObject,
    NotInPrerequisiteState, ObjectInUse."""
    known, name = subscription.publisher, subscription.name
    if server.system.system_id != system_id:
        raise StateMismatch(
            f'the publisher of subscription "{name}" has the system identifier '
            f"{server.system.system_id}, and not {system_id}",
            hint=f"Connect the subscription to the upgraded server first: {alter(name)} CONNECTION "
            "'...'.",
        )
    if known is None or known.system_id == system_id:
        return subscription, []
    rels = transaction.relations.all(subscription.oid)
    _check_objects(subscription, known, server, rels)
    slot = _checked_slot(subscription, server, last_cut)
    if transaction.prepared_xacts.all(subscription.oid):
        raise NotInPrerequisiteState(
            f'cannot set option "{SYSTEM_IDENTIFIER}" when prepared transactions exist',
            detail="pg_upgrade refuses a server that has some, so that the server cannot be what "
            "it has made of the publisher.",
            hint=_another(subscription),
        )
    at = slot.confirmed_flush_lsn or INVALID
    transaction.verifications.forget(subscription.oid)
    identity = PublisherIdentity(
        system_id, server.system.timeline, server.database_oid, server.in_recovery
    )
    told = notice(
        f'subscription "{name}" follows system identifier {system_id} from {at}',
        detail="penstock verify tells whether its tables are equal to the publisher's; with "
        "verify_interval each of them is compared now.",
    )
    upgraded = PublisherUpgrade(at, slot.catalog_xmin or 0)
    origin_lsn = max(subscription.origin_lsn, at)
    return replace(subscription, publisher=identity, upgraded=upgraded, origin_lsn=origin_lsn), [
        told
    ]


def _check_objects(
    subscription: Subscription,
    known: PublisherIdentity,
    server: UpgradedPublisher,
    rels: Iterable[SubscriptionRel],
) -> None:
    if known.database_oid != server.database_oid:
        raise _not_upgraded(
            subscription,
            f"The database has OID {server.database_oid} there, and {known.database_oid} at the "
            "publisher.",
        )
    if server.missing:
        raise UndefinedObject(
            f'publication "{server.missing[0]}" does not exist',
            detail="pg_upgrade keeps publications.",
            hint=f"Create it again, or {alter(subscription.name)} SET PUBLICATION ... WITH "
            f"(refresh = false) with those that there are. {_another(subscription)}",
        )
    both = [rel for rel in rels if rel.relid is not None and rel.table_name in server.tables]
    # One that is another relation by now was dropped and made again, and is told of as always.
    if both and all(server.tables[rel.table_name] != rel.relid for rel in both):
        rel = both[0]
        raise _not_upgraded(
            subscription,
            f'Table "{rel.qualified_name}" has OID {server.tables[rel.table_name]} there, and '
            f"{rel.relid} at the publisher.",
        )


def _checked_slot(
    subscription: Subscription, server: UpgradedPublisher, last_cut: Lsn | None
) -> RemoteSlot:
    slot, name = server.slot, subscription.slot_name
    if slot is None or slot.database != server.system.database or slot.plugin != "pgoutput":
        raise UndefinedObject(
            f'replication slot "{name}" does not exist',
            detail="pg_upgrade keeps logical slots of a publisher from PostgreSQL 17 on. Without "
            "it, nothing tells what the server has sent."
            if slot is None
            else "A slot of that name has another database or output plugin.",
            hint=copy_anew(subscription.name, name),
        )
    if slot.active_pid is not None:
        raise ObjectInUse(
            f'replication slot "{name}" is active for PID {slot.active_pid}',
            detail="Somebody else reads what is this subscription's.",
            hint="End that session, and see what it has taken.",
        )
    confirmed = slot.confirmed_flush_lsn or INVALID
    if confirmed < (last_cut or INVALID):
        raise _not_upgraded(
            subscription,
            f'Replication slot "{name}" is at {confirmed} there, and what the subscription has '
            f"ends at {last_cut}: pg_upgrade makes slots again beyond all that was.",
        )
    return slot


def _not_upgraded(subscription: Subscription, detail: str) -> PenstockError:
    return StateMismatch(
        "the server is not what pg_upgrade has made of the publisher of subscription "
        f'"{subscription.name}"',
        detail=detail,
        hint=_another(subscription),
    )


def _another(subscription: Subscription) -> str:
    return (
        f"{alter(subscription.name)} CONNECTION '...' leads back to the one that it follows. "
        f"{copy_anew(subscription.name, subscription.slot_name)}"
    )


def check_slot_name(subscription: Subscription) -> None:
    """Raises NotInPrerequisiteState, as for options that are the slot's, too."""
    if subscription.slot_name is None:
        raise NotInPrerequisiteState(
            f'cannot set option "{SYSTEM_IDENTIFIER}" for a subscription that does not have a slot '
            "name",
            hint=f"{alter(subscription.name)} SET (slot_name = "
            f"{simple_quote_literal(subscription.name)}), if that is its slot.",
        )
