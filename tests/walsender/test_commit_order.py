"""The order of commits that are found together: what came first goes first, across tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.catalog import Catalog, LakeTransaction, Member
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.commit_order import PendingTransaction, follows, in_order, together
from penstock.walsender.commits import TableCommit, commits_after
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.table_logs import TableLogs


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "warehouse"))


def write(warehouse: Warehouse, name: str, number: int) -> None:
    write_deltalake(warehouse.table_uri("public", name), pa.table({"id": [number]}), mode="append")


def log_of(catalog: Catalog) -> tuple[LakeTransaction, ...]:
    with catalog.read() as t:
        return t.transactions.after(Lsn(0), 1000)


def names(catalog: Catalog) -> list[str]:
    with catalog.read() as t:
        tables = {table.oid: table.name for table in t.tables.all()}
    return [tables[t.members[0].relation] for t in log_of(catalog)]


def before_a_look_at(monkeypatch: pytest.MonkeyPatch, name: str, then: Callable[[], None]) -> None:
    """Once, when the sequencer has looked at the tables before one, and not yet at that one."""
    looks: list[str] = []
    original = TableLogs.next_path

    def next_path(self: TableLogs, table: Any, version: int) -> str | None:
        if table.name == name and not looks:
            looks.append(name)
            then()
        return original(self, table, version)

    monkeypatch.setattr(TableLogs, "next_path", next_path)


def test_a_parent_that_was_passed_by_goes_before_its_child(
    catalog: Catalog, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a_parent", "b_child"):
        write(warehouse, name, 0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)

    def both() -> None:
        write(warehouse, "a_parent", 1)
        write(warehouse, "b_child", 1)

    before_a_look_at(monkeypatch, "b_child", both)
    sequencer.step()
    assert names(catalog) == ["a_parent", "b_child"]
    sequencer.step()
    times = [t.commit_time for t in log_of(catalog)]
    assert times == sorted(times) and len(times) == 2


def test_nobody_comes_before_who_came_first_while_writers_go_on(
    catalog: Catalog, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits during both looks: each step sends whole runs, and the rest is not lost."""
    order = ["a", "c", "b", "c", "a", "b"]
    for name in sorted(set(order)):
        write(warehouse, name, 0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    todo = iter(order)
    original = TableLogs.next_path

    def next_path(self: TableLogs, table: Any, version: int) -> str | None:
        if (name := next(todo, None)) is not None:
            write(warehouse, name, 1)
        return original(self, table, version)

    monkeypatch.setattr(TableLogs, "next_path", next_path)
    for _ in range(4):
        sequencer.step()
    assert names(catalog) == order


def found(source: int, moment: int) -> PendingTransaction:
    return PendingTransaction((Member(source, "", 0, 1),), moment, moment, 0)


def test_what_only_the_second_look_found_and_is_later_waits() -> None:
    first = {1: [], 2: [found(2, 50)]}
    again = {1: [found(1, 40), found(1, 60)], 2: [found(2, 55)], 3: [found(3, 45)]}
    ordered = [(f.members[0].relation, f.moment) for f in in_order(first, again)]
    assert ordered == [(1, 40), (3, 45), (2, 50)]
    assert in_order({1: []}, again) == []


@pytest.mark.parametrize(
    "stamp", ["2026-01-01", 9e18, -5, None, True, "missing", float("nan"), 1e12 + 0.5]
)
def test_a_time_that_is_none_stops_nothing(
    catalog: Catalog, warehouse: Warehouse, stamp: object
) -> None:
    for name in ("a", "b"):
        write(warehouse, name, 0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    began = time.time_ns() // 1000 - 2_000_000
    write(warehouse, "a", 1)
    uri = warehouse.table_uri("public", "a")
    entry = Path(uri.removeprefix("file://")) / "_delta_log" / f"{1:020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] = stamp
            if stamp == "missing":
                del line["commitInfo"]["timestamp"]
    entry.write_text("\n".join(json.dumps(line) for line in lines))
    (commit,) = commits_after(warehouse.storage, uri, 0)
    assert commit.time == (int((1e12 + 0.5) * 1000) if stamp == 1e12 + 0.5 else None)
    write(warehouse, "b", 1)
    sequencer.step()
    assert sorted(names(catalog)) == ["a", "b"]
    times = [t.commit_time for t in log_of(catalog)]
    assert times == sorted(times) and times[-1] >= began


def test_commit_times_never_go_back_nor_beyond_now(
    catalog: Catalog, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TableLogs.after
    shift = [0]

    def after(self: TableLogs, table: Any, version: int) -> Iterator[tuple[TableCommit, int]]:
        for commit, moment in original(self, table, version):
            yield commit, moment + shift[0]

    monkeypatch.setattr(TableLogs, "after", after)
    for name in ("a", "b"):
        write(warehouse, name, 0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    for number, hours in enumerate((0, 5, -5, 0)):
        shift[0] = hours * 3_600_000_000
        write(warehouse, "ab"[number % 2], number)
        sequencer.step()
    sequencer = Sequencer(catalog, warehouse)
    write(warehouse, "a", 9)
    sequencer.step()
    times = [t.commit_time for t in log_of(catalog)]
    assert len(times) == 5 and times == sorted(times)
    assert times[-1] <= time.time_ns() // 1000, "no writer's clock puts the log into the future"


def test_commits_of_a_group_are_one_transaction_in_the_place_of_the_last() -> None:
    def found(relation: int, to_version: int, group: str | None = None) -> PendingTransaction:
        member = Member(relation, f"t{relation}", to_version - 1, to_version)
        return PendingTransaction((member,), to_version, to_version, 10, group=group)

    one, other, two = found(1, 5, "g"), found(3, 5), found(2, 6, "g")
    joined = together([one, other, two])
    assert [item.members for item in joined] == [other.members, one.members + two.members]
    assert [item.size for item in joined] == [10, 20]
    early = found(2, 5)
    assert together([one, early, two]) == [early, *together([one, two])]
    late = found(1, 6)
    first, last = together([one, late, two])
    assert (first.members, last) == (one.members + two.members, late), "in that of the first"
    apart = [one, late, early, two]
    assert together(apart) == apart


def test_groups_that_move_past_each_other_keep_the_order_of_their_tables() -> None:
    """The first would go to its last commit, the second to its first: table 1 has both."""

    def found(relation: int, to_version: int, group: str) -> PendingTransaction:
        member = Member(relation, f"t{relation}", to_version - 1, to_version)
        return PendingTransaction((member,), to_version, to_version, 10, group=group)

    crossed = [found(1, 1, "g"), found(2, 1, "h"), found(2, 2, "g"), found(1, 2, "h")]
    joined = together(crossed)
    assert follows(joined, {1: 0, 2: 0})
    assert sum(len(item.members) for item in joined) == len(crossed)


def test_several_commits_of_one_table_in_a_group_are_one_step_of_it() -> None:
    def found(relation: int, to_version: int, group: str | None = None) -> PendingTransaction:
        member = Member(relation, f"t{relation}", to_version - 1, to_version)
        return PendingTransaction((member,), to_version, to_version, 10, group=group)

    out, into, back = found(1, 5, "g"), found(2, 3, "g"), found(1, 6, "g")
    (joined,) = together([out, into, back])
    assert joined.members == (Member(1, "t1", 4, 6), Member(2, "t2", 2, 3))
    apart = [out, into, found(2, 4), found(1, 6), found(1, 7, "g")]
    assert together(apart) == apart
