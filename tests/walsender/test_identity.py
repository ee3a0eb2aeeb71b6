"""A relation is bound to its Delta table's own id: another table in the folder is another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from penstock.catalog import Catalog, LakeTable, LakeTransaction, SubscriptionRelState
from penstock.catalog.pg_transactions import Sequenced
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.identity import table_id
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.sequencer import Sequencer


class Lake:
    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog.create(f"sqlite:///{folder / 'state.db'}")
        self.warehouse = Warehouse(str(folder / "warehouse"))
        self.sequencer = Sequencer(self.catalog, self.warehouse)

    def uri(self, name: str) -> str:
        return self.warehouse.table_uri("public", name)

    def log_folder(self, name: str) -> Path:
        return Path(self.uri(name).removeprefix("file://")) / "_delta_log"

    def write(self, name: str, *ids: int) -> None:
        write_deltalake(self.uri(name), pa.table({"id": list(ids)}), mode="append")

    def replace(self, name: str, commits: int) -> None:
        self.warehouse.remove("public", name)
        for number in range(commits):
            self.write(name, number)

    def table(self, name: str) -> LakeTable:
        with self.catalog.read() as t:
            return t.tables.get("public", name)

    def at(self, name: str) -> Sequenced:
        with self.catalog.read() as t:
            return t.transactions.sequenced()[t.tables.get("public", name).oid]

    def log(self) -> tuple[LakeTransaction, ...]:
        with self.catalog.read() as t:
            return t.transactions.after(Lsn(0), 1000)

    def publish(self, *names: str) -> int:
        """A publication of the named tables, of all without any; its oid."""
        with self.catalog.write() as t:
            publication = t.publications.create("p", all_tables=not names)
            for name in names:
                oid = t.tables.get("public", name).oid
                t.publications.add_relation(publication.oid, oid, None, None)
        return publication.oid


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(tmp_path)
    yield lake
    lake.catalog.close()


@pytest.mark.parametrize("commits", [1, 3, 8], ids=["shorter", "equal", "longer"])
@pytest.mark.parametrize("restarted", [False, True])
def test_another_table_in_the_folder_is_another_relation(
    lake: Lake, commits: int, restarted: bool
) -> None:
    for number in range(3):
        lake.write("a", number)
        lake.write("b", number)
    lake.sequencer.step(discover=True)
    publication = lake.publish("a", "b")
    before, old_id = lake.table("a"), lake.at("a").table_id
    lake.write("a", 3)
    lake.write("b", 3)
    lake.sequencer.step()
    last = lake.log()[-1].end
    lake.replace("a", commits)
    if restarted:
        lake.sequencer = Sequencer(lake.catalog, lake.warehouse)
    lake.write("b", 4)
    lake.sequencer.step()
    lake.sequencer.check_logs()
    lake.sequencer.step()
    now = lake.at("a")
    assert lake.table("a").oid != before.oid
    assert now == Sequenced(commits - 1, table_id(lake.warehouse.storage, lake.uri("a"), 0))
    assert now.table_id != old_id
    with lake.catalog.read() as t:
        listed = [rel.relation for rel in t.publications.relations()]
        members = [m for tx in t.transactions.after(last, 100) for m in tx.members]
    assert listed == [lake.table("b").oid], "as DROP TABLE takes it out of a publication"
    (lost,) = [m for m in members if m.relation == before.oid]
    assert lost.lost_to == (publication,), "streams of the publication are told at this place"
    assert [m.to_version for m in members if m.relation == lake.table("b").oid] == [4]
    lake.write("a", 9)
    lake.sequencer.step()
    (member,) = lake.log()[-1].members
    assert (member.relation, member.to_version) == (lake.table("a").oid, commits)
    assert member.table_id == now.table_id


def test_what_nobody_publishes_is_lost_to_who_reads_every_table(lake: Lake) -> None:
    lake.write("a", 1)
    lake.sequencer.step(discover=True)
    lake.sequencer.check_logs()
    before = lake.table("a").oid
    lake.replace("a", 1)
    lake.sequencer.step(discover=True)
    lake.write("a", 2)
    lake.sequencer.step()
    lake.write("a", 3)
    lake.write("a", 4)
    (lake.log_folder("a") / f"{2:020}.json").unlink()
    lake.sequencer.check_logs()
    replaced, written, gap = (t.members[0] for t in lake.log())
    assert (replaced.relation, replaced.lost_to) == (before, ())
    assert (written.relation, written.lost_to) == (lake.table("a").oid, None)
    assert (gap.from_version, gap.to_version, gap.lost_to) == (1, 3, ())


def test_a_table_that_is_replaced_in_its_own_log_goes_on(lake: Lake) -> None:
    lake.write("a", 1)
    lake.sequencer.step(discover=True)
    before, oid = lake.at("a").table_id, lake.table("a").oid
    other = Schema([Field("name", PrimitiveType("string"))])
    DeltaTable.create(lake.uri("a"), other, mode="overwrite")
    write_deltalake(lake.uri("a"), pa.table({"name": ["x"]}), mode="append")
    lake.sequencer.step()
    lake.sequencer.check_logs()
    assert lake.table("a").oid == oid
    assert [t.members[0].to_version for t in lake.log()] == [1, 2]
    assert lake.at("a").table_id == lake.log()[-1].members[0].table_id != before


def test_a_gap_is_lost_to_those_who_publish_the_table(lake: Lake) -> None:
    for number in range(3):
        lake.write("a", number)
        lake.write("b", number)
    lake.sequencer.step(discover=True)
    publication = lake.publish("a")
    lake.write("a", 3)
    lake.write("a", 4)
    lake.write("b", 3)
    (lake.log_folder("a") / f"{3:020}.json").unlink()
    lake.sequencer.check_logs()
    lake.sequencer.check_logs()
    lake.sequencer.step()
    lost, other = (t.members[0] for t in lake.log())
    assert (lost.from_version, lost.to_version, lost.lost_to) == (2, 4, (publication,))
    assert (other.relation, other.to_version) == (lake.table("b").oid, 3)
    assert lake.at("a").version == 4


def test_a_folder_that_went_is_no_dropped_table(lake: Lake) -> None:
    lake.write("a", 1)
    lake.sequencer.step(discover=True)
    lake.publish()
    folder = lake.log_folder("a").parent
    away = folder.rename(folder.parent.parent.with_name("away"))
    lake.sequencer.check_logs()
    lake.sequencer.step(discover=True)
    (trouble,) = lake.sequencer.troubles.all()
    assert trouble.name == "public.a" and "there is no Delta table" in trouble.reason
    away.rename(folder)
    lake.write("a", 2)
    lake.sequencer.check_logs()
    lake.sequencer.step()
    assert [m.lost_to for t in lake.log() for m in t.members] == [None]
    assert lake.sequencer.troubles.all() == ()


@pytest.mark.parametrize("empty", [True, False], ids=["an empty mount point", "nothing"])
def test_a_warehouse_that_is_not_there_ends_nobodys_slot(lake: Lake, empty: bool) -> None:
    for name in ("a", "b"):
        lake.write(name, 1)
    lake.sequencer.step(discover=True)
    lake.publish()
    warehouse = lake.log_folder("a").parents[2]
    away = warehouse.rename(warehouse.with_name("away"))
    if empty:
        warehouse.mkdir()
    for _ in range(2):
        lake.sequencer.check_logs()
        lake.sequencer.step(discover=True)
    assert lake.log() == () and len(lake.sequencer.troubles.all()) == 2
    if empty:
        warehouse.rmdir()
    away.rename(warehouse)
    lake.write("b", 2)
    for _ in range(2):
        lake.sequencer.check_logs()
        lake.sequencer.step(discover=True)
    assert [m.lost_to for t in lake.log() for m in t.members] == [None]
    assert lake.sequencer.troubles.all() == ()


def test_cuts_of_a_dropped_subscription_say_nothing_of_a_new_table(lake: Lake) -> None:
    with lake.catalog.write() as t:
        subscription = t.subscriptions.create(
            "s", conninfo="dbname=x", publications=("p",), slot_name="s"
        )
        t.relations.add(subscription.oid, [("public", "a")], SubscriptionRelState.INIT)
    for number in range(5):
        lake.write("a", number)
    cut(lake, CutOwner("s", subscription.app_id), 100, 4)
    lake.sequencer.step(discover=True)
    lake.publish()
    with lake.catalog.write() as t:  # DROP SUBSCRIPTION, DROP TABLE
        t.relations.delete_all(subscription.oid)
        t.subscriptions.delete(subscription.oid)
        t.transactions.forget(t.tables.get("public", "a").oid)
        t.tables.delete(t.tables.get("public", "a").oid)
    lake.replace("a", 1)
    lake.sequencer.step(discover=True)
    lake.sequencer.check_logs()
    assert lake.at("a").version == 0
    lake.write("a", 1)
    lake.sequencer.step()
    (transaction,) = lake.log()
    assert transaction.origin is None and transaction.members[0].lost_to is None


def cut(lake: Lake, owner: CutOwner, lsn: int, version: int) -> None:
    lake.warehouse.cuts.append(
        owner, Lsn(lsn), None, {("public", "a"): CutTable(lake.uri("a"), version)}
    )


def test_an_id_is_read_from_entries_and_checkpoints(lake: Lake) -> None:
    for number in range(3):
        lake.write("a", number)
    storage, uri = lake.warehouse.storage, lake.uri("a")
    first = json.loads((lake.log_folder("a") / f"{0:020}.json").read_text().splitlines()[2])
    expected = first["metaData"]["id"]
    assert [table_id(storage, uri, version) for version in range(3)] == [expected] * 3
    DeltaTable(uri).create_checkpoint()
    for version in range(2):
        (lake.log_folder("a") / f"{version:020}.json").unlink()
    lake.write("a", 3)
    assert [table_id(storage, uri, version) for version in (1, 2, 3)] == [expected] * 3
