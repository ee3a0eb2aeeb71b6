"""What the publications of one stream publish of a table (pgoutput.c, RelationSyncCache).

In: the publications that a subscriber named, the node's catalogs, a table with its columns at a
version. Out: how it is published, by the one rule of ``publication``, as frozen values that cross
to executors; looked up again when the catalogs have changed. What changed is left to ``decoding``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Publication
from penstock.errors import UndefinedObject
from penstock.pipeline.change_item import PublishedTable
from penstock.pipeline.scan import ScanColumn
from penstock.publication.members import Members
from penstock.publication.relation_sync import RelationSyncEntry, relation_sync_entry
from penstock.relation import Attribute, Relation, ReplicaIdentity
from penstock.walsender.lake_columns import LakeColumn, column_type, table_column

_WARNS_SINCE: Final = 18

log = logging.getLogger(__name__)


class RelationSyncCache:
    """The publications of one stream. ``version``: the major version that the node reports."""

    def __init__(self, catalog: Catalog, names: Sequence[str], version: int) -> None:
        self._catalog = catalog
        self._names = names
        self._version = version
        self._generation = -1
        self._held: dict[LakeTable, bool] = {}
        self._known: dict[tuple[LakeTable, tuple[LakeColumn, ...]], PublishedTable | None] = {}

    def publishes(self, table: LakeTable) -> bool:
        """Whether a publication has the table; cheap, and nothing of the table is read.

        Raises UndefinedObject as ``of`` does.
        """
        self._forget_if_changed()
        if table not in self._held:
            with self._catalog.read() as t:
                members = self._members(t, table)
            self._held[table] = any(members.contains(p, table) for p in members.publications)
        return self._held[table]

    def names(self, table: LakeTable) -> bool:
        """Whether a publication has the table, or what it is a partition of, by its own name; not
        merely with all tables or those of a schema."""
        with self._catalog.read() as t:
            members = self._members(t, table)
        return any(members.by_name(p, table) for p in members.publications)

    def has(self, publications: Sequence[int]) -> bool:
        """Whether one of these (oids) is among the stream's publications."""
        with self._catalog.read() as t:
            return any(publication.oid in publications for publication in self._publications(t))

    def of(self, table: LakeTable, columns: tuple[LakeColumn, ...]) -> PublishedTable | None:
        """How a table is published, None: not at all. ``columns``: all of the table.

        Raises UndefinedObject (a publication is missing, up to version 17), FeatureNotSupported
        (publications contradict one another).
        """
        self._forget_if_changed()
        key = table, columns
        if key not in self._known:
            with self._catalog.read() as t:
                self._known[key] = self._look_up(t, table, columns)
        return self._known[key]

    def _forget_if_changed(self) -> None:
        generation = self._catalog.generation()
        if generation != self._generation:
            self._known.clear()
            self._held.clear()
            self._generation = generation

    def _look_up(
        self, t: CatalogTransaction, table: LakeTable, columns: tuple[LakeColumn, ...]
    ) -> PublishedTable | None:
        members = self._members(t, table)
        entry = relation_sync_entry(members, table, tuple(map(table_column, columns)))
        return None if entry is None else _published_table(table, entry, columns)

    def _members(self, t: CatalogTransaction, table: LakeTable) -> Members:
        return t.members(self._publications(t), _with_ancestors(t, table))

    def _publications(self, t: CatalogTransaction) -> list[Publication]:
        found = []
        for name in self._names:
            publication = t.publications.find(name)
            if publication is not None:
                found.append(publication)
            elif self._version < _WARNS_SINCE:
                raise UndefinedObject(f'publication "{name}" does not exist')
            else:
                log.warning(
                    'skipped loading publication "%s": it does not exist; create it if it is '
                    "needed",
                    name,
                )
        return found


def _with_ancestors(t: CatalogTransaction, table: LakeTable) -> list[LakeTable]:
    """The table and what it is a partition of, up to the root."""
    found = [table]
    while found[-1].parent is not None:
        parent = t.tables.find_oid(found[-1].parent)
        if parent is None:
            break
        found.append(parent)
    return found


def _published_table(
    table: LakeTable, entry: RelationSyncEntry, columns: Sequence[LakeColumn]
) -> PublishedTable:
    full = table.replica_identity is ReplicaIdentity.FULL
    wanted = [c for c in columns if entry.columns is None or c.name in entry.columns]
    attributes = tuple(
        Attribute(c.name, *column_type(c), key=full or c.name in (table.identity or ()))
        for c in wanted
    )
    return PublishedTable(
        relation=Relation(
            entry.target.oid,
            entry.target.schema,
            entry.target.name,
            table.replica_identity,
            attributes,
        ),
        name=table.qualified_name,
        columns=tuple(ScanColumn(c.name, c.stored, c.type) for c in columns),
        key=table.identity or table.primary_key,
        identity=table.identity,
        filters=entry.filters,
        published=entry.operations,
        refused=entry.refused,
    )
