"""Processes that commit to one table at the same time: each version has one writer, all stay.

On a disk and in an S3, whose entries are put in other ways.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.heavy import part_of_make_faults
from fix_object_store import ObjectStore
from lakehouse.racing import COMMITS, commit_many, cut_many
from lakehouse.tables import accounts, again, delta_rs_ids
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn


@pytest.fixture(params=["folder", "S3"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the tables are to be."""
    if request.param == "folder":
        return str(tmp_path)
    s3: ObjectStore = request.getfixturevalue("s3")
    return f"s3://{s3.bucket()}/lake"


def _run(target: Callable[[str, int], object], folder: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=target, args=(folder, n)) for n in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


@part_of_make_faults
def test_no_commit_is_lost(warehouse: str) -> None:
    table = accounts(warehouse)
    _run(commit_many, warehouse)
    seen = again(table)
    assert seen.version == 2 * COMMITS
    assert seen.transaction_version("app1") == seen.transaction_version("app2") == COMMITS
    assert delta_rs_ids(seen) == [n * 1000 + i for n in (1, 2) for i in range(COMMITS)]


def test_no_cut_is_lost(warehouse: str) -> None:
    _run(cut_many, warehouse)
    cuts = Warehouse(warehouse, False).cuts
    for number in (1, 2):
        last = cuts.last(CutOwner(f"sub{number}", f"sub{number}"))
        assert last is not None and last.lsn == COMMITS and len(last.tables) == 3
    assert cuts.append(CutOwner("sub1", "sub1"), Lsn(100), None, {}) == 2 * COMMITS + 1
