"""Partitions: the leaves of a partitioned target, and which of them have a batch already.

This module opens the leaves from the catalog's tables, finds those that have a batch which others
lack, and routes rows to the leaves.

The root's own Delta table has columns and no rows. A batch is committed to the leaves that it
changes, and then to the root: every leaf has all batches up to the root's marker. After a crash in
between, only some leaves have the batch: it is ``half_applied``. The batch is then applied again
with the same end, to the state that all leaves had before it, and committed only to the leaves that
lack it. So a row that the batch has already moved out of a leaf is still found there, with the
values that the publisher did not send.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from penstock.catalog import LakeTable
from penstock.errors import FeatureNotSupported, RelationChanged, UndefinedObject
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pipeline.partition_tree import routing_of
from penstock.pipeline.parts import Leaves
from penstock.pipeline.routing import Level
from penstock.relation import TableName, qualified


@dataclass(slots=True)
class Leaf:
    """One leaf of a partitioned target.

    ``newest``: the table's newest version. ``half_applied``: the LSN of a batch that this leaf has
    and others may lack. ``table``: the table to which batches are applied: ``newest``, or the
    version before that batch.
    """

    name: TableName
    newest: DeltaTable
    table: DeltaTable
    half_applied: Lsn | None = None


@dataclass(slots=True)
class Partitions:
    """The open leaves of a partitioned target.

    ``tree``: the catalog's tables that they were opened from, root first. ``touched``: indexes of
    the leaves that the current batch changes.
    """

    tree: tuple[LakeTable, ...]
    routing: Level
    leaves: tuple[Leaf, ...]
    touched: set[int] = field(default_factory=set)

    @property
    def work(self) -> Leaves:
        """The leaves and their routing, as ``pipeline`` takes them."""
        return Leaves(tuple(leaf.table for leaf in self.leaves), self.routing)

    @property
    def half_applied(self) -> Lsn | None:
        """The end LSN of the batch that only some leaves have."""
        found = (leaf.half_applied for leaf in self.leaves)
        return max((lsn for lsn in found if lsn is not None), default=None)

    def to_commit(self, end_lsn: Lsn) -> list[DeltaTable]:
        """Return the leaves to which the batch that ends at ``end_lsn`` is committed."""
        return [
            leaf.table
            for number, leaf in enumerate(self.leaves)
            if leaf.half_applied != end_lsn and (number in self.touched or leaf.table.has_staged)
        ]

    def together(self) -> None:
        """Note that all leaves have the batch now."""
        for leaf in self.leaves:
            if leaf.half_applied is not None:
                leaf.table.discard()
                leaf.table, leaf.half_applied = leaf.newest, None
        self.touched.clear()

    def discard(self) -> None:
        """Forget the staged changes."""
        for leaf in self.leaves:
            leaf.table.discard()
        self.touched.clear()


def open_partitions(
    warehouse: Warehouse,
    tree: Sequence[LakeTable],
    root: TableSchema,
    app_id: str,
    common: Lsn,
    earlier: Collection[str] = (),
) -> Partitions:
    """Open all leaves of a partitioned target.

    ``tree``: its tables, root first. ``common``: an LSN up to which all leaves certainly have the
    same batches. ``earlier``: app ids of the subscriptions from which the table was taken over,
    whose batches count as ours.

    Raises UndefinedObject for a missing leaf, RelationChanged for a leaf with other columns,
    FeatureNotSupported if rows cannot be routed, StateMismatch and VersionGone for a leaf that is
    ahead and whose earlier state is lost.
    """
    routing, tables = routing_of(tree, root)
    check_key(tree[0], routing, root)
    ids = (app_id, *earlier)
    leaves = tuple(_open(warehouse, table, root, ids, common) for table in tables)
    return Partitions(tuple(tree), routing, leaves)


def open_leaf(warehouse: Warehouse, table: LakeTable, *, vectors: bool = True) -> DeltaTable:
    """Open a leaf. Raises UndefinedObject if it is gone, and the errors of ``Warehouse.open``."""
    found = warehouse.open(table.schema, table.name, vectors=vectors)
    if found is None:
        raise UndefinedObject(
            f'Delta table of relation "{qualified(table.schema, table.name)}" does not exist',
            detail=f'It is a partition; there is none at "{table.uri}".',
            hint="Put it back, or drop the partition.",
        )
    return found


def check_columns(leaf: DeltaTable, root: TableSchema) -> None:
    """Raise RelationChanged for a leaf with other columns than its root."""
    types = {column.source: column.type for column in root.columns}
    if types != {column.source: column.type for column in leaf.schema.columns}:
        raise RelationChanged(
            f'partition "{leaf.name}" has other columns than the table that it is a partition of',
            detail=f"It has ({', '.join(sorted(leaf.schema.by_source))}).",
        )


def _open(
    warehouse: Warehouse, table: LakeTable, root: TableSchema, ids: Sequence[str], common: Lsn
) -> Leaf:
    name, newest = (table.schema, table.name), open_leaf(warehouse, table)
    # As for any target, an entry read here is acknowledged later, so it must be durable (law 1).
    warehouse.storage.sync_folder(log_folder(newest.uri))
    marker, app_id = max((newest.transaction_version(one) or 0, one) for one in ids)
    half_applied = None if marker <= common else Lsn(marker)
    worked = newest if half_applied is None else newest.before(app_id, half_applied)
    check_columns(worked, root)
    return Leaf(name, newest, worked, half_applied)


def check_key(table: LakeTable, routing: Level, root: TableSchema) -> None:
    """Raise FeatureNotSupported if rows are routed by columns outside of the key: only the key of
    an old row is known."""
    lacking = sorted(routing.columns - set(root.key)) if root.key else []
    if lacking:
        raise FeatureNotSupported(
            f'cannot use relation "{table.qualified_name}" as logical replication target',
            detail=f'It is partitioned by column "{lacking[0]}", which is not part of the '
            f"published relation's key ({', '.join(root.source_key)}).",
            hint="Partition the table by columns of the key, or replicate into a table without "
            "partitions.",
        )
