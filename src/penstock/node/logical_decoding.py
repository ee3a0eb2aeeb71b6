"""Logical decoding by output plugins, assembled from the node's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from penstock.attribute import TupleDesc
from penstock.catalog import Catalog, LakeTransaction
from penstock.decoding import OutputPlugin, RelationData, find_plugin
from penstock.decoding.reorder_buffer import Catalogs, DecodingStats
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.warehouse import Warehouse
from penstock.node.guc import Parameters
from penstock.pg_catalog.node_catalogs import with_columns
from penstock.pg_catalog.relations import with_parents_columns
from penstock.pg_catalog.rows import catalogs, table_rows
from penstock.pg_catalog.snapshot import CatalogSnapshot, CatalogTable, SessionFacts
from penstock.sqlstate import UndefinedTable
from penstock.walsender.decoding import Decoding, RelationSyncCache
from penstock.walsender.decoding_options import Context, DecodingOptions, PublishedAt
from penstock.walsender.every_table import EveryTable
from penstock.walsender.historic_tables import HistoricTables
from penstock.walsender.logical_reading import LogicalReading
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slots import Slots

# The catalogs as output plugins see them at a change (``decoding.logical.Catalogs``). Tables, their
# columns and keys, and publications are as they were at the transaction. The node keeps no history
# of types, owners, partitions and further indexes, which are shown as they are now.

CATALOGS: Final = frozenset(
    {
        *("pg_am", "pg_attrdef", "pg_attribute", "pg_class", "pg_collation", "pg_constraint"),
        *("pg_enum", "pg_index", "pg_inherits", "pg_namespace", "pg_partitioned_table"),
        *("pg_publication", "pg_publication_namespace", "pg_publication_rel", "pg_type"),
    }
)
"""The catalogs that describe the object of a change. Catalogs of roles and subscriptions are left
out, since they hold secrets."""


class HistoricCatalogs:
    """``Catalogs`` as of one transaction; an instance is cheap to make."""

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
        """Return the rows of a catalog. Raises VersionGone, StorageError; UndefinedObject if
        ``CATALOGS`` does not name it."""
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


def plugin_finder(parameters: Callable[[], Parameters]) -> Callable[[str], OutputPlugin]:
    """Return a function that finds plugins among the present ``output_plugin_libraries``."""
    return lambda name: find_plugin(name, parameters().output_plugin_libraries)


def logical_reading(
    spark: Spark,
    warehouse: Warehouse,
    catalog: Catalog,
    sequencer: Sequencer,
    slots: Slots,
    parameters: Callable[[], Parameters],
    stats: Callable[[str], DecodingStats],
) -> LogicalReading:
    """Return the reader of slots for SQL functions and streams. ``parameters`` returns the present
    parameters, ``stats`` the counts of a slot."""
    version = parameters().server_version

    def work_mem() -> int:
        return parameters().logical_decoding_work_mem

    def decoding(options: DecodingOptions, context: Context) -> Decoding:
        published: PublishedAt = EveryTable()
        if options.pgoutput is not None:
            published = RelationSyncCache(catalog, options.pgoutput.publication_names, version)
        return Decoding(spark, warehouse, catalog, published, options, work_mem, context)

    def catalogs() -> Callable[[LakeTransaction], Catalogs]:
        tables = HistoricTables(warehouse, catalog)
        return lambda transaction: HistoricCatalogs(transaction, tables, catalog, version)

    return LogicalReading(
        catalog, sequencer, slots, slots.plugin, version, work_mem, decoding, catalogs, stats
    )
