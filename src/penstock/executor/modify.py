"""INSERT, UPDATE, DELETE and TRUNCATE on tables of the lake.

In: the statement of a session. Out: one Delta commit of each table that has rows, and the number
of rows; rows find their partition as in PostgreSQL, and what belongs nowhere is refused before
anything is written. How it is written is left to ``insert``, ``truncate``, ``small_rewrites``
and ``spark_rewrites``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from penstock.catalog import Catalog, LakeTable, Role
from penstock.errors import CommitConflict, FeatureNotSupported
from penstock.executor.block import LakeBlock, not_in_a_block
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.held_rows import HeldRows
from penstock.executor.insert import InsertByFiles, InsertBySpark, write_rows
from penstock.executor.routes import Route, check_columns, route
from penstock.executor.row_moves import APP_ID
from penstock.executor.row_work import LeafWork
from penstock.executor.rows import LakeRows, NewRows, RowChange, as_functions, delta_table
from penstock.executor.select import LakeSelect
from penstock.executor.small_rewrites import has_change_feed
from penstock.executor.spark_rewrites import USER_METADATA, Rewrites
from penstock.executor.tables import LakeTables, is_partitioned
from penstock.executor.unique_keys import UniqueKeys, unique_keys
from penstock.executor.writer import Writer
from penstock.lakehouse.actions import commit_info, lines, now_ms
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.session import session_of_a_statement
from penstock.lakehouse.staged_change import INSERT, MOVE
from penstock.lakehouse.state import load
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.user_metadata import grouped_mark
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.query import Interrupts
from penstock.protocol.answers import CommandOutcome
from penstock.publication.members import Operation
from penstock.sql import RangeVar
from penstock.sql.grammar.parsenodes import InsertStmt, SelectStmt
from penstock.sql.grammar.raw_statements import parse_query
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import LakeColumn
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


# INSERT, UPDATE and DELETE of a transaction block: staged, and committed by its COMMIT.
#
# In: raw statements, and the block that they are of. Out: the number of rows; files and positions
# are in the block then, or nothing is where the statement fails. Refused is what cannot be staged:
# what only Delta itself can write, rows of very large tables, tables that a subscription fills.

_MAX_BYTES: Final = 1 << 30
"""Of the files of all tables of an UPDATE or DELETE: this process alone reads them."""


class BlockStatements:
    """For every session."""

    def __init__(
        self,
        catalog: Catalog,
        tables: LakeTables,
        rewrites: Rewrites,
        held: HeldRows,
        unique: UniqueKeys,
    ) -> None:
        self._held = held
        self._unique = unique
        self._catalog = catalog
        self._tables = tables
        self._rewrites = rewrites

    def insert(self, table: LakeTable, rows: NewRows, at: Position, block: LakeBlock) -> int:
        """Raises PenstockError (0A000, 23502, 23505, 23514, 40001)."""
        found, opened = self._open("INSERT", table, rows.known, at, block)
        keyed = [leaf.oid for leaf in found.leaves if unique_keys(leaf, rows.known)]

        def check(files: Sequence[tuple[int, WrittenFile]]) -> None:
            held = self._held.now(keyed)
            for number, keys in self._unique.of_files(found, opened, files, rows.known):
                keys.check(opened[number].files.values(), held)

        files = write_rows(found, opened, rows, check if keyed else lambda _: None)
        for number, leaf in enumerate(found.leaves):
            mine = [file for to, file in files if to == number]
            if mine:
                block.stage(leaf, INSERT, {}, mine)
        return sum(file.rows for _, file in files)

    def rewrite(
        self,
        table: LakeTable,
        change: RowChange,
        at: Position,
        interrupts: Interrupts,
        block: LakeBlock,
    ) -> int:
        """UPDATE or DELETE. Raises PenstockError (0A000, 23502, 23505, 23514, 40001, 55000)."""
        what = change.kind.upper()
        self._rewrites.check_identity(self._tables.leaves(table), Operation(change.kind))
        found, opened = self._open(what, table, change.known, at, block)
        if sum(file.size for leaf in opened for file in leaf.files.values()) > _MAX_BYTES:
            raise not_in_a_block(f"{what} of tables of more than {_MAX_BYTES >> 20} MB")
        if any(map(has_change_feed, opened)):
            raise not_in_a_block(f"{what} of tables with a change data feed")
        keyed = self._unique.keyed(found.leaves, change.known)
        works: list[LeafWork] = []
        try:
            for number in range(len(opened)):
                works.append(LeafWork(found, number, opened, change, interrupts, keyed=keyed))
                works[-1].run()
            held = self._held.now({leaf.oid for leaf in found.leaves})
            self._unique.check_works(found, works, change.known, held)
            pairs = [work.write_pairs() for work in works]
        except BaseException:
            for work in works:
                work.remove()
            raise
        for work, paired in zip(works, pairs, strict=True):
            kind = MOVE if work.leaves else change.kind
            for to, files in work.files.items():
                if to != work.number:
                    block.stage(found.leaves[to], INSERT, {}, files)
            if work.count:
                mine = work.files.get(work.number, ())
                block.stage(found.leaves[work.number], kind, work.gone, mine, paired)
        return sum(work.count for work in works)

    def _open(
        self,
        what: str,
        table: LakeTable,
        known: Sequence[LakeColumn],
        at: Position,
        block: LakeBlock,
    ) -> tuple[Route, list[DeltaTable]]:
        if self._rewrites.is_filled(table):
            raise not_in_a_block(f"{what} of tables that a subscription fills")
        try:
            found = route(self._catalog, self._tables, table, known)
            opened = [block.open(leaf, self._tables.version(leaf, at)) for leaf in found.leaves]
        except FeatureNotSupported as error:
            refusal = not_in_a_block(f"{what} of this table")
            raise FeatureNotSupported(
                refusal.message, detail=error.message, hint=refusal.hint
            ) from None
        check_columns(self._tables, table, known, opened)
        return found, opened


# TRUNCATE of tables of the lake (tablecmds.c, ExecuteTruncate).
#
# In: the tables. Out: one commit of each leaf, marked as what it is, also where there were no
# rows: subscribers may have rows of others in it. By Spark where only Delta itself knows what the
# table asks of its writers.

_IN_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
_OPERATION: Final = "TRUNCATE"


class TruncateTables:
    """For every session."""

    def __init__(self, spark: Spark, warehouse: Warehouse, sequencer: Sequencer) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._sequencer = sequencer

    def run(self, members: Mapping[int, LakeTable]) -> None:
        """``members``: by oid, with partitioned tables. Raises PenstockError, PySparkException."""
        mark = grouped_mark(str(uuid.uuid4()), members)
        with self._sequencer.one_transaction():
            for member in members.values():
                if member.partition_key is None and not self._by_files(member, mark):
                    self._by_spark(member, mark)

    def _by_files(self, leaf: LakeTable, mark: Mapping[str, object]) -> bool:
        """Everything that is there when it is committed goes."""
        storage, store = self._warehouse.storage, self._warehouse.store
        while True:
            try:
                table = DeltaTable.load(storage, store, leaf.uri or "", leaf.qualified_name)
            except FeatureNotSupported:
                return False
            if table is None:
                return False
            table.stage(remove_all=True)
            try:
                table.commit(
                    app_id=APP_ID,
                    operation=_OPERATION,
                    user_metadata=mark,
                )
            except CommitConflict:
                continue
            return True

    def _by_spark(self, leaf: LakeTable, mark: Mapping[str, object]) -> None:
        storage, uri = self._warehouse.storage, leaf.uri or ""
        session = session_of_a_statement(self._spark)
        session.conf.set(USER_METADATA, json.dumps(mark))
        before = newest_version(storage, uri)
        session.sql(f"DELETE FROM {delta_table(leaf)}").collect()
        if before is None or newest_version(storage, uri) != before:
            return
        state = load(storage, uri)
        configuration = {} if state is None else state.metadata.get("configuration") or {}
        if configuration.get(_IN_COMMIT_TIMESTAMPS) == "true":
            return  # Spark alone writes its log
        info = commit_info(
            _OPERATION, now=now_ms(), user_metadata=mark, blind_append=False, read_version=before
        )
        self._warehouse.store.put(uri, before + 1, lines([info]))
