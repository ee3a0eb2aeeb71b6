"""What a commit says of pairs of rows, and what is believed of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.lakehouse.actions import commit_info, group_mark, group_of
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.row_pairs import PairFile, pair_files, pairs_mark

_FILES = [WrittenFile("a.parquet", 10, 1, {}), WrittenFile("b.parquet", 20, 2, {})]


def commit(user_metadata: Any, read_version: int | None = 7) -> list[Any]:
    info = commit_info("UPDATE", user_metadata={}, blind_append=False, read_version=read_version)
    text = user_metadata if isinstance(user_metadata, str) else json.dumps(user_metadata)
    return [{"add": {"path": "x"}}, {"commitInfo": {**info["commitInfo"], "userMetadata": text}}]


def test_files_of_a_commit_that_read_what_was_paired() -> None:
    mark = {**pairs_mark(7, _FILES), **group_mark("g")}
    assert pair_files("file:///t", commit(mark)) == (
        PairFile("file:///t/_change_data/a.parquet", 10),
        PairFile("file:///t/_change_data/b.parquet", 20),
    )
    assert group_of(commit(mark)) == "g"
    assert pair_files("file:///t", commit(mark, 8)) == ()
    assert pair_files("file:///t", commit(mark, None)) == ()
    assert pairs_mark(7, []) == {}


@pytest.mark.parametrize(
    "written",
    [
        "penstock.row_pairs",
        "[]",
        {"penstock.row_pairs": []},
        {"penstock.row_pairs": {"readVersion": 7}},
        {"penstock.row_pairs": {"readVersion": 7, "files": [["../x", 1], ["a"], "a", [1, 2]]}},
    ],
)
def test_what_others_write_there_says_nothing(written: Any) -> None:
    assert pair_files("file:///t", commit(written)) == ()
