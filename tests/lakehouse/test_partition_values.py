"""Partition values: the texts that Spark writes, and what Spark and delta-rs make of ours."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from end_to_end.compare import delta_rows
from faults.heavy import HEAVY
from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, RelationChanged, ValueNotRepresentable
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.partition_values import partition_scalar, partition_text
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_layout import TableLayout
from penstock.lakehouse.table_writer import TableWriter
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.compact import CompactOptions, files_to_rewrite

TEXTS = [
    "a b/ü%=:?#&+",
    'it\'s "so"\\',
    " ",
    "null",
    "\n\t",
    "Ω" * 40,
]
VALUES: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "small": (pa.int16(), "SMALLINT", [-32768, 7]),
    "int": (pa.int32(), "INT", [-(2**31), 0]),
    "big": (pa.int64(), "BIGINT", [-(2**63), 2**63 - 1]),
    "text": (pa.string(), "STRING", TEXTS),
    "day": (pa.date32(), "DATE", [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    "flag": (pa.bool_(), "BOOLEAN", [True, False]),
    "price": (
        pa.decimal128(12, 10),
        "DECIMAL(12,10)",
        [Decimal("1.5000000000"), Decimal("-0.0000000001"), Decimal("0.0000000000")],
    ),
    "double": (
        pa.float64(),
        "DOUBLE",
        [1e300, -0.1, 1e7, 123456.789, 1e-3, 9.5e-4, 0.0, math.nan, -math.inf],
    ),
    "real": (pa.float32(), "FLOAT", [0.5, 16777216.0, math.inf]),
    "instant": (
        pa.timestamp("us", "UTC"),
        "TIMESTAMP",
        [
            datetime(2020, 2, 29, 23, 59, 59, 999999, UTC),
            datetime(1969, 12, 31, 23, tzinfo=UTC),
            datetime(1, 1, 1, tzinfo=UTC),
        ],
    ),
    "local": (
        pa.timestamp("us"),
        "TIMESTAMP_NTZ",
        [datetime(2020, 1, 1, 10, 0, 0, 500000), datetime(2020, 1, 1), datetime(9999, 12, 31, 23)],
    ),
}
_SCHEMA = TableSchema(
    (
        Column("id", Attribute("id", 23), pa.int32()),
        *(Column(name, Attribute(name, 0), kind) for name, (kind, _, _) in VALUES.items()),
        Column("v", Attribute("v", 25), pa.string()),
    ),
    ("id",),
)
_LAYOUT = TableLayout(tuple(VALUES))


def _rows() -> pa.Table:
    """Each value once beside the first ones of the others, and a row of NULLs."""
    firsts = {name: values[0] for name, (_, _, values) in VALUES.items()}
    rows: list[dict[str, Any]] = [{"id": 0}, {"id": 1, **firsts}]
    for name, (_, _, values) in VALUES.items():
        rows += [{"id": len(rows) + i, **firsts, name: v} for i, v in enumerate(values[1:])]
    return pa.Table.from_pylist([{"v": f"v{r['id']}", **r} for r in rows], _SCHEMA.arrow())


def _plain(rows: list[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(repr, row)) for row in rows)


def _texts(table: DeltaTable) -> dict[int, dict[str, str | None]]:
    """Partition values by the ids in the files."""
    found: dict[int, dict[str, str | None]] = {}
    for file in table.files.values():
        (low, high) = (file.stats[bound]["id"] for bound in ("minValues", "maxValues"))
        assert file.partition_values is not None
        found |= {number: dict(file.partition_values) for number in range(low, high + 1)}
    return found


@pytest.mark.spark
def test_texts_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, rows = Warehouse(str(tmp_path), fsync=False), _rows()
    columns = ", ".join(f"{name} {kind}" for name, (_, kind, _) in VALUES.items())
    for name in ("theirs", "mixed"):
        spark.sql(
            f"CREATE TABLE delta.`{tmp_path}/public/{name}` (id INT, {columns}, v STRING) USING "
            f"delta PARTITIONED BY ({', '.join(VALUES)})"
            " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
    by_spark = spark.createDataFrame(rows).selectExpr(
        "id", *(f"CAST({name} AS {kind}) AS {name}" for name, (_, kind, _) in VALUES.items()), "v"
    )
    by_spark.repartition(1).write.format("delta").mode("append").save(f"{tmp_path}/public/theirs")
    theirs, mixed = (warehouse.open("public", name) for name in ("theirs", "mixed"))
    assert theirs is not None and mixed is not None
    ours = warehouse.create("public", "ours", _SCHEMA, _LAYOUT)
    for table in (ours, mixed):
        writer = TableWriter(table.storage, table.uri, _SCHEMA.arrow(), table.layout)
        table.stage(written=writer.write([rows]))
        table.commit(app_id="a", version_marker=1, operation="WRITE")
    told, wanted = _texts(theirs), _texts(ours)
    assert set(told) == set(wanted) == set(range(rows.num_rows))
    differ = {(n, wanted[i][n], t) for i in told for n, t in told[i].items() if wanted[i][n] != t}
    assert not differ
    expected = _plain([tuple(row.values()) for row in rows.to_pylist()])
    for table in (theirs, ours, mixed) if HEAVY else (mixed,):
        _read_the_same(spark, table, expected)
    if HEAVY:
        _upkeep_harms_nothing(spark, (ours, mixed), expected)


def _upkeep_harms_nothing(
    spark: SparkSession, tables: tuple[DeltaTable, ...], expected: list[tuple[str, ...]]
) -> None:
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for table in tables:  # files are where Delta does not put them
        spark.sql(f"VACUUM delta.`{table.uri}` RETAIN 0 HOURS")
    spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    for table in tables:  # what a checkpoint makes of the values
        table.checkpoint()
        for entry in Path(local_path(table.uri), "_delta_log").glob("*.json"):
            entry.rename(entry.with_suffix(".gone")) if entry.name < f"{1:020}" else None
        _read_the_same(spark, table, expected)


def _read_the_same(spark: SparkSession, table: DeltaTable, expected: list[tuple[str, ...]]) -> None:
    frame = spark.read.format("delta").load(table.uri)
    arrow = frame.toArrow().cast(_SCHEMA.arrow())
    assert _plain([tuple(row.values()) for row in arrow.to_pylist()]) == expected
    assert len(delta_rows(table.uri)) == len(expected)


def test_texts_are_read_back() -> None:
    for kind, _, values in VALUES.values():
        for value in values:
            (exact,) = pa.array([value], kind).to_pylist()
            text = partition_text(exact, kind)
            assert repr(partition_scalar(text, kind).as_py()) == repr(exact), text
        assert partition_scalar(None, kind).as_py() is partition_scalar("", kind).as_py() is None


def _parts(folder: Path) -> DeltaTable:
    columns = (
        Column("id", Attribute("id", 23), pa.int32()),
        Column("part", Attribute("part", 25), pa.string()),
    )
    schema = TableSchema(columns, ("id",))
    return Warehouse(str(folder), fsync=False).create("public", "t", schema, TableLayout(("part",)))


def test_what_has_no_place_is_refused(tmp_path: Path) -> None:
    table = _parts(tmp_path)
    schema = table.schema.arrow()
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        rows = pa.table({"id": [1, 2], "part": ["a", text]}, schema=schema)
        with pytest.raises(ValueNotRepresentable, match='partition column "part"'):
            TableWriter(table.storage, table.uri, schema, table.layout).write([rows])
    assert not list(Path(local_path(table.uri)).glob("*.parquet"))
    files = TableWriter(table.storage, table.uri, schema).write([rows])
    with pytest.raises(RelationChanged, match="partitioned otherwise"):
        table.stage(written=files)
    for lost in (table.schema.without({"part"}), table.schema.without({"id"})):
        with pytest.raises(FeatureNotSupported, match="part"):
            table.replace(lost)
    with pytest.raises(FeatureNotSupported, match="cannot be without"):
        table.drop_columns({"part"})
    bytea = TableSchema(
        (Column("id", Attribute("id", 0), pa.int32()), Column("b", Attribute("b", 0), pa.binary()))
    )
    for layout in (TableLayout(("b",)), TableLayout((), ("b",)), TableLayout(("id", "b"))):
        with pytest.raises(FeatureNotSupported):
            Warehouse(str(tmp_path)).create("public", "other", bytea, layout)


def test_many_partitions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than files may be open: rows are all there, each in its own partition."""
    monkeypatch.setattr("penstock.lakehouse.table_writer._MOST_OPEN", 3)
    monkeypatch.setattr("penstock.lakehouse.table_writer._MOST_HELD", 20)
    monkeypatch.setattr("penstock.lakehouse.table_writer.ROW_GROUP_BYTES", 2000)
    table = _parts(tmp_path)
    ids = list(range(3000))
    parts = [None if i % 7 == 0 else f"p{i % 50}" for i in ids]
    rows = pa.table({"id": ids, "part": parts}, schema=table.schema.arrow())
    writer = TableWriter(table.storage, table.uri, rows.schema, table.layout)
    with writer:
        for start in range(0, len(ids), 100):
            writer.add(rows.slice(start, 100))
            assert sum(each.is_open for each in writer._writers.values()) <= 4
    table.stage(written=writer.files)
    table.commit(app_id="a", version_marker=1, operation="WRITE")
    assert sorted(delta_rows(table.uri)) == sorted(zip(ids, parts, strict=True), key=lambda r: r[0])


