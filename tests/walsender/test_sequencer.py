"""Commits of real Delta tables, put in one order."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.catalog import Catalog, LakeTable, LakeTransaction, Member, SubscriptionRelState
from penstock.embedded import wait_until
from penstock.failpoint import BEFORE_SEQUENCE
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.commit_order import CommitTimes
from penstock.walsender.following import FollowedTables
from penstock.walsender.sequencer import Sequencer, TableLooks


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "warehouse"))


def write(
    warehouse: Warehouse, name: str, *ids: int, mode: Literal["append", "overwrite"] = "append"
) -> None:
    schema, table = name.split(".")
    write_deltalake(warehouse.table_uri(schema, table), pa.table({"id": list(ids)}), mode=mode)


def apply(warehouse: Warehouse, name: str, app_id: str, lsn: int) -> None:
    """A commit with the markers of a subscription."""
    markers = CommitProperties(app_transactions=[Transaction(app_id, lsn)])
    rows = pa.table({"id": [lsn]})
    write_deltalake(
        warehouse.table_uri("public", name), rows, mode="append", commit_properties=markers
    )


def log_of(catalog: Catalog) -> tuple[LakeTransaction, ...]:
    with catalog.read() as t:
        return t.transactions.after(Lsn(0), 1000)


def test_tables_are_found_and_followed_from_then_on(catalog: Catalog, warehouse: Warehouse) -> None:
    sequencer = Sequencer(catalog, warehouse)
    write(warehouse, "public.a", 1)
    write(warehouse, "public.a", 2)
    begin = sequencer.position(discover=True)
    with catalog.read() as t:
        (table,) = t.tables.all()
    assert (table.qualified_name, begin.versions) == ("public.a", {table.oid: 1})
    assert log_of(catalog) == (), "what was there before is no transaction"
    write(warehouse, "public.a", 3)
    sequencer.step()
    (transaction,) = log_of(catalog)
    (member,) = transaction.members
    assert (member.relation, member.from_version, member.to_version) == (table.oid, 1, 2)
    assert transaction.begin == begin.lsn
    now = sequencer.position()
    assert (now.lsn, now.versions) == (transaction.end, {table.oid: 2})


def test_order_and_positions_survive_a_restart(catalog: Catalog, warehouse: Warehouse) -> None:
    for name in ("public.a", "public.b"):
        write(warehouse, name, 0)
    Sequencer(catalog, warehouse).step(discover=True)
    for number in range(3):
        for name in ("public.b", "public.a"):
            write(warehouse, name, number)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step()
    log = log_of(catalog)
    names = {table.oid: table.name for table in catalog_tables(catalog)}
    assert [names[t.members[0].relation] for t in log] == ["b", "a"] * 3
    assert [t.commit_time for t in log] == sorted(t.commit_time for t in log)
    Sequencer(catalog, warehouse).step(discover=True)
    assert log_of(catalog) == log


@pytest.fixture
def beside(
    catalog: Catalog, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Sequencer], None]]:
    """Makes a step of another process come between finding and writing in one's next step."""
    with Catalog.open(f"sqlite:///{tmp_path / 'state.db'}") as opened:
        other = Sequencer(opened, warehouse)

        def beside(sequencer: Sequencer) -> None:
            def pass_by(name: str) -> None:
                if name == BEFORE_SEQUENCE:
                    monkeypatch.undo()
                    other.step(discover=True)

            monkeypatch.setattr("penstock.walsender.sequencer.failpoint", pass_by)
            sequencer.step()

        yield beside


