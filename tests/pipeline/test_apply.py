"""Net changes on real Delta tables: one job, nothing staged in a conflict, Spark reads the rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import (
    CommitConflict,
    PenstockError,
    RelationChanged,
    ReplicationConflict,
    StorageError,
)
from penstock.lakehouse.schema import Column
from penstock.lakehouse.storage import Storage
from penstock.pipeline.apply import run_batch
from penstock.pipeline.fold import fold
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.pipeline.payload import Payloads, remove_leftovers
from penstock.pipeline.table_work import ApplyOptions, TableWork
from penstock.relation import ReplicaIdentity
from pipeline.history import Publisher, Row, batches
from pipeline.lake import APP, Lake

pytestmark = pytest.mark.spark

TYPES = {"a": pa.int32(), "b": pa.string(), "big": pa.string(), "n": pa.int64()}
UTC = ZoneInfo("UTC")


@pytest.fixture(params=["by files", "by indexes"])
def lake(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """Old rows are found in the files themselves, or by the files' indexes."""
    indexes = KeyIndexes(tmp_path / "key_index", 1 << 20)
    options = ApplyOptions(indexes=indexes if request.param == "by indexes" else None)
    yield Lake(spark, tmp_path / "warehouse", options)
    indexes.close()


def row(a: int, n: int | None = 0, big: str | None = "toast", b: str | None = "x") -> Row:
    return {"a": a, "b": b, "big": big, "n": n}


def publisher(*rows: Row, **options: Any) -> Publisher:
    made = Publisher(dict(TYPES), options.pop("key", ("a",)), **options)
    for each in rows:
        made.insert(each)
    return made


FULL = ReplicaIdentity.FULL


@pytest.mark.parametrize(
    ("key", "identity"),
    [(("a",), ReplicaIdentity.DEFAULT), (("b", "a"), ReplicaIdentity.DEFAULT), (("a",), FULL)],
    ids=["one key", "composite key", "full identity with a key"],
)
def test_random_work_on_keyed_tables(
    lake: Lake, key: tuple[str, ...], identity: ReplicaIdentity
) -> None:
    source = Publisher(dict(TYPES), key, identity)
    table = lake.create(source)
    dice = random.Random(len(key))
    for batch in range(4):
        for _ in range(dice.choice((1, 40, 150))):
            random_change(source, dice)
        if batch == 2:
            source.truncate()
            source.insert(row(1, batch))
        if batch % 2:
            lake.stage((table, source))
            random_change(source, dice)
        lake.follow(table, source)


def random_change(source: Publisher, dice: random.Random) -> None:
    """An insert, a delete, or an update with unsent cells and now and then another key."""
    keys = {row["a"] for row in source.rows}
    free = next(a for a in iter(lambda: dice.randrange(5000), None) if a not in keys)
    step = dice.random()
    if step < 0.35 or not source.rows:
        source.insert(row(free, dice.choice((None, 1)), f"toast {free}", dice.choice("xyz")))
        return
    at = dice.randrange(len(source.rows))
    if step < 0.5:
        source.delete(at)
    else:
        values: Row = {"n": dice.randrange(9)}
        if step < 0.65:
            values["a"] = free
        if step > 0.9:
            values["big"] = f"new toast {step}"
        source.update(at, values, dice.choice((frozenset({"big"}), frozenset())))


def test_files_do_not_become_more_with_each_batch(lake: Lake) -> None:
    """New versions that keep cells of old rows in many files are written to few files."""
    source = publisher(*(row(a, big=f"toast {a}") for a in range(40)))
    table = lake.create(source)
    lake.follow(table, source)
    for batch in range(6):
        for at in range(batch % 2, 40, 2 + batch % 3):
            source.update(at, {"n": batch}, frozenset({"big"}))
        (outcome,) = lake.stage((table, source))
        assert outcome.files_written <= lake.spark.sparkContext.defaultParallelism
        lake.commit(table)
        lake.check(table, source)


