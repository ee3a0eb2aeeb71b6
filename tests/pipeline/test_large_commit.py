"""Commits that are too large for one task: divided by key, exact, each byte read once."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from faults.heavy import part_of_make_faults
from penstock.pipeline import publish_changes
from pipeline.published import PublishedTable, PublishingLake

pytestmark = pytest.mark.spark


@pytest.fixture
def small_memory(published: PublishingLake) -> None:
    published.work_mem = 1 << 15


def _fill(table: PublishedTable, rows: int, files: int) -> None:
    table.run(
        f"INSERT INTO {{t}} SELECT /*+ REPARTITION({files}) */ CAST(id AS INT), repeat('v', 100) "
        f"FROM range({rows})"
    )


@part_of_make_faults
@pytest.mark.usefixtures("small_memory")
def test_shares_hold_whole_keys(published: PublishingLake) -> None:
    table = published.table("divided", "id INT, v STRING")
    _fill(table, 4000, 3)
    subscriber = table.follow()
    table.run(
        "UPDATE {t} SET v = concat(v, CAST(id AS STRING)) WHERE id % 3 = 0",
        "DELETE FROM {t} WHERE id % 7 = 0",
        "UPDATE {t} SET id = id + 100000 WHERE id % 11 = 0",
    )
    assert subscriber.catch_up()


@part_of_make_faults
@pytest.mark.usefixtures("small_memory")
def test_what_is_read_grows_with_the_bytes(
    published: PublishingLake, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """Twice the files: twice the bytes written to be paired, not four times."""
    caplog.set_level(logging.DEBUG, logger=publish_changes.__name__)
    staged: list[int] = []
    files: list[int] = []
    for number, count in enumerate((2, 4)):
        table = published.table(f"linear{number}", "id INT, v STRING")
        _fill(table, 1000 * count, count)
        subscriber = table.follow()
        table.run("UPDATE {t} SET v = sha2(v || id, 256)")
        assert len(subscriber.catch_up()) == 1000 * count
        found = [
            re.match(r"divided table=\S+ files=(\d+) read=\d+ staged=(\d+) shares=(\d+)", text)
            for text in caplog.messages
        ]
        (last,) = [m for m in found if m is not None][-1:]
        files.append(int(last[1]))
        staged.append(int(last[2]))
        assert int(last[3]) > 2
    print(f"staged bytes of {files} files: {staged}")
    assert files[1] <= 2 * files[0] + 1
    assert 1.5 < staged[1] / staged[0] < 2.6


@part_of_make_faults
def test_a_commit_of_many_files_comes_in_waves(
    published: PublishingLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the driver nor the staging area holds all messages of a commit."""
    monkeypatch.setattr(publish_changes, "_WAVE_BYTES", 20_000)
    table = published.table("many", "id INT, v STRING")
    subscriber = table.follow()
    waves: list[int] = []
    encode = publish_changes._Job._encode

    def noted(job: Any, items: Any) -> Any:
        waves.append(len(items))
        return encode(job, items)

    monkeypatch.setattr(publish_changes._Job, "_encode", noted)
    _fill(table, 4000, 40)
    assert len(subscriber.catch_up()) == 4000
    assert len(waves) > 3
    assert sum(waves) == 40
