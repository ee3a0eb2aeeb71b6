"""Casts that go through a type's text, beside a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor.lake_oracle import LakeOracle
from fix_postgres import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def oracle(database: Database) -> Iterator[LakeOracle]:
    oracle = LakeOracle(database.connect())
    values = [("0", "1", "t", "1"), ("1", "0" * 70 + "1.50", "f", " 13 "), ("2", None, None, "0")]
    columns = {"i": "integer", "n": "numeric", "b": "boolean", "t": "text"}
    oracle.create("t", columns, values)
    yield oracle


@pytest.mark.parametrize("cast", ["b::name", "b::text", "n::name", "(n * 1e80)::name", "i::name"])
def test_to_strings(oracle: LakeOracle, cast: str) -> None:
    """name has no cast of its own from boolean, as text has: it gets the output function's text."""
    assert oracle.compare(f"SELECT {cast} FROM t ORDER BY i") == "equal"
    assert not oracle.tally.differences


@pytest.mark.parametrize("type_name", ["date", "timestamp", "timestamptz"])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_month_alone_is_no_date(oracle: LakeOracle, type_name: str, row: int) -> None:
    assert oracle.compare(f"SELECT t::{type_name} FROM t WHERE i = {row}") == "both failed"
    assert not oracle.tally.differences
