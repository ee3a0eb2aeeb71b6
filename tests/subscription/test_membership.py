"""A session has the tables that it began with: no cut, and no copy, once there are others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.attribute import Attribute
from penstock.catalog import Catalog, Subscription, SubscriptionRel, SubscriptionRelState
from penstock.embedded import wait_until
from penstock.errors import (
    ApplierReplaced,
    ObjectInUse,
    RelationChanged,
    StateMismatch,
    UndefinedObject,
)
from penstock.lakehouse.cluster import Cluster
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.node.running import ShownWorkers
from penstock.pgoutput import messages as m
from penstock.pgoutput.columnar import MessageChunk
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import Text
from penstock.pipeline.table_copy import CopyOptions
from penstock.pipeline.table_work import ApplyOptions
from penstock.relation import Relation, ReplicaIdentity
from penstock.stats.backend_status import Sessions
from penstock.subscription.apply import Applier, ApplySession
from penstock.subscription.apply_error import SkipLsns
from penstock.subscription.cut_requests import RequestedCuts
from penstock.subscription.in_doubt_commits import InDoubtCommits
from penstock.subscription.inbox import Batch, Piece
from penstock.subscription.origin import AdvancedOrigin
from penstock.subscription.parking import Parking
from penstock.subscription.prepared import two_phase
from penstock.subscription.tablesync import Copies, SyncOptions
from penstock.subscription.targets import Targets
from penstock.subscription.worker import ApplyWorker, CatalogAccess, MembershipWatch
from penstock.subscription.worker_status import WorkerStatus
from subscription.no_definitions import no_definitions

A = Relation(1, "public", "a", ReplicaIdentity.DEFAULT, (Attribute("id", 23, key=True),))


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
        self.warehouse.create("public", "a", TableSchema.of_relation(A))

    @property
    def oid(self) -> int:
        return self.subscription.oid

    def rels(self) -> tuple[SubscriptionRel, ...]:
        return self.catalog.relations(self.oid)

    def table(self) -> DeltaTable:
        found = self.warehouse.open("public", "a")
        assert found is not None
        return found

    def membership(self) -> MembershipWatch:
        return MembershipWatch(self.subscription, self.catalog.generation, self.now)

    def now(self) -> tuple[Subscription | None, tuple[SubscriptionRel, ...]]:
        return self.catalog.subscription_with_relations(self.oid)

    def access(self) -> CatalogAccess:
        return CatalogAccess(
            generation=self.catalog.generation,
            rels=self.rels,
            subscription_with_rels=self.now,
            take_up=lambda subid, table, pinned, lsn, conflict: False,
            set_state=self.catalog.set_state,
            check_origin=lambda: None,
            record_publisher=lambda identity: None,
            park=self.catalog.park,
            bind=self.catalog.bind,
            copy_again=self.catalog.copy_again,
            record_definition=self.catalog.record_definition,
            record_conflict=self.catalog.record_conflict,
            member=self.catalog.member,
            partition_tree=self.catalog.partition_tree,
            table_uris=self.catalog.table_uris,
            enum_types=self.catalog.enum_types,
            next_values=self.catalog.next_values,
            restart_sequences=self.catalog.restart_sequences,
            primary_key_name=lambda table: None,
            subscription_name=lambda app_id: None,
            dropped_subscriptions=lambda: (),
            origin_name=lambda app_id: None,
            requested_cuts=RequestedCuts(self.catalog.generation, lambda: (), lambda request: None),
            two_phase=lambda: two_phase(
                self.catalog, self.warehouse, self.subscription, Path("spool")
            ),
            follow_change=lambda rel, error: None,
            count=lambda more: None,
            skip_lsns=SkipLsns(
                self.catalog.generation,
                lambda: (INVALID, INVALID),
                lambda lsn: False,
                lambda lsn: None,
            ),
            advanced_origin=AdvancedOrigin(lambda: INVALID, lambda lsn: None),
            record_stop=lambda error, table, disable: None,
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


def add_publication(world: World) -> None:
    alter(world, publications=("p", "q"))


def rename(world: World) -> None:
    alter(world, name="s_old")


def disable(world: World) -> None:
    alter(world, enabled=False)


def alter(world: World, **changes: Any) -> None:
    with world.catalog.write() as t:
        t.subscriptions.save(replace(world.subscription, **changes))


def session(world: World, spark: Any) -> Applier:
    """With the tables that the subscription has."""
    members = world.membership()
    targets = Targets(world.warehouse, world.subscription, world.catalog, no_definitions())
    for rel in members.rels:
        targets.open(rel)
    session = ApplySession(
        spark,
        world.warehouse,
        targets,
        Parking(world.subscription, world.warehouse, world.catalog.park, lambda rel: None),
        None,
        members_hold=members.holds,
        origin_of=lambda app_id: None,
    )
    return Applier(session, ApplyOptions())


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        (add, False),
        (remove, False),
        (adopt, False),
        (park, True),
        (add_publication, False),
        (rename, False),
        (disable, True),
    ],
)
def test_no_cut_with_other_tables_than_the_session_has(
    world: World, change: Callable[[World], None], holds: bool
) -> None:
    applier = session(world, None)
    try:
        assert applier.cut(Lsn(10), None) is not None
        change(world)
        assert (applier.cut(Lsn(20), None) is not None) == holds
    finally:
        applier.close()
    last = world.warehouse.cuts.last(CutOwner("s", world.subscription.app_id))
    assert last is not None
    assert last.lsn == (20 if holds else 10)


@pytest.mark.spark
def test_no_commit_after_those_of_others_to_a_table_that_has_left(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves, and a reader writes, when a batch is staged: that reader's rows stay the last."""
    app_id, (rel,) = world.subscription.app_id, world.rels()
    applier = session(world, spark)
    try:
        assert applier.apply(batch(100, 1)) is not None
        commit, table = DeltaTable.commit, world.table()

        def leave(self: DeltaTable, **options: Any) -> int:
            monkeypatch.undo()
            remove(world)
            rows = pa.table({"id": pa.array([77], pa.int32())})
            writer = FileWriter(table.storage, table.uri, table.schema.arrow())
            table.stage(written=writer.write([rows]))
            commit(table, app_id="a reader", version_marker=Lsn(1), operation="WRITE")
            return commit(self, **options)

        monkeypatch.setattr(DeltaTable, "commit", leave)
        assert applier.apply(batch(200, 2)) is None
    finally:
        applier.close()
    now = world.table()
    assert (now.version, now.transaction_version(app_id)) == (table.version, 100)
    with world.catalog.write() as t:
        (back,) = t.relations.add(world.oid, {rel.table_name: 1}, SubscriptionRelState.INIT)
    assert back.returned
    assert now.changed_by_others(app_id)


