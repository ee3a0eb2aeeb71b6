"""INSERT into tables of the lake: by their files, without a job of Spark's, or by Spark.

In: new rows and the table that is named. Out: one Delta commit of each table that gets rows, and
the number of rows. By files: None where only Delta itself knows what a table asks of its writers,
and nothing was read then. A row that belongs elsewhere, or nowhere, is refused before anything is
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from pyspark.sql import DataFrame

from penstock.catalog import Catalog, LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported, ReplicationConflict
from penstock.executor.constraints import ROUTE, check_found, check_partition
from penstock.executor.held_rows import HeldRows
from penstock.executor.partitions import PartitionRules, Routing
from penstock.executor.routes import (
    OpenTable,
    Route,
    check_columns,
    destination,
    not_of_replication,
    required_columns,
    route,
    schema_of,
)
from penstock.executor.rows import (
    Change,
    NewRows,
    altered_error,
    delta_table,
    serialization_failure,
)
from penstock.executor.shown_rows import first_null_of_leaves, null_error
from penstock.executor.tables import LakeTables, is_partitioned
from penstock.executor.unique_by_spark import check_unique, live_rows
from penstock.executor.unique_keys import UniqueKeys, unique_keys
from penstock.lakehouse.append import Append
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile
from penstock.lakehouse.session import session_of_a_statement
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.query import Interrupts
from penstock.pipeline.routed_writer import RoutedWriter
from penstock.sqlstate import NotNullViolation, UniqueViolation


class InsertByFiles:
    """For every session."""

    def __init__(
        self,
        warehouse: Warehouse,
        catalog: Catalog,
        tables: LakeTables,
        held: HeldRows,
        unique: UniqueKeys,
    ) -> None:
        self._warehouse = warehouse
        self._catalog = catalog
        self._tables = tables
        self._held = held
        self._unique = unique

    def insert(self, table: LakeTable, rows: NewRows, interrupts: Interrupts) -> int | None:
        """Raises PenstockError (23502, 23505, 23514; 40001, 40003: a table was altered meanwhile,
        or somebody has brought one of the keys when a part was done)."""
        try:
            routed = route(self._catalog, self._tables, table, rows.known)
            appends = [self._open(leaf) for leaf in routed.leaves]
        except FeatureNotSupported:
            return None
        check_columns(self._tables, table, rows.known, appends)
        keyed = [leaf.oid for leaf in routed.leaves if unique_keys(leaf, rows.known)]
        if not keyed:
            files = write_rows(routed, appends, rows, lambda _: None)
            self._commit(table, appends, files)
            return sum(file.rows for _, file in files)
        with self._held.changing(keyed, new_rows=True) as held, ExitStack() as stack:

            def check(files: Sequence[tuple[int, WrittenFile]]) -> None:
                stack.enter_context(self._unique.turn(keyed, interrupts.check))
                for number, keys in self._unique.of_files(routed, appends, files, rows.known):
                    try:
                        appends[number].check(partial(keys.check, held=held), keys.check_files)
                    except (CommitConflict, FeatureNotSupported):
                        raise altered_error(table) from None

            files = write_rows(routed, appends, rows, check)
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
                if done and isinstance(error, UniqueViolation):
                    raise serialization_failure(error.detail, done) from None
                raise


def write_rows(
    routed: Route,
    opened: Sequence[OpenTable],
    rows: NewRows,
    check: Callable[[Sequence[tuple[int, WrittenFile]]], None],
) -> list[tuple[int, WrittenFile]]:
    """Files in the folders of the leaves, with the number of each file's. ``check``: is asked of
    them, whether their rows may come, before a NULL in a later row is an error. Raises
    PenstockError; nothing is left then."""
    schema = schema_of(rows.known).arrow()
    destinations = [destination(leaf, schema) for leaf in opened]
    writer = RoutedWriter(destinations, routed.routing, TARGET_FILE_BYTES)
    required = required_columns(routed, opened, rows.required)
    missing: NotNullViolation | None = None
    try:
        with writer:
            for batch in rows.whole(schema):
                leaves = routed.leaves_of(batch)
                at = first_null_of_leaves(rows.known, required, batch, leaves)
                if at is not None:
                    number = 0 if leaves is None else int(leaves[at])
                    row, leaf = batch.slice(at, 1), routed.leaves[number]
                    missing = null_error(leaf, rows.known, required[number], row)
                    batch, leaves = batch.slice(0, at), None if leaves is None else leaves[:at]
                writer.add(batch, leaves)
                if missing is not None:
                    break
    except ReplicationConflict as error:
        raise not_of_replication(error) from None
    try:
        check(writer.files)
        if missing is not None:
            raise missing
    except BaseException:
        for to, file in writer.files:
            opened[to].storage.remove(f"{opened[to].uri}/{file.path}")
        raise
    return writer.files


class InsertBySpark:
    """Where only Delta itself knows what a table asks of its writers; for every session."""

    def __init__(
        self, spark: Spark, catalog: Catalog, tables: LakeTables, unique: UniqueKeys
    ) -> None:
        self._unique = unique
        self._spark = spark
        self._catalog = catalog
        self._tables = tables

    def insert(self, table: LakeTable, change: Change, interrupts: Interrupts) -> int:
        """The number of rows. Raises PenstockError (23505, 23514), PySparkException."""
        columns = self._tables.columns(table)
        keyed = [leaf for leaf in self._tables.leaves(table) if unique_keys(leaf, columns)]
        with self._unique.turn((leaf.oid for leaf in keyed), interrupts.check):
            return self._insert(table, change)

    def _insert(self, table: LakeTable, change: Change) -> int:
        session = session_of_a_statement(self._spark)
        if not is_partitioned(table):
            self._check(session.sql(change.rows), table)
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
                self._check(rows.where(f"{ROUTE} = {number}"), leaf)
        for number, leaf in enumerate(routing.leaves):
            if number in counts:
                part = rows.where(f"{ROUTE} = {number}").drop(ROUTE)
                part.write.format("delta").mode("append").save(leaf.uri)
        return int(sum(counts.values()))

    def _check(self, rows: DataFrame, leaf: LakeTable) -> None:
        """``rows``: that are to go there; what they lack is NULL. Raises UniqueViolation."""
        known = unique_keys(leaf, self._tables.columns(leaf))
        keys = [key for key in known if set(key.names) <= set(rows.columns)]
        if keys:
            check_unique(rows, live_rows(leaf, rows.sparkSession), leaf, keys)
