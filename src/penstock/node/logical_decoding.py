"""Logical decoding by output plugins, put together from the node's parts.

In: the node's lake, log, slots and parameters. Out: ``LogicalReading`` for SQL functions, sources
for streams, plugins by name.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.catalog import Catalog
from penstock.decoding import OutputPlugin, find_plugin
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node.guc import Parameters
from penstock.pg_catalog.historic_catalogs import HistoricCatalogs
from penstock.pgoutput.options import PgoutputOptions
from penstock.walsender.decoding import Decoding, RelationSyncCache
from penstock.walsender.every_table import EveryTable
from penstock.walsender.historic_tables import HistoricTables
from penstock.walsender.lake_transactions import LakeTransactions
from penstock.walsender.logical_reading import LogicalReading
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slots import Slots
from penstock.walsender.wanted import Wanted


def plugin_finder(parameters: Callable[[], Parameters]) -> Callable[[str], OutputPlugin]:
    """Return a function that finds the plugins that ``output_plugin_libraries`` names now."""
    return lambda name: find_plugin(name, parameters().output_plugin_libraries)


def subscriber_source(
    spark: Spark, warehouse: Warehouse, catalog: Catalog, parameters: Callable[[], Parameters]
) -> Callable[[PgoutputOptions, Lsn | None], Decoding]:
    """Return a function that makes the decoding for one stream of pgoutput."""
    version = parameters().server_version
    return lambda options, two_phase_at: Decoding(
        spark,
        warehouse,
        catalog,
        RelationSyncCache(catalog, options.publication_names, version),
        Wanted.by(options, two_phase_at),
        lambda: parameters().logical_decoding_work_mem,
    )


def logical_reading(
    spark: Spark,
    warehouse: Warehouse,
    catalog: Catalog,
    sequencer: Sequencer,
    slots: Slots,
    parameters: Callable[[], Parameters],
) -> LogicalReading:
    """Return the reading of slots for SQL functions. ``parameters`` returns the present ones."""

    def work_mem() -> int:
        return parameters().logical_decoding_work_mem

    def transactions(two_phase_at: Lsn | None) -> LakeTransactions:
        wanted = Wanted(streaming=True, messages=True, as_rows=True, two_phase_at=two_phase_at)
        source = Decoding(spark, warehouse, catalog, EveryTable(), wanted, work_mem)
        tables, version = HistoricTables(warehouse, catalog), parameters().server_version
        return LakeTransactions(
            source,
            two_phase_at,
            lambda transaction: HistoricCatalogs(transaction, tables, catalog, version),
        )

    return LogicalReading(
        catalog,
        sequencer,
        slots,
        transactions,
        slots.plugin,
        parameters().server_version,
        work_mem,
        subscriber_source(spark, warehouse, catalog, parameters),
    )
