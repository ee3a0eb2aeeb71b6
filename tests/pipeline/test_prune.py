"""Statistics rule out only files that certainly hold none of the keys; work is packed evenly."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.statistics import from_json
from penstock.pipeline.job import pack
from penstock.pipeline.prune import EXACT_KEYS, candidates, in_order


def file(low: Any, high: Any, **more: Any) -> DataFile:
    stats = {"numRecords": 10, "minValues": {"k": low}, "maxValues": {"k": high}}
    return DataFile("f", 1, 10, stats, **more)


def kept(file: DataFile, values: list[Any], type: pa.DataType) -> bool:
    return bool(candidates([file], pa.table({"k": pa.array(values, type)})))


def test_each_key_is_compared() -> None:
    assert kept(file(10, 20), [1, 10], pa.int32())
    assert kept(file(10, 20), [20, 99], pa.int32())
    assert not kept(file(10, 20), [1, 9, 21, 99], pa.int32())


def test_many_keys_are_compared_by_their_range() -> None:
    many = [*range(EXACT_KEYS), 10 * EXACT_KEYS]
    assert kept(file(2 * EXACT_KEYS, 3 * EXACT_KEYS), many, pa.int64())
    assert not kept(file(-9, -1), many, pa.int64())
    assert not kept(file(11 * EXACT_KEYS, 12 * EXACT_KEYS), many, pa.int64())


@pytest.mark.parametrize("count", [1, EXACT_KEYS + 1])
def test_a_strings_upper_bound_may_be_a_prefix(count: int) -> None:
    cut = file("a" * 32, "b" * 32)
    assert kept(cut, ["b" * 40] * count, pa.string())
    assert not kept(cut, ["c"] * count, pa.string())
    assert not kept(cut, ["a"] * count, pa.string())


def test_strings_sort_by_code_points_as_in_utf_8() -> None:
    assert kept(file("\uffff", "\U0001f600"), ["\U00010000"], pa.string())


def test_what_bounds_cannot_tell_is_kept() -> None:
    assert kept(file(1, 2), [None, 99], pa.int32())
    assert kept(file(1.0, 2.0), [float("nan")], pa.float64())
    assert kept(file("AA==", "AQ=="), [b"\xff"], pa.binary())
    assert kept(file(None, None), [5], pa.int32())
    assert kept(DataFile("f", 1, 10, {}), [5], pa.int32())


def test_bounds_are_wider_by_what_writers_cut_off() -> None:
    moment = datetime(2026, 1, 1, 0, 0, 0, 123456)
    cut = file("2026-01-01T00:00:00.000", "2026-01-01T00:00:00.123")
    assert kept(cut, [moment], pa.timestamp("us"))
    stats = from_json('{"minValues": {"k": 1.10}, "maxValues": {"k": 12345678901234567.89}}')
    exact = DataFile("f", 1, 10, stats)
    type = pa.decimal128(38, 2)
    assert kept(exact, [Decimal("12345678901234567.89")], type)
    assert not kept(exact, [Decimal("12345678901239999.00")], type)


def test_a_file_is_ruled_out_by_any_column_of_the_key() -> None:
    stats = {"minValues": {"k": 1, "l": 1}, "maxValues": {"k": 9, "l": 9}}
    both = DataFile("f", 1, 10, stats)
    assert candidates([both], pa.table({"k": [5], "l": [5]}))
    assert not candidates([both], pa.table({"k": [5], "l": [10]}))


def test_files_without_live_rows_are_left_out() -> None:
    assert not kept(file(1, 9, deleted=10), [5], pa.int32())


def test_work_is_packed_evenly() -> None:
    items = [(1.0, "a"), (4.0, "b"), (2.0, "c"), (1.0, "d")]
    assert sorted(map(sorted, pack(items, 2))) == [["a", "c", "d"], ["b"]]
    assert len(pack(items, 9)) == 4


def test_files_in_the_order_of_a_column() -> None:
    files = [DataFile("none", 1, 10, {}), file(7, 9), file(None, None), file(-3, 99), file(7, 8)]
    assert in_order(files, "k", pa.int64()) == [files[3], files[1], files[4], files[0], files[2]]
    days = [file("2024-02-29", "2024-03-01"), file("1999-12-31", "2030-01-01")]
    assert in_order(days, "k", pa.date32()) == days[::-1]
    assert in_order(files, "k", pa.float64()) == files  # NaN has no place among bounds
