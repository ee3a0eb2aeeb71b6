"""INSERT, UPDATE, DELETE and TRUNCATE on tables of the lake.

In: the statement of a session. Out: one Delta commit of each table that has rows, and the number
of rows; rows find their partition as in PostgreSQL, and what belongs nowhere is refused before
anything is written. How it is written is left to ``insert``, ``truncate``, ``small_rewrites``
and ``spark_rewrites``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from penstock.catalog import Catalog, Role
from penstock.errors import FeatureNotSupported
from penstock.executor.block import LakeBlock
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.block_statements import BlockStatements
from penstock.executor.held_rows import HeldRows
from penstock.executor.insert import InsertByFiles, InsertBySpark
from penstock.executor.rows import LakeRows, as_functions
from penstock.executor.select import LakeSelect
from penstock.executor.spark_rewrites import Rewrites
from penstock.executor.tables import LakeTables, is_partitioned
from penstock.executor.truncate import TruncateTables
from penstock.executor.unique_keys import UniqueKeys
from penstock.executor.writer import Writer
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.session import session_of_a_statement
from penstock.lakehouse.warehouse import Warehouse
from penstock.protocol.answers import CommandOutcome
from penstock.sql import RangeVar
from penstock.sql.grammar.parsenodes import InsertStmt, SelectStmt
from penstock.sql.grammar.raw_statements import parse_query
from penstock.walsender.sequencer import Position, Sequencer


class ModifyTables:
    """For every session."""

    def __init__(
        self,
        spark: Spark,
        warehouse: Warehouse,
        catalog: Catalog,
        sequencer: Sequencer,
        tables: LakeTables,
        select: LakeSelect,
        blocks: CommitBlocks,
        held: HeldRows,
        unique: UniqueKeys,
    ) -> None:
        self._rows = LakeRows(warehouse, tables, select)
        self._inserts = InsertByFiles(warehouse, catalog, tables, held, unique)
        self._spark_inserts = InsertBySpark(spark, catalog, tables, unique)
        self._truncates = TruncateTables(spark, warehouse, sequencer)
        self._rewrites = Rewrites(warehouse, catalog, sequencer, tables, blocks, held, unique)
        self._of_blocks = BlockStatements(catalog, tables, self._rewrites, held, unique)
        self._spark = spark
        self._sequencer = sequencer
        self._blocks = blocks
        self._held = held
        self._tables = tables

    def change(self, text: str, writer: Writer) -> CommandOutcome:
        """One statement. Raises PenstockError, PySparkException."""
        statement = parse_query(text)
        if isinstance(statement, SelectStmt):
            raise FeatureNotSupported("this statement changes nothing")
        table = self._tables.find(statement.relation, writer.role, owner=True)
        at = self._sequencer.position()
        with ExitStack() as stack:
            if isinstance(statement, InsertStmt):
                new = self._rows.new_rows(statement, table, at, writer)
                count = self._inserts.insert(table, new, writer.interrupts)
                if count is None:
                    staged = stack.enter_context(self._rows.staged(new, table))
                    count = self._spark_inserts.insert(table, staged, writer.interrupts)
                tag = f"INSERT 0 {count}"
            else:
                planned = self._rows.plan(statement, table, at, writer)
                count = self._rewrites.run(table, planned, writer.interrupts)
                if count is None:
                    leaves = {leaf.oid for leaf in self._tables.leaves(table)}
                    stack.enter_context(self._held.changing(leaves)).check_tables()
                    self._blocks.finish_those_of(leaves)
                    session = session_of_a_statement(self._spark)
                    functions = as_functions(planned, session, tolerant=is_partitioned(table))
                    change = stack.enter_context(functions)
                    count = self._rewrites.run_by_spark(table, change, session, writer.interrupts)
                tag = f"{planned.kind.upper()} {count}"
        self._sequencer.step()
        return CommandOutcome(tag)

    def stage(self, text: str, at: Position, writer: Writer, block: LakeBlock) -> CommandOutcome:
        """One statement of a transaction block, at a position of it. Raises PenstockError."""
        statement = parse_query(text)
        if isinstance(statement, SelectStmt):
            raise FeatureNotSupported("this statement changes nothing")
        table = self._tables.find(statement.relation, writer.role, owner=True)
        if isinstance(statement, InsertStmt):
            new = self._rows.new_rows(statement, table, at, writer)
            return CommandOutcome(f"INSERT 0 {self._of_blocks.insert(table, new, at, block)}")
        planned = self._rows.plan(statement, table, at, writer)
        count = self._of_blocks.rewrite(table, planned, at, writer.interrupts, block)
        return CommandOutcome(f"{planned.kind.upper()} {count}")

    def truncate(
        self, relations: Iterable[RangeVar], role: Role, *, restart: bool = False
    ) -> CommandOutcome:
        """TRUNCATE: one commit a table, and one transaction to subscribers. ``restart``: of their
        sequences, too (RESTART IDENTITY).

        Raises PenstockError, PySparkException.
        """
        tables = [self._tables.find(relation, role, owner=True) for relation in relations]
        members = {m.oid: m for table in tables for m in self._tables.tree(table)}
        with self._held.changing(members, new_rows=True) as held:
            held.check_emptied()
            self._blocks.finish_those_of(members)
            self._truncates.run(members)
            self._sequencer.step()  # in the log before what is prepared from now on
        for member in members.values() if restart else ():
            self._tables.restart_sequences(member)
        return CommandOutcome("TRUNCATE TABLE")
