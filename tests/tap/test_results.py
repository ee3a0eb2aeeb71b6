"""The output of test files, and what it is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tap.comparison import Counts, differences, expected_counts, measured_counts, total
from tap.expected import ExpectedFile, load
from tap.page import PAGE, missing_tables, table, with_tables
from tap.results import parse

_OUTPUT = """# step failed: line 3: subscriber: ERROR:  no
#     HINT:  none
ok 1 - first
ok 2
not ok 3 - third - with a dash
#   Failed test 'third'
ok 4 - fourth # SKIP no reason
1..4
# Looks like you failed 1 test of 4.
"""
_FILE = ExpectedFile(4, {"later": frozenset({3})}, {"no triggers": frozenset({4})})


def test_output_is_read() -> None:
    result = parse(_OUTPUT)
    assert result.passed() == {1, 2, 4}
    assert result.assertions[3].name == "third - with a dash"
    assert result.failed_steps == ("line 3: subscriber: ERROR:  no",)
    assert result.ended
    assert not parse(_OUTPUT.replace("1..4", "1..5")).ended
    assert not parse("ok 1 - first\n").ended


def test_what_is_expected_has_no_differences() -> None:
    result = parse(_OUTPUT)
    assert differences(result, _FILE) == []
    assert measured_counts(result, _FILE) == expected_counts(_FILE) == Counts(4, 2, 1, 1)
    assert total([Counts(4, 2, 1, 1), Counts(1, 1, 0, 0)]) == Counts(5, 3, 1, 1)


def test_changes_are_told_by_assertion() -> None:
    better = parse(_OUTPUT.replace("not ok 3", "ok 3"))
    assert differences(better, _FILE) == [
        "assertion 3 passes, expected to fail: third - with a dash"
    ]
    worse = parse(_OUTPUT.replace("ok 1", "not ok 1"))
    assert differences(worse, _FILE) == ["assertion 1 fails, expected to pass: first"]
    hung = parse("ok 1 - first\n")
    assert differences(hung, _FILE) == ["assertion 2 is not reached, expected to pass"]
    assert measured_counts(hung, _FILE) == Counts(4, 1, 2, 1)
    longer = parse(_OUTPUT + "ok 5 - more\n")
    assert differences(longer, _FILE) == ["has 5 assertions, expected 4"]
    assert differences(longer, None) == ["the file is not in expected.toml"]


@pytest.mark.parametrize(
    "lists",
    [
        'failed = { "a" = [1, "2-4"], "b" = [3] }',
        'failed = { "a" = [6] }',
        'failed = { "a" = [] }',
        'failed = { "" = [1] }',
        'failed = { "a" = [1] }\nnot_applicable = { "b" = [1] }',
    ],
)
def test_lists_that_cannot_be_are_refused(lists: str, tmp_path: Path) -> None:
    file = tmp_path / "expected.toml"
    file.write_text(f'[r]\nsource = "15.1"\n[r.file.t]\nassertions = 5\n{lists}\n')
    with pytest.raises(ValueError, match="r t: "):
        load(file)


def test_the_page_has_what_is_expected() -> None:
    roles = load()
    assert set(roles) == {*(f"subscriber{version}" for version in (15, 16, 17, 18)), "publisher18"}
    text = PAGE.read_text("utf-8")
    assert missing_tables(text, roles) == [], "run: make tap-page"
    assert with_tables(text, roles) == text
    assert "| 001_rep_changes | 35 of 37 | 33 of 35 |" in table(roles, "subscriber")