def test_small_files_are_merged_with_those_of_their_partition() -> None:
    options = CompactOptions(small_files=16, small_bytes=100)

    def file(path: str, part: str) -> DataFile:
        return DataFile(path, 50, 10, {}, partition_values={"part": part})

    alone = [file(str(i), str(i)) for i in range(10)]
    assert files_to_rewrite(alone, options) == []
    pairs = [file(f"{i}+", str(i)) for i in range(3)]
    chosen = files_to_rewrite([*alone, *pairs], options)
    assert [each.path for each in chosen] == ["0", "0+", "1", "1+", "2", "2+"]
    assert files_to_rewrite([*alone, *pairs[1:]], options) == []


def test_clustering_is_kept(tmp_path: Path) -> None:
    """Through a checkpoint that is all that is left of the log; columns that a table is clustered
    by have statistics wherever they stand."""
    columns = tuple(Column(f"c{i}", Attribute(f"c{i}", 23), pa.int32()) for i in range(40))
    warehouse = Warehouse(str(tmp_path), fsync=False)
    layout = TableLayout((), ("c39", "c0"))
    table = warehouse.create("public", "t", TableSchema(columns, ("c0",)), layout)
    rows = pa.table({c.name: [i] for i, c in enumerate(columns)}, schema=table.schema.arrow())
    for marker in (1, 2):
        writer = TableWriter(table.storage, table.uri, rows.schema, table.layout)
        table.stage(written=writer.write([rows]))
        table.commit(app_id="a", version_marker=marker, operation="WRITE")
    table.checkpoint()
    for entry in Path(local_path(table.uri), "_delta_log").glob(f"{0:019}[01].json"):
        entry.unlink()
    again = warehouse.open("public", "t")
    assert again is not None and again.layout == layout
    assert again.properties["delta.dataSkippingNumIndexedCols"] == "40"
    for file in again.files.values():
        assert file.stats["maxValues"]["c39"] == 39 and "c38" not in file.stats["maxValues"]
    with pytest.raises(FeatureNotSupported, match="cannot be without"):
        again.drop_columns({"c39"})
