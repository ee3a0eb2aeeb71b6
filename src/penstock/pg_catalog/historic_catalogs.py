"""The catalogs as output plugins see them at a change (``decoding.logical.Catalogs``).

In: a transaction, tables as they were then, the node's catalog. Out: relations and rows. Tables,
their columns and keys, and publications are as they were at the transaction. The node keeps no
history of types, owners, partitions and further indexes, which are as they are now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.attribute import TupleDesc
from penstock.catalog import Catalog, LakeTransaction
from penstock.decoding import RelationData
from penstock.pg_catalog.definitions import catalogs
from penstock.pg_catalog.relations import with_parents_columns
from penstock.pg_catalog.rows import table_rows
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import CatalogSnapshot, CatalogTable
from penstock.pg_catalog.table_columns import with_columns
from penstock.sqlstate import UndefinedTable
from penstock.walsender.historic_tables import HistoricTables

CATALOGS: Final = frozenset(
    {
        *("pg_am", "pg_attrdef", "pg_attribute", "pg_class", "pg_collation", "pg_constraint"),
        *("pg_enum", "pg_index", "pg_inherits", "pg_namespace", "pg_partitioned_table"),
        *("pg_publication", "pg_publication_namespace", "pg_publication_rel", "pg_type"),
    }
)
"""The catalogs that describe what a change belongs to. Catalogs of roles and subscriptions are left
out, as they hold secrets."""


class HistoricCatalogs:
    """Show ``Catalogs`` at one transaction; an instance is cheap to make."""

    def __init__(
        self, transaction: LakeTransaction, tables: HistoricTables, catalog: Catalog, version: int
    ) -> None:
        """``version``: the major version that the node reports."""
        self._transaction = transaction
        self._tables = tables
        self._catalog = catalog
        self._version = version

    def relation(self, oid: int) -> RelationData | None:
        """Return a relation as it was, or None. Raises VersionGone, StorageError."""
        return self._tables.relation(self._transaction, oid)

    def rows(self, catalog: str) -> Iterable[Mapping[str, object]]:
        """Return the rows of a catalog. Raises UndefinedObject if it is none of ``CATALOGS``;
        VersionGone, StorageError."""
        if catalog not in CATALOGS:
            raise UndefinedTable(
                f'relation "{catalog}" does not exist',
                detail=f"Output plugins see the catalogs {', '.join(sorted(CATALOGS))}.",
            )
        return self._rows(catalog)

    def _rows(self, catalog: str) -> Iterator[Mapping[str, object]]:
        facts = SessionFacts(user="", database="", version=self._version)
        columns = catalogs(self._version)[catalog]
        table = table_rows(catalog, columns, self._snapshot(), facts)
        for batch in table.to_batches(max_chunksize=1000):
            yield from batch.to_pylist()

    def _snapshot(self) -> CatalogSnapshot:
        tables = tuple(
            CatalogTable(then.table, TupleDesc())
            if then.state is None
            else with_columns(then.table, then.state)
            for then in self._tables.tables(self._transaction)
        )
        known = {table.oid for table in tables}
        with self._catalog.read() as t:
            published = t.publications.history().at(self._transaction.place)
            schemas = tuple(namespace.name for namespace in t.namespaces.all())
            snapshot = CatalogSnapshot(
                database="",
                tables=tables,
                publications=published.publications,
                publication_rels=tuple(r for r in published.relations if r.relation in known),
                publication_namespaces=tuple(
                    row for row in published.namespaces if row.schema in schemas
                ),
                schemas=schemas,
                types=t.types.all(),
            )
        return with_parents_columns(snapshot)
