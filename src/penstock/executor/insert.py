"""INSERT into tables of the lake: by their files, without a job of Spark's, or by Spark.

In: new rows and the table that is named. Out: one Delta commit of each table that gets rows, and
the number of rows. By files: None where only Delta itself knows what a table asks of its writers,
and nothing was read then. A row that belongs elsewhere, or nowhere, is refused before anything is
committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.catalog import Catalog, LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported, ReplicationConflict
from penstock.executor.constraints import ROUTE, check_found, check_partition
from penstock.executor.partitions import PartitionRules, Routing
from penstock.executor.routes import (
    OpenTable,
    Route,
    check_columns,
    destination,
    not_of_replication,
    route,
    schema_of,
)
from penstock.executor.rows import Change, NewRows, altered_error, delta_table
from penstock.executor.tables import LakeTables, is_partitioned
from penstock.lakehouse.append import Append
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile
from penstock.lakehouse.session import session_of_a_statement
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.routed_writer import RoutedWriter


class InsertByFiles:
    """For every session."""

    def __init__(self, warehouse: Warehouse, catalog: Catalog, tables: LakeTables) -> None:
        self._warehouse = warehouse
        self._catalog = catalog
        self._tables = tables

    def insert(self, table: LakeTable, rows: NewRows) -> int | None:
        """Raises PenstockError (23514; 40001, 40003: a table was altered meanwhile)."""
        try:
            routed = route(self._catalog, self._tables, table, rows.known)
            appends = [self._open(leaf) for leaf in routed.leaves]
        except FeatureNotSupported:
            return None
        check_columns(self._tables, table, rows.known, appends)
        files = write_rows(routed, appends, rows)
        self._commit(table, appends, files)
        return sum(file.rows for _, file in files)

    def _open(self, leaf: LakeTable) -> Append:
        warehouse = self._warehouse
        return Append(warehouse.storage, warehouse.store, leaf.uri or "", leaf.qualified_name)

    def _commit(
        self, table: LakeTable, appends: Sequence[Append], files: Sequence[tuple[int, WrittenFile]]
    ) -> None:
        waiting: dict[int, list[WrittenFile]] = {}
        for at, file in files:
            waiting.setdefault(at, []).append(file)
        done: list[str] = []
        while waiting:
            at = next(iter(waiting))
            try:
                appends[at].commit(waiting.pop(at))
                done.append(appends[at].name)
            except BaseException as error:
                for number, rest in waiting.items():
                    appends[number].remove(rest)
                if isinstance(error, (CommitConflict, FeatureNotSupported)):
                    raise altered_error(table, done) from None
                raise


def write_rows(
    routed: Route, opened: Sequence[OpenTable], rows: NewRows
) -> list[tuple[int, WrittenFile]]:
    """Files in the folders of the leaves, with the number of each file's. Raises PenstockError;
    nothing is left then."""
    schema = schema_of(rows.known).arrow()
    destinations = [destination(leaf, schema) for leaf in opened]
    writer = RoutedWriter(destinations, routed.routing, TARGET_FILE_BYTES)
    try:
        with writer:
            for batch in _whole(rows, schema):
                routed.check(batch)
                writer.add(batch)
    except ReplicationConflict as error:
        raise not_of_replication(error) from None
    return writer.files


def _whole(rows: NewRows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """With every column of the table: NULL in those that the rows have not."""
    at = {column.delta: number for number, column in enumerate(rows.columns)}
    for batch in rows.batches:
        columns = [
            batch.column(at[field.name])
            if field.name in at
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


class InsertBySpark:
    """Where only Delta itself knows what a table asks of its writers; for every session."""

    def __init__(self, spark: Spark, catalog: Catalog, tables: LakeTables) -> None:
        self._spark = spark
        self._catalog = catalog
        self._tables = tables

    def insert(self, table: LakeTable, change: Change) -> int:
        """The number of rows. Raises PenstockError (23514), PySparkException."""
        session = session_of_a_statement(self._spark)
        if not is_partitioned(table):
            session.sql(change.on(delta_table(table)))
            return change.count
        columns = self._tables.columns(table)
        with self._catalog.read() as t:
            partitions = PartitionRules(t.tables.all(), columns)
        frame = session.sql(change.rows)
        for column, kind in self._tables.spark_columns(table):
            if column not in change.columns:  # a key may be left out: it is NULL
                frame = frame.selectExpr("*", f"CAST(NULL AS {kind}) AS `{column}`")
        frame = frame.select(*(f"`{column.delta}`" for column in columns))
        constraint = partitions.constraint(table)
        routing = Routing("0", (table,), ())
        if table.partition_key is not None:
            routing = partitions.routing(table)
        # Counted, checked and written from the same rows, whatever the query is.
        rows = frame.selectExpr("*", f"{routing.expression} AS {ROUTE}").persist()
        try:
            if constraint is not None:
                check_partition(rows, constraint, table, columns)
            return self._insert_routed(rows, routing, partitions)
        finally:
            rows.unpersist()

    def _insert_routed(self, rows: DataFrame, routing: Routing, partitions: PartitionRules) -> int:
        counts = {row[0]: row[1] for row in rows.groupBy(ROUTE).count().collect()}
        check_found(rows, counts, routing, partitions)
        for number, leaf in enumerate(routing.leaves):
            if number in counts:
                part = rows.where(f"{ROUTE} = {number}").drop(ROUTE)
                part.write.format("delta").mode("append").save(leaf.uri)
        return int(sum(counts.values()))
