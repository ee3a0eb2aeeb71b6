"""A subscription's target tables: which Delta table a published relation goes to (relation.c).

In: rows of pg_subscription_rel and relations of the stream. Out: open tables with their own LSNs,
created when missing, with columns added when the publisher has added some. A relation that is not
in pg_subscription_rel is ignored, as PostgreSQL does; a change that a table cannot follow is an
error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.relation import Relation, ReplicaIdentity
from penstock.subscription.origin import TableProgress

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Target:
    """One table. ``ready``: part of the cuts; ``marker``: its own LSN."""

    rel: SubscriptionRel
    table: DeltaTable
    ready: bool
    marker: Lsn | None
    rows_applied: int = field(default=0)

    @property
    def progress(self) -> TableProgress:
        """What origin.py decides upon."""
        return TableProgress(self.ready, self.marker)


class Targets:
    """The open tables of one subscription, by qualified name."""

    def __init__(self, warehouse: Warehouse, app_id: str) -> None:
        self._warehouse = warehouse
        self._app_id = app_id
        self._by_name: dict[str, Target] = {}

    def __iter__(self) -> Iterator[Target]:
        return iter(self._by_name.values())

    def progress(self) -> list[TableProgress]:
        """All tables' progress."""
        return [target.progress for target in self]

    def open(self, rel: SubscriptionRel) -> Target | None:
        """Open the table of a row in state f, s or r; None when there is no such table yet."""
        table = self._warehouse.open(rel.schema, rel.table)
        if table is None:
            return None
        # A node killed between an entry's appearance and the sync of its folder leaves an entry
        # that is read here and acknowledged later: it must be durable by then (law 1).
        self._warehouse.storage.sync_folder(log_folder(table.uri))
        return self.add(rel, table)

    def add(self, rel: SubscriptionRel, table: DeltaTable) -> Target:
        """Take an open table in."""
        marker = table.transaction_version(self._app_id)
        target = Target(
            rel=rel,
            table=table,
            ready=rel.state is SubscriptionRelState.READY,
            marker=None if marker is None else Lsn(marker),
        )
        self._by_name[rel.qualified_name] = target
        return target

    def find(self, relation: Relation) -> Target | None:
        """The target of a relation of the stream, or None when it is not (yet) subscribed."""
        return self._by_name.get(relation.qualified_name)

    def close(self, target: Target) -> None:
        """Take a table out: its changes are ignored from now on, and no cut holds it."""
        del self._by_name[target.rel.qualified_name]

    def follow(self, target: Target, relation: Relation) -> None:
        """Make the table fit the relation: stage added columns, refuse every other change.

        Raises RelationChanged naming table, column, both types and the remedy.
        """
        wanted = TableSchema.of_relation(relation, self._key(target, relation))
        added = target.table.schema.columns_added(wanted, table=target.table.name)
        if added:
            log.info(
                'added columns to table "%s": %s',
                target.table.name,
                ", ".join(column.name for column in added),
            )
            target.table.add_columns(added)

    @staticmethod
    def _key(target: Target, relation: Relation) -> tuple[str, ...] | None:
        # FULL flags every column; the table keeps the primary key that the catalogs named at its
        # creation. INSERTs alone need no key at all.
        if relation.replica_identity in (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING):
            return target.table.schema.source_key
        return None
