"""The cuts table: whole cuts, the last one in any process, small for days, readable by others."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Self

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable as DeltaRs
from pyspark.sql import SparkSession

from penstock.lakehouse import cuts as cuts_module
from penstock.lakehouse.cuts import CutOwner, Cuts, CutTable
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.lakehouse.xact import Elapsed
from penstock.lsn import Lsn


def open_cuts(folder: Path) -> Cuts:
    """As another process opens them."""
    return Warehouse(str(folder), False).cuts


def owner(name: str) -> CutOwner:
    return CutOwner(name, f"id-of-{name}")


def tables(version: int, count: int = 3) -> dict[tuple[str, str], CutTable]:
    return {("public", f"t{i}"): CutTable(f"file:///wh/public/t{i}", version) for i in range(count)}


def age(folder: str, seconds: float) -> None:
    """Make everything in a folder look older."""
    for path in Path(folder).rglob("*"):
        stat = path.stat()
        os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def last_lsn(cuts: Cuts, subscription: str) -> int | None:
    cut = cuts.last(owner(subscription))
    return None if cut is None else int(cut.lsn)


def test_no_cut_yet(tmp_path: Path) -> None:
    assert open_cuts(tmp_path).last(owner("s")) is None
    open_cuts(tmp_path).prune(10)
    assert not (tmp_path / "_penstock").exists(), "asking creates nothing"


def test_last_cut_in_another_process(tmp_path: Path) -> None:
    cuts = open_cuts(tmp_path)
    assert cuts.append(owner("s"), Lsn(0x1_0000_0010), 1_700_000_000_000_001, tables(5)) == 1
    assert cuts.append(owner("other"), Lsn(7), None, tables(9, 1)) == 2
    cut = open_cuts(tmp_path).last(owner("s"))
    assert cut is not None
    assert (cut.subscription, cut.lsn, dict(cut.tables)) == ("s", 0x1_0000_0010, tables(5))
    assert cut.commit_time == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)
    assert last_lsn(open_cuts(tmp_path), "other") == 7
    assert open_cuts(tmp_path).last(owner("none")) is None


def test_same_lsn_again_and_going_back(tmp_path: Path) -> None:
    """A table joins at the same LSN; a subscription of that name starts anew at a lower one."""
    cuts = open_cuts(tmp_path)
    cuts.append(owner("s"), Lsn(10), None, tables(1, 1))
    cuts.append(owner("s"), Lsn(10), None, tables(2, 2))
    cut = open_cuts(tmp_path).last(owner("s"))
    assert cut is not None and dict(cut.tables) == tables(2, 2)
    open_cuts(tmp_path).append(owner("s"), Lsn(3), None, {})
    cut = cuts.last(owner("s"))
    assert cut is not None and cut.lsn == 3 and cut.tables == {}


def test_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Past(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(2020, 1, 1, tzinfo=UTC)

    open_cuts(tmp_path).append(owner("s"), Lsn(1), None, tables(1))
    monkeypatch.setattr(cuts_module, "datetime", Past)
    open_cuts(tmp_path).append(owner("s"), Lsn(2), None, tables(2))
    assert last_lsn(open_cuts(tmp_path), "s") == 2


def test_prune_keeps_the_newest_of_each_subscription(tmp_path: Path) -> None:
    cuts = open_cuts(tmp_path)
    for lsn in range(1, 21):
        cuts.append(owner("busy"), Lsn(lsn), None, tables(lsn))
    cuts.append(owner("idle"), Lsn(1), None, tables(1))
    cuts.prune(5)
    rows = DeltaRs(local_path(cuts.uri)).to_pyarrow_table()
    assert sorted(set(rows.filter(pc.field("subscription") == "busy")["lsn"].to_pylist())) == [
        *range(16, 21)
    ]
    assert rows.num_rows == 5 * 3 + 3, "whole cuts only"
    for _ in range(2):
        assert last_lsn(open_cuts(tmp_path), "busy") == 20
        assert last_lsn(open_cuts(tmp_path), "idle") == 1
        assert cuts.append(owner("busy"), Lsn(20), None, tables(20)) > 21


def test_forget(tmp_path: Path) -> None:
    cuts = open_cuts(tmp_path)
    cuts.append(owner("a"), Lsn(1), None, tables(1))
    cuts.append(owner("b"), Lsn(1), None, tables(1))
    cuts.forget_others(CutOwner("a", "later"))
    assert cuts.last(owner("a")) is None and last_lsn(cuts, "b") == 1
    cuts.forget_others(CutOwner("b", "later"))
    assert cuts.last(owner("b")) is None
    cuts.append(owner("b"), Lsn(2), None, tables(1))
    assert last_lsn(open_cuts(tmp_path), "b") == 2


def test_stays_small(tmp_path: Path) -> None:
    """Rounds of cuts, each longer ago than the retention: files of all kinds stay few."""
    cuts, folder = open_cuts(tmp_path), local_path(open_cuts(tmp_path).uri)
    for round_ in range(5):
        for i in range(50):
            cuts.append(owner("s"), Lsn(round_ * 50 + i + 1), None, tables(i))
        cuts.prune(20)
        age(folder, 700)
    cuts.prune(20)
    files = [p for p in Path(folder).rglob("*") if p.is_file()]
    assert len(files) < 12, sorted(p.name for p in files)
    assert last_lsn(open_cuts(tmp_path), "s") == 250
    assert DeltaRs(folder).to_pyarrow_table().num_rows == 20 * 3


class _Earlier(Elapsed):
    seconds = 700.0


def test_process_that_slept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process went on and cleaned up; the names of entries must not be taken again."""
    sleeper, awake = open_cuts(tmp_path), open_cuts(tmp_path)
    sleeper.append(owner("s"), Lsn(1), None, tables(1))
    for lsn in range(2, 6):
        awake.append(owner("s"), Lsn(lsn), None, tables(lsn))
    awake.prune(2)
    age(local_path(awake.uri), 700)
    awake.prune(2)
    monkeypatch.setattr(sleeper, "_loaded", _Earlier())
    assert sleeper.append(owner("s"), Lsn(9), None, tables(9)) == 8
    assert last_lsn(awake, "s") == 9


@pytest.mark.spark
def test_spark_pins_tables_to_the_last_cut(spark: SparkSession, tmp_path: Path) -> None:
    """The statement of the docs."""
    cuts = open_cuts(tmp_path)
    for lsn in range(1, 4):
        cuts.append(owner("s"), Lsn(lsn), 1_700_000_000_000_000, tables(lsn))
    cuts.prune(2)
    cuts.append(owner("s"), Lsn(4), None, tables(4, 2))
    rows = spark.sql(
        f"""select table_schema, table_name, uri, version, lsn_text from delta.`{cuts.uri}`
        where subscription = 's' and cut_time = (
            select max(cut_time) from delta.`{cuts.uri}` where subscription = 's')
        order by table_name"""
    ).collect()
    assert [tuple(row) for row in rows] == [
        ("public", f"t{i}", f"file:///wh/public/t{i}", 4, "0/4") for i in range(2)
    ]
