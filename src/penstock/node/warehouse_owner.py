"""Whose warehouse it is, looked at when a node starts.

In: the catalog and the warehouse as it is found. Out: a warehouse that bears the node's id, or an
error: it is another node's, it is not there, or its store cannot tell two writers apart. A folder
without an id is taken for a new warehouse, or one from before ids were written, only where nothing
that the node knows says otherwise: an empty mount point looks just like a new warehouse.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog import Catalog, SubscriptionRelState
from penstock.errors import PenstockError
from penstock.lakehouse.log import list_log
from penstock.lakehouse.log_store import check_conditional_puts
from penstock.lakehouse.warehouse import Warehouse

_COPIED = (
    SubscriptionRelState.FINISHEDCOPY,
    SubscriptionRelState.SYNCDONE,
    SubscriptionRelState.READY,
)


@dataclass(frozen=True, slots=True)
class Found:
    """``owner``: the id in the warehouse; ``recorded``: where the node wrote its id before.

    ``tables``: how many tables the node knows; ``there``: whether one of them has a log.
    """

    owner: str | None
    recorded: str | None
    tables: int
    there: bool


def take_warehouse(catalog: Catalog, warehouse: Warehouse) -> None:
    """Write the id where that is right. Raises ConfigurationError, StorageError."""
    node_id = catalog.node_info.node_id
    refusal = refuse(_look(catalog, warehouse), node_id, warehouse)
    if refusal is not None:
        raise refusal
    check_conditional_puts(warehouse.storage)
    warehouse.claim(node_id)
    if catalog.warehouse() != warehouse.uri:
        catalog.record_warehouse(warehouse.uri)


def refuse(found: Found, node_id: str, warehouse: Warehouse) -> PenstockError | None:
    """Why the node must not use it, if so."""
    if found.owner is not None:
        return None if found.owner == node_id else warehouse.not_ours(found.owner)
    if found.recorded == warehouse.uri or (found.tables and not found.there):
        return warehouse.not_there(node_id)
    return None


def _look(catalog: Catalog, warehouse: Warehouse) -> Found:
    owner = warehouse.owner()
    if owner is not None:
        return Found(owner, None, 0, True)
    with catalog.read() as t:
        copied = [rel for rel in t.relations.all() if rel.state in _COPIED and rel.lsn is not None]
        uris = {warehouse.table_uri(rel.schema, rel.table) for rel in copied}
        uris |= {table.uri for table in t.tables.all() if table.uri is not None}
    storage = warehouse.storage
    there = any(listing.entries for listing in (list_log(storage, uri) for uri in uris))
    return Found(None, catalog.warehouse(), len(uris), there)
