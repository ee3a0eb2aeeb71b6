"""A file may be skipped only when no row in it can match: bounds hold every value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from penstock.lakehouse.statistics import Collector, bounds, from_json, to_json

STAMPS = st.datetimes()
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.decimal128(38, 6): st.decimals(
        -(10**30), 10**30, places=6, allow_nan=False, allow_infinity=False
    ),
    pa.date32(): st.dates(),
    pa.timestamp("us"): STAMPS,
    pa.timestamp("us", "UTC"): STAMPS.map(lambda at: at.replace(tzinfo=UTC)),
    pa.string(): st.text(max_size=5)
    | st.text(st.sampled_from("a\ud7ff\ue000\U0010ffff"), min_size=28, max_size=40),
}


@pytest.mark.parametrize("arrow", VALUES, ids=str)
@given(data=st.data())
def test_bounds_hold_every_value(arrow: pa.DataType, data: st.DataObject) -> None:
    batches = data.draw(st.lists(st.lists(st.none() | VALUES[arrow], max_size=6), max_size=3))
    collector = Collector(pa.schema([("c", arrow)]))
    for values in batches:
        collector.add(pa.table({"c": pa.array(values, arrow)}))
    stats = from_json(to_json(collector.result()))
    cells = [v for values in batches for v in values]
    present = [v for v in cells if v is not None]
    assert stats["numRecords"] == len(cells)
    assert stats["nullCount"].get("c", 0) == len(cells) - len(present)
    known = bounds(stats, "c", arrow)
    if known is None:
        assert not present or pa.types.is_floating(arrow)
    else:
        assert all(known[0] <= value <= known[1] for value in present)


def test_json_forms() -> None:
    table = pa.table(
        {
            "n": pa.array([Decimal("12.50"), Decimal("-0.01")], pa.decimal128(38, 2)),
            "d": pa.array([date(1, 2, 3), None]),
            "u": pa.array(
                [datetime(2020, 1, 1, 0, 0, 0, 1001, UTC)] * 2, pa.timestamp("us", "UTC")
            ),
            "l": pa.array([datetime(2020, 1, 1, 0, 0, 0, 1000)] * 2, pa.timestamp("us")),
            "s": ["b" * 40, "a"],
            "x": pa.array([b"\x00", None]),
            "f": [True, False],
            "a": pa.array([[1], None]),
        }
    )
    text = to_json(of_table(table))
    assert '"n":12.50' in text
    stats = json.loads(text)
    assert stats["minValues"]["d"] == stats["maxValues"]["d"] == "0001-02-03"
    assert stats["minValues"]["u"] == "2020-01-01T00:00:00.001Z"
    assert stats["maxValues"]["u"] == "2020-01-01T00:00:00.002Z"
    assert stats["maxValues"]["l"] == "2020-01-01T00:00:00.001"
    assert stats["maxValues"]["s"] == "b" * 32 + "\U0010ffff"
    assert set(stats["minValues"]) == {"n", "d", "u", "l", "s"}
    assert stats["nullCount"] == {"n": 0, "d": 1, "u": 0, "l": 0, "s": 0, "x": 1, "f": 0, "a": 1}


def test_numbers_that_json_cannot_hold_make_no_bounds() -> None:
    for odd in (float("nan"), float("inf")):
        stats = of_table(pa.table({"c": [1.0, odd]}))
        assert stats["minValues"] == {} and stats["nullCount"] == {"c": 0}


def test_only_the_first_32_columns() -> None:
    stats = of_table(pa.table({f"c{i}": [i] for i in range(40)}))
    assert len(stats["nullCount"]) == len(stats["minValues"]) == 32


def test_statistics_of_others() -> None:
    cut = {"minValues": {"c": "2020-01-01T00:00:00.000Z"}}
    cut["maxValues"] = cut["minValues"]
    low, high = bounds(cut, "c", pa.timestamp("us", "UTC")) or (None, None)
    assert low == datetime(2020, 1, 1, tzinfo=UTC)
    assert high is not None and high > datetime(2020, 1, 1, 0, 0, 0, 999, UTC)
    nan = {"minValues": {"c": 1.0}, "maxValues": {"c": "NaN"}}
    assert bounds(nan, "c", pa.float64()) is None
    assert bounds({}, "c", pa.int64()) is None
    assert bounds({"minValues": None, "maxValues": None}, "c", pa.int64()) is None


def test_the_last_moment_of_all_has_no_bound_that_cuts_it_off() -> None:
    end = datetime.max
    for zone, kind in ((None, pa.timestamp("us")), (UTC, pa.timestamp("us", "UTC"))):
        last = end.replace(tzinfo=zone)
        stats = of_table(pa.table({"c": pa.array([last], kind)}))
        assert "c" not in stats["maxValues"]  # others would take it at its word
        cut = {"minValues": {"c": "2020-01-01T00:00:00.000"}}
        cut["maxValues"] = {"c": "9999-12-31T23:59:59.999" + ("Z" if zone else "")}
        assert (bounds(cut, "c", kind) or (None, None))[1] == last


def test_bounds_of_delta_rs_hold_its_values(tmp_path: Path) -> None:
    """It writes decimals as doubles, moments as milliseconds."""
    kind = pa.decimal128(38, 2)
    values = [Decimal("-123456789012345.17"), Decimal("123456789012345.17")]
    moments = [datetime(1900, 1, 1, 1, 1, 1, 123456), datetime.max]
    rows = pa.table({"d": pa.array(values, kind), "t": pa.array(moments, pa.timestamp("us"))})
    write_deltalake(tmp_path, rows)
    (add,) = (
        json.loads(line)["add"]
        for line in (tmp_path / "_delta_log" / f"{0:020d}.json").read_text("utf-8").splitlines()
        if '"add"' in line
    )
    stats = from_json(add["stats"])
    columns: tuple[tuple[str, Sequence[Any]], ...] = (("d", values), ("t", moments))
    for name, cells in columns:
        low, high = bounds(stats, name, rows.schema.field(name).type) or (None, None)
        assert low is not None and low <= cells[0], name
        assert high is not None and high >= cells[1], name


@pytest.mark.parametrize(
    "values",
    [
        pa.array([19000, 2**31 - 1], pa.date32()),  # infinity
        pa.array([-(2**31) + 1, 19000], pa.date32()),
        pa.array([0, 2**63 - 1], pa.timestamp("us")),
        pa.array([0, -(2**62)], pa.timestamp("us", "UTC")),
        pa.array([-800_000, 0], pa.date32()),  # BC
    ],
)
def test_what_python_has_no_year_for_has_no_bounds(values: pa.Array) -> None:
    found = of_table(pa.table({"d": values, "i": [1, 2]}))
    assert (found["minValues"], found["maxValues"]) == ({"i": 1}, {"i": 2})
    assert (found["numRecords"], found["nullCount"]) == (2, {"d": 0, "i": 0})


def of_table(table: pa.Table) -> dict[str, Any]:
    """Statistics of a file that holds exactly this table."""
    collector = Collector(table.schema)
    collector.add(table)
    return collector.result()
