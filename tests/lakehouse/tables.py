"""Small tables for the tests of this room, and ways to read them that are not ours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable as DeltaRs
from deltalake import QueryBuilder
from pyroaring import BitMap
from pyspark.sql import SparkSession

from penstock.attribute import Attribute
from penstock.lakehouse.files import FileWriter, WrittenFile
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse

APP = "pg_16384"
ACCOUNTS = TableSchema(
    (
        Column("id", Attribute("id", 20), pa.int64()),
        Column("owner", Attribute("owner", 25), pa.string()),
    ),
    key=("id",),
)


def accounts(folder: Path | str, name: str = "accounts", *, fsync: bool = False) -> DeltaTable:
    """A new table public.accounts in a warehouse of its own or of others."""
    return Warehouse(str(folder), fsync).create("public", name, ACCOUNTS)


def again(table: DeltaTable) -> DeltaTable:
    """The same table as another process would load it."""
    schema, name = table.name.split(".")
    found = Warehouse(table.storage.uri, table.storage.fsync).open(schema, name)
    assert found is not None
    return found


def write(table: DeltaTable, ids: Iterable[int]) -> list[WrittenFile]:
    """Rows (id, "owner <id>") as files of the table, not yet staged."""
    rows = rows_of(ids)
    return FileWriter(table.storage, table.uri, table.schema.arrow()).write([rows])


def rows_of(ids: Iterable[int]) -> pa.Table:
    keys = list(ids)
    return pa.table({"id": pa.array(keys, pa.int64()), "owner": [f"owner {i}" for i in keys]})


def commit(table: DeltaTable, lsn: int) -> int:
    return table.commit(app_id=APP, version_marker=lsn, operation="REPLICATION")


def grow(table: DeltaTable, lsn: int) -> None:
    """One more version, which has a file of two rows, one of them deleted; at 4 and 8 a
    checkpoint."""
    (file,) = write(table, [lsn, -lsn])
    table.stage(written=[file])
    table.stage(deleted={file.path: BitMap([1])})
    commit(table, lsn)
    if lsn in (4, 8):
        table.checkpoint()


def delta_rs_ids(table: DeltaTable) -> list[int]:
    """The ids that delta-rs reads, which knows deletion vectors in its query engine."""
    uri = local_path(table.uri) if table.storage.is_local else table.uri
    query = QueryBuilder().register("t", DeltaRs(uri))
    return sorted(pa.table(query.execute("select id from t").read_all())["id"].to_pylist())


def spark_ids(spark: SparkSession, table: DeltaTable, version: int | None = None) -> list[int]:
    """The ids that Spark reads, at a version."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return sorted(row.id for row in reader.load(table.uri).select("id").collect())
