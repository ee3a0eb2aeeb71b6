"""Defaults of columns that a publication lacks."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from penstock.attribute import Attribute
from penstock.lakehouse.defaults import drawn, draws, filled
from penstock.lakehouse.schema import Column
from penstock.pgtypes.pg_type import DATE, INT4
from penstock.sql.grammar.column import CURRENT_DATE, NEXTVAL

_NOW = datetime(2024, 2, 29, 23, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("which", "wanted"),
    [
        ([True, True], [7, 8]),
        ([False, True, False, True, True], [None, 7, None, 8, 9]),
        ([False, False], [None, None]),
        ([], []),
    ],
)
def test_rows_that_take_values_of_a_sequence(which: list[bool], wanted: list[int | None]) -> None:
    column = Column("id", Attribute("id", INT4, default=NEXTVAL), pa.int32(), local=True)
    assert draws(column)
    asked: list[tuple[str, int]] = []

    def draw(name: str, count: int) -> range:
        asked.append((name, count))
        return range(7, 7 + count)

    found = drawn(column, np.array(which, bool), draw)
    assert found.type == pa.int32()
    assert found.to_pylist() == wanted
    assert asked == ([("id", sum(which))] if any(which) else [])


def test_the_date_of_a_batch() -> None:
    column = Column("d", Attribute("d", DATE, default=CURRENT_DATE), pa.date32(), local=True)
    assert filled(column, 2, _NOW).to_pylist() == [_NOW.date()] * 2
