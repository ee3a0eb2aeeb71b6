"""UPDATE and DELETE on tables of the lake.

In: a change whose expressions Spark can name, and its table. Out: one Delta commit of each table
that has rows to change, and the number of rows. What a commit cannot say by its files goes with it:
which new row was which old one (``row_pairs``). Rows that leave their partition are left to
``row_moves``.

Where an UPDATE sets columns of partition keys and has found no row that moves, it is run on the
rows that stay. A row that another writer has put there since and that would move is younger than
the statement, which leaves it as it is.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

from penstock.catalog import Catalog, CatalogTransaction, LakeTable
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.constraints import check_partition
from penstock.executor.held_rows import HeldRows
from penstock.executor.partitions import PartitionRules
from penstock.executor.row_moves import RowMoves
from penstock.executor.row_pairs import paired_columns, write_pairs
from penstock.executor.rows import Change, RowChange, delta_table, quoted
from penstock.executor.small_rewrites import SmallRewrites
from penstock.executor.tables import LakeTables
from penstock.executor.unique_by_spark import check_not_null, check_unique, live_rows
from penstock.executor.unique_keys import UniqueKeys, unique_keys
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.protocol import ENABLE_VECTORS
from penstock.lakehouse.row_pairs import pairs_folder, pairs_mark
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.state import load
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.partition_tree import anywhere, routing_of
from penstock.pipeline.query import Interrupts
from penstock.pipeline.routing import Level
from penstock.publication.members import Operation
from penstock.publication.rules import check_identity
from penstock.walsender.lake_columns import LakeColumn, table_column
from penstock.walsender.sequencer import Sequencer


@contextmanager
def staying(
    change: Change,
    tree: Sequence[LakeTable],
    columns: Sequence[LakeColumn],
    session: SparkSession,
) -> Iterator[Callable[[LakeTable], Change]]:
    """What is changed of a leaf; the functions of ``session`` are there while inside. ``tree``: all
    of the topmost table, root first. Raises FeatureNotSupported."""
    schema = TableSchema(
        tuple(Column(c.delta, c.name, c.type, c.type_oid, c.typmod) for c in columns), ()
    )
    routing, leaves = routing_of(tree, schema)
    numbers = {leaf.oid: number for number, leaf in enumerate(leaves)}
    keys = sorted(routing.columns)
    name = f"penstock_{uuid.uuid4().hex}"
    session.udf.register(name, arrow_udf(_route_function(anywhere(routing), keys), "bigint"))
    new = dict(change.tried)
    leaf_of_new = f"{name}({', '.join(new.get(key, quoted(key)) for key in keys)})"
    where = f"({change.where}) AND " if change.where else ""

    def of(leaf: LakeTable) -> Change:
        return replace(change, where=f"{where}{leaf_of_new} = {numbers[leaf.oid]}")

    try:
        yield of
    finally:
        session.sql(f"DROP TEMPORARY FUNCTION {name}")


def _route_function(routing: Level, keys: Sequence[str]) -> Callable[..., pa.Array]:
    def route(*arguments: pa.Array) -> pa.Array:
        return pa.array(routing.leaves(pa.table(list(arguments), names=list(keys))), pa.int64())

    return route


USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
"""Setting of a session: user metadata of its commits."""
_FILE_COST: Final = "spark.sql.files.openCostInBytes"
_PARTITIONS: Final = "spark.sql.files.maxPartitionNum"


class Rewrites:
    """For every session."""

    def __init__(
        self,
        warehouse: Warehouse,
        catalog: Catalog,
        sequencer: Sequencer,
        tables: LakeTables,
        blocks: CommitBlocks,
        held: HeldRows,
        unique: UniqueKeys,
    ) -> None:
        self._unique = unique
        self._warehouse = warehouse
        self._catalog = catalog
        self._tables = tables
        self._moves = RowMoves(warehouse, sequencer)
        self._small = SmallRewrites(warehouse, catalog, tables, self._moves, blocks, held, unique)

    def run(self, table: LakeTable, change: RowChange, interrupts: Interrupts) -> int | None:
        """None: it is left to Spark, and nothing was done. Raises PenstockError."""
        self.check_identity(self._tables.leaves(table), Operation(change.kind))
        filled = self.is_filled(table)
        return self._small.run(table, change, interrupts, filled=filled)

    def run_by_spark(
        self, table: LakeTable, change: Change, session: SparkSession, interrupts: Interrupts
    ) -> int:
        """``session``: has the change's functions. Raises PenstockError, PySparkException."""
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
        with self._catalog.read() as t:
            partitions = PartitionRules(t.tables.all(), columns)
        filled = self.is_filled(table)
        changed = {name for name, _ in change.settings}
        if any(changed & partitions.keys_above(leaf) for leaf in leaves):
            constraint = partitions.constraint(table)
            for leaf in leaves if constraint is not None else ():
                check_partition(
                    self._changed_rows(leaf, change, session), constraint or "", table, columns
                )
            if table.partition_key is not None:
                count = self._moves.run(table, change, columns, partitions, session, filled=filled)
                if count is not None:
                    return count
            with staying(change, partitions.tree_of(table), columns, session) as of:
                return self._run_each(leaves, of, session)
        return self._run_each(leaves, lambda _: change, session)

    def _run_each(
        self,
        leaves: Sequence[LakeTable],
        change_of: Callable[[LakeTable], Change],
        session: SparkSession,
    ) -> int:
        if len(leaves) > 1:  # what fails for one partition fails before any is changed
            leaves = [leaf for leaf in leaves if self._touches(leaf, change_of(leaf), session)]
        return sum(self._commit(leaf, change_of(leaf), session) for leaf in leaves)

    def is_filled(self, table: LakeTable) -> bool:
        """Whether a subscription fills the table, one of its partitions, or what it is of."""
        leaves = self._tables.leaves(table)
        with self._catalog.read() as t:
            return _is_filled(t, table, leaves)

    def check_identity(self, leaves: Sequence[LakeTable], command: Operation) -> None:
        """CheckCmdReplicaIdentity: what could not be published is not done."""
        with self._catalog.read() as t:
            members = t.members()
        for leaf in leaves:
            columns = tuple(map(table_column, self._tables.columns(leaf)))
            check_identity(members, leaf, columns, command)

    def _touches(self, leaf: LakeTable, change: Change, session: SparkSession) -> bool:
        """Whether there are rows to change; all their new values are computed for it."""
        rows = self._changed_rows(leaf, change, session)
        return bool(rows.selectExpr("count(*)", "bit_xor(xxhash64(*))").collect()[0][0])

    def _changed_rows(self, leaf: LakeTable, change: Change, session: SparkSession) -> DataFrame:
        """The rows that are changed, with their new values."""
        settings = dict(change.settings)
        values = ", ".join(
            f"{settings.get(c.delta, quoted(c.delta))} AS {quoted(c.delta)}"
            for c in self._tables.columns(leaf)
        )
        return session.sql(f"SELECT {values} FROM {delta_table(leaf)}{change.condition}")

    def _commit(self, leaf: LakeTable, change: Change, session: SparkSession) -> int:
        """The change of one table, which keeps all its rows."""
        columns = self._paired_columns(leaf, change)
        state = load(self._warehouse.storage, leaf.uri or "")
        if state is None or state.properties.get(ENABLE_VECTORS, "false").lower() != "true":
            _read_files_apart(session)
        if not columns:
            return _run(leaf, change, session, {})
        storage = self._warehouse.storage
        version, files = write_pairs(session, storage, leaf, columns, change)
        try:
            return _run(leaf, change, session, pairs_mark(version, files))
        except BaseException:
            self._remove(leaf, files)
            raise

    def _paired_columns(self, leaf: LakeTable, change: Change) -> tuple[LakeColumn, ...]:
        changed = {name for name, _ in change.settings}
        return paired_columns(leaf, self._tables.columns(leaf), changed)

    def _remove(self, leaf: LakeTable, files: Sequence[WrittenFile]) -> None:
        """Best effort: what stays goes with the next VACUUM."""
        folder = pairs_folder(leaf.uri or "")
        for file in files:
            self._warehouse.storage.remove(f"{folder}/{file.path}")


def _read_files_apart(session: SparkSession) -> None:
    """Each file in a task of its own. Where a table has no deletion vectors, Delta asks for the
    names of files with rows that are meant by ``input_file_name()``; that is the file that a task
    has come to, which is another one by the time that a Python function has its answer for a row.
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
