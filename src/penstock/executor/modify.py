"""INSERT, UPDATE, DELETE and TRUNCATE on tables of the lake.

A statement makes one Delta commit for each table with rows to change, and returns the number of
rows. Rows are routed to partitions as in PostgreSQL; a row that belongs to no partition is refused
before anything is committed. ``ModifyTables`` chooses the class below that runs the statement.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
from pyroaring import BitMap
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Role
from penstock.errors import CommitConflict, FeatureNotSupported, PenstockError
from penstock.executor.block import LakeBlock, not_in_a_block
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.held_rows import Held, HeldRows
from penstock.executor.routes import (
    ROUTE,
    OpenTable,
    Route,
    check_columns,
    destination,
    required_columns,
    route,
)
from penstock.executor.row_pairs import differ, old_values, pair_schema, paired_columns, write_pairs
from penstock.executor.row_work import LeafWork
from penstock.executor.rows import (
    Change,
    LakeRows,
    NewRows,
    RowChange,
    altered_error,
    as_functions,
    delta_table,
    outrun,
    quoted,
    sentence,
    serialization_failure,
)
from penstock.executor.select import LakeSelect
from penstock.executor.spark_errors import PartByPart, has_spark_ended
from penstock.executor.tables import LakeTables, is_partitioned
from penstock.executor.unique_keys import (
    UniqueKeys,
    check_not_null,
    check_unique,
    live_rows,
    unique_keys,
)
from penstock.executor.writer import Writer
from penstock.lakehouse.actions import grouped_mark
from penstock.lakehouse.change import INSERT, MOVE
from penstock.lakehouse.cluster import Spark, cleaning_up
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile
from penstock.lakehouse.protocol import ENABLE_VECTORS, check_writable
from penstock.lakehouse.row_pairs import NEW, OLD, pairs_folder, pairs_mark
from penstock.lakehouse.session import session_of_a_statement
from penstock.lakehouse.state import load
from penstock.lakehouse.warehouse import Warehouse
from penstock.lakehouse.xact import Commit
from penstock.pipeline.query import Interrupts
from penstock.pipeline.routed_writer import RoutedWriter
from penstock.pipeline.write_frame import write_frame
from penstock.protocol.answers import CommandOutcome
from penstock.publication.members import Operation
from penstock.publication.rules import check_identity
from penstock.sql import RangeVar
from penstock.sql.grammar.parsenodes import InsertStmt, RowStmt
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import LakeColumn, schema_of, table_column
from penstock.walsender.sequencer import Position, Sequencer


class ModifyTables:
    """Runs the statements that change tables of the lake, for all sessions."""

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
        self._spark_inserts = InsertBySpark(spark, catalog, warehouse, tables, unique)
        self._truncates = TruncateTables(spark, warehouse, catalog, sequencer, blocks)
        self._rewrites = Rewrites(warehouse, catalog, blocks, tables, unique)
        self._by_files = ModifyByFiles(
            warehouse, catalog, tables, self._rewrites, blocks, held, unique
        )
        self._spark = spark
        self._sequencer = sequencer
        self._blocks = blocks
        self._held = held
        self._tables = tables

    def change(self, statement: RowStmt, writer: Writer) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE and commit it. Raises PenstockError, PySparkException."""
        table = self._tables.find(statement.relation, writer.role, owner=True)
        at = self._sequencer.position()
        with ExitStack() as stack:
            if isinstance(statement, InsertStmt):
                new = self._rows.new_rows(statement, table, at, writer)
                count = self._by_files.insert_alone(table, new, writer.interrupts)
                if count is None:
                    staged = stack.enter_context(self._rows.staged(new, table))
                    count = self._spark_inserts.insert(table, staged, writer.interrupts)
                tag = f"INSERT 0 {count}"
            else:
                planned = self._rows.plan(statement, table, at, writer)
                count = self._by_files.rewrite_alone(table, planned, writer.interrupts)
                if count is None:
                    leaves = {leaf.oid for leaf in self._tables.leaves(table)}
                    stack.enter_context(self._held.changing(leaves)).check_tables()
                    self._blocks.finish_those_of(leaves)
                    session = session_of_a_statement(self._spark)
                    change = stack.enter_context(as_functions(planned, session))
                    count = self._rewrites.run_by_spark(table, change, session, writer.interrupts)
                tag = f"{planned.kind.upper()} {count}"
        self._blocks.put_into_log()
        return CommandOutcome(tag)

    def stage(
        self, statement: RowStmt, at: Position, writer: Writer, block: LakeBlock
    ) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE in a transaction block, on tables as of ``at``. Raises
        PenstockError."""
        table = self._tables.find(statement.relation, writer.role, owner=True)
        if isinstance(statement, InsertStmt):
            new = self._rows.new_rows(statement, table, at, writer)
            return CommandOutcome(f"INSERT 0 {self._by_files.insert(table, new, at, block)}")
        planned = self._rows.plan(statement, table, at, writer)
        count = self._by_files.rewrite(table, planned, at, writer.interrupts, block)
        return CommandOutcome(f"{planned.kind.upper()} {count}")

    def truncate(
        self, relations: Iterable[RangeVar], role: Role, *, restart: bool = False
    ) -> CommandOutcome:
        """Run TRUNCATE: one Delta commit for each table, but one transaction for subscribers.
        ``restart``: also restart the tables' sequences (RESTART IDENTITY).

        Raises PenstockError, PySparkException.
        """
        tables = [self._tables.find(relation, role, owner=True) for relation in relations]
        members = {m.oid: m for table in tables for m in self._tables.tree(table)}
        with self._held.changing(members, new_rows=True) as held:
            held.check_emptied()
            self._blocks.finish_those_of(members)
            self._truncates.run(members)
            self._blocks.put_into_log()
        for member in members.values() if restart else ():
            self._tables.restart_sequences(member)
        return CommandOutcome("TRUNCATE TABLE")


# INSERT, UPDATE and DELETE by writing files, without a Spark job. They stage their changes in a
# block, and COMMIT commits them. A single statement is a block of its own, which is committed at
# once:
#
#     in a block    read at the block's snapshot -> stage              -> COMMIT
#     single        read the newest versions     -> stage, check keys  -> commit, or read again
#
# If the statement fails, nothing is staged. A block refuses UPDATE and DELETE of very large tables,
# and changes of tables that only Delta itself can write; outside of a block, Spark runs them. A
# block also refuses changes of tables that a subscription fills.

MAX_BYTES: Final = 8 << 20
"""The most bytes of all data files of the tables that an UPDATE or DELETE outside of a block
changes by files. Reading and writing them takes less time than starting a Spark job."""
_MAX_BLOCK_BYTES: Final = 1 << 30
"""The same limit for a statement in a block, which Spark cannot run."""
_INSERT: Final = "INSERT"
_ATTEMPTS: Final = 20
"""The number of attempts at a statement while others change the same rows."""
_CHANGE_FEED: Final = "delta.enableChangeDataFeed"
"""The property of tables with a change data feed. Readers of the feed need pairs of old and new
rows, which only Delta's own UPDATE writes."""


