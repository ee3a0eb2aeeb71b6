"""Which tables a publication holds, with which columns and rows (pg_publication.c).

In: a snapshot. Out: what pg_get_publication_tables gives for one publication, by the rules of the
reported version. Filters are passed on as text. How several publications combine is left to the
query that joins them.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog.pg_publication import Publication
from penstock.pg_catalog.relations import ancestors, descendants, is_partitioned
from penstock.pg_catalog.snapshot import CatalogSnapshot, CatalogTable

_FILTERS_SINCE = 15
_COLUMNS_ALWAYS_SINCE = 16
_GENERATED_SINCE = 18


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication. ``attributes``: numbers of columns, None for all (15)."""

    publication: Publication
    table: CatalogTable
    attributes: tuple[int, ...] | None
    row_filter: str | None


def published_tables(
    snapshot: CatalogSnapshot, publication: Publication, version: int
) -> tuple[PublishedTable, ...]:
    """The tables of one publication, sorted by oid where PostgreSQL has no order."""
    schemas = {
        row.schema for row in snapshot.publication_namespaces if row.publication == publication.oid
    }
    if publication.all_tables:
        oids = _all_tables(snapshot, publication)
    else:
        oids = _listed(snapshot, publication)
        oids += [oid for oid in _in_schemas(snapshot, publication, schemas) if oid not in oids]
        if publication.via_root:
            oids = [oid for oid in oids if not set(ancestors(snapshot, oid)) & set(oids)]
    return tuple(
        _published(snapshot, publication, snapshot.table_by_oid[oid], schemas, version)
        for oid in oids
    )


def _all_tables(snapshot: CatalogSnapshot, publication: Publication) -> list[int]:
    """GetAllTablesPublicationRelations."""
    if publication.via_root:
        return [t.oid for t in snapshot.tables if t.lake.parent is None and not t.unpublishable]
    return [t.oid for t in snapshot.tables if not is_partitioned(t) and not t.unpublishable]


def _listed(snapshot: CatalogSnapshot, publication: Publication) -> list[int]:
    """GetPublicationRelations: leaves in place of partitioned tables, unless via the root."""
    out: list[int] = []
    for row in snapshot.publication_rels:
        if row.publication == publication.oid and row.relation in snapshot.table_by_oid:
            out += _as_published(snapshot, publication, row.relation)
    return sorted(dict.fromkeys(out))


def _in_schemas(
    snapshot: CatalogSnapshot, publication: Publication, schemas: set[str]
) -> list[int]:
    """GetAllSchemaPublicationRelations."""
    out: list[int] = []
    for table in snapshot.tables:
        if table.lake.schema in schemas:
            out += _as_published(snapshot, publication, table.oid)
    return [oid for oid in dict.fromkeys(out) if not snapshot.table_by_oid[oid].unpublishable]


def _as_published(snapshot: CatalogSnapshot, publication: Publication, oid: int) -> list[int]:
    if publication.via_root or not is_partitioned(snapshot.table_by_oid[oid]):
        return [oid]
    return [
        child
        for child, _ in descendants(snapshot, oid)
        if not is_partitioned(snapshot.table_by_oid[child])
    ]


def _published(
    snapshot: CatalogSnapshot,
    publication: Publication,
    table: CatalogTable,
    schemas: set[str],
    version: int,
) -> PublishedTable:
    named = None
    if not publication.all_tables and table.lake.schema not in schemas:
        named = next(
            (
                row
                for row in snapshot.publication_rels
                if row.publication == publication.oid and row.relation == table.oid
            ),
            None,
        )
    columns = None if named is None else named.columns
    row_filter = None if named is None or version < _FILTERS_SINCE else named.row_filter
    if columns is not None and version >= _FILTERS_SINCE:
        attributes = attribute_numbers(table, columns)
    elif version >= _COLUMNS_ALWAYS_SINCE:
        attributes = _all_columns(publication, table, version)
    else:
        attributes = None
    return PublishedTable(publication, table, attributes, row_filter)


def attribute_numbers(table: CatalogTable, columns: tuple[str, ...]) -> tuple[int, ...]:
    """Numbers of a column list, sorted as pg_publication_rel.prattrs."""
    return tuple(sorted(n for c in columns if (n := table.number(c)) is not None))


def _all_columns(publication: Publication, table: CatalogTable, version: int) -> tuple[int, ...]:
    stored = version >= _GENERATED_SINCE and publication.generated_columns == "s"
    return tuple(
        number
        for number, column in enumerate(table.columns, 1)
        if not column.generated or (stored and column.generated == "s")
    )
