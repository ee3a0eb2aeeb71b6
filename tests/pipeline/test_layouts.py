"""Files in every layout that writers of Delta tables choose, in a table that is applied to.

Each file is searched, its rows completed, deleted by a vector and compacted; Spark and delta-rs
read the table after every step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as DeltaRs
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.layouts import plain_table
from penstock.lakehouse.log import entry_uri
from penstock.lakehouse.storage import Storage, local_path
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.compact import CompactOptions, compact
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from pipeline.history import Publisher
from pipeline.lake import Lake

TYPES = {
    "k": pa.string(),
    "b": pa.binary(),
    "d": pa.decimal128(10, 2),
    "n": pa.int16(),
    "l": pa.list_(pa.string()),
    "big": pa.string(),
    "t": pa.timestamp("us"),
}
PLAIN = pa.Table.from_pylist(
    [
        {
            "k": f"key {i}",
            "b": f"b{i}".encode(),
            "d": Decimal(i) / 100,
            "n": i,
            "l": ["x", None],
            "big": f"toast {i}",
            "t": None if i % 2 else 1_600_000_000_000_000 + 1000 * i,
        }
        for i in range(8)
    ],
    schema=pa.schema(list(TYPES.items())),
)


def _as(**types: pa.DataType) -> pa.Table:
    fields = [pa.field(name, types.get(name, kind)) for name, kind in TYPES.items()]
    return PLAIN.cast(pa.schema(fields))


def _dictionaries(*names: str) -> pa.Table:
    rows = PLAIN
    for name in names:
        at = rows.schema.get_field_index(name)
        values = rows[name].cast(pa.large_string()).combine_chunks()
        rows = rows.set_column(at, name, values.dictionary_encode())
    return rows


LAYOUTS: dict[str, Callable[[], pa.Table]] = {
    "views": lambda: _as(k=pa.string_view(), b=pa.binary_view(), big=pa.string_view()),
    "views in lists": lambda: _as(l=pa.list_(pa.string_view())),
    "large": lambda: _as(
        k=pa.large_string(), b=pa.large_binary(), l=pa.large_list(pa.large_string())
    ),
    "fixed": lambda: _as(b=pa.binary(2), l=pa.list_(pa.string(), 2), n=pa.uint8()),
    "narrow decimals": lambda: _as(d=pa.decimal64(10, 2), t=pa.timestamp("ms"), n=pa.int32()),
    "wide decimals": lambda: _as(d=pa.decimal256(10, 2)),
    "dictionaries": lambda: _dictionaries("k", "big"),
}


UNREADABLE_TO_SPARK: dict[str, Callable[[], pa.Table]] = {
    "nanoseconds": lambda: _as(t=pa.timestamp("ns")),
    "wide numbers": lambda: _as(n=pa.int64(), l=pa.list_(pa.large_string())),
}
"""Tables with such files are read by delta-rs alone; we read them as it does."""


def _written(folder: Path, rows: pa.Table) -> WrittenFile:
    name = "foreign file.parquet"
    pq.write_table(rows, folder / name, coerce_timestamps=None)
    return WrittenFile("foreign%20file.parquet", (folder / name).stat().st_size, 8, {})


def _by_duckdb(folder: Path) -> WrittenFile:
    path = folder / "duck.parquet"
    with duckdb.connect() as duck:
        duck.register("rows", PLAIN)
        duck.execute(f"COPY (SELECT * FROM rows) TO '{path}' (FORMAT parquet)")
    return WrittenFile("duck.parquet", path.stat().st_size, 8, {})


@pytest.mark.spark
@pytest.mark.parametrize("layout", [*LAYOUTS, "duckdb"])
def test_files_of_others_are_applied_to(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    lake = Lake(spark, tmp_path / "warehouse")
    source = Publisher(dict(TYPES), ("k",))
    table = lake.create(source)
    folder = Path(local_path(table.uri))
    file = _by_duckdb(folder) if layout == "duckdb" else _written(folder, LAYOUTS[layout]())
    table.stage(written=[file])
    lake.commit(table)
    source.rows = PLAIN.to_pylist()
    table.reload()
    source.update(3, {"n": 300}, frozenset({"big", "l", "b", "d"}))
    source.delete(5)
    lake.follow(table, source)
    assert _rows_of_vectors(table) == [8]
    assert _delta_rs_rows(table) == 7
    columns = [ScanColumn(name, name, kind) for name, kind in TYPES.items()]
    for data in table.files.values():
        (batch,) = scan(table.storage, table.uri, ScanFile.of(data), columns)
        assert batch.num_rows == data.live_rows
    assert compact(spark, table, CompactOptions(small_files=2)) == 2
    lake.check(table, source)


def _rows_of_vectors(table: DeltaTable) -> list[int]:
    """numRecords of the newest entry's adds that have a vector: the protocol asks for it."""
    entry = Path(local_path(entry_uri(table.uri, table.version))).read_text("utf-8")
    adds = [found for line in entry.splitlines() if (found := json.loads(line).get("add"))]
    return [json.loads(a["stats"])["numRecords"] for a in adds if "deletionVector" in a]


def _delta_rs_rows(table: DeltaTable) -> int:
    query = QueryBuilder().register("t", DeltaRs(local_path(table.uri)))
    return int(pa.table(query.execute("select k from t").read_all()).num_rows)


@pytest.mark.parametrize("layout", [*LAYOUTS, *UNREADABLE_TO_SPARK])
def test_rows_of_a_layout_are_filtered_and_the_same(tmp_path: Path, layout: str) -> None:
    file = _written(tmp_path, {**LAYOUTS, **UNREADABLE_TO_SPARK}[layout]())
    columns = [ScanColumn(name, name, kind) for name, kind in TYPES.items()]
    some = ScanFile(file.path, file.size, 8, start=2, stop=5)
    batches = list(scan(Storage(str(tmp_path)), str(tmp_path), some, columns))
    assert pa.Table.from_batches(batches).to_pylist() == PLAIN.slice(2, 3).to_pylist()


def test_layouts_that_files_do_not_keep() -> None:
    encoded = pa.RunEndEncodedArray.from_arrays([2, 8], ["a", "b"])
    views = pa.array(["x", "y"], pa.string_view())
    looked_up = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0] * 2, pa.int8()), views)
    lists = pa.array([["a"], None] * 4, pa.list_view(pa.string_view()))
    found: Any = plain_table(pa.table({"r": encoded, "d": looked_up, "l": lists}))
    assert found.schema.types == [pa.string(), pa.string(), pa.list_(pa.string())]
    assert found["r"].to_pylist() == ["a"] * 2 + ["b"] * 6
    assert found["d"].to_pylist() == ["x", "y", None, "x"] * 2
    assert found["l"].to_pylist() == [["a"], None] * 4
