"""Compaction: when it is due, and that it moves rows without changing them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.attribute import Attribute
from penstock.errors import CommitConflict, StorageError
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.schema import Column
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.compact import CompactOptions, compact, files_to_rewrite
from pipeline.history import Publisher
from pipeline.lake import APP, Lake

OPTIONS = CompactOptions(small_files=16, small_bytes=4096, dead_ratio=0.3, max_bytes=40_000)
TYPES = {"a": pa.int32(), "b": pa.string()}


def file(
    path: str, size: int, rows: int = 100, deleted: int = 0, day: str | None = None
) -> DataFile:
    partition = None if day is None else {"day": day}
    return DataFile(path, size, rows, {}, deleted=deleted, partition_values=partition)


def chosen(*files: DataFile, options: CompactOptions = OPTIONS) -> list[str]:
    return [each.path for each in files_to_rewrite(files, options)]


def test_small_files_of_one_size_are_merged_from_a_number_on() -> None:
    small = [file(str(i), 1000) for i in range(4)]
    assert chosen(*small[:3], file("large", 5000)) == []
    assert chosen(*small, file("large", 5000)) == ["0", "1", "2", "3"]
    assert chosen(*small[:3], *(file(f"less {i}", 60) for i in range(3))) == []


def test_what_is_smaller_goes_along_and_what_is_larger_stays() -> None:
    files = [file("large", 1000), *(file(str(i), 100) for i in range(4)), file("tiny", 10)]
    assert chosen(*files) == ["0", "1", "2", "3", "tiny"]


def test_dead_rows_count_in_large_files_only() -> None:
    assert chosen(file("a", 5000, deleted=15), file("b", 7000, deleted=30)) == ["b"]
    assert chosen(file("small", 5000, deleted=50)) == []


def test_a_run_is_bounded_but_always_does_something() -> None:
    dying = [file(str(i), 16_000, deleted=50) for i in range(5)]
    assert chosen(*dying) == ["0", "1"]
    assert chosen(*dying, options=replace(OPTIONS, max_bytes=1)) == ["0"]
    small = [file(str(i), 3000) for i in range(5)]
    assert chosen(*small, options=replace(OPTIONS, max_bytes=1)) == ["0", "1"]


def test_files_of_a_partition_are_merged_with_one_another() -> None:
    alone = [file(f"alone {i}", 100, day=str(i)) for i in range(9)]
    assert chosen(*alone) == []
    pairs = [file(f"{i}", 100, day=str(i // 2)) for i in range(6)]
    assert chosen(*alone, *pairs) == [
        *("alone 0", "0", "1"),
        *("alone 1", "2", "3"),
        *("alone 2", "4", "5"),
    ]
    assert chosen(*alone[4:], *pairs[:4]) == []
    assert chosen(*pairs, options=replace(OPTIONS, max_bytes=1)) == ["0", "1"]


def test_one_small_file_is_not_merged_with_itself() -> None:
    assert chosen(file("a", 1), options=replace(OPTIONS, small_files=0)) == []


@given(st.lists(st.integers(1, 6000), max_size=400))
def test_what_commits_add_is_rewritten_a_few_times_and_few_files_are_left(sizes: list[int]) -> None:
    """Each byte at most once a class, and the files of the lowest, which cost what opening does,
    as often as its width; never more files than are allowed."""
    files: dict[str, DataFile] = {}
    written = 0
    for number, size in enumerate(sizes):
        files[f"added {number}"] = file(f"added {number}", size)
        while due := files_to_rewrite(files.values(), OPTIONS):
            merged = file(f"merged {number} {len(due)} {written}", sum(each.size for each in due))
            written += merged.size
            files = {p: f for p, f in files.items() if f not in due} | {merged.path: merged}
        assert sum(each.size < OPTIONS.small_bytes for each in files.values()) < OPTIONS.small_files
    assert written <= 9 * sum(sizes)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "warehouse")


MERGE = CompactOptions(small_files=2)


def small_files(lake: Lake, count: int = 5) -> tuple[Publisher, DeltaTable]:
    source = Publisher(dict(TYPES), ("a",))
    table = lake.create(source)
    for batch in range(count):
        for a in range(20):
            source.insert({"a": 20 * batch + a, "b": None if a % 3 else f"b{a}"})
        if batch:
            source.update(20 * batch - 3, {"b": "updated"})
            source.delete(0)
        lake.stage((table, source))
        lake.commit(table)
    return source, table


@pytest.mark.spark
def test_rows_and_marker_stay(lake: Lake, spark: SparkSession) -> None:
    source, table = small_files(lake)
    assert compact(spark, table, MERGE) == 5
    assert len(table.files) == 1
    assert compact(spark, table, MERGE) == 0
    assert (table.last_app_id, table.transaction_version(APP)) == (APP, lake.lsn)
    lake.check(table, source)
    table.reload()
    assert [f.deleted for f in table.files.values()] == [0]
    history = spark.sql(f"describe history delta.`{table.uri}` limit 1").collect()[0]
    assert history["operation"] == "OPTIMIZE"
    source.update(3, {"b": "after"})
    lake.follow(table, source)


@pytest.mark.spark
def test_dead_rows_go_and_added_columns_are_filled(lake: Lake, spark: SparkSession) -> None:
    source = Publisher(dict(TYPES), ("a",))
    for a in range(5000):
        source.insert({"a": a, "b": f"b{a}"})
    table = lake.create(source)
    lake.follow(table, source)
    source.add_column("later", pa.int64())
    table.add_columns([Column("later", Attribute("later", 0), pa.int64())])
    for _ in range(2000):
        source.delete(1000)
    source.update(0, {"later": 1})
    lake.follow(table, source)
    options = CompactOptions(small_bytes=2000)
    assert compact(spark, table, options) == 1
    lake.check(table, source)
    assert sum(f.deleted for f in table.files.values()) == 0


@pytest.mark.spark
def test_large_output_is_split(lake: Lake, spark: SparkSession) -> None:
    source, table = small_files(lake)
    assert compact(spark, table, replace(MERGE, target_file_bytes=1500)) == 5
    assert len(table.files) > 1
    lake.check(table, source)


@pytest.mark.spark
def test_lost_race_leaves_nothing(lake: Lake, spark: SparkSession) -> None:
    source, table = small_files(lake)
    rival = lake.warehouse.open("public", "t")
    assert rival is not None
    rival.commit(app_id="rival", version_marker=1, operation="WRITE")
    held = lake.data_files(table)
    with pytest.raises(CommitConflict):
        compact(spark, table, MERGE)
    assert not table.has_staged
    assert lake.data_files(table) == held
    table.reload()
    assert compact(spark, table, MERGE) == 5
    assert table.last_app_id == "rival"
    lake.check(table, source)


@pytest.mark.spark
def test_foreign_writer_stays_visible(lake: Lake, spark: SparkSession) -> None:
    _, table = small_files(lake)
    spark.sql(f"delete from delta.`{table.uri}` where a = 30").collect()
    table.reload()
    compact(spark, table, MERGE)
    assert table.last_app_id != APP


@pytest.mark.spark
def test_lost_file_is_reported_and_nothing_written(lake: Lake, spark: SparkSession) -> None:
    _, table = small_files(lake)
    folder = Path(table.uri.removeprefix("file://"))
    (folder / next(iter(table.files))).unlink()
    held = lake.data_files(table)
    with pytest.raises(StorageError):
        compact(spark, table, MERGE)
    assert lake.data_files(table) == held
    assert not table.has_staged


@pytest.mark.spark
def test_waits_while_something_is_staged(lake: Lake, spark: SparkSession) -> None:
    source, table = small_files(lake)
    source.insert({"a": 1000, "b": None})
    lake.stage((table, source))
    assert compact(spark, table, MERGE) == 0
    lake.commit(table)
    lake.check(table, source)
