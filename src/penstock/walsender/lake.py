"""Rows of the lake for sessions: COPY, SELECT and changes, all of them run by Spark.

In: requests with the consistent point that they read. Out: answers. Names, rights and columns are
checked here as PostgreSQL checks them; the work is ``pipeline``'s, the SQL is ``sql``'s.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.catalog import Catalog, LakeTable
from penstock.errors import FeatureNotSupported, PenstockError, UndefinedObject
from penstock.lakehouse.log import read_entry
from penstock.lakehouse.state import load, load_at
from penstock.lakehouse.truncate import MARK
from penstock.lakehouse.warehouse import OWN_FOLDER, Warehouse
from penstock.pgtypes.of_arrow import pg_type
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.copy_to import CopyColumn, CopyTable, copy_to
from penstock.pipeline.scan import ScanColumn
from penstock.protocol.backend_messages import FieldDescription
from penstock.publication.row_filter import FilterColumn, compile_row_filter
from penstock.sql import RangeVar
from penstock.sql.spark_dialect import SparkTable, change_for_spark, query_for_spark
from penstock.walsender.answers import CopyOut, Rows
from penstock.walsender.authentication import LoginRole
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import LakeColumn, columns_of, spark_type
from penstock.walsender.sequencer import Position, Sequencer
from penstock.walsender.services import CommandOutcome, CopyRequest

_PUBLIC: Final = "public"
_USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"

log = logging.getLogger(__name__)


class SparkLake:
    """``services.Lake``; for every session."""

    def __init__(
        self, spark: SparkSession, warehouse: Warehouse, catalog: Catalog, sequencer: Sequencer
    ) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._catalog = catalog
        self._sequencer = sequencer

    # COPY

    def copy(self, request: CopyRequest, at: Position, role: LoginRole) -> CopyOut:
        """COPY TO STDOUT. Raises PenstockError (42P01, 42501, 42703), FeatureNotSupported."""
        table = self._table(request.relation, role)
        leaves = self._leaves(table)
        sources = [(leaf, self._version(leaf, at)) for leaf in leaves]
        columns = self._columns(leaves[0], sources[0][1])
        names = request.columns or tuple(c.name for c in columns if not c.generated)
        for name in names:
            if name not in {column.name for column in columns}:
                raise UndefinedObject(f'column "{name}" does not exist', sqlstate="42703")
        predicate, used = self._predicate(request, columns, table)
        tables = [self._copy_table(leaf, version, names, used) for leaf, version in sources]
        staging = f"{self._warehouse.uri}/{OWN_FOLDER}/staging"
        self._warehouse.storage.create_folder(staging)
        chunks = copy_to(
            self._spark,
            self._warehouse.storage,
            tables,
            staging=staging,
            predicate=predicate,
            binary=request.binary,
        )
        return CopyOut(len(names), request.binary, chunks)

    def _predicate(
        self, request: CopyRequest, columns: tuple[LakeColumn, ...], table: LakeTable
    ) -> tuple[str | None, frozenset[str]]:
        if request.predicate is None:
            return None, frozenset()
        known = [FilterColumn(c.name, *_type(c)) for c in columns]
        compiled = compile_row_filter(request.predicate, known, table=table.qualified_name)
        return compiled.predicate, compiled.columns

    def _copy_table(
        self, table: LakeTable, version: int, names: tuple[str, ...], used: frozenset[str]
    ) -> CopyTable:
        by_name = {column.name: column for column in self._columns(table, version)}
        wanted = [(name, True) for name in names]
        wanted += [(name, False) for name in sorted(used - set(names))]
        return CopyTable(
            table.uri or "",
            version,
            tuple(
                CopyColumn(
                    ScanColumn(name, by_name[name].stored, by_name[name].type),
                    *_type(by_name[name]),
                    sent,
                )
                for name, sent in wanted
            ),
        )

    # Queries and changes

    def query(self, text: str, at: Position, role: LoginRole) -> Rows:
        """A SELECT on tables of the lake, at ``at``. Raises PenstockError."""
        views: list[str] = []

        def locate(schema: str | None, name: str) -> SparkTable:
            table = self._table(RangeVar(name, schema), role)
            view = f"penstock_{uuid.uuid4().hex}"
            reader = self._spark.read.format("delta")
            frame = reader.option("versionAsOf", self._version(table, at)).load(table.uri)
            for column in self._columns(table, self._version(table, at)):
                if column.delta != column.name:
                    frame = frame.withColumnRenamed(column.delta, column.name)
            frame.createOrReplaceTempView(view)
            views.append(view)
            return SparkTable(view, ())

        try:
            result = self._run(query_for_spark(text, locate)).toArrow()
        except PySparkException as error:
            raise _from_spark(error) from None
        finally:
            for view in views:
                self._spark.catalog.dropTempView(view)
        return _rows(result)

    def change(self, text: str, kind: str, role: LoginRole) -> CommandOutcome:
        """INSERT, UPDATE or DELETE: one commit. Raises PenstockError."""
        changed: list[LakeTable] = []

        def locate(schema: str | None, name: str) -> SparkTable:
            table = self._table(RangeVar(name, schema), role, owner=not changed)
            state = load(self._warehouse.storage, table.uri or "")
            assert state is not None
            changed.append(table)
            columns = tuple((c.delta, spark_type(c.type)) for c in columns_of(state))
            return SparkTable(f"delta.`{table.uri}`", columns)

        try:
            counts = self._run(change_for_spark(text, locate)).collect()
        except PySparkException as error:
            raise _from_spark(error) from None
        self._sequencer.step()
        if kind == "insert":
            return CommandOutcome(f"INSERT 0 {self._inserted(changed[0])}")
        return CommandOutcome(f"{kind.upper()} {int(counts[0][0]) if counts else 0}")

    def _inserted(self, table: LakeTable) -> int:
        """Rows of the newest commit, as it says of itself; Spark's INSERT gives no number."""
        version = newest_version(self._warehouse.storage, table.uri or "")
        actions = read_entry(self._warehouse.storage, table.uri or "", version or 0) or ()
        infos = [action["commitInfo"] for action in actions if action.get("commitInfo")]
        metrics = infos[0].get("operationMetrics") or {} if infos else {}
        return int(metrics.get("numOutputRows", 0))

    def truncate(self, relations: Iterable[RangeVar], role: LoginRole) -> CommandOutcome:
        """TRUNCATE: one commit a table, marked as what it is."""
        session = self._spark.newSession()
        session.conf.set(_USER_METADATA, json.dumps(MARK))
        tables = [self._table(relation, role, owner=True) for relation in relations]
        for leaf in (leaf for table in tables for leaf in self._leaves(table)):
            try:
                session.sql(f"DELETE FROM delta.`{leaf.uri}`").collect()
            except PySparkException as error:
                raise _from_spark(error) from None
        self._sequencer.step()
        return CommandOutcome("TRUNCATE TABLE")

    def _run(self, statement: str) -> Any:
        return self._spark.sql(statement)

    # Names and rights

    def _table(self, name: RangeVar, role: LoginRole, *, owner: bool = False) -> LakeTable:
        """``owner``: it is to be changed, not only read."""
        with self._catalog.read() as t:
            table = t.tables.find(name.schema or _PUBLIC, name.name)
            if table is None:
                raise UndefinedObject(f'relation "{name}" does not exist', sqlstate="42P01")
            mine = role.superuser or table.owner == role.oid
            if not mine and (owner or not t.roles.may_select(table.oid, role.oid)):
                raise PenstockError(f"permission denied for table {table.name}", sqlstate="42501")
        return table

    def _leaves(self, table: LakeTable) -> list[LakeTable]:
        """The table, or the partitions that hold its rows."""
        if table.uri is not None:
            return [table]
        with self._catalog.read() as t:
            children = [child for child in t.tables.all() if child.parent == table.oid]
        leaves = [leaf for child in children for leaf in self._leaves(child)]
        if not leaves:
            raise FeatureNotSupported(f'table "{table.qualified_name}" has no partitions')
        return leaves

    def _version(self, table: LakeTable, at: Position) -> int:
        version = at.versions.get(table.oid)
        if version is None:
            # Known since the snapshot was taken.
            version = self._sequencer.position(discover=True).versions.get(table.oid)
        if version is None:
            raise UndefinedObject(
                f'relation "{table.qualified_name}" does not exist', sqlstate="42P01"
            )
        return version

    def _columns(self, table: LakeTable, version: int) -> tuple[LakeColumn, ...]:
        return columns_of(load_at(self._warehouse.storage, table.uri or "", version))


def _type(column: LakeColumn) -> tuple[int, int]:
    return (column.type_oid, column.typmod) if column.type_oid else pg_type(column.type)


def _rows(result: pa.Table) -> Rows:
    fields = tuple(
        FieldDescription(field.name, *_field_type(field.type)) for field in result.schema
    )

    def cells() -> Iterator[list[bytes | None]]:
        for batch in result.to_batches():
            columns = [text_output(column).to_pylist() for column in batch.columns]
            yield from map(list, zip(*columns, strict=True))

    return Rows(fields, cells())


def _field_type(kind: pa.DataType) -> tuple[int]:
    return (pg_type(kind)[0],)


def _from_spark(error: PySparkException) -> PenstockError:
    """Spark's error as ours; its first line says what is wrong."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return PenstockError(f"the query failed: {text}", sqlstate=error.getSqlState() or "XX000")
