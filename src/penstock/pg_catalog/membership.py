"""Which tables a publication holds, with which columns and rows, as a server of a version shows it.

In: a snapshot. Out: what pg_get_publication_tables gives for one publication. What is in it is the
rule of ``publication``; here are the columns' numbers, and what older versions do not have. Filters
are passed on as text. How several publications combine is left to the query that joins them.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog.pg_publication import Publication
from penstock.pg_catalog.snapshot import CatalogSnapshot, CatalogTable
from penstock.publication.members import Members
from penstock.publication.relation_sync import columns_without_list, publication_tables

_FILTERS_SINCE = 15
_COLUMNS_ALWAYS_SINCE = 16
_GENERATED_SINCE = 18


@dataclass(frozen=True, slots=True)
class PublishedRel:
    """A table of a publication. ``attributes``: numbers of columns, None for all (15)."""

    publication: Publication
    table: CatalogTable
    attributes: tuple[int, ...] | None
    row_filter: str | None


def published_rels(
    snapshot: CatalogSnapshot, publication: Publication, version: int
) -> tuple[PublishedRel, ...]:
    """The tables of one publication, sorted by oid where PostgreSQL has no order."""
    members = Members(
        snapshot.publications,
        snapshot.publication_rels,
        snapshot.publication_namespaces,
        [table.lake for table in snapshot.tables],
    )
    unpublishable = {table.oid for table in snapshot.tables if table.unpublishable}
    return tuple(
        _published(members, publication, snapshot.table_by_oid[table.oid], version)
        for table in publication_tables(members, publication, unpublishable)
    )


def _published(
    members: Members, publication: Publication, table: CatalogTable, version: int
) -> PublishedRel:
    row = members.row(publication, table.lake)
    if version < _FILTERS_SINCE:
        return PublishedRel(publication, table, None, None)
    attributes = None
    if row is not None and row.columns is not None:
        attributes = attribute_numbers(table, row.columns)
    elif version >= _COLUMNS_ALWAYS_SINCE:
        stored = version >= _GENERATED_SINCE and publication.generated_columns == "s"
        attributes = attribute_numbers(table, columns_without_list(table.columns, stored=stored))
    return PublishedRel(publication, table, attributes, None if row is None else row.row_filter)


def attribute_numbers(table: CatalogTable, columns: tuple[str, ...]) -> tuple[int, ...]:
    """Numbers of a column list, sorted as pg_publication_rel.prattrs."""
    return tuple(sorted(n for c in columns if (n := table.number(c)) is not None))
