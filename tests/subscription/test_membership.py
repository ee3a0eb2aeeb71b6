"""A session has the tables that it began with: no cut, and no copy, once there are others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.catalog import Catalog, SubscriptionRel, SubscriptionRelState
from penstock.errors import RelationChanged, UndefinedObject
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pipeline.apply import ApplyOptions
from penstock.pipeline.snapshot import CopyOptions
from penstock.relation import Attribute, Relation, ReplicaIdentity
from penstock.subscription.apply import Applier
from penstock.subscription.copies import Copies
from penstock.subscription.membership import Membership
from penstock.subscription.parking import Parking
from penstock.subscription.targets import Targets
from penstock.subscription.worker import CatalogAccess
from penstock.subscription.worker_status import WorkerStatus


class World:
    """A subscription with table a (OID 1), and a publisher that nobody reaches."""

    def __init__(self, folder: Path, catalog: Catalog) -> None:
        self.catalog = catalog
        self.warehouse = Warehouse(str(folder / "wh"), fsync=False)
        with catalog.write() as t:
            self.subscription = t.subscriptions.create(
                "s", conninfo="host=127.0.0.1 port=1", publications=("p",), slot_name="s"
            )
            t.relations.add(self.oid, {("public", "a"): 1}, SubscriptionRelState.READY)
        key = Attribute("id", 23, key=True)
        relation = Relation(1, "public", "a", ReplicaIdentity.DEFAULT, (key,))
        self.warehouse.create("public", "a", TableSchema.of_relation(relation))

    @property
    def oid(self) -> int:
        return self.subscription.oid

    def rels(self) -> tuple[SubscriptionRel, ...]:
        return self.catalog.relations(self.oid)

    def membership(self) -> Membership:
        return Membership(self.catalog.generation, self.rels)

    def access(self) -> CatalogAccess:
        return CatalogAccess(
            generation=self.catalog.generation,
            rels=self.rels,
            set_state=self.catalog.set_state,
            record_publisher=lambda identity: None,
            park=self.catalog.park,
            bind=self.catalog.bind,
            copy_again=self.catalog.copy_again,
            record_conflict=self.catalog.record_conflict,
            member=self.catalog.member,
            record_stop=lambda error, table: None,
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        yield World(tmp_path, catalog)


def add(world: World) -> None:
    with world.catalog.write() as t:
        t.relations.add(world.oid, {("public", "new"): 2}, SubscriptionRelState.READY)


def remove(world: World) -> None:
    with world.catalog.write() as t:
        t.relations.remove(world.rels()[0])


def adopt(world: World) -> None:
    with world.catalog.write() as t:
        t.relations.adopt(world.rels()[0], 3)


def park(world: World) -> None:
    world.catalog.park(world.rels()[0], RelationChanged("by this session"))


@pytest.mark.parametrize(
    ("change", "holds"), [(add, False), (remove, False), (adopt, False), (park, True)]
)
def test_no_cut_with_other_tables_than_the_session_has(
    world: World, change: Callable[[World], None], holds: bool
) -> None:
    members = world.membership()
    targets = Targets(
        world.warehouse, world.subscription.app_id, "s", world.catalog, lambda oid, names: ()
    )
    for rel in members.rels:
        targets.open(rel)
    applier = Applier(
        None,
        world.warehouse.cuts,
        targets,
        subscription="s",
        app_id=world.subscription.app_id,
        options=ApplyOptions(),
        parking=Parking(world.subscription, world.warehouse, world.catalog.park, lambda rel: None),
        last_cut=None,
        members_hold=members.holds,
    )
    try:
        assert applier.cut(Lsn(10), None) is not None
        change(world)
        assert (applier.cut(Lsn(20), None) is not None) == holds
    finally:
        applier.close()
    last = world.warehouse.cuts.last(CutOwner("s", world.subscription.app_id))
    assert last is not None
    assert last.lsn == (20 if holds else 10)


def test_a_table_that_cannot_be_parked_any_more_is_of_another_membership(world: World) -> None:
    members = world.membership()
    adopt(world)
    with pytest.raises(UndefinedObject):
        world.catalog.park(members.rels[0], RelationChanged("too late"))
    assert not members.holds()
    assert not members.holds()


def test_no_copy_of_a_table_that_the_session_may_have_open(world: World) -> None:
    """The round of another table ends, and the next one is due."""
    with world.catalog.write() as t:
        t.relations.add(world.oid, {("public", "b"): 2}, SubscriptionRelState.INIT)
    status = WorkerStatus("s")
    copies = Copies(
        world.subscription,
        spark=None,
        warehouse=world.warehouse,
        catalog=world.access(),
        options=CopyOptions(),
        status=status,
        retry_interval=0,
        cancelled=lambda: False,
    )
    try:
        copies.begin()
        copies.start(world.membership().sync_ids)
        with world.catalog.write() as t:
            t.relations.copy_again(world.rels()[0], 1)
        until = time.monotonic() + 20
        while not (ended := copies.step()) and time.monotonic() < until:
            time.sleep(0.01)
        assert ended, "the session goes on"
        assert not copies.running
        tried = {name for name, table in status.snapshot().tables.items() if table.error}
        assert tried == {"public.b"}
        # The next session knows it.
        copies.begin()
        assert not copies.step()
        copies.start(world.membership().sync_ids)
        assert copies.running
    finally:
        copies.close()