def batch(end_lsn: int, key: int) -> Batch:
    """One transaction, which inserts a row into table a."""
    messages = (
        m.Begin(Lsn(end_lsn - 1), 0, 1),
        m.RelationMessage(A),
        m.Insert(A.oid, (Text(str(key).encode()),)),
        m.Commit(Lsn(end_lsn - 1), Lsn(end_lsn), 0),
    )
    piece = Piece()
    piece.add(MessageChunk.of_messages([encode(message) for message in messages]))
    return Batch.of((piece,))


def test_a_table_that_cannot_be_parked_any_more_is_of_another_membership(world: World) -> None:
    members = world.membership()
    adopt(world)
    with pytest.raises(UndefinedObject):
        world.catalog.park(members.rels[0], RelationChanged("too late"))
    assert not members.holds()
    assert not members.holds()


def test_publications_that_come_with_tables_are_seen_with_them(world: World) -> None:
    """Also by a worker that began a session between the statement and the launcher's look."""
    assert not world.membership().altered
    members = world.membership()
    with world.catalog.write() as t:
        t.subscriptions.save(replace(world.subscription, publications=("p", "q")))
        t.relations.add(world.oid, {("public", "new"): 2}, SubscriptionRelState.INIT)
    assert not members.holds()
    assert members.altered
    assert world.membership().altered


@pytest.mark.parametrize("change", [add_publication, rename])
def test_no_copy_of_what_other_publications_publish(
    world: World, change: Callable[[World], None]
) -> None:
    (rel,) = world.rels()
    with world.catalog.member(rel, world.subscription):
        pass
    change(world)
    with (
        pytest.raises(UndefinedObject, match="no longer part of the subscription"),
        world.catalog.member(rel, world.subscription),
    ):
        raise AssertionError("it would be committed")


def copies_of(
    world: World, status: WorkerStatus, sessions: Sessions, retry_interval: float = 0
) -> Copies:
    """That fail: there is no publisher."""
    return Copies(
        world.subscription,
        spark=Cluster(lambda: pytest.fail("nothing is copied")),
        warehouse=world.warehouse,
        catalog=world.access(),
        options=lambda: SyncOptions(CopyOptions(), retry_interval=retry_interval, tables=2),
        status=status,
        cancelled=lambda: False,
        check_connection=lambda connection: None,
        activity=ShownWorkers(sessions, "lake", world.oid),
    )