class ModifyByFiles:
    """Changes rows by writing files, for all sessions."""

    def __init__(
        self,
        warehouse: Warehouse,
        catalog: Catalog,
        tables: LakeTables,
        rewrites: Rewrites,
        blocks: CommitBlocks,
        held: HeldRows,
        unique: UniqueKeys,
    ) -> None:
        self._warehouse = warehouse
        self._catalog = catalog
        self._tables = tables
        self._rewrites = rewrites
        self._blocks = blocks
        self._held = held
        self._unique = unique

    def insert(self, table: LakeTable, rows: NewRows, at: Position, block: LakeBlock) -> int:
        """Stage an INSERT and return the number of rows. Raises PenstockError (0A000, 23502, 23505,
        23514, 40001)."""
        self._check_not_filled(_INSERT, table)
        found, opened = self._open_to_insert(table, rows, at, block)
        return self._insert(found, opened, rows, block, self._held.now)

    def insert_alone(self, table: LakeTable, rows: NewRows, interrupts: Interrupts) -> int | None:
        """Run an INSERT outside of a block, and return the number of rows. If a table has features
        that only Delta itself can maintain, read no rows and return None.

        Raises PenstockError (23502, 23505, 23514, 40003; 40001 if another session altered a table).
        """
        block = LakeBlock(self._warehouse)
        with ExitStack() as stack:
            stack.callback(block.end)
            try:
                found, opened = self._open_to_insert(table, rows, None, block)
            except FeatureNotSupported:
                return None

            def turn(keyed: Collection[int]) -> Held:
                held = stack.enter_context(self._held.changing(keyed, new_rows=True))
                stack.enter_context(self._unique.turn(keyed, interrupts.check))
                return held

            count = self._insert(found, opened, rows, block, turn)
            try:
                self._commit(table, block)
            except CommitConflict as error:
                raise serialization_failure(sentence(error)) from None
            except FeatureNotSupported:
                raise altered_error(table) from None
            return count

    def _open_to_insert(
        self, table: LakeTable, rows: NewRows, at: Position | None, block: LakeBlock
    ) -> tuple[Route, list[OpenTable]]:
        """Open the leaves as of ``at``, or at their newest versions if None. Raises
        FeatureNotSupported if only Delta itself may write them."""
        with _refused_in_a_block(_INSERT):
            found = route(self._catalog, self._tables, table, rows.known)
            opened = [
                block.open(leaf, self._version(leaf, at), to_insert=True) for leaf in found.leaves
            ]
        check_columns(self._tables, table, rows.known, opened)
        return found, opened

    def _insert(
        self,
        found: Route,
        opened: Sequence[OpenTable],
        rows: NewRows,
        block: LakeBlock,
        held: Callable[[Collection[int]], Held],
    ) -> int:
        """Write the rows, check their keys, and only then stage them. Before the check, ``held`` is
        called with the leaves that have keys; it may wait for the lock of the keys."""
        keyed = [leaf.oid for leaf in found.leaves if unique_keys(leaf, rows.known)]

        def check(files: Sequence[tuple[int, WrittenFile]]) -> None:
            others = held(keyed)
            for number, keys in self._unique.of_files(found, opened, files, rows.known):
                keys.check(opened[number].state.files.values(), others)

        files = write_rows(found, opened, rows, check if keyed else lambda _: None)
        for number, leaf in enumerate(found.leaves):
            mine = [file for to, file in files if to == number]
            if mine:
                block.stage(leaf, INSERT, {}, mine, rules=found.rules[number])
        return sum(file.rows for _, file in files)

    def rewrite(
        self,
        table: LakeTable,
        change: RowChange,
        at: Position,
        interrupts: Interrupts,
        block: LakeBlock,
    ) -> int:
        """Stage an UPDATE or DELETE and return the number of rows. Raises PenstockError (0A000,
        23502, 23505, 23514, 40001, 55000)."""
        self._rewrites.check_identity(self._tables.leaves(table), Operation(change.kind))
        self._check_not_filled(change.kind.upper(), table)
        found = self._route(table, change)
        opened = self._open(found, change, at, block, _MAX_BLOCK_BYTES)
        held = self._held.now({leaf.oid for leaf in found.leaves})
        return self._stage(found, opened, change, interrupts, held, block)

    def rewrite_alone(
        self, table: LakeTable, change: RowChange, interrupts: Interrupts
    ) -> int | None:
        """Run an UPDATE or DELETE outside of a block, and return the number of rows. If only Spark
        can run it, do nothing and return None.

        Raises PenstockError (23502, 23505, 23514, 40003, 55000; 40001 if another session altered a
        table, or others changed the same rows first in every attempt).
        """
        self._rewrites.check_identity(self._tables.leaves(table), Operation(change.kind))
        try:
            found = self._route(table, change)
        except FeatureNotSupported:
            return None
        leaves = [leaf.oid for leaf in found.leaves]
        keyed = self._unique.concerns(found, change)
        with (
            self._held.changing(leaves, new_rows=keyed) as held,
            self._unique.turn(leaves if keyed else (), interrupts.check),
        ):
            for _ in range(_ATTEMPTS):
                block = LakeBlock(self._warehouse)
                try:
                    try:
                        opened = self._open(found, change, None, block, MAX_BYTES)
                    except FeatureNotSupported:
                        return None
                    if not self._blocks.settled(leaves):
                        continue
                    count = self._stage(found, opened, change, interrupts, held, block)
                    held.check_changes(block.changes)
                    self._commit(table, block)
                    return count
                except CommitConflict:
                    interrupts.check()
                finally:
                    block.end()
        raise outrun(table)

    def _route(self, table: LakeTable, change: RowChange) -> Route:
        with _refused_in_a_block(change.kind.upper()):
            return route(self._catalog, self._tables, table, change.known)

    def _open(
        self, found: Route, change: RowChange, at: Position | None, block: LakeBlock, most: int
    ) -> list[OpenTable]:
        """Open the leaves as of ``at``, or at their newest versions if None. Raises
        FeatureNotSupported if they have more than ``most`` bytes, or only Delta may write them."""
        what = change.kind.upper()
        with _refused_in_a_block(what):
            opened = [block.open(leaf, self._version(leaf, at)) for leaf in found.leaves]
        if sum(file.size for table in opened for file in table.state.files.values()) > most:
            raise not_in_a_block(f"{what} of tables of more than {most >> 20} MB")
        if any(map(_has_change_feed, opened)):
            raise not_in_a_block(f"{what} of tables with a change data feed")
        check_columns(self._tables, found.table, change.known, opened)
        return opened

    def _version(self, leaf: LakeTable, at: Position | None) -> int | None:
        return None if at is None else self._tables.version(leaf, at)

    def _commit(self, table: LakeTable, block: LakeBlock) -> None:
        filled = len(block.changes) > 1 and self._rewrites.is_filled(table)
        if filled and any(MOVE in each.kinds for each in block.changes):
            raise moves_of_filled()
        self._blocks.commit(block, alone=True, apart=filled)

    def _stage(
        self,
        found: Route,
        opened: Sequence[OpenTable],
        change: RowChange,
        interrupts: Interrupts,
        held: Held,
        block: LakeBlock,
    ) -> int:
        """Compute the changes of all leaves, and only then stage them."""
        keyed = self._unique.keyed(found.leaves, change.known)
        works: list[LeafWork] = []
        try:
            for number in range(len(opened)):
                works.append(LeafWork(found, number, opened, change, interrupts, keyed=keyed))
                works[-1].run()
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
                    block.stage(found.leaves[to], INSERT, {}, files, rules=found.rules[to])
            if work.count:
                mine, rules = work.files.get(work.number, ()), found.rules[work.number]
                block.stage(found.leaves[work.number], kind, work.gone, mine, paired, rules)
        return sum(work.count for work in works)

    def _check_not_filled(self, what: str, table: LakeTable) -> None:
        if self._rewrites.is_filled(table):
            raise not_in_a_block(f"{what} of tables that a subscription fills")


