"""INSERT, UPDATE, DELETE and TRUNCATE on tables of the lake.

In: the statement of a session. Out: one Delta commit of each table that has rows, and the number
of rows; rows find their partition as in PostgreSQL, and what belongs nowhere is refused before
anything is written. What is written by files is left to ``insert``, ``truncate`` and
``spark_rewrites``; here is INSERT where Spark has to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import Catalog, LakeTable, Role
from penstock.errors import FeatureNotSupported
from penstock.executor.constraints import ROUTE, check_found, check_partition
from penstock.executor.insert import LakeAppends
from penstock.executor.partitions import Partitions, Routing
from penstock.executor.rows import Change, LakeRows, as_functions, delta_table
from penstock.executor.select import LakeSelect
from penstock.executor.spark_rewrites import LakeRewrites
from penstock.executor.tables import LakeTables, is_partitioned
from penstock.executor.truncate import LakeTruncates
from penstock.lakehouse.session import session_of_a_statement
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.query import Interrupts
from penstock.protocol.answers import CommandOutcome
from penstock.sql import RangeVar
from penstock.sql.query.parsenodes import InsertStmt, SelectStmt
from penstock.sql.query.raw_statements import parse_query
from penstock.walsender.sequencer import Sequencer


class LakeChanges:
    """For every session."""

    def __init__(
        self,
        spark: SparkSession,
        warehouse: Warehouse,
        catalog: Catalog,
        sequencer: Sequencer,
        tables: LakeTables,
        select: LakeSelect,
    ) -> None:
        self._rows = LakeRows(warehouse, tables, select)
        self._appends = LakeAppends(warehouse, catalog, tables)
        self._truncates = LakeTruncates(spark, warehouse, sequencer)
        self._rewrites = LakeRewrites(warehouse, catalog, sequencer, tables)
        self._spark = spark
        self._catalog = catalog
        self._sequencer = sequencer
        self._tables = tables

    def change(self, text: str, role: Role, interrupts: Interrupts) -> CommandOutcome:
        """One statement. Raises PenstockError, PySparkException."""
        statement = parse_query(text)
        if isinstance(statement, SelectStmt):
            raise FeatureNotSupported("this statement changes nothing")
        table = self._tables.find(statement.relation, role, owner=True)
        at = self._sequencer.position()
        with ExitStack() as stack:
            if isinstance(statement, InsertStmt):
                new = self._rows.new_rows(statement, table, at, role, interrupts)
                count = self._appends.insert(table, new)
                if count is None:
                    count = self._insert(table, stack.enter_context(self._rows.staged(new, table)))
                tag = f"INSERT 0 {count}"
            else:
                planned = self._rows.plan(statement, table, at, role, interrupts)
                count = self._rewrites.run(table, planned, interrupts)
                if count is None:
                    session = session_of_a_statement(self._spark)
                    functions = as_functions(planned, session, tolerant=is_partitioned(table))
                    change = stack.enter_context(functions)
                    count = self._rewrites.run_by_spark(table, change, session)
                tag = f"{planned.kind.upper()} {count}"
        self._sequencer.step()
        return CommandOutcome(tag)

    def truncate(self, relations: Iterable[RangeVar], role: Role) -> CommandOutcome:
        """TRUNCATE: one commit a table, and one transaction to subscribers.

        Raises PenstockError, PySparkException.
        """
        tables = [self._tables.find(relation, role, owner=True) for relation in relations]
        members = {m.oid: m for table in tables for m in self._tables.tree(table)}
        self._truncates.run(members)
        self._sequencer.step()
        return CommandOutcome("TRUNCATE TABLE")

    # INSERT

    def _insert(self, table: LakeTable, change: Change) -> int:
        if not is_partitioned(table):
            self._spark.sql(change.on(delta_table(table)))
            return change.count
        columns = self._tables.columns(table)
        with self._catalog.read() as t:
            partitions = Partitions(t.tables.all(), columns)
        frame = self._spark.sql(change.rows)
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

    def _insert_routed(self, rows: DataFrame, routing: Routing, partitions: Partitions) -> int:
        counts = {row[0]: row[1] for row in rows.groupBy(ROUTE).count().collect()}
        check_found(rows, counts, routing, partitions)
        for number, leaf in enumerate(routing.leaves):
            if number in counts:
                part = rows.where(f"{ROUTE} = {number}").drop(ROUTE)
                part.write.format("delta").mode("append").save(leaf.uri)
        return int(sum(counts.values()))