def _held() -> bool:
    return True


def _no_lease() -> bool:
    return False


def _replaced() -> bool:
    raise ObjectInUse("the warehouse is in use by another node")


@pytest.mark.parametrize(
    ("lease", "error", "stops"),
    [
        (_no_lease, ApplierReplaced("of another"), True),
        (_held, ApplierReplaced("a late commit of this node"), False),
        (_held, StateMismatch("its own"), True),
        (_replaced, ApplierReplaced("of the other node"), False),
        (_replaced, StateMismatch("made by the other node"), False),
    ],
)
def test_a_node_that_was_replaced_stops_no_subscription(
    world: World, lease: Callable[[], bool], error: Exception, stops: bool
) -> None:
    """The state may be that of the other node, too."""
    world.warehouse.confirm_lease = lease
    told: list[BaseException] = []
    worker = ApplyWorker(
        world.subscription,
        spark=Cluster(lambda: pytest.fail("nothing is applied")),
        warehouse=world.warehouse,
        catalog=replace(world.access(), record_stop=lambda error, *_: told.append(error)),
        sync_options=lambda: SyncOptions(CopyOptions(), retry_interval=0, tables=2),
        stream_options=lambda: pytest.fail("nothing is streamed"),
        activity=ShownWorkers(Sessions(), "lake", world.oid),
        in_doubt=InDoubtCommits(),
    )
    assert worker._again_after(error) is not stops
    assert bool(told) is stops


def test_a_failed_copy_begins_again_an_interval_after_its_last_start(world: World) -> None:
    with world.catalog.write() as t:
        t.relations.add(world.oid, {("public", "b"): 2}, SubscriptionRelState.INIT)
    status = WorkerStatus(1)
    copies = copies_of(world, status, Sessions(), 0.7)
    try:
        copies.begin()
        began = time.monotonic()
        copies.start(world.membership().sync_ids)

        def failed(times: int) -> bool:
            copies.step()
            return status.snapshot().error_count >= times

        wait_until(lambda: failed(1), "an error", 20, pause=0.01)
        wait_until(lambda: failed(2), "another one", 20, pause=0.01)
        assert time.monotonic() - began >= 0.7
        wait_until(lambda: failed(3), "another one", 20, pause=0.01)
        assert time.monotonic() - began >= 1.4
    finally:
        copies.close()


def test_the_next_workers_copies_wait_on(world: World) -> None:
    with world.catalog.write() as t:
        t.relations.add(world.oid, {("public", "b"): 2}, SubscriptionRelState.INIT)
    status = WorkerStatus(1)
    before, after = (copies_of(world, status, Sessions(), 0.7) for _ in range(2))
    began = time.monotonic()
    try:
        before.begin()
        before.start(world.membership().sync_ids)
        wait_until(lambda: status.snapshot().error_count == 1, "an error", 20, pause=0.01)
        before.close()
        after.go_on_for(before)
        after.begin()
        after.start(world.membership().sync_ids)
        assert not after.running

        def failed() -> bool:
            after.step()
            return status.snapshot().error_count == 2

        wait_until(failed, "another one", 20, pause=0.01)
        assert time.monotonic() - began >= 0.7
    finally:
        before.close()
        after.close()


def test_no_copy_of_a_table_that_the_session_may_have_open(world: World) -> None:
    """The round of another table ends, and the next one is due."""
    with world.catalog.write() as t:
        t.relations.add(world.oid, {("public", "b"): 2}, SubscriptionRelState.INIT)
    status = WorkerStatus(1)
    copies = copies_of(world, status, sessions := Sessions())
    try:
        copies.begin()
        copies.start(world.membership().sync_ids)
        with world.catalog.write() as t:
            t.relations.copy_again(world.rels()[0], 1)
        wait_until(copies.step, "end of the session", 20, pause=0.01)
        assert not copies.running
        tried = {table.name for table in status.snapshot().tables if table.error}
        assert tried == {"public.b"}
        # The next session knows it.
        copies.begin()
        assert not copies.step()
        copies.start(world.membership().sync_ids)
        assert copies.running
    finally:
        copies.close()
    assert sessions.all() == (), "no copy runs"