@contextmanager
def _refused_in_a_block(what: str) -> Iterator[None]:
    try:
        yield
    except FeatureNotSupported as error:
        refusal = not_in_a_block(f"{what} of this table")
        raise FeatureNotSupported(
            refusal.message, detail=error.message, hint=refusal.hint
        ) from None


def _has_change_feed(table: OpenTable) -> bool:
    return table.state.properties.get(_CHANGE_FEED, "false").lower() == "true"


# TRUNCATE of tables of the lake (tablecmds.c, ExecuteTruncate).
#
# Each leaf gets one commit, marked as a TRUNCATE, as in a transaction block: all leaves or none. A
# leaf without rows gets one, too, since subscribers may have other rows in theirs. If a table has
# features that only Delta itself can maintain, Spark empties it, and each leaf by itself.

_IN_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
_OPERATION: Final = "TRUNCATE"


class TruncateTables:
    """Empties tables, for all sessions."""

    def __init__(
        self,
        spark: Spark,
        warehouse: Warehouse,
        catalog: Catalog,
        sequencer: Sequencer,
        blocks: CommitBlocks,
    ) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._catalog = catalog
        self._sequencer = sequencer
        self._blocks = blocks

    def run(self, members: Mapping[int, LakeTable]) -> None:
        """Empty the leaves among ``members`` (by oid, with partitioned tables). Raises
        PenstockError (40001; 40003)."""
        mark = grouped_mark(str(uuid.uuid4()), members)
        leaves = [member for member in members.values() if member.partition_key is None]
        if self._by_files(leaves, mark):
            return
        parts = PartByPart()
        with self._sequencer.one_transaction():
            for leaf in leaves:
                with parts.committing(leaf):
                    self._by_spark(leaf, mark)

    def _by_files(self, leaves: Sequence[LakeTable], mark: Mapping[str, object]) -> bool:
        """Remove every file that exists at the commit. If only Spark can do that in one of the
        leaves, do nothing and return False."""
        for _ in range(_ATTEMPTS):
            block = LakeBlock(self._warehouse)
            try:
                for leaf in leaves:
                    state = block.open(leaf, None, to_insert=True).state
                    check_writable(leaf.qualified_name, state.protocol, state.metadata)
                    block.stage_none(leaf, mark)
                self._commit(leaves, block)
                return True
            except FeatureNotSupported:
                return False
            except CommitConflict:
                continue
            finally:
                block.end()
        raise outrun(leaves[0])

    def _commit(self, leaves: Sequence[LakeTable], block: LakeBlock) -> None:
        with self._catalog.read() as t:
            filled = any(_is_filled(t, leaf, [leaf]) for leaf in leaves)
        if filled:  # one look of the sequencer finds all commits
            with self._sequencer.one_transaction():
                self._blocks.commit(block, alone=True, apart=True)
        else:
            self._blocks.commit(block, alone=True)

    def _by_spark(self, leaf: LakeTable, mark: Mapping[str, object]) -> None:
        storage, uri = self._warehouse.storage, leaf.uri or ""
        session = session_of_a_statement(self._spark)
        session.conf.set(USER_METADATA, json.dumps(mark))
        before = newest_version(storage, uri)
        self._warehouse.check_lease()
        session.sql(f"DELETE FROM {delta_table(leaf)}").collect()
        if before is None or newest_version(storage, uri) != before:
            return
        state = load(storage, uri)
        configuration = {} if state is None else state.metadata.get("configuration") or {}
        if configuration.get(_IN_COMMIT_TIMESTAMPS) == "true":
            return  # only Spark may write a Delta log with in-commit timestamps
        self._warehouse.log_of(uri).put(before, Commit(_OPERATION, user_metadata=mark))