def test_random_work_on_a_multiset(lake: Lake) -> None:
    source = Publisher(dict(TYPES), (), FULL)
    table = lake.create(source)
    dice = random.Random(5)
    for _ in range(5):
        for _ in range(60):
            if dice.random() < 0.5 or not source.rows:
                source.insert(row(dice.randrange(4), dice.choice((None, 1)), None))
            elif dice.random() < 0.5:
                source.delete(dice.randrange(len(source.rows)))
            else:
                source.update(dice.randrange(len(source.rows)), {"a": dice.randrange(4)})
        lake.follow(table, source)


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["", "a", "a ", "ä" * 40, "ä" * 40 + "b", "'; drop", "z"]),
    "uuid": (pa.string(), [f"{i:08x}-0000-4000-8000-{i:012x}" for i in range(7)]),
    "numeric": (pa.decimal128(38, 4), [Decimal(i).scaleb(3 * abs(i) - 4) for i in range(-1, 6)]),
    "bytea": (pa.binary(), [b"", b"\x00", b"\x00\x00", b"\xff", b"a", b"b", b"\xff\xff"]),
    "bigint": (pa.int64(), [-(2**63), -1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1]),
    "timestamp": (pa.timestamp("us"), [datetime(2026, 1, 1, 0, 0, 0, i * 250) for i in range(7)]),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        [datetime(1900 + i, 1, 1, 0, 0, 0, i, tzinfo=UTC) for i in range(7)],
    ),
    "date": (pa.date32(), [date(1 + 1000 * i, 1, 1) for i in range(7)]),
    "boolean": (pa.bool_(), [True, False]),
    "double": (pa.float64(), [-1.5, 0.0, 1e300, float("inf"), float("-inf"), 5e-324, 2.5]),
    "array": (pa.list_(pa.int32()), [[], [1], [1, None], [None], [1, 2], [2], [3]]),
}


def test_keys_of_every_type_in_one_job(lake: Lake) -> None:
    """Tables side by side: inserts, then updates with unsent cells, deletes and key changes."""
    pairs = []
    for name, (type, values) in KEYS.items():
        source = Publisher({**TYPES, "a": type}, ("a",))
        for value in values[:-1]:
            source.insert({**row(0, None, f"toast {value}", None), "a": value})
        pairs.append((lake.create(source, name), source))
    lake.stage(*pairs)
    for table, source in pairs:
        lake.commit(table)
        last = KEYS[table.name.removeprefix("public.")][1][-1]
        source.update(0, {"n": 1}, frozenset({"big"}))
        source.update(0, {"a": last}, frozenset({"big"}))
        for at in range(1, len(source.rows) - 1):
            source.update(at, {"n": at}, frozenset({"big"}))
        if len(source.rows) > 1:
            source.delete(len(source.rows) - 1)
    lake.stage(*pairs)
    for table, source in pairs:
        lake.commit(table)
        lake.check(table, source)


def test_several_stages_are_one_commit(lake: Lake) -> None:
    source = publisher(*(row(a) for a in range(10)))
    table = lake.create(source)
    lake.follow(table, source)
    before = table.version
    source.insert(row(10))
    lake.stage((table, source))
    source.update(10, {"n": 1}, frozenset({"big"}))
    source.update(3, {"n": 1}, frozenset({"big"}))
    lake.stage((table, source))
    source.update(3, {"n": 2}, frozenset({"big"}))
    source.delete(10)
    lake.stage((table, source))
    assert lake.commit(table) == before + 1
    lake.check(table, source)


def test_truncate_between_stages(lake: Lake) -> None:
    source = publisher(row(1))
    table = lake.create(source)
    lake.follow(table, source)
    source.insert(row(2))
    lake.stage((table, source))
    source.truncate()
    source.insert(row(1, 5))
    lake.stage((table, source))
    source.update(0, {"n": 6}, frozenset({"big"}))
    lake.follow(table, source)


