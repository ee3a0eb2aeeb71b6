"""Commits of real Delta tables, put in one order."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.catalog import Catalog, LakeTable, LakeTransaction, Member, SubscriptionRelState
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.commit_times import CommitTimes
from penstock.walsender.sequencer import Sequencer


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "warehouse"))


def write(warehouse: Warehouse, name: str, *ids: int, mode: str = "append") -> None:
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
    for name in ("public.a", "public.b"):
        write(warehouse, name, 1)
        write(warehouse, name, 2)
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
    thread = threading.Thread(target=lambda: sequencer.wait(end, 20) and woken.set())
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
