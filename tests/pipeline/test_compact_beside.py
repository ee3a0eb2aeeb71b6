"""Compaction beside batches: what was committed meanwhile stays so, or nothing is put in place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaRs
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap
from pyspark.sql import SparkSession

from end_to_end.compare import query
from penstock.attribute import Attribute
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.schema import Column
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.compact import (
    CompactOptions,
    Rewritten,
    TableAt,
    due_files,
    moved_positions,
    put_in_place,
    rewrite,
)
from pipeline.history import Publisher
from pipeline.lake import APP, Lake

MERGE = CompactOptions(small_files=2)
TYPES = {"a": pa.int32(), "b": pa.string()}

Source = list[str]
"""Of each row of a file: alive, deleted before the rewrite, or deleted since."""


@given(st.data())
def test_where_rows_go(data: st.DataObject) -> None:
    """Against a model that writes names of rows into lists."""
    fate = st.sampled_from(["alive", "before", "since"])
    sources: list[Source] = data.draw(st.lists(st.lists(fate, min_size=1, max_size=40), max_size=6))
    alive = [
        (n, at) for n, rows in enumerate(sources) for at, f in enumerate(rows) if f != "before"
    ]
    new: list[list[tuple[int, int]]] = []
    while alive:
        size = data.draw(st.integers(1, len(alive)))
        new.append(alive[:size])
        alive = alive[size:]
    files = []
    for n, rows in enumerate(sources):
        before = BitMap(at for at, f in enumerate(rows) if f == "before")
        now = BitMap(at for at, f in enumerate(rows) if f != "alive")
        whole = DataFile(str(n), 1, len(rows), {})
        files.append((whole.with_deleted(before) if before else whole, now))
    written = [WrittenFile(f"new {n}", 1, len(rows), {}) for n, rows in enumerate(new)]
    expected = {
        file.path: positions
        for file, rows in zip(written, new, strict=True)
        if (positions := BitMap(i for i, (n, at) in enumerate(rows) if sources[n][at] == "since"))
    }
    assert moved_positions(files, written) == expected


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "warehouse")


def with_files(lake: Lake, count: int = 4) -> tuple[Publisher, DeltaTable]:
    source = Publisher(dict(TYPES), ("a",))
    table = lake.create(source)
    for batch in range(count):
        for a in range(20):
            source.insert({"a": 20 * batch + a, "b": f"b{a}"})
        if batch:
            source.delete(20 * batch - 5)
        lake.follow(table, source)
    return source, table


def begun(lake: Lake, table: DeltaTable, options: CompactOptions = MERGE) -> Rewritten:
    at = TableAt.now(table)
    chosen = due_files(at, options)
    assert chosen
    return rewrite(lake.spark, at, chosen, options)


@pytest.mark.spark
def test_rows_deleted_meanwhile_are_deleted_in_the_new_file(lake: Lake) -> None:
    source, table = with_files(lake)
    done = begun(lake, table)
    for at in (70, 41, 40, 3, 0):
        source.delete(at)
    source.update(10, {"b": "meanwhile"})
    source.insert({"a": 1000, "b": "new"})
    lake.follow(table, source)
    assert put_in_place(table, done)
    (new,) = (table.files[file.path] for file in done.new)
    assert (new.deleted, len(table.files)) == (6, 2)
    lake.check(table, source)
    assert (table.last_app_id, table.transaction_version(APP)) == (APP, lake.lsn)
    before = DeltaRs(local_path(table.uri), version=table.version - 1)
    assert set(before.file_uris()) != set(DeltaRs(local_path(table.uri)).file_uris())
    source.update(20, {"b": "afterwards"})
    source.delete(50)
    lake.follow(table, source)
    assert sum(f.deleted for f in table.files.values()) == 8
    reopened = lake.warehouse.open("public", "t")
    assert reopened is not None
    assert {p: f.deleted for p, f in reopened.files.items()} == {
        p: f.deleted for p, f in table.files.items()
    }


@pytest.mark.spark
def test_a_file_whose_rows_are_all_deleted_meanwhile(lake: Lake) -> None:
    source, table = with_files(lake)
    done = begun(lake, table, replace(MERGE, target_file_bytes=1))
    assert len(done.new) == 4
    for _ in range(19):
        source.delete(0)
    source.delete(3)
    lake.follow(table, source)
    assert len(table.files) == 3
    assert put_in_place(table, done)
    assert len(table.files) == 3
    assert not lake.data_files(table) & {done.new[0].path}
    lake.check(table, source)


def _truncate(lake: Lake, source: Publisher, table: DeltaTable) -> None:
    source.truncate()
    source.insert({"a": 1, "b": "other"})
    lake.follow(table, source)


def _empty_files(lake: Lake, source: Publisher, table: DeltaTable) -> None:
    for _ in range(38):
        source.delete(0)
    lake.follow(table, source)
    assert len(table.files) == 2


def _add_column(lake: Lake, source: Publisher, table: DeltaTable) -> None:
    source.add_column("later", pa.int64())
    table.add_columns([Column("later", Attribute("later", 0), pa.int64())])
    source.update(3, {"later": 5})
    lake.follow(table, source)


def _compact_first(lake: Lake, source: Publisher, table: DeltaTable) -> None:
    DeltaRs(local_path(table.uri)).optimize.compact()
    table.reload()


def _bring_back(lake: Lake, source: Publisher, table: DeltaTable) -> None:
    """Rows that were deleted when the files were rewritten live again."""
    DeltaRs(local_path(table.uri)).restore(table.version - 1)


Between = Callable[[Lake, Publisher, DeltaTable], None]


@pytest.mark.spark
@pytest.mark.parametrize(
    "between", [_truncate, _empty_files, _add_column, _compact_first, _bring_back]
)
def test_what_does_not_fit_is_thrown_away(lake: Lake, between: Between) -> None:
    source, table = with_files(lake)
    if between is _bring_back:
        lake.spark.sql(f"DELETE FROM delta.`{table.uri}` WHERE a = 30").collect()
        table.reload()
        assert any(file.deleted for file in table.files.values())
    done = begun(lake, table)
    between(lake, source, table)
    reopened = lake.warehouse.open("public", "t")
    assert reopened is not None
    table = reopened
    version, found = table.version, lake.read(table)
    assert not put_in_place(table, done)
    assert not lake.data_files(table) & {file.path for file in done.new}
    assert (table.version, lake.read(table)) == (version, found)
    assert not table.has_staged
    lake.check(table, source)


@pytest.mark.spark
def test_a_race_lost_to_another_writer(lake: Lake) -> None:
    """Its commit is seen only by the log: the table has not been loaded again."""
    source, table = with_files(lake)
    done = begun(lake, table)
    DeltaRs(local_path(table.uri)).optimize.compact()
    with pytest.raises(Exception, match="another writer"):
        put_in_place(table, done)
    assert not table.has_staged
    assert not lake.data_files(table) & {file.path for file in done.new}
    table.reload()
    lake.check(table, source)


def _steps(rng: random.Random, source: Publisher, keys: Iterator[int]) -> None:
    for _ in range(rng.randint(1, 8)):
        kind = rng.choice("iiuudd") if source.rows else "i"
        if kind == "i":
            source.insert({"a": next(keys), "b": rng.choice(["x", "y", None])})
        elif kind == "u":
            source.update(rng.randrange(len(source.rows)), {"b": str(rng.random())})
        else:
            source.delete(rng.randrange(len(source.rows)))
    if rng.random() < 0.03:
        source.truncate()


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(4))
def test_random_stories(lake: Lake, seed: int) -> None:
    """Batches go on while files are rewritten: after each the rows are the publisher's, and a
    version that was read before is what it was."""
    rng, keys = random.Random(seed), iter(range(100_000))
    source = Publisher(dict(TYPES), ("a",))
    table = lake.create(source)
    options = CompactOptions(small_files=8, target_file_bytes=rng.choice([1, 128 << 20]))
    done: Rewritten | None = None
    put = 0
    cut, rows_then = table.version, lake.read(table)
    for step in range(60):
        _steps(rng, source, keys)
        lake.follow(table, source)
        if done is not None and rng.random() < 0.4:
            put, done = put + put_in_place(table, done), None
            lake.check(table, source)
        at = TableAt.now(table)
        if done is None and (chosen := due_files(at, options)):
            done = rewrite(lake.spark, at, chosen, options)
        if step % 20 == 10:
            cut, rows_then = table.version, lake.read(table)
    old = DeltaRs(local_path(table.uri), version=cut)
    assert old.version() == cut
    assert put
    found = query("SELECT * FROM t", t=old).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, rows_then))
