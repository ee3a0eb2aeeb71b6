"""What a table that becomes a partition has been before, in streams that have yet to come there.

In: a partitioned table, a table that is to be attached to it. Out: nothing, or an error. PostgreSQL
decodes a change by the catalogs of its time; here publications are looked up when a change is sent,
so that rows which came and went before would be sent as those of a partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.catalog import CatalogTransaction, LakeTable, Slot
from penstock.commands.namespace import open_delta
from penstock.commands.scope import Scope
from penstock.errors import ObjectInUse, VersionGone
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_changes import table_changes
from penstock.lsn import Lsn
from penstock.publication.members import Members

_AT_ONCE: Final = 1000
"""Transactions that are read of the log."""


def check_history_sent(
    transaction: CatalogTransaction, scope: Scope, parent: LakeTable, child: LakeTable
) -> None:
    """Raises ObjectInUse where a slot has not received changes of rows of ``child``, and they are
    published once it is a partition; StorageError."""
    delta = open_delta(scope, child)
    slots = [slot for slot in transaction.slots.all() if slot.invalidation_reason is None]
    if delta is None or delta.version == 0 or not slots or not _published(transaction, parent):
        return
    lagging = (
        slot
        for slot in slots
        if any(_changes_rows(delta, *span) for span in _unsent(transaction, slot, child, delta))
    )
    slot = next(lagging, None)
    if slot is not None:
        raise ObjectInUse(
            f'cannot attach table "{child.name}" because replication slot "{slot.name}" has not '
            "received all changes of its rows",
            detail=f'They would be sent as changes of a partition of "{parent.name}", which it was '
            "not yet.",
            hint="Try again when the slot's subscriber has caught up. Or drop the table, and make "
            "the partition by CREATE TABLE ... PARTITION OF.",
        )


def _published(transaction: CatalogTransaction, parent: LakeTable) -> bool:
    publications = transaction.publications
    members = Members(
        publications.all(),
        publications.relations(),
        publications.namespaces(),
        transaction.tables.all(),
    )
    return any(members.contains(publication, parent) for publication in members.publications)


def _unsent(
    transaction: CatalogTransaction, slot: Slot, child: LakeTable, delta: DeltaTable
) -> Iterator[tuple[int, int]]:
    """Versions before and after each of the changes that a slot is still to receive, whether or not
    they are in the log of transactions yet."""
    at = slot.confirmed_flush_lsn
    while found := transaction.transactions.after(at, _AT_ONCE):
        for each in found:
            for member in each.members:
                if member.relation == child.oid:
                    yield member.from_version, member.to_version
        at = Lsn(found[-1].end)
    yield transaction.transactions.versions().get(child.oid, -1), delta.version


def _changes_rows(delta: DeltaTable, before: int, after: int) -> bool:
    if before >= after:
        return False
    try:
        changes = table_changes(delta.storage, delta.uri, before, after)
    except VersionGone:
        return True  # nobody knows any more
    return bool(changes.added or changes.removed or changes.truncated)
