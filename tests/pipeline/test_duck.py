"""DuckDB's errors, at whatever row they come."""

from __future__ import annotations

from contextlib import closing

import duckdb
import pytest

from penstock.pipeline.duck import connect, lent, query_error, read_from
from penstock.sql.to_duckdb.fmgr import raises


@pytest.mark.parametrize("failing", [0, 3, 99_999])
def test_an_error_is_duckdbs_at_the_first_row_and_at_the_last(failing: int) -> None:
    refusal = raises("22012", "division by zero", "INTEGER")
    sql = f"SELECT 1 / CASE WHEN i = {failing} THEN {refusal} ELSE 1 END"
    seen = 0
    with closing(connect()) as duck, pytest.raises(duckdb.Error) as raised:
        for batch in read_from(duck, f"{sql} FROM range(100_000) t(i)", 1000):
            seen += batch.num_rows
    assert seen <= failing
    assert query_error(raised.value).sqlstate == "22012"


def test_memory_that_is_not_enough_is_told_apart() -> None:
    with closing(connect()) as duck, pytest.raises(duckdb.OutOfMemoryException):
        duck.execute("SET memory_limit = '20MB'; SET temp_directory = ''")
        wide = "SELECT i, list(j) FROM range(3_000_000) t(i), range(3) u(j) GROUP BY i"
        for _ in read_from(duck, wide, 1000):
            pass


def test_a_lent_connection_is_used_again_unless_there_was_an_error() -> None:
    with lent() as first, lent() as second:
        assert first is not second
    with pytest.raises(ZeroDivisionError), lent() as broken:
        raise ZeroDivisionError
    with lent() as other:
        assert other is not broken
        assert [each.num_rows for each in read_from(other, "SELECT 1", 10)] == [1]
    with pytest.raises(duckdb.ConnectionException):
        broken.execute("SELECT 1")
