"""Logical decoding by output plugins, put together from the node's parts.

In: the node's lake, log, slots and parameters. Out: ``LogicalReading`` for SQL functions and
streams, plugins by name.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.catalog import Catalog, LakeTransaction
from penstock.decoding import OutputPlugin, find_plugin
from penstock.decoding.reorder_buffer import Catalogs
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.warehouse import Warehouse
from penstock.node.guc import Parameters
from penstock.pg_catalog.historic_catalogs import HistoricCatalogs
from penstock.walsender.decoding import Decoding, RelationSyncCache
from penstock.walsender.decoding_options import DecodingOptions, PublishedAt
from penstock.walsender.every_table import EveryTable
from penstock.walsender.historic_tables import HistoricTables
from penstock.walsender.logical_reading import LogicalReading
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slots import Slots


def plugin_finder(parameters: Callable[[], Parameters]) -> Callable[[str], OutputPlugin]:
    """Return a function that finds the plugins that ``output_plugin_libraries`` names now."""
    return lambda name: find_plugin(name, parameters().output_plugin_libraries)


def logical_reading(
    spark: Spark,
    warehouse: Warehouse,
    catalog: Catalog,
    sequencer: Sequencer,
    slots: Slots,
    parameters: Callable[[], Parameters],
) -> LogicalReading:
    """Return the reading of slots by SQL functions and streams. ``parameters`` returns the present
    ones."""
    version = parameters().server_version

    def work_mem() -> int:
        return parameters().logical_decoding_work_mem

    def decoding(options: DecodingOptions) -> Decoding:
        published: PublishedAt = EveryTable()
        if options.pgoutput is not None:
            published = RelationSyncCache(catalog, options.pgoutput.publication_names, version)
        return Decoding(spark, warehouse, catalog, published, options, work_mem)

    def catalogs() -> Callable[[LakeTransaction], Catalogs]:
        tables = HistoricTables(warehouse, catalog)
        return lambda transaction: HistoricCatalogs(transaction, tables, catalog, version)

    return LogicalReading(
        catalog, sequencer, slots, slots.plugin, version, work_mem, decoding, catalogs
    )
