"""Rows of a range of keys, where the target's column is of another type than the publisher's."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.pipeline.key_range import KeyRange


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([-5, 9, 10, 100, None], pa.int64()),
        pa.array(["-5", "9 ", "10", "100", None]),
        pa.array([Decimal(-5), Decimal(9), Decimal(10), Decimal(100), None], pa.decimal128(10, 2)),
        pa.array([-5.0, 9.0, 10.0, 100.0, None]),
    ],
    ids=lambda keys: str(keys.type),
)
def test_keys_are_compared_as_numbers(keys: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([keys], ["k"])

    def chosen(low: int | None, high: int | None) -> list[object]:
        return list(KeyRange("k", low, high, 1).rows(batch).column(0).to_pylist())

    values = keys.to_pylist()
    assert chosen(None, 10) == [*values[:2], None]
    assert chosen(10, None) == values[2:4]
    assert chosen(9, 100) == values[1:3]


def test_a_text_that_another_writer_made_and_is_no_number_is_in_the_first_range() -> None:
    largest = str((1 << 63) - 1)
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "", "10", largest])], ["k"])
    assert KeyRange("k", None, 10, 1).rows(batch).column(0).to_pylist() == ["x", ""]
    assert KeyRange("k", 10, None, 1).rows(batch).column(0).to_pylist() == ["10", largest]
    assert KeyRange("k", 1 << 62, None, 1).rows(batch).column(0).to_pylist() == [largest]
