"""Variants in data files: what other writers make of the column is read as ours."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as DeltaRs
from deltalake import QueryBuilder

from lakehouse.tables import commit
from penstock.attribute import AttGenerated, Attribute
from penstock.errors import FeatureNotSupported, RelationChanged
from penstock.lakehouse.batches import slices
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.layouts import plain_table
from penstock.lakehouse.protocol import VARIANT_TYPE
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.table_layout import TableLayout
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgtypes.pg_type import INT8, JSONB, TEXT
from penstock.pgtypes.text_output import text_output
from penstock.pgtypes.variant import VARIANT, variants
from penstock.pipeline.generated import generated_columns
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.walsender.lake_columns import columns_of

_TEXTS = ['{"a": {"b": 1.50}}', None, '[1, "x"]', "null"]
_SCHEMA = TableSchema(
    (Column("id", Attribute("id", INT8), pa.int64()), Column("v", Attribute("v", JSONB), VARIANT)),
    ("id",),
)


def test_delta_rs_reads_and_rewrites_them(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path), fsync=False)
    table = warehouse.create("public", "t", _SCHEMA)
    rows = pa.table({"id": pa.array(range(4), pa.int64()), "v": variants(pa.array(_TEXTS))})
    for lsn in (1, 2):
        files = FileWriter(table.storage, table.uri, table.schema.arrow()).write([rows])
        assert "v" not in files[0].stats["minValues"]
        table.stage(written=files)
        commit(table, lsn)
    other = DeltaRs(str(tmp_path / "public" / "t"))
    assert VARIANT_TYPE in (other.protocol().reader_features or ())
    read = QueryBuilder().register("t", other).execute("select * from t order by id").read_all()
    assert plain_table(pa.table(read))["v"].type == VARIANT
    assert other.optimize.compact()["numFilesAdded"] == 1
    again = warehouse.open("public", "t")
    assert again is not None
    (file,) = again.files.values()
    columns = (ScanColumn("v", "v", VARIANT),)
    (batch,) = scan(again.storage, again.uri, ScanFile.of(file), columns)
    texts = text_output(batch.column(0)).cast(pa.string()).to_pylist()
    assert texts == [*_TEXTS, *_TEXTS]
    with pytest.raises(FeatureNotSupported, match="variantType"):
        columns_of(again.state)


def test_layouts_of_writers(tmp_path: Path) -> None:
    ours = variants(pa.array(_TEXTS))
    parts = [ours.field("metadata").cast(pa.large_binary()), ours.field("value")]
    other = pa.StructArray.from_arrays(parts, ["metadata", "value"], mask=ours.is_null())
    pq.write_table(pa.table({"v": other}), tmp_path / "file")
    for rows in (pa.table({"v": other}), pq.read_table(tmp_path / "file")):
        assert plain_table(rows)["v"].combine_chunks() == ours
        assert plain_table(rows.slice(2))["v"].combine_chunks() == ours.slice(2)
    struct = pa.table({"s": pa.array([{"value": b"", "typed_value": 1}])})
    assert plain_table(struct).schema == struct.schema


def test_null_has_no_parts(tmp_path: Path) -> None:
    """Whatever Arrow's functions have made of a column."""
    table = Warehouse(str(tmp_path), fsync=False).create("public", "t", _SCHEMA)
    ours = variants(pa.array(_TEXTS))
    none = pa.nulls(4, VARIANT)
    columns = {
        "nulls": none,
        "choice": pc.if_else(pa.array([True, False, True, False]), ours, none),
        "taken": pa.concat_arrays([ours, none]).take(pa.array([7, 2, 4, None])),
        "repeated": pa.repeat(pa.scalar(None, VARIANT), 4),
    }
    for column in columns.values():
        rows = pa.table({"id": pa.array(range(4), pa.int64()), "v": column}, _SCHEMA.arrow())
        (file,) = FileWriter(table.storage, table.uri, rows.schema).write([rows.slice(1), rows])
        (batch,) = scan(
            table.storage,
            table.uri,
            ScanFile(file.path, file.size),
            (ScanColumn("v", "v", VARIANT),),
        )
        assert text_output(batch.column(0).slice(3)).equals(text_output(column))


def test_no_table_is_clustered_by_one(tmp_path: Path) -> None:
    """Nor becomes one that was clustered by its text."""
    text = TableSchema(
        (_SCHEMA.columns[0], Column("v", Attribute("v", JSONB), pa.string())), ("id",)
    )
    warehouse, layout = Warehouse(str(tmp_path), fsync=False), TableLayout(cluster_by=("v",))
    with pytest.raises(FeatureNotSupported, match="cannot be clustered"):
        warehouse.create("public", "t", _SCHEMA, layout)
    table = warehouse.create("public", "t", text, layout)
    with pytest.raises(FeatureNotSupported, match="cannot be clustered"):
        table.replace(_SCHEMA)


def test_no_column_is_generated_of_one() -> None:
    def made(expression: str) -> TableSchema:
        return _SCHEMA.with_columns(
            [
                Column(
                    "g",
                    Attribute("g", TEXT, generated=AttGenerated.STORED, generation=expression),
                    pa.string(),
                )
            ]
        )

    generated_columns(made("upper('a'::text)"), "t")
    with pytest.raises(RelationChanged, match='"g" of table "t" cannot be made of a variant'):
        generated_columns(made("CASE WHEN (v IS NULL) THEN 'a'::text ELSE 'b'::text END"), "t")


def test_large_ones_are_cut_into_batches() -> None:
    texts = ['"' + "x" * 100_000 + '"', *["1"] * 50]
    batch = pa.RecordBatch.from_arrays([variants(pa.array(texts))], ["v"])
    assert [part.num_rows for part in slices(batch, 50_000)] == [1, 50]
