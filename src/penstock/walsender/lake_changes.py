"""INSERT, UPDATE, DELETE and TRUNCATE on tables of the lake, run by Spark.

In: the statement of a session. Out: one Delta commit of each table that has rows, and the number
of rows; rows find their partition as in PostgreSQL, and what belongs nowhere is refused before
anything is written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import Catalog, LakeTable
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.lakehouse.actions import commit_info, lines, now_ms
from penstock.lakehouse.state import load
from penstock.lakehouse.truncate import grouped_mark
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.query import Interrupts
from penstock.pipeline.routing import CHECK_VIOLATION, no_partition
from penstock.publication.members import Action, Members
from penstock.publication.rules import check_identity
from penstock.sql import RangeVar
from penstock.sql.query.parsenodes import InsertStmt, SelectStmt
from penstock.sql.query.raw_statements import parse_query
from penstock.walsender.authentication import LoginRole
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import LakeColumn, filter_column
from penstock.walsender.lake_partitions import Partitions, Routing
from penstock.walsender.lake_rows import Change, LakeRows, quoted
from penstock.walsender.lake_select import LakeSelect
from penstock.walsender.lake_tables import LakeTables
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.services import CommandOutcome

_USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_IN_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
_ROUTE: Final = "_penstock_partition"
_SHOWN: Final = 64
"""Characters of a value in a message (ExecBuildSlotValueDescription)."""


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
        self._rows = LakeRows(spark, warehouse, tables, select)
        self._spark = spark
        self._warehouse = warehouse
        self._catalog = catalog
        self._sequencer = sequencer
        self._tables = tables

    def change(self, text: str, role: LoginRole, interrupts: Interrupts) -> CommandOutcome:
        """One statement. Raises PenstockError, PySparkException."""
        statement = parse_query(text)
        if isinstance(statement, SelectStmt):
            raise FeatureNotSupported("this statement changes nothing")
        table = self._tables.find(statement.relation, role, owner=True)
        at = self._sequencer.position()
        with ExitStack() as stack:
            if isinstance(statement, InsertStmt):
                rows = self._rows.inserted(statement, table, at, role, interrupts)
                tag = f"INSERT 0 {self._insert(table, stack.enter_context(rows))}"
            else:
                rows = self._rows.changed(statement, table, at, role, interrupts)
                change = stack.enter_context(rows)
                count = self._rewrite(table, change)
                tag = f"{change.kind.upper()} {count}"
        self._sequencer.step()
        return CommandOutcome(tag)

    def truncate(self, relations: Iterable[RangeVar], role: LoginRole) -> CommandOutcome:
        """TRUNCATE: one commit a table, marked as such, and one transaction to subscribers.

        Raises PenstockError, PySparkException.
        """
        tables = [self._tables.find(relation, role, owner=True) for relation in relations]
        members = {m.oid: m for table in tables for m in self._tables.tree(table)}
        leaves = [member for member in members.values() if member.partition_key is None]
        mark = grouped_mark(str(uuid.uuid4()), members)
        session = self._spark.newSession()
        session.conf.set(_USER_METADATA, json.dumps(mark))
        with self._sequencer.one_transaction():
            for leaf in leaves:
                self._empty(leaf, session, mark)
        self._sequencer.step()
        return CommandOutcome("TRUNCATE TABLE")

    def _empty(self, leaf: LakeTable, session: SparkSession, mark: Mapping[str, object]) -> None:
        """One commit, of an empty table as well: subscribers may have rows of others in it."""
        storage, uri = self._warehouse.storage, leaf.uri or ""
        before = newest_version(storage, uri)
        session.sql(f"DELETE FROM {_delta(leaf)}").collect()
        if before is None or newest_version(storage, uri) != before:
            return
        state = load(storage, uri)
        configuration = {} if state is None else state.metadata.get("configuration") or {}
        if configuration.get(_IN_COMMIT_TIMESTAMPS) == "true":
            return  # Spark alone writes its log
        info = commit_info(
            "TRUNCATE", now=now_ms(), user_metadata=mark, blind_append=False, read_version=before
        )
        self._warehouse.store.put(uri, before + 1, lines([info]))

    # INSERT

    def _insert(self, table: LakeTable, change: Change) -> int:
        if table.partition_key is None and table.parent is None:
            self._spark.sql(change.on(_delta(table)))
            return change.count
        columns = self._tables.columns(table)
        partitions = self._partitions(columns)
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
        rows = frame.selectExpr("*", f"{routing.expression} AS {_ROUTE}").persist()
        try:
            if constraint is not None:
                self._check(rows, constraint, table, columns)
            return self._insert_routed(rows, routing, partitions)
        finally:
            rows.unpersist()

    def _insert_routed(self, rows: DataFrame, routing: Routing, partitions: Partitions) -> int:
        counts = {row[0]: row[1] for row in rows.groupBy(_ROUTE).count().collect()}
        nowhere = [number for number in counts if number < 0]
        if nowhere:
            root = routing.roots[-1 - nowhere[0]]
            key = partitions.key(root)
            raise _no_partition(root, key, _first(rows, f"{_ROUTE} = {nowhere[0]}", key))
        for number, leaf in enumerate(routing.leaves):
            if number in counts:
                part = rows.where(f"{_ROUTE} = {number}").drop(_ROUTE)
                part.write.format("delta").mode("append").save(leaf.uri)
        return int(sum(counts.values()))

    # UPDATE and DELETE

    def _rewrite(self, table: LakeTable, change: Change) -> int:
        leaves = self._tables.leaves(table)
        self._check_identity(leaves, Action(change.kind))
        partitions = self._partitions(self._tables.columns(table))
        changed = {name for name, _ in change.settings}
        for leaf in leaves:
            if changed & partitions.keys_above(leaf):
                self._check_stays(leaf, table, change, partitions)
        if len(leaves) > 1:  # what fails for one partition fails before any is changed
            leaves = [leaf for leaf in leaves if self._touches(leaf, change)]
        return sum(self._run(change.on(_delta(leaf))) for leaf in leaves)

    def _check_identity(self, leaves: Sequence[LakeTable], command: Action) -> None:
        """CheckCmdReplicaIdentity: what could not be published is not done."""
        with self._catalog.read() as t:
            publications = t.publications
            members = Members(
                publications.all(),
                publications.relations(),
                publications.namespaces(),
                t.tables.all(),
            )
        for leaf in leaves:
            columns = tuple(map(filter_column, self._tables.columns(leaf)))
            check_identity(members, leaf, columns, command)

    def _touches(self, leaf: LakeTable, change: Change) -> bool:
        """Whether there are rows to change; all their new values are computed for it."""
        rows = self._changed(leaf, change).selectExpr("count(*)", "bit_xor(xxhash64(*))")
        return bool(rows.collect()[0][0])

    def _changed(self, leaf: LakeTable, change: Change) -> DataFrame:
        """The rows that are changed, with their new values."""
        settings = dict(change.settings)
        values = ", ".join(
            f"{settings.get(c.delta, quoted(c.delta))} AS {quoted(c.delta)}"
            for c in self._tables.columns(leaf)
        )
        where = f" WHERE {change.where}" if change.where else ""
        return self._spark.sql(f"SELECT {values} FROM {_delta(leaf)}{where}")

    def _check_stays(
        self, leaf: LakeTable, table: LakeTable, change: Change, partitions: Partitions
    ) -> None:
        """Rows that an UPDATE changes belong to their partition afterwards, too."""
        constraint = partitions.constraint(leaf)
        if constraint is None:
            return
        rows, columns = self._changed(leaf, change), self._tables.columns(leaf)
        if leaf.oid == table.oid:
            self._check(rows, constraint, table, columns)
        elif _first(rows, f"NOT ({constraint})", columns) is not None:
            raise FeatureNotSupported(
                "moving a row to another partition by UPDATE is not supported",
                hint="DELETE the row and INSERT it anew.",
            )

    # Both

    def _check(
        self,
        rows: DataFrame,
        constraint: str,
        table: LakeTable,
        columns: Sequence[LakeColumn],
    ) -> None:
        """ExecPartitionCheck: for a partition that is named itself."""
        values = _first(rows, f"NOT ({constraint})", columns)
        if values is not None:
            raise PenstockError(
                f'new row for relation "{table.name}" violates partition constraint',
                detail=f"Failing row contains ({', '.join(values)}).",
                sqlstate=CHECK_VIOLATION,
            )

    def _partitions(self, columns: Sequence[LakeColumn]) -> Partitions:
        with self._catalog.read() as t:
            return Partitions(t.tables.all(), columns)

    def _run(self, statement: str) -> int:
        counts: list[Any] = self._spark.sql(statement).collect()
        return int(counts[0][0]) if counts else 0


def _first(rows: DataFrame, where: str, columns: Sequence[LakeColumn]) -> list[str] | None:
    """The values of one such row as PostgreSQL prints them; None when there is none."""
    names = [quoted(column.delta) for column in columns]
    found: pa.Table = rows.where(where).select(*names).limit(1).toArrow()
    if found.num_rows == 0:
        return None
    cells = [text_output(column.combine_chunks())[0].as_py() for column in found.columns]
    return ["null" if cell is None else _shown(cell.decode()) for cell in cells]


def _shown(value: str) -> str:
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "..."


def _no_partition(
    root: LakeTable, key: Sequence[LakeColumn], values: Sequence[str] | None
) -> PenstockError:
    message, detail = no_partition(root.name, [column.name for column in key], values or ())
    return PenstockError(message, detail=detail, sqlstate=CHECK_VIOLATION)


def _delta(table: LakeTable) -> str:
    return f"delta.`{table.uri}`"
