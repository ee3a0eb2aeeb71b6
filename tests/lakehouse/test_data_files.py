"""Parquet files of tables: contents, rolling over, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.tables import ACCOUNTS, accounts, rows_of
from penstock.errors import StorageError
from penstock.lakehouse.files import FileWriter, file_uri, open_parquet
from penstock.lakehouse.storage import Storage, local_path

WIDE = pa.schema([("id", pa.int64()), ("noise", pa.float64())])


def noise(start: int, rows: int) -> pa.RecordBatch:
    rng = np.random.default_rng(start)
    return pa.record_batch([pa.array(np.arange(start, start + rows)), rng.random(rows)], WIDE)


def test_files_hold_the_rows_in_order(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    files = FileWriter(table.storage, table.uri, ACCOUNTS.arrow()).write(
        [rows_of(range(5)), *rows_of(range(5, 9)).to_batches(), rows_of([])]
    )
    (file,) = files
    with open_parquet(table.uri, file.path) as parquet:
        assert parquet.read() == rows_of(range(9))
    assert file.rows == 9
    assert file.size == Path(local_path(table.uri), file.path).stat().st_size
    assert file.stats["minValues"]["id"] == 0 and file.stats["maxValues"]["id"] == 8


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    assert FileWriter(table.storage, table.uri, ACCOUNTS.arrow()).write([rows_of([])]) == []


@pytest.mark.parametrize("one_batch", [False, True])
def test_files_roll_over(tmp_path: Path, one_batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.lakehouse.files.ROW_GROUP_BYTES", 1 << 20)
    storage = Storage(str(tmp_path), fsync=False)
    batches = [noise(start, 10_000) for start in range(0, 500_000, 10_000)]
    if one_batch:
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    writer = FileWriter(storage, storage.uri, WIDE, target_file_bytes=2 << 20)
    files = writer.write(batches)
    assert 3 <= len(files) <= 4
    assert all(2 << 20 <= file.size < 4 << 20 for file in files[:-1])
    assert sum(file.rows for file in files) == 500_000
    tables = [pq.ParquetFile(tmp_path / file.path) for file in files]
    assert all(t.metadata.row_group(0).total_byte_size < 3 << 20 for t in tables)
    ids = pa.concat_tables([t.read(["id"]) for t in tables])["id"].to_numpy()
    assert np.array_equal(ids, np.arange(500_000))
    assert files[1].stats["minValues"]["id"] == files[0].stats["maxValues"]["id"] + 1


def test_memory_is_one_row_group(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path), fsync=False)
    peak = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal peak
        before = pa.total_allocated_bytes()
        for start in range(0, 20_000_000, 250_000):
            yield noise(start, 250_000)
            peak = max(peak, pa.total_allocated_bytes() - before)

    files = FileWriter(storage, storage.uri, WIDE).write(batches())
    assert sum(file.rows for file in files) == 20_000_000, "320 MB of rows"
    assert peak < 130 << 20


def test_failure_of_the_caller_leaves_nothing(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path), fsync=False)
    with pytest.raises(KeyError), FileWriter(storage, storage.uri, ACCOUNTS.arrow()) as writer:
        writer.add(rows_of(range(10)))
        writer.flush()
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_paths_in_the_log() -> None:
    assert file_uri("file:///t", "a%20b/c.parquet") == "file:///t/a b/c.parquet"
    assert file_uri("file:///t", "s3://b/t/c.parquet") == "s3://b/t/c.parquet"


def test_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught, open_parquet(f"file://{tmp_path}", "x.parquet"):
        pass
    assert caught.value.sqlstate == "58P01"


def test_row_groups_with_nan_have_no_bounds(tmp_path: Path) -> None:
    """Arrow's bounds leave NaN out, by which Spark would skip rows that it takes for greatest."""
    storage = Storage(str(tmp_path), fsync=False)
    rows = pa.table({"id": [1, 2], "x": [float("nan"), 1.0], "a": [[1.0], [float("nan")]]})
    (file,) = FileWriter(storage, storage.uri, rows.schema).write([rows])
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    assert [group.column(i).is_stats_set for i in range(3)] == [True, False, False]


def encodings(folder: Path, columns: dict[str, pa.Array]) -> dict[str, bool]:
    """Which columns of a file with these values have a dictionary."""
    rows = pa.table(columns)
    storage = Storage(str(folder), fsync=False)
    parts = [b for start in range(0, len(rows), 30_000) for b in rows[start:][:30_000].to_batches()]
    (file,) = FileWriter(storage, storage.uri, rows.schema).write(parts)
    parquet = pq.ParquetFile(folder / file.path)
    assert parquet.read() == rows
    group = parquet.metadata.row_group(0)
    chunks = map(group.column, range(group.num_columns))
    return {c.path_in_schema: any("DICT" in e for e in c.encodings) for c in chunks}


def test_values_that_all_differ_get_no_dictionary(tmp_path: Path) -> None:
    number = np.arange(200_000)
    some = pa.array(number, mask=number % 100 != 0)
    columns = {
        "key": pa.array(number),
        "a.b": pa.array([f"text {n}" for n in number]),
        "one": pa.array(np.zeros(len(number))),
        "again": pa.array(number % 9973),
        "some": some,
        "half": pa.array(np.where(number % 2, number, 0)),
        "none": pa.nulls(len(number), pa.string()),
    }
    found = encodings(tmp_path, columns)
    assert found == {
        "key": False,
        "a.b": False,
        "one": True,
        "again": True,
        "some": True,
        "half": True,
        "none": found["none"],
    }
    assert encodings(tmp_path, {"key": pa.array(number)}) == {"key": False}
    assert encodings(tmp_path, {"key": pa.array(number[:1000])}) == {"key": True}


def test_nested_values_keep_their_dictionaries(tmp_path: Path) -> None:
    count = 100_000
    pair = {"a": 1, "b": [{"c": "x"}]}
    columns = {
        "key": pa.array(np.arange(count)),
        "texts": pa.array([["a", "b"]] * count),
        "pair": pa.array([pair] * count),
        "map": pa.array([[("k", 1)]] * count, pa.map_(pa.string(), pa.int64())),
    }
    found = encodings(tmp_path, columns)
    assert not found.pop("key")
    assert len(found) == 5
    assert all(found.values())