# INSERT into tables of the lake. This process writes the rows if it can; otherwise a Spark job
# does. A row that does not belong to the table is refused before anything is committed.

CheckFiles = Callable[[Sequence[tuple[int, WrittenFile]]], None]
"""A function that raises an error if new rows are not allowed. Its argument is the list of written
files, each with the number of its leaf."""


def write_rows(
    routed: Route,
    opened: Sequence[OpenTable],
    rows: NewRows,
    check: CheckFiles,
) -> list[tuple[int, WrittenFile]]:
    """Write rows to files in the folders of their leaves, and return each file with the number of
    its leaf. Writing stops at a row without a leaf or with a forbidden NULL, which is reported only
    if ``check`` accepts the files of the rows before it. Raises PenstockError, and then removes all
    files."""
    schema = schema_of(rows.known).arrow()
    destinations = [destination(leaf, schema) for leaf in opened]
    writer = RoutedWriter(destinations, routed.routing, TARGET_FILE_BYTES)
    required = required_columns(routed, opened, rows.required)
    error: PenstockError | None = None
    with writer:
        for batch in rows.whole(schema):
            placed = routed.place(batch, rows.known, required)
            writer.add(batch.slice(0, len(placed.leaves)), placed.leaves)
            if (error := placed.error) is not None:
                break
    try:
        check(writer.files)
        if error is not None:
            raise error
    except BaseException:
        for to, file in writer.files:
            opened[to].storage.remove(f"{opened[to].uri}/{file.path}")
        raise
    return writer.files


