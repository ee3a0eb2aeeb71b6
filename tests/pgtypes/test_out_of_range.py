"""What stands for values that the target's type has not."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation, ValueNotRepresentable
from penstock.pgtypes import find
from penstock.pgtypes.gather import cells_of
from penstock.pgtypes.out_of_range import CLAMP, ERROR, NULL, OutOfRange
from penstock.pgtypes.pg_type import DATE, NUMERIC, TIMESTAMP, TIMESTAMPTZ
from penstock.pgtypes.text_output import AsText, may_not_fit

_TYPMOD = (8 << 16) + 2 + 4
"""numeric(8,2)"""
_LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)
_FIRST = datetime.datetime(1, 1, 1)
_VALUES: list[tuple[int, int, str, Any]] = [
    (DATE, -1, "infinity", datetime.date(9999, 12, 31)),
    (DATE, -1, "-infinity", datetime.date(1, 1, 1)),
    (DATE, -1, "0044-03-15 BC", datetime.date(1, 1, 1)),
    (DATE, -1, "10000-01-01", datetime.date(9999, 12, 31)),
    (TIMESTAMP, -1, "infinity", _LAST),
    (TIMESTAMP, -1, "0001-01-01 00:00:00 BC", _FIRST),
    (TIMESTAMPTZ, -1, "-infinity", _FIRST.replace(tzinfo=datetime.UTC)),
    (TIMESTAMPTZ, -1, "294276-12-31 23:59:59+00", _LAST.replace(tzinfo=datetime.UTC)),
    (TIMESTAMPTZ, -1, "0001-01-01 00:30:00+01", _FIRST.replace(tzinfo=datetime.UTC)),
    (TIMESTAMPTZ, -1, "10000-01-02 00:30:00+01", _LAST.replace(tzinfo=datetime.UTC)),
    (NUMERIC, (38 << 16) + 10 + 4, "Infinity", Decimal("9" * 28 + "." + "9" * 10)),
    (NUMERIC, _TYPMOD, "Infinity", Decimal("999999.99")),
    (NUMERIC, _TYPMOD, "-Infinity", Decimal("-999999.99")),
    (NUMERIC, _TYPMOD, "NaN", None),
    (1007, -1, "{{1,2},{3,4}}", None),
    (1182, -1, "{2020-01-01,infinity}", None),
]
_GOOD = {
    DATE: "2020-02-29",
    TIMESTAMP: "2020-02-29 01:02:03.5",
    TIMESTAMPTZ: "2020-02-29 01:02:03.5+00",
    NUMERIC: "1.50",
    1007: "{1,NULL}",
    1182: "{2020-01-01}",
}


@pytest.mark.parametrize(("oid", "typmod", "text", "clamped"), _VALUES)
def test_each_value(oid: int, typmod: int, text: str, clamped: Any) -> None:
    texts = [_GOOD[oid], None, text, _GOOD[oid], text]
    cells = cells_of(pa.array([t if t is None else t.encode() for t in texts], pa.binary()))
    with pytest.raises(ValueNotRepresentable):
        OutOfRange(ERROR).find(oid).text_column(cells, typmod)
    for policy, instead in ((NULL, None), (CLAMP, clamped)):
        way = OutOfRange(policy)
        column = way.find(oid).text_column(cells, typmod)
        good = column[0].as_py()
        assert good is not None
        assert column.type == OutOfRange(ERROR).find(oid).arrow(typmod)
        assert column.to_pylist() == [good, None, instead, good, instead]
        assert (way.take(), way.take()) == (2, 0)


def test_what_is_no_value_of_the_type_is_an_error() -> None:
    cells = cells_of(pa.array([b"infinity", b"yesterday"], pa.binary()))
    with pytest.raises(ProtocolViolation):
        OutOfRange(CLAMP).find(DATE).text_column(cells, -1)


@given(st.lists(st.one_of(st.none(), st.integers(-(1 << 31), (1 << 31) - 1)), max_size=60))
def test_binary_dates_as_one_by_one(days: list[int | None]) -> None:
    raws = [None if day is None else day.to_bytes(4, "big", signed=True) for day in days]
    cells = cells_of(pa.array(raws, pa.binary()))
    way = OutOfRange(CLAMP)
    first, last, epoch = datetime.date.min, datetime.date.max, datetime.date(2000, 1, 1)
    wanted = [
        None if day is None else min(max(day, (first - epoch).days), (last - epoch).days)
        for day in days
    ]
    column = way.find(DATE).binary_column(cells, -1)
    assert [None if v is None else (v - epoch).days for v in column.to_pylist()] == wanted
    assert way.take() == sum(one != other for one, other in zip(days, wanted, strict=True))


def test_copied_columns() -> None:
    way = OutOfRange(CLAMP)
    special = [struct.pack("!HhHH", 0, 0, sign, 0) for sign in (0xC000, 0xD000, 0xF000)]
    number = struct.pack("!HhHHHH", 2, 0, 0, 2, 1, 2500)
    numbers = cells_of(pa.array([number, special[0], None, *special[1:]], pa.binary()))
    assert way.find(NUMERIC).copy_column(numbers, _TYPMOD).to_pylist() == [
        Decimal("1.25"),
        None,
        None,
        Decimal("999999.99"),
        Decimal("-999999.99"),
    ]
    ends = [0, (1 << 63) - 1, -(1 << 63)]
    raws = [*(end.to_bytes(8, "big", signed=True) for end in ends), None]
    found = way.find(TIMESTAMP).copy_column(cells_of(pa.array(raws, pa.binary())), -1).to_pylist()
    assert found == [datetime.datetime(2000, 1, 1), _LAST, _FIRST, None]


@pytest.mark.parametrize(("oid", "typmod", "text"), [value[:3] for value in _VALUES])
def test_as_text_each_value_is_what_was_sent(oid: int, typmod: int, text: str) -> None:
    cells = cells_of(pa.array([text.encode(), None], pa.binary()))
    assert may_not_fit(oid, typmod)
    assert AsText(find(oid)).text_column(cells, typmod).to_pylist() == [text, None]


def test_types_that_hold_all_of_their_values() -> None:
    assert not any(
        may_not_fit(oid, -1) for oid in (16, 20, 25, 700, 701, 2950, 3802, NUMERIC, 3910)
    )


def test_as_text_what_has_come_in_binary_is_printed() -> None:
    cells = cells_of(pa.array([(8824).to_bytes(4, "big")], pa.binary()))
    assert AsText(find(DATE)).binary_column(cells, -1).to_pylist() == ["2024-02-28"]
    endless = cells_of(pa.array([(0x7FFFFFFF).to_bytes(4, "big")], pa.binary()))
    with pytest.raises(ValueNotRepresentable):
        AsText(find(DATE)).binary_column(endless, -1)
