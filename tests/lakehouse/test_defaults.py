"""Defaults of columns that a publication lacks."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.errors import ValueNotRepresentable
from penstock.lakehouse.defaults import default_value, filled
from penstock.lakehouse.schema import Column
from penstock.pgtypes.pg_type import DATE, INT4
from penstock.sql.grammar.default_grammar import CURRENT_DATE, NEXTVAL

_NOW = datetime(2024, 2, 29, 23, 30, tzinfo=UTC)


def test_a_sequence_gives_none_to_rows_of_a_subscription() -> None:
    column = Column("id", "id", pa.int32(), INT4, local=True, default=NEXTVAL)
    with pytest.raises(ValueNotRepresentable) as refused:
        default_value(column, _NOW)
    error = refused.value
    assert (error.sqlstate, error.detail) == ("0A000", 'It is the default of column "id".')
    assert error.hint


def test_the_date_of_a_batch() -> None:
    column = Column("d", "d", pa.date32(), DATE, local=True, default=CURRENT_DATE)
    assert filled(column, 2, _NOW).to_pylist() == [_NOW.date()] * 2
