"""Which rows of one side the other has not: as EXCEPT ALL says, where no row is there twice."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.identifiers import quoted
from penstock.pipeline.columns import signs
from penstock.pipeline.duck import connection
from penstock.pipeline.publish_changes import compared_columns, rows_without
from penstock.pipeline.scan import ScanColumn

VALUES: Final[list[tuple[pa.DataType, list[Any]]]] = [
    (pa.float64(), [0.0, -0.0, math.nan, 1.5, math.inf, None]),
    (pa.float32(), [0.0, -0.0, math.nan, 1.5, None]),
    (pa.list_(pa.float64()), [[0.0], [-0.0], [math.nan], [], [None], [1.0, None], None]),
    (pa.list_(pa.int32()), [[1], [], [None], [1, 2], None]),
    (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": None, "b": None}, {"a": 1, "b": ""}, None],
    ),
    (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], [("a", None)], None]),
    (pa.map_(pa.string(), pa.float32()), [[("a", 0.0)], [("a", -0.0)], [("a", None)], [], None]),
    (pa.list_(pa.list_(pa.float64())), [[[0.0]], [[-0.0]], [[]], [None], [], None]),
    (pa.large_list(pa.float64()), [[0.0], [-0.0], [None], None]),
    (
        pa.struct([("a \"b'", pa.int32()), ("c", pa.list_(pa.struct([("d", pa.float64())])))]),
        [
            {"a \"b'": 1, "c": [{"d": 0.0}]},
            {"a \"b'": 1, "c": [{"d": -0.0}]},
            {"a \"b'": 1, "c": [{"d": None}]},
            {"a \"b'": 1, "c": [None]},
            {"a \"b'": 1, "c": None},
            None,
        ],
    ),
    (pa.binary(), [b"", b"\0", b"a", None]),
    (pa.string(), ["", " ", "a", "A", "\u00e9", "e\u0301", None]),
    (pa.decimal128(38, 10), [Decimal("1"), Decimal("1.0000000001"), None]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None]),
    (pa.date32(), [dt.date(1, 1, 1), None]),
    (pa.bool_(), [True, False, None]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda v: str(v)[:40])
def test_no_two_of_the_values_are_the_same(kind: pa.DataType, values: list[Any]) -> None:
    duck = connection()
    duck.register("given", pa.table({"v": pa.array(values, type=kind)}))
    try:
        same = ", ".join(["v", *signs([("v", kind)])])
        assert len(duck.execute(f"SELECT v FROM given GROUP BY {same}").fetchall()) == len(values)
    finally:
        duck.unregister("given")


@st.composite
def sides(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """Two tables of the same columns; no key is in one of them twice."""
    columns = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
    names = ["k", "a b", 'c"d', "e"][: 1 + len(columns)]
    keys = st.lists(st.one_of(st.none(), st.integers(0, 9)), unique=True)

    def side() -> pa.Table:
        of = draw(keys)
        rest = [pa.array([draw(st.sampled_from(v)) for _ in of], type=t) for t, v in columns]
        return pa.table([pa.array(of, type=pa.int64()), *rest], names=names)

    return side(), side()


@settings(max_examples=200, deadline=None)
@given(sides())
def test_rows_without(tables: tuple[pa.Table, pa.Table]) -> None:
    duck = connection()
    columns = [ScanColumn(field.name, field.name, field.type) for field in tables[0].schema]
    for name, table in zip(("one", "other"), tables, strict=True):
        duck.register("given", table)
        duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM given")
        duck.unregister("given")
    row = ", ".join(quoted(column.name) for column in columns)
    compared = ", ".join(compared_columns(columns))
    for of, other in (("one", "other"), ("other", "one")):
        every = f"SELECT {compared} FROM {of} EXCEPT ALL SELECT {compared} FROM {other}"
        assert rows(duck, f"SELECT {row} FROM ({rows_without(of, other, columns)})") == rows(
            duck, f"SELECT {row} FROM ({every})"
        )


def rows(duck: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    """In any order; -0 is another value than 0 there, and NaN the same as NaN."""
    return sorted(map(repr, duck.execute(query).fetchall()))
