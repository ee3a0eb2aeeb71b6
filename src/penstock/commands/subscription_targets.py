"""Checks before a subscription fills a table (execReplication.c, CheckSubscriptionRelkind), and
before the table's partitions or the subscription's publications change.

Missing tables need no check: the copy creates them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from penstock.catalog import (
    CatalogTransaction,
    LakeTable,
    Subscription,
    SubscriptionRel,
    SubscriptionRelState,
)
from penstock.catalog.publisher_identity import alter
from penstock.commands.namespace import warehouse_of
from penstock.commands.scope import CommandScope
from penstock.errors import FeatureNotSupported, ObjectInUse
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.log import common_point
from penstock.lsn import Lsn
from penstock.relation import TableName
from penstock.sql.text.quoting import quote_identifier

T = TypeVar("T")

_NOT_FOLLOWING: Final = (
    SubscriptionRelState.INIT,
    SubscriptionRelState.DATASYNC,
    SubscriptionRelState.PARKED,
)
"""States in which no batch can be unfinished: a copy will replace all rows of the partitions."""
_PATIENCE_S: Final = 5.0
"""Seconds that a statement waits for the end of a batch."""
_LOOK_S: Final = 0.05
"""Seconds between two attempts during this wait."""


class BatchUnderWay(ObjectInUse):
    """The error for an unfinished batch: some partitions have it, others do not have it yet."""


def check_targets(transaction: CatalogTransaction, tables: Iterable[tuple[str, str]]) -> None:
    """Check all tables of a subscription. ``tables``: (schema, table). Raises FeatureNotSupported
    if a partitioned table and one of its partitions are among them, because a Delta table can
    follow only one relation; or if a table's folder is not that of its name (SET SCHEMA)."""
    named = set(tables)
    for schema, name in sorted(named):
        _check_not_moved(transaction, schema, name)
        root = transaction.tables.find(schema, name)
        if root is None or root.partition_key is None:
            continue
        for member in transaction.tables.family(root)[1:]:
            _check_not_moved(transaction, member.schema, member.name)
            if (member.schema, member.name) in named:
                raise FeatureNotSupported(
                    f'cannot use relation "{member.qualified_name}" as logical replication target',
                    detail=f'It is a partition of "{root.qualified_name}" on this node, and the '
                    "publications contain both.",
                    hint=f"Detach it: ALTER TABLE {root.name} DETACH PARTITION {member.name}. Or "
                    "publish one of the two.",
                )


def check_between_batches(
    transaction: CatalogTransaction, scope: CommandScope, parent: LakeTable
) -> None:
    """Check that a table whose partitions will change has no unfinished batch. A batch that only
    some of its partitions have must be finished in the partitions with which it began.

    Raises StorageError; BatchUnderWay while a batch is unfinished.
    """
    roots = _roots(transaction, parent)
    for subscription in transaction.subscriptions.all():
        for rel in transaction.relations.all(subscription.oid):
            root = roots.get(rel.table_name)
            if root is not None and _half_applied(transaction, scope, subscription, rel, root):
                raise BatchUnderWay(
                    f'cannot change the partitions of "{parent.name}" because subscription '
                    f'"{subscription.name}" is in the middle of a batch',
                    detail="Some of the partitions have it, and others have not yet.",
                    hint=_go_on(subscription, rel),
                )


