"""ALTER TABLE ... ATTACH PARTITION (tablecmds.c, ATExecAttachPartition).

In: a partitioned table, a table and its bound. Out: the table as a partition, in the catalog, with
partitions of its own where it has any. Its rows are read for the bound by ``partition_rows``.

Refused is a table whose former rows some stream has yet to send. PostgreSQL decodes a change by the
catalogs of its time; here nothing says since when a table is a partition, so that rows which came
and went before would be sent as those of a partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from penstock.catalog import CatalogTransaction, LakeTable, Slot
from penstock.commands.depend import check_not_prepared
from penstock.commands.generated_columns import check_same_generation
from penstock.commands.namespace import names, open_delta, table_columns
from penstock.commands.partbounds import check_new_partition
from penstock.commands.partition_rows import PartitionRows
from penstock.commands.scope import CommandScope
from penstock.commands.subscription_targets import check_between_batches, check_joins
from penstock.commands.unique_indexes import inherit_indexes
from penstock.errors import (
    DuplicateObject,
    FeatureNotSupported,
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    UndefinedObject,
    VersionGone,
    WrongObjectType,
)
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_changes import table_changes
from penstock.lsn import Lsn
from penstock.pgtypes.variant import VARIANT, type_name
from penstock.sql import PartitionBound
from penstock.sql.text.quoting import quote_identifier

_MISMATCH = "42804"
_MAKE_OF_PARENT: Final = "Make the partition from its parent: CREATE TABLE ... PARTITION OF {}."


def attach(
    transaction: CatalogTransaction,
    scope: CommandScope,
    parent: LakeTable,
    child: LakeTable,
    bound: PartitionBound,
    partition_rows: PartitionRows,
) -> None:
    """Raises WrongObjectType, UndefinedObject, InvalidParameterValue, FeatureNotSupported; what
    ``PartitionRows.check`` raises."""
    if parent.partition_key is None:
        raise WrongObjectType(
            f'ALTER action ATTACH PARTITION cannot be performed on relation "{parent.name}"',
            detail="This operation is not supported for tables.",
        )
    if child.parent is not None:
        raise WrongObjectType(f'"{child.name}" is already a partition')
    if parent.oid in {member.oid for member in transaction.tables.family(child)}:
        raise DuplicateObject(
            "circular inheritance not allowed",
            detail=f'"{parent.name}" is already a child of "{child.name}".',
            sqlstate="42P07",
        )
    _check_no_sequence(transaction, child)
    check_new_partition(transaction, scope, parent, child.name, bound)
    check_between_batches(transaction, scope, parent)
    members = transaction.tables.family(child)
    check_not_prepared(transaction, members, "attach")
    for member in members:
        check_joins(transaction, scope, parent, (member.schema, member.name))
        _check_columns(scope, parent, member)
        _check_stored(scope, parent, member)
        check_history_sent(transaction, scope, parent, member)
    partition_rows.check(transaction, scope, parent, bound)
    partition = replace(
        child,
        parent=parent.oid,
        bound=str(bound),
        primary_key=child.primary_key or parent.primary_key,
    )
    below = [
        replace(member, primary_key=member.primary_key or parent.primary_key)
        for member in members
        if member.oid != child.oid
    ]
    partition_rows.check_attached(transaction, scope, parent, [partition, *below])
    for member in (partition, *below):
        transaction.tables.save(member)
    inherit_indexes(transaction, parent, partition)


def _check_no_sequence(transaction: CatalogTransaction, child: LakeTable) -> None:
    """ATExecAttachPartition, which takes serial columns; rows of the parent would lack values."""
    for sequence in transaction.sequences.of_table(child.oid):
        if sequence.identity:
            raise NotInPrerequisiteState(
                f'table "{child.name}" being attached contains an identity column '
                f'"{sequence.column}"',
                detail="The new partition may not contain an identity column.",
            )
        raise FeatureNotSupported(
            f'ATTACH PARTITION of table "{child.name}" is not supported, whose column '
            f'"{sequence.column}" has a sequence'
        )


def _check_columns(scope: CommandScope, parent: LakeTable, child: LakeTable) -> None:
    """MergeAttributesIntoExisting, and that there are no others."""
    theirs, own = table_columns(scope, parent), table_columns(scope, child)
    for column in own:
        if column.name not in names(theirs):
            raise PenstockError(
                f'table "{child.name}" contains column "{column.name}" not found in parent '
                f'"{parent.name}"',
                detail="The new partition may contain only the columns present in parent.",
                sqlstate=_MISMATCH,
            )
    found = {column.name: column for column in own}
    for column in theirs:
        if column.name not in found:
            raise PenstockError(
                f'child table is missing column "{column.name}"', sqlstate=_MISMATCH
            )
        mine = found[column.name]
        if (mine.type_oid, mine.typmod) != (column.type_oid, column.typmod):
            raise PenstockError(
                f'child table "{child.name}" has different type for column "{column.name}"',
                sqlstate=_MISMATCH,
            )
        check_same_generation(mine, column)


def _check_stored(scope: CommandScope, parent: LakeTable, child: LakeTable) -> None:
    """Rows are written to partitions by the parent's names in Delta, which differ from PostgreSQL's
    where two of those differ in case only; and as the parent has them, jsonb as variants or not."""
    tables = [open_delta(scope, table) for table in (parent, child)]
    if tables[1] is None:
        raise UndefinedObject(f'Delta table of relation "{child.qualified_name}" does not exist')
    root, leaf = (TableSchema(()) if table is None else table.schema for table in tables)
    if dict(root.renamed) != dict(leaf.renamed):
        raise FeatureNotSupported(
            f'ATTACH PARTITION of table "{child.name}" is not supported, whose columns are stored '
            "under other names",
            hint=_MAKE_OF_PARENT.format(quote_identifier(parent.name)),
        )
    for column in root.columns:
        own = leaf.by_source.get(column.source, column)
        if (own.type == VARIANT) != (column.type == VARIANT):
            raise PenstockError(
                f'child table "{child.name}" has different type for column "{column.source}"',
                detail=f"In Delta it is {type_name(own.type)} there, and {type_name(column.type)} "
                "in the parent.",
                hint=_MAKE_OF_PARENT.format(quote_identifier(parent.name)),
                sqlstate=_MISMATCH,
            )


_AT_ONCE: Final = 1000
"""Transactions that are read of the log."""


def check_history_sent(
    transaction: CatalogTransaction, scope: CommandScope, parent: LakeTable, child: LakeTable
) -> None:
    """Raises ObjectInUse where a slot has not received changes of rows of ``child``, and they are
    published once it is a partition; StorageError."""
    delta = open_delta(scope, child)
    slots = [slot for slot in transaction.slots.all() if slot.invalidation_reason is None]
    if delta is None or delta.version == 0 or not slots or not _is_published(transaction, parent):
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


def _is_published(transaction: CatalogTransaction, parent: LakeTable) -> bool:
    members = transaction.members()
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
