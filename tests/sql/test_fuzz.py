"""Any text ends in statements or in an error of ours, whatever it is."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.sql import Statement, parse_script

TEXTS = (Path(__file__).parent / "statements.txt").read_text("utf-8").splitlines()
PIECES = sorted({piece for text in TEXTS for piece in re.findall(r"\w+|\S", text)})


def parsed_or_refused(text: str) -> list[Statement]:
    try:
        statements = parse_script(text)
    except PenstockError as error:
        assert len(error.sqlstate) == 5
        return []
    for statement in statements:
        assert repr(statement)
    return statements


@settings(max_examples=500, deadline=None)
@given(st.text())
def test_any_text(text: str) -> None:
    parsed_or_refused(text)


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from(["", " ", "\n"]))
def test_any_words(pieces: list[str], gap: str) -> None:
    parsed_or_refused(gap.join(pieces))


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 3), st.text(max_size=3)), max_size=3),
)
def test_any_mistake_in_a_statement(text: str, edits: list[tuple[int, int, str]]) -> None:
    for at, removed, added in edits:
        text = text[:at] + added + text[at + removed :]
    parsed_or_refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "'a' " * 20000 + "'",
        '"a" ' * 20000 + '"',
        "/* " * 20000,
        "$a$ x " * 20001,
        "E'\\'' " * 20000 + "E'\\'",
        "CREATE PUBLICATION p FOR TABLE t WHERE " + "(" * 20000,
        "CREATE PUBLICATION p FOR TABLE t WHERE (" + "NOT " * 20000 + "a)",
        "SELECT " + "(" * 20000 + "1" + ")" * 20000,
        "CREATE TABLE t (a " + "int " * 20000,
        "GRANT SELECT ON t TO r" + ", r" * 20000 + ";" * 20000,
        "SELECT 'a'" + "\n'a'" * 20000,
    ],
    ids=lambda text: str(text)[:20],
)
def test_hostile_texts_end_soon(text: str) -> None:
    started = time.process_time()
    parsed_or_refused(text)
    assert time.process_time() - started < 10
