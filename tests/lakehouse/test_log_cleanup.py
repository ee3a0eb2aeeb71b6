"""Checkpoints and what they make needless: every version from an old enough checkpoint stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable as DeltaRs

from lakehouse.tables import accounts, again, delta_rs_ids, grow
from penstock.errors import StorageError
from penstock.lakehouse.checkpoint import interval_seconds
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable

DAY = 86_400


def log(table: DeltaTable) -> Path:
    return Path(local_path(table.uri), "_delta_log")


def set_age(table: DeltaTable, days: float) -> None:
    then = time.time() - days * DAY
    for path in log(table).iterdir():
        os.utime(path, (then, then))


def versions(table: DeltaTable, kind: str) -> list[int]:
    return sorted(int(p.name[:20]) for p in log(table).glob(f"{'[0-9]' * 20}.{kind}"))


def grown(folder: Path) -> DeltaTable:
    """Checkpoints at 4 and 8, versions to 10."""
    table = accounts(folder)
    for lsn in range(1, 11):
        grow(table, lsn)
    return table


def test_young_entries_stay(tmp_path: Path) -> None:
    table = grown(tmp_path)
    set_age(table, 1.9)
    table.checkpoint()
    assert versions(table, "json") == list(range(11))


def test_old_entries_go_and_all_is_still_there(tmp_path: Path) -> None:
    table = grown(tmp_path)
    set_age(table, 2.1)
    table.checkpoint()  # a new one at 10; the newest that is old enough is at 8
    assert versions(table, "json") == [8, 9, 10]
    assert versions(table, "checkpoint.parquet") == [8, 10]
    seen = again(table)
    assert (seen.rows, seen.transaction_version("pg_16384")) == (10, 10)
    assert delta_rs_ids(seen) == list(range(1, 11))
    assert DeltaRs(local_path(table.uri), version=8).version() == 8


def test_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """Power was lost before it was synced: an older one and the entries tell all."""
    table = grown(tmp_path)
    torn = log(table) / f"{8:020d}.checkpoint.parquet"
    torn.write_bytes(torn.read_bytes()[:100])
    (log(table) / f"{0:020d}.json").unlink()
    seen = again(table)
    assert (seen.version, seen.rows, seen.last_app_id) == (10, 10, "pg_16384")


def test_marker_and_last_writer_at_a_checkpoint(tmp_path: Path) -> None:
    table = grown(tmp_path)
    table.checkpoint()
    seen = again(table)
    assert (seen.version, seen.last_app_id) == (10, "pg_16384")


def test_gap_in_the_log_is_an_error(tmp_path: Path) -> None:
    table = grown(tmp_path)
    (log(table) / f"{9:020d}.json").unlink()
    with pytest.raises(StorageError, match="no entry for version 9"):
        again(table)


def test_what_a_killed_writer_has_left_goes(tmp_path: Path) -> None:
    """A file of another one, who finishes meanwhile, is gone between its name and its age."""
    table = grown(tmp_path)
    (log(table) / f".a.json.{'a' * 32}.tmp").symlink_to("gone")
    left = [folder / f".b.{'b' * 32}.tmp" for folder in (log(table), Path(local_path(table.uri)))]
    for path in left:
        path.touch()
        os.utime(path, (0, 0))
    table.checkpoint()
    assert not any(path.exists() for path in left)


def test_cleanup_switched_off(tmp_path: Path) -> None:
    table = grown(tmp_path)
    table._state.metadata["configuration"]["delta.enableExpiredLogCleanup"] = "false"
    set_age(table, 30)
    table.checkpoint()
    assert versions(table, "json") == list(range(11))


def test_intervals() -> None:
    assert interval_seconds("interval 2 days") == 2 * DAY
    assert interval_seconds("INTERVAL 1 WEEK 30 minutes") == 7 * DAY + 1800
    assert interval_seconds("1 hour") == 3600
    with pytest.raises(StorageError, match="fortnight"):
        interval_seconds("interval 1 fortnight")
