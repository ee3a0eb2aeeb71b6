"""Cuts belong to a subscription, told by its id: names come back, ids do not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaRs
from deltalake import QueryBuilder, write_deltalake

from penstock.lakehouse.cuts import SCHEMA, CutOwner, Cuts, CutTable
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn

OLD, NEW = CutOwner("s", "first"), CutOwner("s", "second")
TABLES = {("public", "t"): CutTable("file:///wh/public/t", 7, "an id")}
DOCUMENTED = (
    "SELECT lsn FROM cuts WHERE subscription = 's' AND cut_time = "
    "(SELECT max(cut_time) FROM cuts WHERE subscription = 's')"
)


def open_cuts(folder: Path) -> Cuts:
    return Warehouse(str(folder), False).cuts


def documented(cuts: Cuts) -> list[int]:
    """What a reader without Penstock finds."""
    query = QueryBuilder().register("cuts", DeltaRs(local_path(cuts.uri)))
    return [row["lsn"] for row in pa.table(query.execute(DOCUMENTED).read_all()).to_pylist()]


def test_a_name_that_comes_back_has_no_cuts(tmp_path: Path) -> None:
    cuts = open_cuts(tmp_path)
    cuts.append(OLD, Lsn(0xFF_0000_0000), None, TABLES)
    assert cuts.last(NEW) is None
    older = open_cuts(tmp_path).last(OLD)
    assert older is not None and older.lsn == 0xFF_0000_0000, "until there is another"
    cuts.forget_others(NEW)
    assert cuts.last(OLD) is None and documented(cuts) == []
    cuts.append(NEW, Lsn(5), None, TABLES)
    last = open_cuts(tmp_path).last(NEW)
    assert last is not None and (last.lsn, last.tables) == (5, TABLES)
    cuts.append(NEW, Lsn(6), None, TABLES)
    cuts.prune(1)
    assert documented(open_cuts(tmp_path)) == [6]
    version = DeltaRs(local_path(cuts.uri)).version()
    cuts.forget_others(NEW)
    assert DeltaRs(local_path(cuts.uri)).version() == version, "nothing to forget, no commit"


def test_a_worker_of_an_older_state_takes_no_cuts_from_a_younger_subscription(
    tmp_path: Path,
) -> None:
    """The node's state was put back to when a dropped subscription of the name was there."""
    open_cuts(tmp_path).append(NEW, Lsn(9), None, TABLES)
    open_cuts(tmp_path).append(OLD, Lsn(1), None, {})
    last = open_cuts(tmp_path).last(NEW)
    assert last is not None and (last.lsn, last.tables) == (9, TABLES)


def test_a_last_cut_by_the_old_name_stays_that_of_the_renamed_one(tmp_path: Path) -> None:
    """RENAME s TO s_old, then CREATE s: the worker of s has ended with its current cut."""
    cuts, renamed = open_cuts(tmp_path), CutOwner("s_old", OLD.id)
    cuts.append(CutOwner("s", "dropped"), Lsn(99), None, TABLES)
    cuts.append(OLD, Lsn(5), None, TABLES)
    cuts.rename(renamed)
    cuts.append(OLD, Lsn(9), None, TABLES)
    cuts.forget_others(NEW, [renamed, CutOwner("other", "x")])
    for reader in (cuts, open_cuts(tmp_path)):
        last = reader.last(renamed)
        assert last is not None and (last.subscription, last.lsn) == ("s_old", 9)
        assert reader.last(NEW) is None and documented(reader) == []
        assert reader.last(CutOwner("s", "dropped")) is None


def test_a_renaming_that_did_not_end_gives_no_cuts_away(tmp_path: Path) -> None:
    """The catalog has s still; somebody creates the name that its cuts have got."""
    cuts = open_cuts(tmp_path)
    cuts.append(OLD, Lsn(5), None, TABLES)
    cuts.rename(CutOwner("new", OLD.id))
    cuts.forget_others(CutOwner("new", "second"), [OLD])
    last = cuts.last(OLD)
    assert last is not None and last.lsn == 5 and documented(cuts) == [5]


@pytest.fixture
def older(tmp_path: Path) -> Cuts:
    """A cuts table from before ids were recorded."""
    cuts = open_cuts(tmp_path)
    schema = pa.schema(list(SCHEMA)[: SCHEMA.get_field_index("subscription_id")])
    for lsn, name in ((1, "s"), (2, "s"), (9, "other")):
        now = datetime(2026, 1, 1, 0, lsn, tzinfo=UTC)
        row = [name, lsn, str(Lsn(lsn)), None, now, "public", "t", "file:///wh/public/t", lsn]
        arrays = [pa.array([cell], field.type) for cell, field in zip(row, schema, strict=True)]
        rows = pa.Table.from_arrays(arrays, schema=schema)
        write_deltalake(local_path(cuts.uri), rows, mode="append")
    return cuts


def test_older_cuts_belong_to_the_name(older: Cuts) -> None:
    last = older.last(OLD)
    assert last is not None
    assert (last.lsn, last.tables) == (
        2,
        {("public", "t"): CutTable("file:///wh/public/t", 2, None)},
    )
    older.adopt([OLD])
    assert older.last(NEW) is None, "adopted once, they are of one subscription"
    older.append(OLD, Lsn(3), None, TABLES)
    last = older.last(OLD)
    assert last is not None and last.lsn == 3 and documented(older) == [3]
    older.adopt([NEW])
    assert older.last(NEW) is None


def test_older_cuts_of_a_dropped_subscription(older: Cuts) -> None:
    older.forget_others(NEW)
    assert older.last(NEW) is None
    older.append(NEW, Lsn(3), None, TABLES)
    older.append(CutOwner("third", "x"), Lsn(1), None, {})
    assert documented(older) == [3]
    rows = DeltaRs(local_path(older.uri)).to_pyarrow_table()
    assert rows.num_rows == 3, "the other name's rows stay, and are nobody's"
