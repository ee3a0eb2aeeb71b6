"""Functions need little more memory than their arguments and results have."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.sql.to_duckdb.pg_proc import PYTHON

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
