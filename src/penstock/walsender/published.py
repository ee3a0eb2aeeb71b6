"""What the publications of one stream publish of a table (pgoutput.c, get_rel_sync_entry).

In: the publications that a subscriber named, and the node's catalogs. Out: how a table is
published, by the one rule of ``publication``; looked up again when the catalogs have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Publication
from penstock.errors import UndefinedObject
from penstock.publication.members import Members
from penstock.publication.publish import RelationSyncEntry, published_tables
from penstock.publication.row_filter import FilterColumn

_WARNS_SINCE: Final = 18

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """``rule``: operations, columns, filters. ``target``: the table under whose name it goes."""

    rule: RelationSyncEntry
    target: LakeTable


class Publishing:
    """The publications of one stream. ``version``: the major version that the node reports."""

    def __init__(self, catalog: Catalog, names: Sequence[str], version: int) -> None:
        self._catalog = catalog
        self._names = names
        self._version = version
        self._generation = -1
        self._held: dict[LakeTable, bool] = {}
        self._known: dict[tuple[LakeTable, tuple[FilterColumn, ...]], Published | None] = {}

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

    def of(self, table: LakeTable, columns: tuple[FilterColumn, ...]) -> Published | None:
        """How a table is published, None: not at all.

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
        self, t: CatalogTransaction, table: LakeTable, columns: tuple[FilterColumn, ...]
    ) -> Published | None:
        family = _with_ancestors(t, table)
        found = published_tables(
            self._publications(t),
            t.publications.relations(),
            t.publications.namespaces(),
            family,
            {relation.oid: columns for relation in family},
        )
        rule = next((rule for rule in found if rule.relation_oid == table.oid), None)
        if rule is None:
            return None
        (target,) = (relation for relation in family if relation.oid == rule.as_oid)
        return Published(rule, target)

    def _members(self, t: CatalogTransaction, table: LakeTable) -> Members:
        return Members(
            self._publications(t),
            t.publications.relations(),
            t.publications.namespaces(),
            _with_ancestors(t, table),
        )

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