class InsertBySpark:
    """Inserts rows by Spark, for all sessions, into tables with features that only Delta itself can
    maintain."""

    def __init__(
        self,
        spark: Spark,
        catalog: Catalog,
        warehouse: Warehouse,
        tables: LakeTables,
        unique: UniqueKeys,
    ) -> None:
        self._unique = unique
        self._spark = spark
        self._catalog = catalog
        self._warehouse = warehouse
        self._tables = tables

    def insert(self, table: LakeTable, change: Change, interrupts: Interrupts) -> int:
        """Insert rows and return their number. Raises PenstockError (23505, 23514),
        PySparkException."""
        columns = self._tables.columns(table)
        keyed = [leaf for leaf in self._tables.leaves(table) if unique_keys(leaf, columns)]
        with self._unique.turn((leaf.oid for leaf in keyed), interrupts.check):
            return self._insert(table, change)

    def _insert(self, table: LakeTable, change: Change) -> int:
        session = session_of_a_statement(self._spark)
        if not is_partitioned(table):
            self._check(session.sql(change.rows), table)
            self._warehouse.check_lease()
            session.sql(change.on(delta_table(table)))
            return change.count
        columns = self._tables.columns(table)
        routed = route(self._catalog, self._tables, table, columns)
        frame = session.sql(change.rows)
        for column, kind in self._tables.spark_columns(table):
            if column not in change.columns:  # a partition key that INSERT leaves out is NULL
                frame = frame.selectExpr("*", f"CAST(NULL AS {kind}) AS `{column}`")
        frame = frame.select(*(f"`{column.delta}`" for column in columns))
        # Counting, checking and writing must see the same rows, even of a volatile query.
        rows = routed.routed(frame).persist()
        try:
            return self._insert_routed(rows, routed, columns)
        finally:
            with cleaning_up():
                rows.unpersist()

    def _insert_routed(self, rows: DataFrame, routed: Route, columns: Sequence[LakeColumn]) -> int:
        counts = {row[0]: row[1] for row in rows.groupBy(ROUTE).count().collect()}
        routed.check(rows, counts, columns)
        for number, leaf in enumerate(routed.leaves):
            if number in counts:
                self._check(rows.where(f"{ROUTE} = {number}"), leaf)
        parts = PartByPart()
        for number, leaf in enumerate(routed.leaves):
            if number in counts:
                part = rows.where(f"{ROUTE} = {number}").drop(ROUTE)
                with parts.committing(leaf):
                    self._warehouse.check_lease()
                    part.write.format("delta").mode("append").save(leaf.uri)
        return int(sum(counts.values()))

    def _check(self, rows: DataFrame, leaf: LakeTable) -> None:
        """Check the leaf's unique keys. ``rows``: the new rows of this leaf; columns that they lack
        are NULL. Raises UniqueViolation."""
        known = unique_keys(leaf, self._tables.columns(leaf))
        keys = [key for key in known if set(key.names) <= set(rows.columns)]
        if keys:
            check_unique(rows, live_rows(leaf, rows.sparkSession), leaf, keys)


# UPDATE and DELETE by Spark.
#
# Spark makes one Delta commit for each table with rows to change. The commit does not tell which
# old row a new row replaces, so ``row_pairs`` writes files that do. ``RowMoves`` handles rows that
# move to another partition.
#
# If an UPDATE of partition keys finds no row to move, it runs only on rows that stay: in the
# meantime another writer may have added a row that would move. The UPDATE need not change this row,
# which is younger than the statement.


@contextmanager
def staying(
    change: Change, routed: Route, session: SparkSession
) -> Iterator[Callable[[LakeTable], Change]]:
    """Yield a function that returns the change of a leaf, restricted to rows that stay in it. Its
    condition calls Spark functions that ``session`` has only inside the ``with`` block."""
    numbers = {leaf.oid: number for number, leaf in enumerate(routed.leaves)}
    function, keys = routed.function()
    name = f"penstock_{uuid.uuid4().hex}"
    session.udf.register(name, arrow_udf(function, "bigint"))
    new = dict(change.settings)
    leaf_of_new = f"{name}({', '.join(new.get(key, quoted(key)) for key in keys)})"
    where = f"({change.where}) AND " if change.where else ""

    def of(leaf: LakeTable) -> Change:
        return replace(change, where=f"{where}{leaf_of_new} = {numbers[leaf.oid]}")

    try:
        yield of
    finally:
        with cleaning_up():
            session.sql(f"DROP TEMPORARY FUNCTION {name}")


USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
"""The Spark setting for the user metadata of Delta commits."""
_FILE_COST: Final = "spark.sql.files.openCostInBytes"
_PARTITIONS: Final = "spark.sql.files.maxPartitionNum"


class Rewrites:
    """Runs UPDATE and DELETE by Spark, for all sessions."""

    def __init__(
        self,
        warehouse: Warehouse,
        catalog: Catalog,
        blocks: CommitBlocks,
        tables: LakeTables,
        unique: UniqueKeys,
    ) -> None:
        self._unique = unique
        self._warehouse = warehouse
        self._catalog = catalog
        self._tables = tables
        self._moves = RowMoves(warehouse, blocks)

    def run_by_spark(
        self, table: LakeTable, change: Change, session: SparkSession, interrupts: Interrupts
    ) -> int:
        """Change a table by Spark and return the number of rows. ``session`` has the functions that
        the change calls. Raises PenstockError, PySparkException."""
        leaves = self._tables.leaves(table)
        columns = self._tables.columns(table)
        changed = {name for name, _ in change.settings}
        keys = [key for key in unique_keys(table, columns) if changed & set(key.names)]
        with self._unique.turn((leaf.oid for leaf in leaves if keys), interrupts.check):
            if keys or change.required:
                rows = [self._changed_rows(leaf, change, session) for leaf in leaves]
                for leaf, mine in zip(leaves, rows, strict=True):
                    check_not_null(mine, leaf, columns, change.required)
                but = change.where or "true"
                others = [live_rows(leaf, session, but) for leaf in leaves]
                names = [quoted(column.delta) for column in columns]
                stay = reduce(DataFrame.union, (frame.select(*names) for frame in others))
                check_unique(reduce(DataFrame.union, rows), stay, table, keys)
            return self._run_by_spark(table, leaves, columns, change, session)

    def _run_by_spark(
        self,
        table: LakeTable,
        leaves: Sequence[LakeTable],
        columns: Sequence[LakeColumn],
        change: Change,
        session: SparkSession,
    ) -> int:
        changed = {name for name, _ in change.settings}
        keys = self._tables.partition_keys(table)
        if any(column.name in keys and column.delta in changed for column in columns):
            routed = route(self._catalog, self._tables, table, columns)
            filled = self.is_filled(table)
            count = self._moves.run(routed, change, columns, session, filled=filled)
            if count is not None:
                return count
            with staying(change, routed, session) as of:
                return self._run_each(leaves, of, session)
        return self._run_each(leaves, lambda _: change, session)

    def _run_each(
        self,
        leaves: Sequence[LakeTable],
        change_of: Callable[[LakeTable], Change],
        session: SparkSession,
    ) -> int:
        if len(leaves) > 1:  # find errors in all partitions before the first one is changed
            leaves = [leaf for leaf in leaves if self._touches(leaf, change_of(leaf), session)]
        parts, count = PartByPart(), 0
        for leaf in leaves:
            with parts.committing(leaf):
                count += self._commit(leaf, change_of(leaf), session)
        return count

    def is_filled(self, table: LakeTable) -> bool:
        """Tell whether a subscription fills the table, one of its partitions, or an ancestor."""
        leaves = self._tables.leaves(table)
        with self._catalog.read() as t:
            return _is_filled(t, table, leaves)

    def check_identity(self, leaves: Sequence[LakeTable], command: Operation) -> None:
        """Refuse a change that publications could not send (CheckCmdReplicaIdentity)."""
        with self._catalog.read() as t:
            members = t.members()
        for leaf in leaves:
            columns = tuple(map(table_column, self._tables.columns(leaf)))
            check_identity(members, leaf, columns, command)

    def _touches(self, leaf: LakeTable, change: Change, session: SparkSession) -> bool:
        """Tell whether there are rows to change. The hash makes Spark compute all new values, so
        that their errors are raised here."""
        rows = self._changed_rows(leaf, change, session)
        return bool(rows.selectExpr("count(*)", "bit_xor(xxhash64(*))").collect()[0][0])

    def _changed_rows(self, leaf: LakeTable, change: Change, session: SparkSession) -> DataFrame:
        """Return the changed rows, with their new values."""
        settings = dict(change.settings)
        values = ", ".join(
            f"{settings.get(c.delta, quoted(c.delta))} AS {quoted(c.delta)}"
            for c in self._tables.columns(leaf)
        )
        return session.sql(f"SELECT {values} FROM {delta_table(leaf)}{change.condition}")

    def _commit(self, leaf: LakeTable, change: Change, session: SparkSession) -> int:
        """Commit the change of one table, none of whose rows moves to another table."""
        columns = self._paired_columns(leaf, change)
        state = load(self._warehouse.storage, leaf.uri or "")
        if state is None or state.properties.get(ENABLE_VECTORS, "false").lower() != "true":
            _read_files_apart(session)
        if not columns:
            self._warehouse.check_lease()
            return _run(leaf, change, session, {})
        storage = self._warehouse.storage
        version, files = write_pairs(session, storage, leaf, columns, change)
        try:
            self._warehouse.check_lease()
            return _run(leaf, change, session, pairs_mark(version, files))
        except BaseException as error:
            # If Spark has ended it may be committed, and then names the files; otherwise VACUUM
            # removes them.
            if not has_spark_ended(error):
                self._remove(leaf, files)
            raise

    def _paired_columns(self, leaf: LakeTable, change: Change) -> tuple[LakeColumn, ...]:
        changed = {name for name, _ in change.settings}
        return paired_columns(leaf, self._tables.columns(leaf), changed)

    def _remove(self, leaf: LakeTable, files: Sequence[WrittenFile]) -> None:
        """Remove files of pairs. Files that cannot be removed are left to the next VACUUM."""
        folder = pairs_folder(leaf.uri or "")
        for file in files:
            self._warehouse.storage.remove(f"{folder}/{file.path}")


