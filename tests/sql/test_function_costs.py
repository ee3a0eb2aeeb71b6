"""Functions need little more memory than their arguments and results have, and no more time."""

from __future__ import annotations

import time
import tracemalloc

import duckdb
import pytest

from penstock.errors import PenstockError
from penstock.pipeline.duck import connect, query_error
from penstock.sql.to_duckdb.pg_proc import PYTHON
from penstock.sql.typed.literals import canonical

_HEX = "61" * 500_000
_LIST = f"[{'1, ' * 300_000}1]"


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("decode", (_HEX, "hex"), b"a" * 500_000),
        ("decode", ("\\141" * 250_000, "escape"), b"a" * 250_000),
        ("decode", ("AAAA" * 250_000, "base64"), bytes(750_000)),
        ("input", (f"\\x{_HEX}", 17), f"\\x{_HEX}"),
        ("split_part", ("a," * 500_000, ",", -2), "a"),
        ("json_array_element", (_LIST, -1), "1"),
        ("json_array_length", (_LIST,), 300_001),
        ("jsonb_contains", (_LIST, "[1]"), True),
        ("like", ("a" * 1_000_000, "%a"), True),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_call_needs_little_memory(
    name: str, arguments: tuple[object, ...], result: object
) -> None:
    tracemalloc.start()
    try:
        found = PYTHON[name].call(*arguments)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == result
    assert peak < 30 << 20
    del found
    assert kept < 4 << 20


def test_long_texts_are_not_kept() -> None:
    texts = [f"{number:01000}" for number in range(1000)]
    tracemalloc.start()
    try:
        for text in texts:
            PYTHON["input"].call(text, 1700)
            PYTHON["array_in"].call("{" + text + "}", 1231)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 200_000


_BLANKS = " " * 200_000


@pytest.mark.parametrize(
    ("text", "oid"),
    [
        (f"{{a{_BLANKS}b}}", 1009),
        (f"2024-01-01{_BLANKS}x", 1082),
        (f"10:00{_BLANKS}x", 1083),
        ("[" + '"' * 99_999, 3904),
        ("[" + '""a' * 99_999 + '"', 3904),
        ("1 day" * 20_000 + "x", 1186),
        ("[" + '"\\"' * 99_999, 114),
    ],
    ids=["array", "date", "time", "range", "range of texts", "interval", "json"],
)
def test_a_text_is_read_in_little_time(text: str, oid: int) -> None:
    began = time.thread_time()
    try:
        canonical(text, oid)
    except PenstockError as error:
        assert error.sqlstate in ("22P02", "22007", "0A000")
    assert time.thread_time() - began < 2


def test_a_text_that_is_no_json_is_refused_in_little_time() -> None:
    began = time.thread_time()
    for text in ("[" + '"\\"' * 99_999, '"' * 99_999, "[1, 2", '{"a"', ""):
        with pytest.raises(PenstockError) as error:
            PYTHON["json_array_length"].call(text) and PYTHON["json_array_element"].call(text, 5)
        assert error.value.sqlstate in ("22P02", "22023")
    assert time.thread_time() - began < 2


def test_a_list_of_all_values_has_a_limit() -> None:
    duck = connect()
    sql = "SELECT pg_text('numeric_sum', list(i::VARCHAR), false) FROM range({}) t(i)"
    assert duck.sql(sql.format(1000)).fetchall() == [("499500",)]
    with pytest.raises(duckdb.Error) as error:
        duck.sql(sql.format(3_000_000)).fetchall()
    assert query_error(error.value).sqlstate == "53200"
    duck.close()


def test_equal_calls_share_a_large_text() -> None:
    duck = connect()
    sql = "SELECT sum(length(pg_text('repeat', 'x' || i % {}, 400000))) FROM range(500) t(i)"
    assert duck.sql(sql.format(10)).fetchall() == [(400_000_000,)]
    with pytest.raises(duckdb.Error) as error:
        duck.sql(sql.format(500)).fetchall()
    assert query_error(error.value).sqlstate == "53200"
    duck.close()


def test_a_large_text_that_is_shared_stands_beside_nulls_and_short_texts() -> None:
    duck = connect()
    for name, made in (
        ("repeat", str.__mul__),
        ("rpad", lambda text, size: text.ljust(size)[:size]),
    ):
        wanted = [made("xy", size) for size in (0, 3, 5000)]
        text = "CASE i % 4 WHEN 3 THEN NULL ELSE 'xy' END"
        sql = f"SELECT pg_text('{name}', {text}, [0, 3, 5000, 1][i % 4 + 1]) FROM range(400) t(i)"
        assert [row for (row,) in duck.sql(sql).fetchall()] == [*wanted, None] * 100
    duck.close()
