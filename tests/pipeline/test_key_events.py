"""Numbers of keys: equal for the keys that DuckDB groups together, whatever their types."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.key_events import key_numbers

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
ROW = pa.struct({"a": pa.int64(), "b": pa.string()})
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [0, 1, -1, 2**31 - 1]),
    "text": (pa.string(), ["", "a", "A", "a ", "ä", "a\u0308"]),
    "bytes": (pa.binary(), [b"", b"\0", b"\0\0"]),
    "double": (pa.float64(), [0.0, -0.0, float("nan"), OTHER_NAN, 1e300, float("inf")]),
    "single": (pa.float32(), [0.0, -0.0, float("nan"), 0.1]),
    "numeric": (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("1.10"), Decimal("-1.10")]),
    "time": (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31)]),
    "flag": (pa.bool_(), [True, False]),
    "array": (pa.list_(pa.float64()), [[], [0.0], [-0.0], [None], [0.0, 1.0], [float("nan")]]),
    "row": (ROW, [{"a": 1, "b": ""}, {"a": None, "b": ""}]),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """One to three key columns with NULLs, each in some chunks."""
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    rows = draw(st.integers(0, 12))
    cut = draw(st.integers(0, rows))
    columns = []
    for name in names:
        type, values = VALUES[name]
        held = draw(st.lists(st.sampled_from([None, *values]), min_size=rows, max_size=rows))
        parts = [pa.array(held[:cut], type), pa.array(held[cut:], type)]
        columns.append(pa.chunked_array(parts, type))
    return pa.table(columns, [f"k{i}" for i in range(len(columns))])


@given(keys=tables())
def test_keys_have_one_number_if_duckdb_groups_them(keys: pa.Table) -> None:
    numbers = key_numbers(keys)
    rows = keys.append_column("i", pa.array(np.arange(keys.num_rows)))
    by = ", ".join(keys.column_names)
    with duckdb.connect() as duck:
        query = f"select i, min(i) over (partition by {by}) as first from rows"
        grouped = duck.register("rows", rows).execute(query).fetchnumpy()
    first = np.empty(keys.num_rows, np.int64)
    first[grouped["i"]] = grouped["first"]
    assert len(numbers) == keys.num_rows
    assert np.array_equal(numbers[:, None] == numbers, first[:, None] == first)


@pytest.mark.parametrize("name", VALUES)
def test_keys_without_rows(name: str) -> None:
    assert not len(key_numbers(pa.table({"k": pa.chunked_array([], VALUES[name][0])})))