def _read_files_apart(session: SparkSession) -> None:
    """Make Spark read each file in a task of its own. In a table without deletion vectors, Delta
    finds the files to rewrite by ``input_file_name()``: the file that the task is reading now.
    While Python computes the condition of a row, a task with several files may already be reading
    the next file, and Delta would rewrite the wrong one.
    """
    session.conf.unset(_PARTITIONS)
    session.conf.set(_FILE_COST, "1t")


def _run(
    leaf: LakeTable, change: Change, session: SparkSession, metadata: Mapping[str, object]
) -> int:
    session.conf.unset(USER_METADATA)
    if metadata:
        session.conf.set(USER_METADATA, json.dumps(metadata))
    counts: list[Any] = session.sql(change.on(delta_table(leaf))).collect()
    return int(counts[0][0]) if counts else 0


def _is_filled(t: CatalogTransaction, table: LakeTable, leaves: Sequence[LakeTable]) -> bool:
    names = {(one.schema, one.name) for one in (table, *leaves)}
    above: LakeTable | None = table
    while above is not None and above.parent is not None:
        above = t.tables.find_oid(above.parent)
        if above is not None:
            names.add((above.schema, above.name))
    return any(
        rel.table_name in names
        for subscription in t.subscriptions.all()
        for rel in t.relations.all(subscription.oid)
    )


# UPDATE by Spark that moves rows to other partitions of a table (ExecCrossPartitionUpdate). The
# partitions are committed like the tables of a transaction block, all or none, and subscribers
# receive one transaction. If no row moves, nothing is done. Spark's tasks write the new rows; the
# driver keeps the row numbers of the old ones.

_SOURCE: Final = "_penstock_source"
"""The column with the number of a row's old leaf."""
_FILE: Final = "_penstock_file"
_POSITION: Final = "_penstock_position"


class RowMoves:
    """Moves rows between partitions, for all sessions."""

    def __init__(self, warehouse: Warehouse, blocks: CommitBlocks) -> None:
        self._warehouse = warehouse
        self._blocks = blocks

    def run(
        self,
        routed: Route,
        change: Change,
        columns: Sequence[LakeColumn],
        session: SparkSession,
        *,
        filled: bool,
    ) -> int | None:
        """Change the rows and return their number. If no row moves, do nothing and return None.
        ``filled``: a subscription fills the table; then no row may move (see ``moves_of_filled``).

        Raises FeatureNotSupported, PySparkException, PenstockError (23514; 40001 if another writer
        changed one of the rows first).
        """
        if not routed.leaves:
            return None
        job = _Job(self._warehouse, routed.leaves, change, columns)
        rows = routed.routed(job.rows(session)).persist()
        block = LakeBlock(self._warehouse)
        try:
            found = rows.groupBy(_SOURCE, ROUTE).count().collect()
            counts: dict[tuple[int, int], int] = {(row[0], row[1]): row[2] for row in found}
            routed.check(rows, (route for _, route in counts), columns)
            if not counts:
                return 0
            if all(source == route for source, route in counts):
                return None
            if filled:
                raise moves_of_filled()
            job.stage(rows, counts, block)
            self._blocks.commit(block, alone=True)
        except CommitConflict as error:
            raise serialization_failure(sentence(error)) from None
        finally:
            with cleaning_up():
                rows.unpersist()
            block.end()
        return sum(counts.values())


def moves_of_filled() -> FeatureNotSupported:
    """Return the error for a moving row in a table that a subscription fills: the subscription may
    make a cut between the two commits that move the row."""
    return FeatureNotSupported(
        "moving a row to another partition by UPDATE is not supported for tables that "
        "a subscription fills",
        hint="Make the change at the publisher.",
    )


