"""What a set of publications publishes of a table (pgoutput.c, get_rel_sync_entry).

In: the publications that a subscriber named, and the node's catalogs. Out: for a table its
operations, column list and row filters, and the name under which it is published: its own, or its
root's. Looked up again when the catalogs have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    LakeTable,
    Publication,
    PublicationRel,
)
from penstock.errors import PenstockError, UndefinedObject
from penstock.pipeline.change_rows import Operation

_WARNS_SINCE = 18

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """``oid``, ``schema``, ``name``: the relation as the subscriber sees it. ``columns`` None: all.

    ``filters``: text by operation; None or missing: all rows.
    """

    oid: int
    schema: str
    name: str
    operations: frozenset[Operation]
    columns: frozenset[str] | None
    filters: Mapping[Operation, str | None]


class Publishing:
    """The publications of one stream."""

    def __init__(self, catalog: Catalog, names: Sequence[str], version: int) -> None:
        self._catalog = catalog
        self._names = names
        self._version = version
        self._generation = -1
        self._known: dict[int, PublishedSet | None] = {}

    def of(self, table: LakeTable) -> PublishedSet | None:
        """How a table is published, None: not at all.

        Raises UndefinedObject (a publication is missing, up to version 17), PenstockError.
        """
        generation = self._catalog.generation()
        if generation != self._generation:
            self._known.clear()
            self._generation = generation
        if table.oid not in self._known:
            with self._catalog.read() as t:
                self._known[table.oid] = self._look_up(t, table)
        return self._known[table.oid]

    def _look_up(self, t: CatalogTransaction, table: LakeTable) -> PublishedSet | None:
        ancestors = _ancestors(t, table)
        found = [
            member
            for publication in self._publications(t)
            if (member := _member(t, publication, table, ancestors)) is not None
        ]
        if not found:
            return None
        # The topmost relation as which any of them publishes it (get_rel_sync_entry).
        level = max(member.level for member in found)
        found = [member for member in found if member.level == level]
        published = ancestors[level]
        lists = {None if m.rel is None or m.rel.columns is None else m.rel.columns for m in found}
        if len({None if c is None else frozenset(c) for c in lists}) > 1:
            raise PenstockError(
                f'cannot use different column lists for table "{published.qualified_name}" '
                "in different publications",
                sqlstate="0A000",
            )
        columns = next(iter(lists))
        return PublishedSet(
            oid=published.oid,
            schema=published.schema,
            name=published.name,
            operations=frozenset(op for m in found for op in _operations(m.publication)),
            columns=None if columns is None else frozenset(columns),
            filters={operation: _filter(found, operation) for operation in Operation},
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


@dataclass(frozen=True, slots=True)
class _Membership:
    """A publication that has the table; ``level``: as which ancestor, 0 is the table itself."""

    publication: Publication
    rel: PublicationRel | None
    level: int


def _ancestors(t: CatalogTransaction, table: LakeTable) -> list[LakeTable]:
    """The table and what it is a partition of, up to the root."""
    found = [table]
    while found[-1].parent is not None:
        parent = t.tables.find_oid(found[-1].parent)
        if parent is None:
            break
        found.append(parent)
    return found


def _member(
    t: CatalogTransaction,
    publication: Publication,
    table: LakeTable,
    ancestors: Sequence[LakeTable],
) -> _Membership | None:
    if publication.all_tables:
        level = len(ancestors) - 1 if publication.via_root else 0
        return _Membership(publication, None, level)
    rels = {rel.relation: rel for rel in t.publications.relations(publication.oid)}
    schemas = {row.schema for row in t.publications.namespaces(publication.oid)}
    levels = [
        number
        for number, ancestor in enumerate(ancestors)
        if ancestor.oid in rels or ancestor.schema in schemas
    ]
    if not levels:
        return None
    top = levels[-1] if publication.via_root else 0
    in_schema = ancestors[top].schema in schemas
    return _Membership(publication, None if in_schema else rels.get(ancestors[top].oid), top)


def _operations(publication: Publication) -> list[Operation]:
    flags = {
        Operation.INSERT: publication.insert,
        Operation.UPDATE: publication.update,
        Operation.DELETE: publication.delete,
    }
    return [operation for operation, published in flags.items() if published]


def _filter(found: Sequence[_Membership], operation: Operation) -> str | None:
    """Filters of the publications that publish an operation, ORed; None: one has none."""
    texts = []
    for member in found:
        if operation not in _operations(member.publication):
            continue
        text = None if member.rel is None else member.rel.row_filter
        if text is None:
            return None
        texts.append(text)
    if not texts:
        return None
    return " OR ".join(f"({text})" for text in dict.fromkeys(texts))
