"""One target: a table that a subscription fills, with its Delta tables and its progress.

A target combines a row of pg_subscription_rel with the open tables to which batches are committed,
and makes its part of a cut. ``targets`` opens and keeps all targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.enum_type import EnumType
from penstock.lakehouse.cuts import CutTable
from penstock.lakehouse.defaults import Draw, draws, no_draw
from penstock.lakehouse.history_table import history_of
from penstock.lakehouse.schema import FIRST_NORMAL_OID
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import Lsn
from penstock.pipeline.parts import Leaves
from penstock.relation import Relation, TableName
from penstock.subscription.definition_watch import HeldColumns
from penstock.subscription.origin import TableProgress
from penstock.subscription.partitions import Partitions


@dataclass(slots=True)
class Target:
    """One target.

    ``ready``: it is part of the cuts. ``marker``: its own LSN. ``followed``: the relation of the
    newest change, if this session has seen any. ``partitions``: if it is partitioned, the
    partitions, which have its rows. ``history``: the table that keeps its changes, if it has one.
    ``draw``: takes values from its columns' sequences. ``restart``: restarts these sequences.
    ``enum_types``: returns the enum types made on the node.
    """

    rel: SubscriptionRel
    table: DeltaTable
    ready: bool
    marker: Lsn | None
    draw: Draw = no_draw
    restart: Callable[[], object] = lambda: None
    enum_types: Callable[[], tuple[EnumType, ...]] = tuple
    rows_applied: int = field(default=0)
    followed: Relation | None = field(default=None)
    partitions: Partitions | None = field(default=None)
    history: DeltaTable | None = field(default=None)
    _cut: CutTable | None = field(default=None)
    """The target's part of the last cut, if the target is one table. It is kept because most tables
    of a large subscription do not change between two cuts."""

    @property
    def held(self) -> HeldColumns:
        """The columns that have the publisher's values."""
        columns = [
            c
            for c in self.table.schema.columns
            if c.attribute.generation is None and not c.stamp and (c.published or not c.local)
        ]
        own = frozenset(column.source for column in columns if column.converts)
        names = frozenset(column.source for column in columns)
        return HeldColumns(names, own, any_rows=self.rows > 0)

    @property
    def draws(self) -> bool:
        """True if any of its columns draws from a sequence."""
        return any(map(draws, self.table.schema.columns))

    def progress(self, app_id: str) -> TableProgress:
        """Return the target's progress, for ``origin``. ``app_id``: the subscription's."""
        kept = None if self.history is None else self.history.transaction_version(app_id)
        points = [Lsn(point) for point in (self.half_applied, kept) if point is not None]
        return TableProgress(self.ready, self.marker, max(points, default=None))

    @property
    def enums(self) -> tuple[EnumType, ...]:
        """The node's enum types, if columns made by CREATE TABLE may use them; otherwise ()."""
        columns = self.table.schema.columns
        own = any(
            column.local and column.attribute.type_oid >= FIRST_NORMAL_OID for column in columns
        )
        return self.enum_types() if own else ()

    @property
    def half_applied(self) -> Lsn | None:
        """The end LSN of a batch that some of its partitions have and others may lack."""
        return None if self.partitions is None else self.partitions.half_applied

    @property
    def tables(self) -> dict[TableName, DeltaTable]:
        """The target's Delta tables: its own table and its partitions."""
        leaves = () if self.partitions is None else self.partitions.leaves
        return {self.rel.table_name: self.table, **{leaf.name: leaf.newest for leaf in leaves}}

    @property
    def with_history(self) -> tuple[DeltaTable, ...]:
        """The target's Delta tables and its history: its own table, the partitions, the history.

        Batches are reverted in this order. A crash in between leaves the same state as a crash
        between the commits, which are made in the opposite order.
        """
        return (*self.tables.values(), *(() if self.history is None else (self.history,)))

    @property
    def in_cut(self) -> dict[TableName, CutTable]:
        """The target's part of a cut."""
        if self.partitions is None and self.history is None:
            table, kept = self.table, self._cut
            if kept is None or (kept.version, kept.relid) != (table.version, self.rel.relid):
                kept = self._cut = self._pin(table)
            return {self.rel.table_name: kept}
        tables = self.tables
        if self.history is not None:
            tables[history_of(self.rel.table_name)] = self.history
        return {name: self._pin(table) for name, table in tables.items()}

    def _pin(self, table: DeltaTable) -> CutTable:
        relid = None if table is self.history else self.rel.relid
        partition = table not in (self.table, self.history)
        return CutTable(table.uri, table.version, table.id, relid, partition)

    @property
    def rows(self) -> int:
        """The number of rows in the target."""
        return sum(table.rows for table in self.tables.values())

    @property
    def leaves(self) -> Leaves | None:
        """The leaves to which changes are applied, if the target is partitioned."""
        return None if self.partitions is None else self.partitions.work

    def to_commit(self, end_lsn: Lsn) -> list[DeltaTable]:
        """Return the tables with rows to which a batch is committed. A partitioned target's own
        table has no rows, and is committed after its partitions."""
        return [self.table] if self.partitions is None else self.partitions.to_commit(end_lsn)

    def committed(self, end_lsn: Lsn) -> None:
        """Note that the whole target has the batch that ends at ``end_lsn``."""
        self.marker = end_lsn
        if self.partitions is not None:
            self.partitions.together()

    def discard(self) -> None:
        """Forget the staged changes."""
        self.table.discard()
        if self.history is not None:
            self.history.discard()
        if self.partitions is not None:
            self.partitions.discard()