class _Job:
    """Reads and writes the rows of one statement, at the tables' newest versions."""

    def __init__(
        self,
        warehouse: Warehouse,
        leaves: Sequence[LakeTable],
        change: Change,
        columns: Sequence[LakeColumn],
    ) -> None:
        self._warehouse = warehouse
        self._leaves = leaves
        self._change = change
        self._columns = columns
        storage = warehouse.storage
        self._versions = [newest_version(storage, leaf.uri or "") or 0 for leaf in leaves]
        changed = {name for name, _ in change.settings}
        self._paired = [paired_columns(leaf, columns, changed) for leaf in leaves]

    def rows(self, session: SparkSession) -> DataFrame:
        """Return the changed rows of all leaves: the new values, with the leaf, the file and the
        row number of the old row."""
        settings = dict(self._change.settings)
        kept = {c.name for paired in self._paired for c in paired}
        values = [
            f"_metadata.file_path AS {_FILE}",
            f"_metadata.row_index AS {_POSITION}",
            *old_values([c for c in self._columns if c.name in kept]),
            *(
                f"{settings.get(c.delta, quoted(c.delta))} AS {quoted(c.delta)}"
                for c in self._columns
            ),
        ]
        return reduce(
            DataFrame.union,
            (
                session.sql(
                    f"SELECT {number} AS {_SOURCE}, {', '.join(values)} FROM {delta_table(leaf)} "
                    f"VERSION AS OF {self._versions[number]}{self._change.condition}"
                )
                for number, leaf in enumerate(self._leaves)
            ),
        )

    def stage(
        self, rows: DataFrame, counts: Mapping[tuple[int, int], int], block: LakeBlock
    ) -> None:
        """Write all new rows and stage the changes of all leaves. ``counts``: the number of rows by
        (old leaf, new leaf)."""
        opened = {n: self._open(n, block) for n in sorted({n for two in counts for n in two})}
        gone = self._gone(rows, opened)
        written = {two: self._write(rows, two, opened, counts[two]) for two in sorted(counts)}
        for source in sorted({source for source, _ in counts}):
            mine = sum(len(positions) for positions in gone[source].values())
            if mine != sum(count for (s, _), count in counts.items() if s == source):
                raise PenstockError(
                    f'table "{opened[source].name}" has {mine} rows to change where others were'
                )
            kind = MOVE if any(s == source != to for s, to in counts) else self._change.kind
            stays = written.pop((source, source), [])
            pairs = self._pairs(rows, source) if stays else []
            block.stage(self._leaves[source], kind, gone[source], stays, pairs)
        for (_, target), files in written.items():
            block.stage(self._leaves[target], INSERT, {}, files)

    def _write(
        self,
        rows: DataFrame,
        two: tuple[int, int],
        opened: Mapping[int, OpenTable],
        count: int,
    ) -> list[WrittenFile]:
        """Write the new rows of one pair of leaves, ``two``: (old leaf, new leaf)."""
        table = opened[two[1]]
        schema, storage = table.schema.arrow(), self._warehouse.storage
        files = write_frame(_part(rows, two), storage, table.uri, schema, table.state.layout)
        written = sum(file.rows for file in files)
        if written != count:
            raise PenstockError(
                f'{written} rows were written for table "{table.name}" of {count} that were found',
                hint="Run the statement again: nothing was changed.",
            )
        return files

    def _open(self, number: int, block: LakeBlock) -> OpenTable:
        try:
            return block.open(self._leaves[number], self._versions[number])
        except FeatureNotSupported as error:
            raise FeatureNotSupported(
                "moving a row to another partition by UPDATE is not supported",
                detail=error.message,
                hint=error.hint,
            ) from None

    @staticmethod
    def _gone(rows: DataFrame, opened: Mapping[int, OpenTable]) -> dict[int, dict[str, BitMap]]:
        """Return the row numbers of the old rows, by leaf and file path."""
        paths = {
            n: {_name(path): path for path in table.state.files} for n, table in opened.items()
        }
        positions = rows.groupBy(_SOURCE, _FILE).agg({_POSITION: "collect_list"}).toArrow()
        found: dict[int, dict[str, BitMap]] = {}
        for source, uri, here in zip(*positions.columns, strict=True):
            path = paths[source.as_py()][_name(uri.as_py())]
            rows_of_file = here.values.to_numpy().astype(np.uint32)
            found.setdefault(source.as_py(), {})[path] = BitMap(rows_of_file)
        return found

    def _pairs(self, rows: DataFrame, number: int) -> list[WrittenFile]:
        """Write files that map the new rows of a leaf to its old rows."""
        columns = self._paired[number]
        if not columns:
            return []
        names = [
            *(quoted(OLD + c.name) for c in columns),
            *(f"{quoted(c.delta)} AS {quoted(NEW + c.name)}" for c in columns),
        ]
        pairs = _part(rows, (number, number)).selectExpr(*names).where(differ(columns))
        folder = pairs_folder(self._leaves[number].uri or "")
        return write_frame(pairs, self._warehouse.storage, folder, pair_schema(columns))


def _part(rows: DataFrame, two: tuple[int, int]) -> DataFrame:
    return rows.where(f"{_SOURCE} = {two[0]} AND {ROUTE} = {two[1]}")


def _name(uri: str) -> str:
    """Return the name of a data file, which is unique in its table."""
    return unquote(uri).rpartition("/")[2]
