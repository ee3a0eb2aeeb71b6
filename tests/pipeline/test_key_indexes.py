"""Indexes of a node: made, kept, lost, damaged; and batches that find their old rows by them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.errors import StorageError
from penstock.pipeline import index_lookup, key_index, key_indexes
from penstock.pipeline.hits import Hits
from penstock.pipeline.key_codes import encode
from penstock.pipeline.key_index import FileIndex, IndexItem
from penstock.pipeline.key_indexes import KeyIndexes, Time
from penstock.pipeline.table_work import ApplyOptions
from pipeline.history import Publisher
from pipeline.lake import Lake

pytestmark = pytest.mark.spark

_ROWS = 100


@pytest.fixture(autouse=True)
def all_files_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", 0)


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[KeyIndexes]:
    made = KeyIndexes(tmp_path / "key_index", 1 << 20)
    yield made
    made.close()


def data_file(folder: Path, name: str = "f") -> IndexItem:
    keys = pa.table({"k": np.arange(_ROWS, dtype=np.int64) * 2})
    pq.write_table(keys, folder / f"{name}.parquet")
    return IndexItem(f"file://{folder}", f"{name}.parquet", _ROWS, ("k",), ("integer",))


def asked(indexes: KeyIndexes, item: IndexItem, spark: SparkSession, times: int = 2) -> None:
    for _ in range(times):
        assert indexes.index(item, spark, Time()) is None
    indexes.settle()


def positions(index: FileIndex | None, *keys: int) -> list[int]:
    assert index is not None
    codes = encode([pa.chunked_array([list(keys)])], ["integer"])
    assert codes is not None
    found: list[int] = index.find(codes.in_order()).position.tolist()
    return found


def test_a_small_file_has_one_at_once(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", _ROWS)
    item = data_file(tmp_path)
    assert positions(indexes.index(item, spark, Time()), 7, 8) == [4]
    (tmp_path / "f.parquet").unlink()
    assert positions(indexes.index(item, spark, Time()), 10) == [5]


def test_keys_that_are_compared_otherwise_are_not_looked_for_in_it(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column may get another type; files from before keep theirs."""
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", _ROWS)
    item = data_file(tmp_path)
    assert indexes.index(item, spark, Time()) is not None
    assert indexes.index(replace(item, kinds=("timestamp",)), spark, Time()) is None