def test_columns_added_later_are_null_in_old_files(lake: Lake) -> None:
    source = publisher(row(1), row(2))
    keyless = Publisher(dict(TYPES), (), FULL)
    keyless.insert(row(1))
    keyless.insert(row(1))
    pairs = [(lake.create(source, "keyed"), source), (lake.create(keyless, "keyless"), keyless)]
    lake.stage(*pairs)
    for table, owner in pairs:
        lake.commit(table)
        owner.add_column("later", pa.string())
        table.add_columns([Column("later", Attribute("later", 0), pa.string())])
        owner.update(0, {"n": 5}, frozenset({"big", "later"}))
    lake.stage(*pairs)
    for table, owner in pairs:
        lake.commit(table)
        lake.check(table, owner)


def test_large_rows_travel_as_files_and_are_written_in_slices(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, ApplyOptions(min_slice_bytes=1 << 20, max_slice_bytes=2 << 20))
    source = publisher(*(row(a, a, "t" * 2000) for a in range(3000)))
    table = lake.create(source)
    (outcome,) = lake.stage((table, source))
    assert (outcome.rows_written, outcome.files_written) == (3000, 3)
    lake.commit(table)
    for at in range(3000):
        source.update(at, {"n": -at, "b": "y" * 500}, frozenset({"big"}))
    lake.follow(table, source)
    assert not list((tmp_path / "_penstock/staging").iterdir())


