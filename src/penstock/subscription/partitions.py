"""A target that is partitioned on the node: its leaves, and which of them have a batch already.

In: the tables of the catalog that make up the partitioned one, the root's columns, the LSN up to
which all leaves are the same. Out: open leaves with how rows are routed to them.

The root's own Delta table has columns and no rows. A batch is committed to the leaves that it is
about, and then to the root: the root's marker is where all leaves are. After a crash in between
some leaves have the batch and others have not. Those that have it are ``ahead``: the batch is made
again with the same end and worked from the state before it, which all had in common, and is
committed to the others alone. So a row that moved from a leaf which has the batch is found there,
with the values that the publisher did not send.
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
    """``newest``: the table; ``table``: what a batch is worked on, the same but for a leaf that is
    ``ahead``: the LSN of a batch that it has and others may not have."""

    name: TableName
    newest: DeltaTable
    table: DeltaTable
    ahead: Lsn | None = None


@dataclass(slots=True)
class Partitions:
    """``tree``: what they were made of; ``touched``: numbers of the leaves that the batch under way
    is about."""

    tree: tuple[LakeTable, ...]
    routing: Level
    leaves: tuple[Leaf, ...]
    touched: set[int] = field(default_factory=set)

    @property
    def work(self) -> Leaves:
        """For ``pipeline``."""
        return Leaves(tuple(leaf.table for leaf in self.leaves), self.routing)

    @property
    def ahead(self) -> Lsn | None:
        """The end of the batch that only some of them have."""
        return max((leaf.ahead for leaf in self.leaves if leaf.ahead is not None), default=None)

    def to_commit(self, end_lsn: Lsn) -> list[DeltaTable]:
        """Those that a batch with that end is committed to."""
        return [
            leaf.table
            for number, leaf in enumerate(self.leaves)
            if leaf.ahead != end_lsn and (number in self.touched or leaf.table.has_staged)
        ]

    def together(self) -> None:
        """All of them have the batch now."""
        for leaf in self.leaves:
            if leaf.ahead is not None:
                leaf.table.discard()
                leaf.table, leaf.ahead = leaf.newest, None
        self.touched.clear()

    def discard(self) -> None:
        """Forget what is staged."""
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
    """``tree``: root first. ``common``: where all leaves were together for certain. ``earlier``:
    app ids of subscriptions whose batches count as ours, as the table was taken over from them.

    Raises UndefinedObject for a leaf that is gone, RelationChanged for one with other columns,
    FeatureNotSupported for what rows cannot be routed by, StateMismatch and VersionGone for one
    that is ahead and whose state before is lost.
    """
    routing, tables = routing_of(tree, root)
    check_key(tree[0], routing, root)
    ids = (app_id, *earlier)
    leaves = tuple(_open(warehouse, table, root, ids, common) for table in tables)
    return Partitions(tuple(tree), routing, leaves)


def open_leaf(warehouse: Warehouse, table: LakeTable) -> DeltaTable:
    """Raises UndefinedObject; what ``Warehouse.open`` raises."""
    found = warehouse.open(table.schema, table.name)
    if found is None:
        raise UndefinedObject(
            f'Delta table of relation "{qualified(table.schema, table.name)}" does not exist',
            detail=f'It is a partition; there is none at "{table.uri}".',
            hint="Put it back, or drop the partition.",
        )
    return found


def check_columns(leaf: DeltaTable, root: TableSchema) -> None:
    """Raises RelationChanged for a leaf with other columns than its root."""
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
    # As of any target: an entry that is read here is acknowledged later (law 1).
    warehouse.storage.sync_folder(log_folder(newest.uri))
    marker, app_id = max((newest.transaction_version(one) or 0, one) for one in ids)
    ahead = None if marker <= common else Lsn(marker)
    worked = newest if ahead is None else newest.before(app_id, ahead)
    check_columns(worked, root)
    return Leaf(name, newest, worked, ahead)


def check_key(table: LakeTable, routing: Level, root: TableSchema) -> None:
    """An old row is known by its key, and must be routed by it. Raises FeatureNotSupported."""
    lacking = sorted(routing.columns - set(root.key)) if root.key else []
    if lacking:
        raise FeatureNotSupported(
            f'cannot use relation "{table.qualified_name}" as logical replication target',
            detail=f'It is partitioned by column "{lacking[0]}", which is not part of the '
            f"published relation's key ({', '.join(root.source_key)}).",
            hint="Partition the table by columns of the key, or replicate into a table without "
            "partitions.",
        )
