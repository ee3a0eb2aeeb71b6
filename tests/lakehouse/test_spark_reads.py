"""What Spark and delta-rs make of our tables, and what we make of tables that Spark has changed."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaRs
from pyroaring import BitMap
from pyspark.sql import SparkSession

from faults.heavy import part_of_make_faults
from lakehouse.tables import ACCOUNTS, APP, accounts, again, commit, delta_rs_ids, spark_ids, write
from penstock.attribute import Attribute
from penstock.errors import CommitConflict
from penstock.lakehouse import statistics
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.log_store import SparkLogStore
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.storage import Storage, local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

ALL_TYPES = {
    "small": (pa.int16(), [-32768, None, 7]),
    "int": (pa.int32(), [1, None, -(2**31)]),
    "big": (pa.int64(), [2**63 - 1, None, 0]),
    "real": (pa.float32(), [1.5, None, float("inf")]),
    "double": (pa.float64(), [float("nan"), None, 0.1]),
    "price": (pa.decimal128(12, 2), [Decimal("99999999.99"), None, Decimal("-0.01")]),
    "wide": (
        pa.decimal128(38, 10),
        [None, Decimal("1234567890123456789012345678.0123456789"), None],
    ),
    "flag": (pa.bool_(), [True, None, False]),
    "text": (pa.string(), ["ä" * 40, None, "\U0010ffff" * 33]),
    "bytes": (pa.binary(), [b"\x00\xff", None, b""]),
    "day": (pa.date32(), [date(1, 1, 1), None, date(9999, 12, 31)]),
    "local": (
        pa.timestamp("us"),
        [datetime(1, 1, 1), None, datetime(9999, 12, 31, 23, 59, 59, 999999)],
    ),
    "instant": (
        pa.timestamp("us", "UTC"),
        [datetime(1582, 10, 1, tzinfo=UTC), None, datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    ),
    "ints": (pa.list_(pa.int32()), [[1, None, 3], None, []]),
    "times": (pa.list_(pa.timestamp("us")), [[datetime(2020, 2, 29)], None, [None]]),
}


def changed_table(folder: Path) -> DeltaTable:
    """Three versions: create; 1000 rows; deletions in both files of the third."""
    table = accounts(folder)
    (first,) = write(table, range(1000))
    table.stage(written=[first])
    commit(table, 10)
    (second,) = write(table, range(1000, 2000))
    table.stage(written=[second], deleted={first.path: BitMap([1, 5])})
    table.stage(deleted={first.path: BitMap([7]), second.path: BitMap([0, 999])})
    commit(table, 20)
    return table


LEFT = sorted(set(range(2000)) - {1, 5, 7, 1000, 1999})


def test_readers_see_rows_vectors_markers_and_history(spark: SparkSession, tmp_path: Path) -> None:
    table = changed_table(tmp_path)
    assert spark_ids(spark, table) == LEFT == delta_rs_ids(table)
    assert spark_ids(spark, table, version=1) == list(range(1000))
    assert spark_ids(spark, table, version=0) == []
    history = spark.sql(f"describe history delta.`{table.uri}`").collect()
    assert [row.operation for row in history] == ["REPLICATION", "REPLICATION", "CREATE TABLE"]


def test_spark_skips_files_by_our_statistics(spark: SparkSession, tmp_path: Path) -> None:
    table = changed_table(tmp_path)
    frame = spark.read.format("delta").load(table.uri).where("id in (1500, 1501)")
    assert sorted(row.id for row in frame.collect()) == [1500, 1501]
    assert len(frame.inputFiles()) == 1


def test_every_type_comes_back_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    columns = tuple(
        Column(name, Attribute(name, 0), arrow) for name, (arrow, _) in ALL_TYPES.items()
    )
    table = Warehouse(str(tmp_path), False).create("public", "types", TableSchema(columns))
    arrays = [pa.array(values, arrow) for arrow, values in ALL_TYPES.values()]
    rows = pa.Table.from_arrays(arrays, schema=table.schema.arrow())
    table.stage(written=FileWriter(table.storage, table.uri, rows.schema).write([rows]))
    commit(table, 1)
    frame = spark.read.format("delta").load(table.uri)
    arrow = frame.toArrow()
    assert arrow.schema.names == rows.schema.names
    for name in rows.column_names:
        got = arrow[name].cast(rows[name].type).to_pylist()
        assert str(got) == str(rows[name].to_pylist()), name
    # the bounds that Spark skips by must hold the values at both ends
    for name, value in (("day", "date'9999-12-31'"), ("local", "timestamp_ntz'0001-01-01'")):
        assert frame.where(f"{name} = {value}").count() == 1
    assert frame.where("double > 1e300").count() == 1, "Spark sorts NaN above all numbers"
    assert frame.where("price >= 99999999.99").count() == 1
    assert frame.where("length(text) = 33 and text > repeat('\U0010ffff', 32)").count() == 1


@part_of_make_faults
def test_spark_changes_are_loaded_again(spark: SparkSession, tmp_path: Path) -> None:
    """DELETE with vectors, UPDATE, OPTIMIZE and a checkpoint by Spark; then we go on."""
    table = changed_table(tmp_path)
    target = f"delta.`{table.uri}`"
    spark.sql(f"delete from {target} where id in (2, 3, 1001)")
    spark.sql(f"update {target} set owner = 'new' where id = 4")
    seen = again(table)
    assert seen.rows == len(LEFT) - 3
    assert seen.last_app_id is None
    assert seen.transaction_version(APP) == 20
    spark_deleted = [f for f in seen.files.values() if f.deleted]
    assert sum(f.deleted for f in spark_deleted) == 5 + 3 + 1

    spark.sql(f"optimize {target}")
    seen = again(table)
    assert seen.rows == len(LEFT) - 3
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table.uri).checkpoint()
    for name in Path(local_path(table.uri), "_delta_log").glob("*.json"):
        if int(name.stem) < seen.version:
            name.unlink()
    seen = again(table)
    assert (seen.rows, seen.transaction_version(APP)) == (len(LEFT) - 3, 20)

    (path,) = (p for p, f in seen.files.items() if f.live_rows > 2)
    seen.stage(deleted={path: BitMap([0])}, written=write(seen, [5000]))
    commit(seen, 30)
    ids = spark_ids(spark, seen)
    assert len(ids) == seen.rows == len(LEFT) - 3
    assert ids == delta_rs_ids(seen)


def test_our_checkpoint_keeps_vectors_and_markers(spark: SparkSession, tmp_path: Path) -> None:
    """After a checkpoint by Spark, whose checksum of _last_checkpoint must not be left behind."""
    table = changed_table(tmp_path)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table.uri).checkpoint()
    commit(table, 30)
    table.checkpoint()
    log = Path(local_path(table.uri), "_delta_log")
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 3
    assert not (log / "._last_checkpoint.crc").exists()
    for version in range(3):  # Spark wants the entry of the checkpoint itself
        (log / f"{version:020d}.json").unlink()
    seen = again(table)
    assert (seen.rows, seen.transaction_version(APP)) == (len(LEFT), 30)
    assert seen.schema == ACCOUNTS
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert spark_ids(spark, table) == LEFT == delta_rs_ids(table)
    spark.sql(f"delete from delta.`{table.uri}` where id = 0")
    assert spark_ids(spark, table) == LEFT[1:]
    assert again(table).rows == len(LEFT) - 1


def test_inline_and_many_vectors_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Vectors of Spark in one file (its own packing), of several files of the table."""
    table = accounts(tmp_path)
    for start in range(0, 400, 100):
        table.stage(written=write(table, range(start, start + 100)))
    commit(table, 1)
    spark.sql(f"delete from delta.`{table.uri}` where id % 10 = 3")
    seen = again(table)
    assert seen.rows == 360
    assert [sorted(f.positions_deleted()) for f in seen.files.values()] == [
        list(range(3, 100, 10))
    ] * 4