def test_payloads_of_a_crashed_job_are_removed(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    made = Payloads(storage)
    large = made.put(pa.table({"a": list(range(200_000))}))
    small = made.put(pa.table({"a": [1]}))
    assert (large.uri is None, small.uri is None) == (False, True)
    assert large.table().num_rows == 200_000
    assert small.table().to_pylist() == [{"a": 1}]
    now = datetime.now().astimezone()
    assert remove_leftovers(storage, now - timedelta(hours=1)) == 0
    assert remove_leftovers(storage, now + timedelta(hours=1)) == 1
    assert remove_leftovers(storage, now + timedelta(hours=1)) == 0


def test_inserts_alone_need_no_search(lake: Lake) -> None:
    source = publisher(row(1))
    table = lake.create(source)
    lake.follow(table, source)
    source.insert(row(2))
    (outcome,) = lake.stage((table, source), check_absent=False)
    assert (outcome.files_written, outcome.files_touched) == (1, 0)
    lake.commit(table)
    lake.check(table, source)


def test_foreign_commit_is_noticed_and_the_batch_worked_again(
    lake: Lake, spark: SparkSession
) -> None:
    source = publisher(*(row(a) for a in range(100)))
    table = lake.create(source)
    lake.follow(table, source)
    source.update(7, {"n": 7}, frozenset({"big"}))
    source.delete(50)
    messages = list(source.messages)
    lake.stage((table, source))
    spark.sql(f"optimize delta.`{table.uri}` zorder by (b)").collect()
    with pytest.raises(CommitConflict):
        lake.commit(table)
    table.reload()
    assert table.last_app_id != APP
    source.messages = messages
    lake.follow(table, source)


def test_foreign_files_with_old_timestamps_and_vectors(lake: Lake, spark: SparkSession) -> None:
    """Spark rewrites the table with INT96 timestamps and deletes by a vector of its own."""
    types = {**TYPES, "a": pa.timestamp("us", "UTC"), "t": pa.timestamp("us")}
    source = Publisher(types, ("a", "t"))
    for i in range(20):
        moment = datetime(2026, 1, 1, 12, 0, i, 123456)
        source.insert({**row(0, i), "a": moment.replace(tzinfo=UTC), "t": moment})
    table = lake.create(source)
    lake.follow(table, source)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        frame = spark.read.format("delta").load(table.uri).repartition(1).sortWithinPartitions("n")
        frame.write.format("delta").mode("overwrite").save(table.uri)
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    spark.sql(f"delete from delta.`{table.uri}` where n = 3").collect()
    del source.rows[3]
    table.reload()
    source.update(0, {"n": 50}, frozenset({"big"}))
    source.update(10, {"n": 51}, frozenset({"big"}))
    source.delete(5)
    lake.follow(table, source)


def test_missing_rows_are_skipped_repeated_and_unexpected_ones_are_conflicts(lake: Lake) -> None:
    source = publisher(*(row(a) for a in range(30)))
    table = lake.create(source)
    lake.follow(table, source)
    other = publisher(row(1), row(3))
    lake.stage((table, other), check_absent=False)
    lake.commit(table)
    held, version = lake.data_files(table), table.version

    missing = publisher(*(row(a) for a in range(100, 115)))
    missing.take_messages()
    for at in range(15):
        missing.update(at, {"n": 1})
    (outcome,) = lake.stage((table, missing))
    assert outcome.skipped is not None and outcome.skipped.update_missing == 15
    assert outcome.skipped.updates["a"].to_pylist() == list(range(100, 115))
    assert not table.has_staged

    repeated = publisher(row(1), row(2), row(3))
    repeated.take_messages()
    for at in range(3):
        repeated.update(at, {"n": 1}, frozenset({"big"}))
    with pytest.raises(ReplicationConflict) as raised:
        lake.stage((table, repeated))
    assert raised.value.detail == "more than one row has the key: Key (a)=(1), (3)."

    with pytest.raises(ReplicationConflict) as raised:
        lake.stage((table, publisher(row(29), row(30))))
    told = "Key already exists.\nKey (a)=(29); existing local row (29, "
    assert str(raised.value.detail).startswith(told)
    assert raised.value.sqlstate == "23505"
    assert not table.has_staged
    assert table.version == version
    assert lake.data_files(table) == held


def test_repeated_key_inside_one_file(lake: Lake) -> None:
    table = lake.create(publisher())
    twins = fold(
        batches(publisher(row(1), row(1)).messages, TYPES)[0], replace(table.schema, key=())
    )
    run_batch(lake.spark, [TableWork(table, twins, check_absent=False)], lake.options)
    lake.commit(table)
    source = publisher(row(1))
    source.take_messages()
    source.delete(0)
    with pytest.raises(ReplicationConflict) as raised:
        lake.stage((table, source))
    assert raised.value.detail == "more than one row has the key: Key (a)=(1)."


def test_one_tables_conflict_keeps_the_others_unstaged(lake: Lake) -> None:
    good, bad = publisher(row(1)), publisher(row(1))
    tables = lake.create(good, "good"), lake.create(bad, "bad")
    lake.follow(tables[1], bad)
    held = lake.data_files(tables[1])
    bad.insert(row(1))
    with pytest.raises(ReplicationConflict, match=r'"public\.bad"'):
        lake.stage((tables[0], good), (tables[1], bad))
    assert not tables[0].has_staged and not tables[1].has_staged
    assert lake.data_files(tables[0]) == set()
    assert lake.data_files(tables[1]) == held


def test_multiset_without_enough_equal_rows_loses_those_that_it_has(lake: Lake) -> None:
    source = Publisher(dict(TYPES), (), FULL)
    source.insert(row(1, None))
    source.insert(row(1, None))
    table = lake.create(source)
    lake.follow(table, source)
    source.insert(row(1, None))
    source.take_messages()
    for _ in range(3):
        source.delete(0)
    (outcome,) = lake.stage((table, source))
    assert outcome.skipped is not None and outcome.skipped.delete_missing == 1
    lake.commit(table)
    assert lake.read(table) == []
    source.insert(row(2, 7))
    lake.follow(table, source)
    counter = Publisher(dict(TYPES), (), FULL, rows=[row(2, 0)])
    for number in range(1, 20):  # the table has it as it is after the seventh
        counter.update(0, {"n": number})
    (outcome,) = lake.stage((table, counter))
    assert outcome.skipped is not None and outcome.skipped.update_missing == 7
    lake.commit(table)
    lake.check(table, counter)


def test_zeros_of_both_signs_are_two_rows(lake: Lake) -> None:
    """PostgreSQL's float8 = finds either; the publisher's old tuple says which one it was."""
    types = {"x": pa.float64(), "y": pa.float32(), "l": pa.list_(pa.float64())}
    source = Publisher(dict(types), (), FULL)
    nan = float("nan")
    for x in (0.0, -0.0, 0.0, -0.0, nan):
        source.insert({"x": x, "y": 0.0, "l": [0.0, None]})
        source.insert({"x": 1.0, "y": x, "l": [x]})
    source.insert({"x": None, "y": -0.0, "l": None})
    table = lake.create(source)
    lake.follow(table, source)
    _same(lake.read(table), source.rows)
    source.delete(2)  # x = -0
    source.update(2, {"l": [-0.0]})
    source.update(0, {"x": -0.0})  # 0 becomes -0 and nothing else
    source.update(5, {"y": 0.0})
    source.delete(source.rows.index(next(r for r in source.rows if r["x"] != r["x"])))
    lake.stage((table, source))
    lake.commit(table)
    _same(lake.read(table), source.rows)


def _same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_keys_of_zero_are_one_key(lake: Lake) -> None:
    """As in a unique index of PostgreSQL, where 0 = -0."""
    source = Publisher({"k": pa.float64(), "v": pa.int64()}, ("k",))
    source.insert({"k": 0.0, "v": 1})
    table = lake.create(source)
    lake.follow(table, source)
    source.update(0, {"k": -0.0, "v": 2})
    lake.stage((table, source))
    lake.commit(table)
    _same(lake.read(table), [{"k": -0.0, "v": 2}])
    source.insert({"k": 0.0, "v": 3})
    with pytest.raises(ReplicationConflict) as raised:
        lake.stage((table, source))
    assert raised.value.sqlstate == "23505"


def test_lost_data_file_is_a_storage_error(lake: Lake) -> None:
    source = publisher(row(1))
    table = lake.create(source)
    lake.follow(table, source)
    (name,) = lake.data_files(table)
    Path(table.uri.removeprefix("file://"), name).unlink()
    source.update(0, {"n": 1})
    with pytest.raises(StorageError, match="could not read file") as raised:
        lake.stage((table, source))
    assert raised.value.sqlstate == "58P01"
    assert not table.has_staged


@pytest.mark.parametrize("folder", ["star*[1]?", "it's", "a=1/k=2/100%"])
def test_paths_that_look_like_patterns(spark: SparkSession, tmp_path: Path, folder: str) -> None:
    lake = Lake(spark, tmp_path / folder)
    source = publisher(*(row(a) for a in range(10)))
    table = lake.create(source)
    lake.stage((table, source))
    lake.commit(table)
    source.update(4, {"n": 1}, frozenset({"big"}))
    source.delete(2)
    (outcome,) = lake.stage((table, source))
    assert (outcome.rows_removed, outcome.files_touched) == (2, 1)
    lake.commit(table)
    lake.check(table, source)


def test_column_named_like_duckdbs_own(lake: Lake) -> None:
    source = Publisher({"file_row_number": pa.int64(), "position": pa.string()}, ("position",))
    for i in range(5):
        source.insert({"file_row_number": i, "position": str(i)})
    table = lake.create(source)
    lake.follow(table, source)
    source.update(2, {"file_row_number": 9})
    source.delete(4)
    lake.follow(table, source)


def test_generated_columns_that_cannot_be_made_fail_alone(lake: Lake) -> None:
    good, bad = publisher(row(1), row(2)), publisher(row(1), row(2))
    made = Column(
        "len",
        Attribute("len", 23, generated=AttGenerated.STORED, generation="length(b)"),
        pa.int32(),
        local=True,
    )
    unmade = replace(made, attribute=replace(made.attribute, generation="length(gone)"))
    tables = [lake.create(good, "good"), lake.create(bad, "bad")]
    works = []
    for table, source in zip(tables, (good, bad), strict=True):
        table.add_columns([made if source is good else unmade])
        changes, _ = batches(source.take_messages(), source.types)
        works.append(TableWork(table, fold(changes, table.schema)))
    failed: list[tuple[TableWork, PenstockError]] = []
    run_batch(lake.spark, works, lake.options, failed=lambda *each: failed.append(each))
    assert [work for work, _ in failed] == works[1:]
    assert isinstance(failed[0][1], RelationChanged)
    lake.commit(tables[0])
    assert sorted((r["a"], r["len"]) for r in lake.read(tables[0])) == [(1, 1), (2, 1)]
    assert not tables[1].files
