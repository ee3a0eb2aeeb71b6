"""Rows of publications, subscriptions and slots.

In: a snapshot. Out: rows by column name; what is left out is 0, false, '' or NULL by its type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import PenstockError
from penstock.pg_catalog.membership import attribute_numbers, published_rels
from penstock.pg_catalog.relation_rows import Row
from penstock.pg_catalog.relations import relation_oids, schema_oids
from penstock.pg_catalog.snapshot import NODE_OWNER, CatalogSnapshot
from penstock.walreceiver.conninfo import ConnInfo

_STREAM: Final = {"off": "f", "on": "t", "parallel": "p"}


def pg_publication(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """All publications."""
    for publication in snapshot.publications:
        yield {
            "oid": publication.oid,
            "pubname": publication.name,
            "pubowner": NODE_OWNER if publication.owner is None else publication.owner,
            "puballtables": publication.all_tables,
            "pubinsert": publication.insert,
            "pubupdate": publication.update,
            "pubdelete": publication.delete,
            "pubtruncate": publication.truncate,
            "pubviaroot": publication.via_root,
            "pubgencols": publication.generated_columns,
        }


def pg_publication_rel(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Tables that publications name."""
    for row in snapshot.publication_rels:
        table = snapshot.table_by_oid.get(row.relation)
        numbers = None
        if row.columns is not None and table is not None:
            numbers = list(attribute_numbers(table, row.columns))
        yield {
            "oid": row.oid,
            "prpubid": row.publication,
            "prrelid": row.relation,
            "prqual": row.row_filter,
            "prattrs": numbers,
        }


def pg_publication_namespace(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Schemas that publications name."""
    schemas = schema_oids(snapshot)
    for row in snapshot.publication_namespaces:
        yield {"oid": row.oid, "pnpubid": row.publication, "pnnspid": schemas[row.schema]}


def publication_table_rows(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """pg_get_publication_tables of every publication."""
    for publication in snapshot.publications:
        for row in published_rels(snapshot, publication, version):
            yield {
                "pubname": publication.name,
                "pubid": publication.oid,
                "relid": row.table.oid,
                "attrs": None if row.attributes is None else list(row.attributes),
                "qual": row.row_filter,
            }


def pg_publication_tables(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """The view of that name."""
    for publication in snapshot.publications:
        for row in published_rels(snapshot, publication, version):
            columns = row.table.columns
            numbers = row.attributes
            if numbers is None:
                numbers = tuple(range(1, len(columns) + 1))
            yield {
                "pubname": publication.name,
                "schemaname": row.table.lake.schema,
                "tablename": row.table.lake.name,
                "attnames": [columns[number - 1].name for number in numbers],
                "rowfilter": row.row_filter,
            }


def pg_subscription(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """All subscriptions."""
    for subscription in snapshot.subscriptions:
        yield {
            "oid": subscription.oid,
            "subdbid": snapshot.database_oid,
            "subskiplsn": str(subscription.skip_lsn),
            "subname": subscription.name,
            "subowner": NODE_OWNER if subscription.owner is None else subscription.owner,
            "subenabled": subscription.enabled,
            "subbinary": subscription.binary,
            "substream": _stream(subscription, version),
            "subtwophasestate": subscription.two_phase_state.value,
            "subdisableonerr": subscription.disable_on_error,
            "subpasswordrequired": subscription.password_required,
            "subrunasowner": subscription.run_as_owner,
            "subfailover": subscription.failover,
            "subconninfo": _without_secrets(subscription.conninfo),
            "subslotname": subscription.slot_name,
            "subsynccommit": subscription.synchronous_commit,
            "subpublications": list(subscription.publications),
            "suborigin": subscription.origin,
        }


def _without_secrets(conninfo: str) -> str:
    """Law 9; PostgreSQL shows superusers the password too."""
    try:
        return str(ConnInfo.parse(conninfo))
    except PenstockError:
        return "********"


def _stream(subscription: Subscription, version: int) -> object:
    """A flag until PostgreSQL 15, then a letter (LOGICALREP_STREAM_OFF and so on)."""
    streaming = subscription.streaming
    return _STREAM[streaming] if version >= 16 else streaming != "off"


def pg_subscription_rel(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Tables of subscriptions; those that the copy has yet to make have an oid for the time."""
    oids = relation_oids(snapshot)
    for row in snapshot.subscription_rels:
        yield {
            "srsubid": row.subid,
            "srrelid": oids[row.table_name],
            "srsubstate": row.state.value,
            "srsublsn": None if row.lsn is None else str(row.lsn),
        }


def pg_replication_slots(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Slots on disk; who uses one, the node adds by ``views``."""
    for slot in snapshot.slots:
        yield {
            "slot_name": slot.name,
            "plugin": slot.plugin,
            "slot_type": "logical",
            "datoid": slot.database,
            "database": snapshot.database,
            "temporary": False,
            "active": False,
            "active_pid": None,
            "xmin": None,
            "catalog_xmin": None,
            "restart_lsn": str(slot.restart_lsn),
            "confirmed_flush_lsn": str(slot.confirmed_flush_lsn),
            "wal_status": "lost" if slot.invalidation_reason else "reserved",
            "safe_wal_size": None,
            "two_phase": slot.two_phase,
            "two_phase_at": None if slot.two_phase_at is None else str(slot.two_phase_at),
            "inactive_since": slot.inactive_since,
            "conflicting": False,
            "invalidation_reason": slot.invalidation_reason,
            "failover": slot.failover,
            "synced": False,
        }
