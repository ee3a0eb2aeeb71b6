"""The parser's tree is read in pieces, as ``json.loads`` reads it whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sql.grammar import libpg_query
from penstock.sql.grammar.parser import parse_script

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc", min_size=1), inner),
    max_leaves=60,
)


@given(value=_VALUES, piece=st.integers(8, 200), escaped=st.booleans())
def test_pieces_make_the_whole(value: Any, piece: int, escaped: bool) -> None:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=escaped).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(libpg_query, "_PIECE", piece)
        assert libpg_query._Json(text, None).value(0, len(text)) == value


def test_no_piece_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a piece is read no other thread runs: none confirms positions, or hears a stop."""
    sizes: list[int] = []
    loads = json.loads

    def noted(text: bytes, **options: Any) -> Any:
        sizes.append(len(text))
        return loads(text, **options)

    monkeypatch.setattr("penstock.sql.grammar.libpg_query.json.loads", noted)
    rows = ", ".join(f"({n}, {n} + 1)" for n in range(10_000))
    for text in (
        "SELECT " + "x, " * 50_000 + "1",
        f"SELECT * FROM (SELECT * FROM (VALUES {rows}) AS a) AS b",
        "SELECT 1; " * 10_000,
    ):
        sizes.clear()
        parse_script(text)
        assert sum(sizes) > 2_000_000
        assert max(sizes) <= libpg_query._PIECE + 2


def test_memory_is_told_before_it_is_needed() -> None:
    told: list[int] = []
    text = "SELECT " + "x, " * 1000 + "1"
    parse_script(text, told.append)
    assert sum(told) > 200 * len(text)

    def refuse(size: int) -> None:
        raise MemoryError(size)

    with pytest.raises(MemoryError):
        parse_script(text, refuse)
