"""What the publications of one stream publish of a table (pgoutput.c, RelationSyncCache).

In: the publications that a subscriber named, the node's catalogs, a table with its columns at a
version, a place of the log. Out: how it is published there, by the one rule of ``publication``, as
frozen values that cross to executors; kept for each run of places between which no publication was
changed, and looked up again when the catalogs have changed. What changed is left to ``decoding``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    LakeTable,
    Publication,
    PublicationHistory,
    PublicationsThen,
)
from penstock.errors import UndefinedObject
from penstock.lsn import Lsn
from penstock.pipeline.change_item import PublishedTable
from penstock.pipeline.scan import ScanColumn
from penstock.publication.members import Members
from penstock.publication.relation_sync import RelationSyncEntry, relation_sync_entry
from penstock.relation import Attribute, Relation, ReplicaIdentity
from penstock.walsender.lake_columns import LakeColumn, column_type, table_column
from penstock.walsender.wanted import Published

_WARNS_SINCE: Final = 18

log = logging.getLogger(__name__)


class RelationSyncCache:
    """The publications of one stream. ``version``: the major version that the node reports."""

    def __init__(self, catalog: Catalog, names: Sequence[str], version: int) -> None:
        self._catalog = catalog
        self._names = names
        self._version = version
        self._generation = -1
        self._history = PublicationHistory(())
        self._epochs: dict[int, _Epoch] = {}

    def at(self, place: Lsn) -> Published:
        """What they publish of a transaction (``LakeTransaction.place``)."""
        generation = self._catalog.generation()
        if generation != self._generation:
            with self._catalog.read() as t:
                self._generation, self._history = t.generation(), t.publications.history()
            self._epochs.clear()
        epoch = self._history.epoch(place)
        if epoch not in self._epochs:
            then = self._history.at(place)
            newest = self._history.newest
            now = None if then == newest else _Epoch(self._catalog, newest, self._names, None)
            self._epochs[epoch] = _Epoch(self._catalog, then, self._names, self._version, now)
        return self._epochs[epoch]


class _Epoch:
    """``Published`` as long as no publication changes. ``version`` None: one that does not exist is
    passed by. ``now``: as publications are now, where that differs."""

    def __init__(
        self,
        catalog: Catalog,
        then: PublicationsThen,
        names: Sequence[str],
        version: int | None,
        now: _Epoch | None = None,
    ) -> None:
        self._catalog = catalog
        self._then = then
        self._names = names
        self._version = version
        self._now = now
        self._found: list[Publication] | None = None
        self._held: dict[LakeTable, bool] = {}
        self._known: dict[tuple[LakeTable, tuple[LakeColumn, ...]], PublishedTable | None] = {}

    def publishes(self, table: LakeTable) -> bool:
        """Whether a publication has the table; cheap, and nothing of the table is read.

        Raises UndefinedObject as ``of`` does.
        """
        if table not in self._held:
            members = self._members(table)
            self._held[table] = any(members.contains(p, table) for p in members.publications)
        return self._held[table]

    def names(self, table: LakeTable) -> bool:
        """Whether a publication has the table, or what it is a partition of, by its own name; not
        merely with all tables or those of a schema."""
        members = self._members(table)
        return any(members.by_name(p, table) for p in members.publications)

    def has(self, publications: Sequence[int]) -> bool:
        """Whether one of these (oids) is among the stream's publications."""
        return any(publication.oid in publications for publication in self._publications())

    def of(
        self, table: LakeTable, columns: tuple[LakeColumn, ...], *, rewrites: bool
    ) -> PublishedTable | None:
        """How a table is published, None: not at all. ``columns``: all of the table.

        Where that can be no update or delete, the publications of now count for a commit that
        rewrites rows, if they can: only other writers than sessions bring that about, and the error
        that says so asks for another filter or list. Raises UndefinedObject (a publication is
        missing, up to version 17), FeatureNotSupported (publications contradict one another).
        """
        key = table, columns
        if key not in self._known:
            self._known[key] = self._look_up(table, columns)
        found = self._known[key]
        if rewrites and found is not None and found.refused and self._now is not None:
            now = self._now.of(table, columns, rewrites=False)
            if now is not None and not now.refused:
                return now
        return found

    def _look_up(self, table: LakeTable, columns: tuple[LakeColumn, ...]) -> PublishedTable | None:
        entry = relation_sync_entry(self._members(table), table, tuple(map(table_column, columns)))
        return None if entry is None else _published_table(table, entry, columns)

    def _members(self, table: LakeTable) -> Members:
        publications = self._publications()
        with self._catalog.read() as t:
            tables = _with_ancestors(t, table)
        return Members(publications, self._then.relations, self._then.namespaces, tables)

    def _publications(self) -> list[Publication]:
        if self._found is not None:
            return self._found
        by_name = {publication.name: publication for publication in self._then.publications}
        for name in self._names:
            if name in by_name or self._version is None:
                continue
            if self._version < _WARNS_SINCE:
                raise UndefinedObject(f'publication "{name}" does not exist')
            log.warning(
                'skipped loading publication "%s": it does not exist at this place of the log; '
                "create it if it is needed",
                name,
            )
        self._found = [by_name[name] for name in self._names if name in by_name]
        return self._found


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
