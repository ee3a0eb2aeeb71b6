"""Which commit wrote the rows of a file, and when that is not known."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as DeltaRs
from deltalake import write_deltalake
from pyroaring import BitMap

from lakehouse.tables import APP, accounts, again, commit, rows_of, write
from penstock.lakehouse.file_commits import FileCommit
from penstock.lakehouse.log import entry_uri
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable


def newest(table: DeltaTable) -> DeltaTable:
    """As another session would find it, with nothing remembered."""
    return again(table)


def writers(table: DeltaTable) -> dict[str, tuple[int, str | None] | None]:
    """Version and marker, by file."""
    found = {path: table.commits.of(file, table.version) for path, file in table.files.items()}
    return {path: None if by is None else (by.version, by.app_id) for path, by in found.items()}


def test_the_log_tells_who_wrote_a_file(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    for version in range(1, 60):
        table.stage(written=write(table, [version]))
        commit(table, version)
    before = set(table.files)
    write_deltalake(local_path(table.uri), rows_of([100, 101]), mode="append")
    table = newest(table)
    (theirs,) = set(table.files) - before
    for version in range(61, 130):
        table.stage(written=write(table, [version]))
        commit(table, version)
    # some of its rows go; a checkpoint tells of the file as if it were new
    table.stage(deleted={theirs: BitMap([0])})
    commit(table, 130)
    table.checkpoint()
    table = newest(table)
    by = writers(table)
    assert by.pop(theirs) == (60, None)
    assert sorted(found for found in by.values() if found) == [
        (version, APP) for version in range(1, 130) if version != 60
    ]
    found = table.commits.of(table.files[theirs], table.version)
    assert isinstance(found, FileCommit) and abs(found.time / 1000 - time.time()) < 60
    Path(local_path(entry_uri(table.uri, 60))).unlink()  # cleaned up
    assert writers(newest(table))[theirs] is None


def test_a_file_that_is_staged_is_not_in_the_log(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    time.sleep(0.01)
    table.stage(written=write(table, [1]))
    (path,) = table.files
    assert writers(table)[path] is None
    commit(table, 1)
    assert writers(table)[path] == (1, APP)


def test_rows_that_were_only_copied_are_nobodys(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    for version in (1, 2):
        table.stage(written=write(table, [version, version + 10]))
        commit(table, version)
    other = DeltaRs(local_path(table.uri))
    other.update(updates={"owner": "'x'"}, predicate="id = 1")  # without a deletion vector
    assert sorted(map(str, writers(newest(table)).values())) == [f"(2, '{APP}')", "None"]
    other.optimize.compact()
    assert set(writers(newest(table)).values()) == {None}


@pytest.mark.spark
def test_what_spark_updates_by_vectors_is_its_own(tmp_path: Path, spark: Any) -> None:
    table = accounts(tmp_path)
    table.stage(written=write(table, range(1, 200)))
    commit(table, 1)
    spark.sql(f"UPDATE delta.`{table.uri}` SET owner = 'x' WHERE id = 1").collect()
    assert sorted(map(str, writers(newest(table)).values())) == [f"(1, '{APP}')", "(2, None)"]