def test_added_column_is_null_before(spark: SparkSession, tmp_path: Path) -> None:
    table = accounts(tmp_path)
    table.stage(written=write(table, [1]))
    commit(table, 1)
    table.add_columns([Column("at", Attribute("at", 1114), pa.timestamp("us"))])
    rows = pa.table(
        [pa.array([2]), pa.array(["b"]), pa.array([datetime(2026, 1, 1)], pa.timestamp("us"))],
        schema=table.schema.arrow(),
    )
    table.stage(written=FileWriter(table.storage, table.uri, rows.schema).write([rows]))
    commit(table, 2)
    frame = spark.read.format("delta").load(table.uri).orderBy("id")
    assert [tuple(row) for row in frame.collect()] == [
        (1, "owner 1", None),
        (2, "b", datetime(2026, 1, 1)),
    ]
    assert again(table).schema == table.schema
    protocol = DeltaRs(local_path(table.uri)).protocol()
    assert "timestampNtz" in (protocol.reader_features or ())
    assert "timestampNtz" in (protocol.writer_features or ())


def test_delta_log_store_fences_and_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    """The way of object stores, on a local folder."""
    storage, store = Storage(str(tmp_path)), SparkLogStore(spark)
    uri = f"{storage.uri}/t"
    table = DeltaTable.create(storage, store, uri, "public.t", ACCOUNTS)
    other = DeltaTable.load(storage, store, uri, "public.t")
    assert other is not None
    table.stage(written=write(table, range(10)))
    assert commit(table, 1) == 1
    with pytest.raises(CommitConflict):
        commit(other, 2)
    table.checkpoint()
    assert Path(local_path(uri), "_delta_log", f"{1:020d}.checkpoint.parquet").exists()
    other.reload()
    assert other.rows == 10 and spark_ids(spark, other) == list(range(10))


def test_bounds_read_sparks_statistics(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own files can be ruled out too."""
    table = accounts(tmp_path)
    frame = spark.createDataFrame([(3, "a"), (9, "z" * 50)], "id long, owner string").coalesce(1)
    frame.write.format("delta").mode("append").save(table.uri)
    (file,) = again(table).files.values()
    assert file.rows == 2
    assert statistics.bounds(file.stats, "id", pa.int64()) == (3, 9)
    low, high = statistics.bounds(file.stats, "owner", pa.string()) or ("", "")
    assert low == "a" and high >= "z" * 50