def between_batches(attempt: Callable[[], T]) -> T:
    """Call ``attempt`` and return its result. Repeat it while it raises BatchUnderWay: a running
    worker finishes a batch within moments.

    Raises BatchUnderWay if the batch does not end.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return attempt()
        except BatchUnderWay:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_S)


def check_whole_batches(
    transaction: CatalogTransaction, scope: CommandScope, subscription: Subscription
) -> None:
    """Check that a subscription whose publications will change has no unfinished batch. If only
    some partitions have a batch, the new publications might not send its rows again, or might send
    different rows.

    Raises BatchUnderWay, StorageError.
    """
    if scope.warehouse is None:
        return
    for rel in transaction.relations.all(subscription.oid):
        root = transaction.tables.find(*rel.table_name)
        if root is None or root.partition_key is None:
            continue
        if _half_applied(transaction, scope, subscription, rel, root):
            raise BatchUnderWay(
                f'cannot change the publications of subscription "{subscription.name}" because it '
                "is in the middle of a batch",
                detail=f'Some of the partitions of table "{rel.qualified_name}" have it, and '
                "others have not yet.",
                hint=_go_on(subscription, rel),
            )


def _go_on(subscription: Subscription, rel: SubscriptionRel) -> str:
    table = f"{quote_identifier(rel.schema)}.{quote_identifier(rel.table)}"
    altered = alter(subscription.name)
    return (
        f"Try again. If the subscription has stopped, let it go on first: {altered} ENABLE. If it "
        f"cannot, copy the table again: {altered} REFRESH TABLE {table}."
    )


def check_joins(
    transaction: CatalogTransaction, scope: CommandScope, parent: LakeTable, child: TableName
) -> None:
    """Check a table that will become a partition of a table that a subscription fills. The
    subscription must not fill the table by its own name. The table must not have later changes of
    the subscription than the other partitions: they would look like an unfinished batch.

    Raises FeatureNotSupported, ObjectInUse, StorageError.
    """
    roots = _roots(transaction, parent)
    for subscription in transaction.subscriptions.all():
        rels = {rel.table_name: rel for rel in transaction.relations.all(subscription.oid)}
        for name in roots.keys() & rels.keys():
            if child in rels:
                raise FeatureNotSupported(
                    f'cannot make "{child[1]}" a partition of "{parent.name}"',
                    detail=f'Subscription "{subscription.name}" fills both.',
                    hint="Take one of the two out of its publications, and refresh it, first.",
                )
            _check_not_moved(transaction, *child)
            common = _common(scope, subscription, rels[name], roots[name])
            if _marker(scope, child, subscription.app_id) > common:
                raise ObjectInUse(
                    f'cannot make "{child[1]}" a partition of "{parent.name}" because it has '
                    f'changes of subscription "{subscription.name}" that come later there',
                    hint="Try again when the subscription has gone on, or make a new table.",
                )


def check_detached(transaction: CatalogTransaction, scope: CommandScope, table: LakeTable) -> None:
    """Check that the parent of a table that will be detached or dropped has no unfinished batch. Do
    nothing for a table without a parent."""
    parent = None if table.parent is None else transaction.tables.find_oid(table.parent)
    if parent is not None:
        check_between_batches(transaction, scope, parent)


def _roots(transaction: CatalogTransaction, parent: LakeTable) -> dict[TableName, LakeTable]:
    """Return a partitioned table and its ancestors, by name."""
    above = [parent]
    while (up := above[-1].parent) is not None:
        found = transaction.tables.find_oid(up)
        if found is None:
            break
        above.append(found)
    return {(table.schema, table.name): table for table in above}


def _half_applied(
    transaction: CatalogTransaction,
    scope: CommandScope,
    subscription: Subscription,
    rel: SubscriptionRel,
    root: LakeTable,
) -> bool:
    if rel.state in _NOT_FOLLOWING:
        return False
    common = _common(scope, subscription, rel, root)
    leaves = [t for t in transaction.tables.family(root) if t.partition_key is None]
    names = [(leaf.schema, leaf.name) for leaf in leaves]
    return any(_marker(scope, name, subscription.app_id) > common for name in names)


def _common(
    scope: CommandScope, subscription: Subscription, rel: SubscriptionRel, root: LakeTable
) -> Lsn:
    """Return the LSN up to which all partitions certainly have the changes."""
    owner = CutOwner(subscription.name, subscription.app_id)
    ready = rel.state is SubscriptionRelState.READY
    cut = warehouse_of(scope).cuts.last(owner) if ready else None
    marker = Lsn(_marker(scope, (root.schema, root.name), subscription.app_id))
    return common_point(marker, None if cut is None else cut.lsn)


def _marker(scope: CommandScope, table: TableName, app_id: str) -> int:
    delta = warehouse_of(scope).open(*table, vectors=False)
    return 0 if delta is None else delta.transaction_version(app_id) or 0


def _check_not_moved(transaction: CatalogTransaction, schema: str, name: str) -> None:
    """Check that a table is in the folder of its name, as a subscription requires."""
    found = transaction.tables.find(schema, name)
    other = transaction.tables.in_folder_of(schema, name)
    if other is not None or (found is not None and found.folder_of is not None):
        moved = other or found
        assert moved is not None
        raise FeatureNotSupported(
            f'cannot use relation "{schema}.{name}" as logical replication target',
            detail=f'ALTER TABLE ... SET SCHEMA has moved table "{moved.qualified_name}" on this '
            "node.",
            hint="Move it back, or drop it.",
        )
