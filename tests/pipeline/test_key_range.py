"""Which rows a range of keys has, whatever type the key's column has at the node."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipeline.key_range import KeyRange

LEAST, MOST = -(1 << 63), (1 << 63) - 1
KEYS = [LEAST, -2000000000, -5, 0, 7, 2000000000, MOST]
RANGES = [(None, -5), (-5, 7), (7, 2000000000), (2000000000, None)]


def kept(keys: pa.Array, low: int | None, high: int | None) -> list[Any]:
    batch = pa.record_batch({"k": keys})
    found: list[Any] = KeyRange("k", low, high, 1).rows(batch)["k"].to_pylist()
    return found


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(KEYS, pa.int64()),
        pa.array(list(map(str, KEYS))),
        pa.array([f"{key:<20}" for key in KEYS]),
        pa.array(list(map(Decimal, KEYS)), pa.decimal128(19, 0)),
        pa.array([-300, -5, 0, 6, 7, 300], pa.int16()),
        pa.array([-2147483648.0, -5.0, 0.0, 6.0, 7.0, 2147483647.0]),
    ],
    ids=lambda keys: str(keys.type),
)
def test_each_row_is_of_one_range(keys: pa.Array) -> None:
    found = [kept(keys, low, high) for low, high in RANGES]
    assert [key for each in found for key in each] == keys.to_pylist()
    for (low, high), each in zip(RANGES, found, strict=True):
        assert all(low is None or int(key) >= low for key in each)
        assert all(high is None or int(key) < high for key in each)


def test_the_greatest_key_is_no_other_than_the_one_before() -> None:
    keys = pa.array([str(MOST - 1), str(MOST)])
    assert kept(keys, None, MOST) == [str(MOST - 1)]
    assert kept(keys, MOST, None) == [str(MOST)]


def test_what_is_no_key_is_of_the_first_range() -> None:
    """Other writers put it there; ranges with an end alone have a next one."""
    keys = pa.array(["x", None, "", "1.5", "007", "9" * 30, "8", "-0"])
    strange = [key for key in keys.to_pylist() if key != "8"]
    assert kept(keys, None, 5) == strange
    assert kept(keys, 5, 9) == ["8"]
    assert kept(keys, 9, None) == []