def test_files_that_nobody_asks_for_any_more_take_no_memory(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many were written: compaction has taken them from the table, and tells nobody."""
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", _ROWS)
    now = [0.0]
    monkeypatch.setattr(key_indexes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    used = data_file(tmp_path)
    held = indexes.index(used, spark, Time())
    assert held is not None
    for number in range(20):
        assert indexes.index(data_file(tmp_path, f"old{number}"), spark, Time()) is not None
    for now[0] in (50.0, 100.0):
        assert indexes.index(used, spark, Time()) is held
    indexes.index(data_file(tmp_path, "new"), spark, Time())
    assert len(indexes._small) == 2
    assert indexes._in_memory == 2 * held.nbytes


def test_those_that_the_memory_has_no_room_for_are_files(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", _ROWS)
    monkeypatch.setattr(key_indexes, "_MEMORY_BYTES", 2 * 12 * _ROWS)
    files = [data_file(tmp_path, name) for name in "abcde"]
    for _ in range(2):
        held = [indexes.index(file, spark, Time()) for file in files]
        assert [positions(index, 8) for index in held] == [[4]] * 5
    assert [indexes.index(file, spark, Time()) for file in files] == held, "none is made again"
    assert len(list((tmp_path / "key_index").iterdir())) == 3


def test_a_batch_spends_so_much_on_small_ones_and_no_more(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", _ROWS)
    files = [data_file(tmp_path, name) for name in "abc"]
    left = Time(2 * _ROWS)
    found = [indexes.index(file, spark, left) for file in files]
    assert [index is not None for index in found] == [True, True, False]
    indexes.settle()
    assert positions(indexes.index(files[2], spark, Time(0)), 8) == [4]


def test_a_large_file_has_one_after_some_searches(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path
) -> None:
    item = data_file(tmp_path)
    asked(indexes, item, spark, 1)
    assert not (tmp_path / "key_index").exists()
    asked(indexes, item, spark, 1)
    assert positions(indexes.index(item, spark, Time()), 0, 1, 198) == [0, 99]
    again = KeyIndexes(tmp_path / "key_index", 1 << 20)
    assert positions(again.index(item, spark, Time()), 4) == [2], "another process opens it"


def test_a_damaged_one_is_made_again(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    item = data_file(tmp_path)
    asked(indexes, item, spark)
    (file,) = (tmp_path / "key_index").iterdir()
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    after = KeyIndexes(tmp_path / "key_index", 1 << 20)
    asked(after, item, spark)
    assert "is damaged: it is made again" in caplog.text
    assert positions(after.index(item, spark, Time()), 4) == [2]


def test_the_folder_is_bounded(indexes: KeyIndexes, spark: SparkSession, tmp_path: Path) -> None:
    first, second = data_file(tmp_path, "a"), data_file(tmp_path, "b")
    asked(indexes, first, spark)
    (file,) = (tmp_path / "key_index").iterdir()
    indexes.disk_bytes = file.stat().st_size + 100
    asked(indexes, second, spark)
    (other,) = (tmp_path / "key_index").iterdir()
    assert other != file
    assert indexes.index(first, spark, Time()) is None, "nor is it mapped any more"
    assert positions(indexes.index(second, spark, Time()), 4) == [2]


def test_one_that_is_larger_than_the_folder_may_be_takes_nobodys_place(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path
) -> None:
    first, second = data_file(tmp_path, "a"), data_file(tmp_path, "b")
    asked(indexes, first, spark)
    indexes.disk_bytes = 100
    asked(indexes, second, spark)
    assert positions(indexes.index(first, spark, Time()), 4) == [2]


def test_the_builder_goes_on_after_an_error_that_nobody_has_thought_of(
    indexes: KeyIndexes,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(key_indexes, "run_job", out_of_memory)
        asked(indexes, data_file(tmp_path, "a"), spark)
    assert "no room" in caplog.text
    item = data_file(tmp_path, "b")
    asked(indexes, item, spark)
    assert positions(indexes.index(item, spark, Time()), 4) == [2]


def test_none_is_made_where_they_may_take_nothing(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path
) -> None:
    indexes.disk_bytes = 0
    asked(indexes, data_file(tmp_path), spark, 5)
    assert not (tmp_path / "key_index").exists()


def test_trouble_is_told_once(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key_index").write_text("no folder")
    asked(indexes, data_file(tmp_path), spark, 9)
    assert caplog.text.count("no index of") == 1


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, indexes: KeyIndexes) -> Lake:
    return Lake(spark, tmp_path / "warehouse", ApplyOptions(indexes=indexes))


def source() -> Publisher:
    made = Publisher({"k": pa.int64(), "v": pa.string()}, ("k",))
    for key in range(_ROWS):
        made.insert({"k": key, "v": "first"})
    return made


def test_batches_with_indexes_on_disk(lake: Lake, indexes: KeyIndexes) -> None:
    publisher = source()
    table = lake.create(publisher)
    lake.follow(table, publisher)
    for number in range(6):
        publisher.update(number, {"v": f"second {number}"})
        publisher.update(50, {"v": f"again {number}"})
        publisher.update(70 + number, {"k": 1000 + number})
        publisher.delete(len(publisher.rows) - 1)
        publisher.insert({"k": 2000 + number, "v": "new"})
        lake.follow(table, publisher)
        indexes.settle()
    assert len(list((lake.folder.parent / "key_index").iterdir())) > 1


@pytest.mark.parametrize("torn", [False, True])
def test_damage_while_an_index_is_mapped(
    lake: Lake, indexes: KeyIndexes, caplog: pytest.LogCaptureFixture, torn: bool
) -> None:
    """The batch that meets it searches the file itself, and the index is made again."""
    publisher = source()
    table = lake.create(publisher)
    lake.follow(table, publisher)
    for number in range(3):
        publisher.update(number, {"v": f"second {number}"})
        lake.follow(table, publisher)
        indexes.settle()
    for file in (lake.folder.parent / "key_index").iterdir():
        with file.open("r+b") as held:  # in place: what is mapped changes, too
            if torn:
                held.truncate(10)
                continue
            held.seek(-20, os.SEEK_END)
            held.write(b"\xff\xff")
    publisher.delete(90)
    publisher.update(95, {"v": "third"})
    lake.follow(table, publisher)
    assert "is damaged: it is made again" in caplog.text
    for number in range(3):
        publisher.update(number, {"v": f"fourth {number}"})
        lake.follow(table, publisher)
        indexes.settle()
    assert list((lake.folder.parent / "key_index").iterdir())


def test_rows_that_an_index_does_not_know_are_looked_for(
    lake: Lake, indexes: KeyIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No change is skipped on the word of an index."""
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", 1 << 20)
    publisher = source()
    table = lake.create(publisher)
    lake.follow(table, publisher)
    asked: list[int] = []

    def nothing(*given: object) -> dict[index_lookup.FileName, Hits]:
        found = real(*given)  # type: ignore[arg-type]
        asked.append(len(found))
        return {name: _none() for name in found}

    real = index_lookup.look_up
    monkeypatch.setattr("penstock.pipeline.table_work.look_up", nothing)
    publisher.update(3, {"v": "second"})
    (outcome,) = lake.stage((table, publisher))
    lake.commit(table)
    lake.check(table, publisher)
    assert asked == [1] and outcome.skipped is None


def _none() -> Hits:
    nothing: Sequence[int] = ()
    return Hits(np.array(nothing, np.int64), np.array(nothing, np.int64))


def test_a_written_file_has_one_before_it_is_asked_for(
    lake: Lake, indexes: KeyIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", 1 << 20)
    publisher = source()
    table = lake.create(publisher)
    lake.follow(table, publisher)
    indexes.settle()
    by: list[str] = []

    def build(item: IndexItem) -> FileIndex | None:
        by.append(threading.current_thread().name)
        return real(item)

    real = key_index.build
    monkeypatch.setattr(key_indexes, "build", build)
    for number in range(2):
        publisher.update(3, {"v": f"again {number}"})
        lake.follow(table, publisher)
        indexes.settle()
    assert by == ["key index"] * 2


def test_a_file_whose_batch_was_given_up_has_none(
    indexes: KeyIndexes, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_indexes, "_SMALL_ROWS", _ROWS)
    item = data_file(tmp_path)
    (tmp_path / "f.parquet").unlink()
    indexes.prepare(item, spark)
    indexes.settle()
    with pytest.raises(StorageError):
        indexes.index(item, spark, Time())
