"""Processes that commit to one table at the same time: each version has one writer, all stay."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from lakehouse.racing import COMMITS, commit_many, cut_many
from lakehouse.tables import accounts, again, delta_rs_ids
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn


def _run(target: object, folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=target, args=(str(folder), n)) for n in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_no_commit_is_lost(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    _run(commit_many, tmp_path)
    seen = again(table)
    assert seen.version == 2 * COMMITS
    assert seen.transaction_version("app1") == seen.transaction_version("app2") == COMMITS
    assert delta_rs_ids(seen) == [n * 1000 + i for n in (1, 2) for i in range(COMMITS)]


def test_no_cut_is_lost(tmp_path: Path) -> None:
    _run(cut_many, tmp_path)
    cuts = Warehouse(str(tmp_path), False).cuts
    for number in (1, 2):
        last = cuts.last(CutOwner(f"sub{number}", f"sub{number}"))
        assert last is not None and last.lsn == COMMITS and len(last.tables) == 3
    assert cuts.append(CutOwner("sub1", "sub1"), Lsn(100), None, {}) == 2 * COMMITS + 1