def test_two_processes_put_a_commit_into_the_log_once(
    catalog: Catalog, warehouse: Warehouse, beside: Callable[[Sequencer], None]
) -> None:
    for name in ("public.a", "public.b"):
        write(warehouse, name, 0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    for number in range(2):
        write(warehouse, "public.a", number)
        write(warehouse, "public.b", number)
        beside(sequencer)
        assert told(catalog)[2 * number :] == [
            (None, {"a": (number, number + 1)}),
            (None, {"b": (number, number + 1)}),
        ]
    sequencer.step()
    assert len(log_of(catalog)) == 4


def test_two_processes_put_a_cut_into_the_log_once(
    catalog: Catalog,
    warehouse: Warehouse,
    followed: tuple[Sequencer, str],
    beside: Callable[[Sequencer], None],
) -> None:
    sequencer, app_id = followed
    write(warehouse, "public.b", 1)
    apply(warehouse, "a", app_id, 200)
    apply(warehouse, "b", app_id, 200)
    cut(warehouse, app_id, 200, a=1, b=2)
    beside(sequencer)
    assert told(catalog) == [(None, {"b": (0, 1)}), (200, {"a": (0, 1), "b": (1, 2)})]


def test_upkeep_is_no_transaction(catalog: Catalog, warehouse: Warehouse) -> None:
    for number in range(3):
        write(warehouse, "public.a", number)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    DeltaTable(warehouse.table_uri("public", "a")).optimize.compact()
    sequencer.step()
    assert log_of(catalog) == ()
    write(warehouse, "public.a", 9)
    sequencer.step()
    (transaction,) = log_of(catalog)
    assert transaction.members[0].from_version == 3, "behind the upkeep"


def test_a_subscriptions_tables_move_from_cut_to_cut(
    catalog: Catalog, warehouse: Warehouse
) -> None:
    for name in ("public.a", "public.b"):
        write(warehouse, name, 0)
    with catalog.write() as t:
        subscription = t.subscriptions.create(
            "s", conninfo="dbname=x", publications=("p",), slot_name="s"
        )
        t.relations.add(
            subscription.oid, [("public", "a"), ("public", "b")], SubscriptionRelState.INIT
        )
    cut(warehouse, subscription.app_id, 100, a=0, b=0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    for name in ("a", "b"):
        apply(warehouse, name, subscription.app_id, 150)
        apply(warehouse, name, subscription.app_id, 200)
    sequencer.step()
    assert log_of(catalog) == (), "no cut, no transaction"
    cut(warehouse, subscription.app_id, 200, a=2, b=2)
    sequencer.step()
    cut(warehouse, subscription.app_id, 300, a=2, b=2)
    sequencer.step()
    (transaction,) = log_of(catalog)
    assert [(m.from_version, m.to_version) for m in transaction.members] == [(0, 2), (0, 2)]
    assert transaction.origin == f"pg_{subscription.oid}"
    assert transaction.origin_lsn == Lsn(200)


@pytest.fixture
def followed(catalog: Catalog, warehouse: Warehouse) -> tuple[Sequencer, str]:
    """A sequencer that follows tables a and b of a subscription, and the subscription's app id."""
    for name in ("public.a", "public.b"):
        write(warehouse, name, 0)
    with catalog.write() as t:
        subscription = t.subscriptions.create(
            "s", conninfo="dbname=x", publications=("p",), slot_name="s"
        )
        names = [("public", "a"), ("public", "b")]
        t.relations.add(subscription.oid, names, SubscriptionRelState.READY)
    cut(warehouse, subscription.app_id, 100, a=0, b=0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    return sequencer, subscription.app_id


def told(catalog: Catalog) -> list[tuple[Lsn | None, dict[str, tuple[int, int]]]]:
    """Of each transaction the position of its origin, and the versions of its tables."""
    names = {table.oid: table.name for table in catalog_tables(catalog)}
    return [
        (t.origin_lsn, {names[m.relation]: (m.from_version, m.to_version) for m in t.members})
        for t in log_of(catalog)
    ]


@pytest.mark.parametrize("late", [False, True])
def test_what_others_commit_to_a_subscriptions_table_has_no_origin(
    catalog: Catalog, warehouse: Warehouse, followed: tuple[Sequencer, str], late: bool
) -> None:
    """It comes in its place among the cuts, found one after the other or all together."""
    sequencer, app_id = followed

    def look() -> None:
        if not late:
            sequencer.step()

    write(warehouse, "public.a", 1)
    look()
    for lsn, version in ((200, 1), (300, 2)):
        apply(warehouse, "a", app_id, lsn)
        apply(warehouse, "b", app_id, lsn)
        look()
        cut(warehouse, app_id, lsn, a=2 * version, b=version)
        look()
        write(warehouse, "public.a", lsn)
        look()
    sequencer.step()
    assert told(catalog) == [
        (None, {"a": (0, 1)}),
        (200, {"a": (1, 2), "b": (0, 1)}),
        (None, {"a": (2, 3)}),
        (300, {"a": (3, 4), "b": (1, 2)}),
        (None, {"a": (4, 5)}),
    ]
    versions = sequencer.position().versions
    assert sorted(versions.values()) == [2, 5]


def test_a_writer_whose_clock_is_ahead_of_a_cut(
    catalog: Catalog, warehouse: Warehouse, followed: tuple[Sequencer, str]
) -> None:
    """What its commit has before the cut in the table's log it has in the order of commits too."""
    sequencer, app_id = followed
    write(warehouse, "public.a", 1)
    entry = Path(local_path(warehouse.table_uri("public", "a"))) / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
    info["timestamp"] += 86_400_000
    entry.write_text("\n".join(map(json.dumps, actions)))
    apply(warehouse, "a", app_id, 200)
    cut(warehouse, app_id, 200, a=2, b=0)
    sequencer.step()
    assert told(catalog) == [(None, {"a": (0, 1)}), (200, {"a": (1, 2)})]


def test_what_others_commit_before_a_cut_waits_for_nobody(
    catalog: Catalog, warehouse: Warehouse, followed: tuple[Sequencer, str]
) -> None:
    """Tables without a cut of their own, and commits of another subscription, with its origin."""
    sequencer, app_id = followed
    other = f"penstock-{uuid.uuid4()}"
    apply(warehouse, "a", other, 7)
    apply(warehouse, "b", app_id, 200)
    write(warehouse, "public.b", 1)
    sequencer.step()
    assert told(catalog) == [(7, {"a": (0, 1)})], "b waits for its cut"
    assert log_of(catalog)[0].origin == other


def test_others_between_commits_without_a_cut_between_them(
    catalog: Catalog,
    warehouse: Warehouse,
    followed: tuple[Sequencer, str],
) -> None:
    """After a crash: the cut is taken apart, so that theirs have no origin."""
    sequencer, app_id = followed
    apply(warehouse, "a", app_id, 200)
    write(warehouse, "public.a", 1)
    apply(warehouse, "a", app_id, 300)
    cut(warehouse, app_id, 300, a=3, b=0)
    cut(warehouse, app_id, 400, a=3, b=0)
    sequencer.step()
    assert told(catalog) == [
        (200, {"a": (0, 1)}),
        (None, {"a": (1, 2)}),
        (300, {"a": (2, 3)}),
    ]
    write(warehouse, "public.a", 1)
    sequencer.step()
    assert told(catalog)[3:] == [(None, {"a": (3, 4)})]


def test_others_between_commits_to_several_tables(
    catalog: Catalog, warehouse: Warehouse, followed: tuple[Sequencer, str]
) -> None:
    """What the subscription has committed up to one position goes together, as far as others let
    it."""
    _, app_id = followed
    apply(warehouse, "b", app_id, 150)
    apply(warehouse, "a", app_id, 200)
    apply(warehouse, "b", app_id, 200)
    write(warehouse, "public.a", 1)
    write(warehouse, "public.a", 2)
    apply(warehouse, "b", app_id, 250)
    write(warehouse, "public.b", 1)
    apply(warehouse, "a", app_id, 300)
    apply(warehouse, "b", app_id, 300)
    write(warehouse, "public.b", 2)
    cut(warehouse, app_id, 300, a=4, b=5)
    Sequencer(catalog, warehouse).step()
    assert told(catalog) == [
        (200, {"a": (0, 1), "b": (0, 2)}),
        (None, {"a": (1, 2)}),
        (None, {"a": (2, 3)}),
        (250, {"b": (2, 3)}),
        (None, {"b": (3, 4)}),
        (300, {"a": (3, 4), "b": (4, 5)}),
        (None, {"b": (5, 6)}),
    ]


def test_a_cut_that_comes_while_logs_are_looked_at_is_for_the_next_look(
    catalog: Catalog,
    warehouse: Warehouse,
    followed: tuple[Sequencer, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or what others have committed before it would be taken for the subscription's own."""
    sequencer, app_id = followed
    write(warehouse, "public.c", 0)
    sequencer.step(discover=True)
    write(warehouse, "public.c", 1)
    real = TableLooks.grown
    late = [app_id]

    def grown(looks: TableLooks, followed: FollowedTables) -> frozenset[int]:
        found = real(looks, followed)
        while late:
            write(warehouse, "public.a", 1)
            apply(warehouse, "a", late[0], 200)
            cut(warehouse, late.pop(), 200, a=2, b=0)
        return found

    monkeypatch.setattr(TableLooks, "grown", grown)
    for _ in range(2):
        sequencer.step()
    assert sorted(told(catalog), key=str) == [
        (200, {"a": (1, 2)}),
        (None, {"a": (0, 1)}),
        (None, {"c": (0, 1)}),
    ]


def test_what_was_applied_has_an_origin_when_its_table_has_left(
    catalog: Catalog, warehouse: Warehouse
) -> None:
    """A subscriber with origin = none, where it may have come from, must not get it."""
    write(warehouse, "public.a", 0)
    with catalog.write() as t:
        subscription = t.subscriptions.create(
            "s", conninfo="dbname=x", publications=("p",), slot_name="s"
        )
        names = [("public", "a")]
        (rel,) = t.relations.add(subscription.oid, names, SubscriptionRelState.INIT)
    cut(warehouse, subscription.app_id, 100, a=0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    apply(warehouse, "a", subscription.app_id, 200)
    cut(warehouse, subscription.app_id, 200, a=1)
    with catalog.write() as t:
        t.relations.remove(rel)
    sequencer.step()
    apply(warehouse, "a", subscription.app_id, 300)
    with catalog.write() as t:
        t.subscriptions.delete(subscription.oid)
    write(warehouse, "public.a", 1)
    apply(warehouse, "a", "somebody's", 400)
    sequencer.step()
    assert [(t.origin, t.origin_lsn) for t in log_of(catalog)] == [
        (f"pg_{subscription.oid}", 200),
        (subscription.app_id, 300),
        (None, None),
        (None, None),
    ]


def test_commit_times_do_not_go_back_over_a_restart(catalog: Catalog) -> None:
    """What the first process wrote has an origin: its table has left its subscription."""
    times = []
    for moment, origin in ((1_000_000_000, "pg_16384"), (900_000_000, None)):
        clock = CommitTimes()  # as a process has it
        with catalog.write() as t:
            time = clock.next(t, moment)
            times.append(time)
            members = [Member(1, "uri", len(times), len(times) + 1)]
            t.transactions.append(members, commit_time=time, size=1, origin=origin)
    assert times == [1_000_000_000, 1_000_000_000]


@pytest.mark.parametrize(
    ("app_id", "version"),
    [("penstock-loader", 7), ("penstock-loader", -1), (f"penstock-{'x' * 80}", 7)],
)
def test_writers_may_have_names_that_begin_like_ours(
    catalog: Catalog, warehouse: Warehouse, app_id: str, version: int
) -> None:
    """What they wrote has no origin, so that subscribers with origin = none get it."""
    write(warehouse, "public.a", 0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    apply(warehouse, "a", app_id, version)
    sequencer.step()
    assert [(t.origin, t.origin_lsn) for t in log_of(catalog)] == [(None, None)]


def test_a_marker_that_is_no_position_is_its_tables_trouble(
    catalog: Catalog, warehouse: Warehouse
) -> None:
    for name in ("public.a", "public.b"):
        write(warehouse, name, 0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    apply(warehouse, "a", f"penstock-{uuid.uuid4()}", -1)
    write(warehouse, "public.b", 1)
    sequencer.step()
    (table,) = [table.oid for table in catalog_tables(catalog) if table.name == "b"]
    assert [t.members[0].relation for t in log_of(catalog)] == [table]
    (trouble,) = sequencer.troubles.all()
    assert trouble.name == "public.a"
    assert "no position: -1" in trouble.reason


def test_senders_are_woken(catalog: Catalog, warehouse: Warehouse) -> None:
    write(warehouse, "public.a", 0)
    sequencer = Sequencer(catalog, warehouse)
    end = sequencer.position(discover=True).lsn
    assert not sequencer.wait(end, 0.01)
    woken = threading.Event()

    def wait() -> None:
        if sequencer.wait(end, 20):
            woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    write(warehouse, "public.a", 1)
    sequencer.step()
    assert woken.wait(20)
    thread.join()


def test_who_stops_does_not_wait(catalog: Catalog, warehouse: Warehouse) -> None:
    write(warehouse, "public.a", 0)
    sequencer = Sequencer(catalog, warehouse)
    end = sequencer.position(discover=True).lsn
    stopping, stopped = threading.Event(), threading.Event()

    def wait() -> None:
        assert not sequencer.wait(end, 60, stopping)
        stopped.set()

    thread = threading.Thread(target=wait)
    thread.start()
    stopping.set()
    sequencer.wake()
    assert stopped.wait(20)
    thread.join()


def catalog_tables(catalog: Catalog) -> tuple[LakeTable, ...]:
    with catalog.read() as t:
        return t.tables.all()


def cut(warehouse: Warehouse, app_id: str, lsn: int, **versions: int) -> None:
    tables = {
        ("public", name): CutTable(warehouse.table_uri("public", name), version)
        for name, version in versions.items()
    }
    warehouse.cuts.append(CutOwner("s", app_id), Lsn(lsn), None, tables)


def test_what_no_slot_needs_is_forgotten(catalog: Catalog, warehouse: Warehouse) -> None:
    write(warehouse, "public.a", 0)
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    for number in range(3):
        write(warehouse, "public.a", number)
    sequencer.step()
    log = log_of(catalog)
    sequencer.prune(log[0].end)
    assert log_of(catalog) == log[1:]
    sequencer.prune(None)
    assert log_of(catalog) == log[2:], "the last one holds the position"
    assert sequencer.position().lsn == log[2].end


class _Queue:
    """A lock that knows who has asked for it."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked.append(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_who_waited_while_somebody_looked_need_not_look(
    catalog: Catalog, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions ask before each statement; what was committed before they asked is in the log."""
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    looks: list[int] = []
    find = sequencer._transactions

    def counted() -> object:
        looks.append(0)
        return find()

    monkeypatch.setattr(sequencer, "_transactions", counted)
    queue = _Queue()
    monkeypatch.setattr(sequencer, "_lock", queue)
    threads = [threading.Thread(target=sequencer.step) for _ in range(4)]
    with sequencer.one_transaction():
        for thread in threads:
            thread.start()
        wait_until(lambda: len(queue.asked) == 1 + len(threads), "all wait")
    for thread in threads:
        thread.join()
    assert len(looks) == 1
    sequencer.step()
    assert len(looks) == 2
