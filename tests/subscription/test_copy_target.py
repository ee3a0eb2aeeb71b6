"""Which Delta tables a copy may replace, on a real catalog and real Delta tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap

from lakehouse.tables import write
from penstock.attribute import Attribute
from penstock.catalog import Catalog, Subscription, SubscriptionRel, SubscriptionRelState
from penstock.catalog.pg_subscription import COPY_TARGETS
from penstock.errors import NotInPrerequisiteState, PenstockError
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pipeline.parts import Leaves
from penstock.relation import Relation, ReplicaIdentity
from penstock.subscription.copy_target import copy_leaves, copy_marker, copy_target
from penstock.walreceiver.table_info import RemoteTable

OID, ANOTHER = 100, 999
COLUMNS = (Attribute("id", 20, key=True), Attribute("owner", 25))


def published(oid: int = OID) -> RemoteTable:
    relation = Relation(oid, "public", "t", ReplicaIdentity.DEFAULT, COLUMNS)
    return RemoteTable(relation, "r", ("id",), None, (), 8192)


class World:
    """A subscription whose table t was copied: ten rows in version 1."""

    def __init__(self, folder: Path, catalog: Catalog) -> None:
        self.catalog = catalog
        self.warehouse = Warehouse(str(folder / "warehouse"), False)
        with catalog.write() as t:
            self.subscription: Subscription = t.subscriptions.create(
                "s", conninfo="host=h", publications=["p"], slot_name="s"
            )
        self.join()
        schema = TableSchema.of_relation(published().relation, ("id",))
        table = self.warehouse.create("public", "t", schema)
        self.catalog.bind(self.rel, OID, table.id)
        self.commit(table, range(10), Lsn(5), "COPY")

    @property
    def rel(self) -> SubscriptionRel:
        (rel,) = self.catalog.relations()
        return rel

    def table(self) -> DeltaTable:
        found = self.warehouse.open("public", "t")
        assert found is not None
        return found

    def join(self, oid: int = OID) -> None:
        with self.catalog.write() as t:
            t.relations.add(
                self.subscription.oid, {("public", "t"): oid}, SubscriptionRelState.INIT
            )

    def leave(self) -> None:
        with self.catalog.write() as t:
            t.relations.remove(self.rel)

    def commit(self, table: DeltaTable, ids: range, lsn: Lsn, operation: str) -> None:
        table.stage(written=write(table, ids))
        app_id = self.subscription.app_id
        table.commit(app_id=app_id, version_marker=lsn, operation=operation)

    def insert_as_another_writer(self, ids: range) -> None:
        table = self.table()
        table.stage(written=write(table, ids))
        table.commit(app_id="somebody", version_marker=Lsn(1), operation="WRITE")

    def target(self, oid: int = OID) -> DeltaTable:
        names = {known.app_id: known.name for known in self.catalog.subscriptions()}
        app_id = self.subscription.app_id
        return copy_target(self.warehouse, published(oid), self.rel, app_id, names.get)


@pytest.fixture
def world(tmp_path: Path, catalog: Catalog) -> World:
    return World(tmp_path, catalog)


def refused(world: World, oid: int = OID) -> None:
    with pytest.raises(NotInPrerequisiteState, match="is not empty"):
        world.target(oid)


def test_the_relation_that_comes_back_replaces_its_copy(world: World) -> None:
    world.leave()
    world.join()
    assert world.target().rows == 0


def test_rows_of_others_are_kept_by_each_copy_that_is_tried(world: World) -> None:
    world.leave()
    world.join()
    world.catalog.set_state(world.rel, SubscriptionRelState.DATASYNC, None)
    world.insert_as_another_writer(range(50, 51))
    world.catalog.copy_again(world.rel, OID)
    refused(world)


def test_another_relation_of_the_name_does_not_replace_the_last_copy_of_the_old_one(
    world: World,
) -> None:
    world.leave()
    world.join(ANOTHER)
    refused(world, ANOTHER)


@pytest.mark.parametrize("known", [True, False])
def test_another_relation_that_appears_before_the_copy(world: World, known: bool) -> None:
    """By REFRESH, or known to the copy alone."""
    world.leave()
    world.join()
    world.catalog.set_state(world.rel, SubscriptionRelState.DATASYNC, None)
    if known:
        world.catalog.copy_again(world.rel, ANOTHER)
    refused(world, ANOTHER)


def test_a_member_that_is_another_relation_is_replaced(world: World) -> None:
    for state in (SubscriptionRelState.DATASYNC, SubscriptionRelState.FINISHEDCOPY):
        world.catalog.set_state(world.rel, state, None)
    world.catalog.copy_again(world.rel, ANOTHER)
    assert world.target(ANOTHER).rows == 0


def test_a_copy_into_partitions_that_was_cut_begins_again(world: World) -> None:
    """It had come to one of two; the table has been taken in again since. Rows of others stay."""
    relation = published().relation
    schema = TableSchema.of_relation(relation, ("id",))
    with world.catalog.write() as t:
        top = t.tables.create("public", "top", None, partition_key="HASH (id)")
        for number in range(2):
            name, bound = f"top_{number}", f"FOR VALUES WITH (modulus 2, remainder {number})"
            uri = world.warehouse.table_uri("public", name)
            t.tables.create("public", name, uri, parent=top.oid, bound=bound)
    root, leaf = (world.warehouse.create("public", name, schema) for name in ("top", "top_0"))
    world.warehouse.create("public", "top_1", schema)
    app_id = world.subscription.app_id
    leaf.stage(written=write(leaf, range(10)))
    leaf.commit(
        app_id=app_id,
        version_marker=Lsn(5),
        operation="COPY",
        extra_markers={copy_marker(world.rel, app_id): Lsn(5)},
    )
    world.catalog.copy_again(replace(world.rel, table_id=root.id), OID)
    rel = replace(world.rel, table_id=root.id)

    def leaves() -> Leaves | None:
        tree = world.catalog.partition_tree(("public", "top"))
        return copy_leaves(world.warehouse, tree, root, rel, app_id, lambda app_id: None)

    found = leaves()
    assert found is not None and [table.rows for table in found.tables] == [0, 0]
    leaf.stage(written=write(leaf, range(50, 51)))
    leaf.commit(app_id="somebody", version_marker=1, operation="WRITE")
    with pytest.raises(NotInPrerequisiteState, match="is not empty"):
        leaves()


RETYPED = (COLUMNS[0], Attribute("owner", 20))


def created_before_a_crash(world: World, schema: TableSchema) -> None:
    """Make a table that no row of the catalog is bound to, and that nobody has written to."""
    folder = Path(local_path(world.warehouse.table_uri("public", "t")))
    folder.rename(folder.with_name("t_old"))
    world.leave()
    world.warehouse.create("public", "t", schema)
    with world.catalog.write() as t:
        t.relations.delete_all(world.subscription.oid)
    world.join()


def owner_of(world: World, mode: str) -> pa.DataType:
    """Return the type of the column "owner" that a copy of the retyped table prepares."""
    relation = replace(published().relation, attributes=RETYPED)
    app_id = world.subscription.app_id
    info = replace(published(), relation=relation)
    table = copy_target(world.warehouse, info, world.rel, app_id, lambda app_id: None, mode=mode)
    return table.schema.by_source["owner"].type


@pytest.mark.parametrize("mode", COPY_TARGETS)
def test_a_table_that_was_created_and_never_filled_takes_any_columns(
    world: World, mode: str
) -> None:
    """The node was stopped before it knew the table as its own; the publisher's column has another
    type by now."""
    created_before_a_crash(world, TableSchema.of_relation(published().relation, ("id",)))
    assert world.rel.table_id is None
    assert owner_of(world, mode) == pa.int64()


@pytest.mark.parametrize("mode", COPY_TARGETS)
@pytest.mark.parametrize("local", [False, True])
def test_the_types_of_an_empty_table_that_others_have_made_stay(
    world: World, mode: str, local: bool
) -> None:
    schema = TableSchema.of_relation(published().relation, ("id",))
    columns = tuple(
        replace(column, local=True)
        if local
        else replace(column, attribute=replace(column.attribute, type_oid=0))
        for column in schema.columns
    )
    created_before_a_crash(world, replace(schema, columns=columns))
    assert owner_of(world, mode) == pa.string()


@pytest.mark.parametrize("again", [False, True])
def test_columns_of_the_nodes_own_keep_what_create_table_has_said(
    world: World, again: bool
) -> None:
    """The publisher's columns come without NOT NULL and default."""
    made = TableSchema.of_relation(published().relation, ("id",))
    own = replace(made.by_source["owner"].attribute, not_null=True, default="'nobody'")
    columns = (made.columns[0], replace(made.by_source["owner"], attribute=own, local=True))
    created_before_a_crash(world, replace(made, columns=columns))
    for _ in range(1 + again):
        world.catalog.bind(world.rel, OID, world.table().id)
        world.commit(world.target(), range(3), Lsn(7), "COPY")
    found = world.table().schema.by_source["owner"]
    assert (found.attribute, found.local, found.published) == (own, True, True)


def tear_the_log(world: World) -> None:
    (log_of(world) / f"{2:020}.json").write_text('{"torn')


def damage_a_vector(world: World) -> None:
    table = world.table()
    table.stage(deleted={next(iter(table.files)): BitMap([1])})
    table.commit(app_id=world.subscription.app_id, version_marker=Lsn(6), operation="REPLICATION")
    (vector,) = log_of(world).parent.glob("deletion_vector*")
    vector.write_bytes(bytes(43))


def lose_a_vector(world: World) -> None:
    damage_a_vector(world)
    (vector,) = log_of(world).parent.glob("deletion_vector*")
    vector.unlink()


def take_appends_only(world: World) -> None:
    first = (log_of(world) / f"{0:020}.json").read_text().splitlines()
    (metadata,) = (json.loads(line) for line in first if "metaData" in line)
    metadata["metaData"]["configuration"]["delta.appendOnly"] = "true"
    lines = (json.dumps({"commitInfo": {"operation": "SET TBLPROPERTIES"}}), json.dumps(metadata))
    (log_of(world) / f"{2:020}.json").write_text("\n".join(lines))


def log_of(world: World) -> Path:
    return Path(local_path(world.warehouse.table_uri("public", "t"))) / "_delta_log"


@pytest.mark.parametrize("harm", [damage_a_vector, lose_a_vector])
def test_rows_that_are_replaced_need_not_be_readable(
    world: World, harm: Callable[[World], None]
) -> None:
    harm(world)
    target = world.target()
    assert (target.rows, target.has_staged) == (0, True)


@pytest.mark.parametrize("harm", [tear_the_log, take_appends_only])
def test_what_cannot_be_replaced_is_to_be_moved_away(
    world: World, harm: Callable[[World], None]
) -> None:
    harm(world)
    uri = world.warehouse.table_uri("public", "t")
    with pytest.raises(PenstockError) as raised:
        world.target()
    hint = str(raised.value.hint)
    assert hint.endswith(f"Move the table at {uri} away: the copy makes a new one.")
    assert "opy the table again" not in hint
    folder = Path(local_path(uri))
    folder.rename(folder.with_name("t_old"))
    assert world.target().rows == 0


def filled_by_another(world: World, returned: bool) -> Subscription:
    """Both have committed since the copy, and it is to be made again."""
    with world.catalog.write() as t:
        shard = t.subscriptions.create("s2", conninfo="host=h", publications=["p"], slot_name="s2")
    table = world.table()
    table.stage(written=write(table, range(50, 55)))
    table.commit(app_id=shard.app_id, version_marker=Lsn(3), operation="REPLICATION")
    world.commit(world.table(), range(10, 11), Lsn(6), "REPLICATION")
    if returned:
        world.leave()
        world.join()
    else:
        for state in (SubscriptionRelState.DATASYNC, SubscriptionRelState.FINISHEDCOPY):
            world.catalog.set_state(world.rel, state, None)
        world.catalog.copy_again(world.rel, OID)
    return shard


@pytest.mark.parametrize("returned", [False, True])
def test_rows_of_another_subscription_are_not_replaced(world: World, returned: bool) -> None:
    """Though this one has committed since."""
    other = filled_by_another(world, returned).app_id
    with pytest.raises(NotInPrerequisiteState, match="filled by another subscription") as raised:
        world.target()
    assert 'subscription "s2"' in str(raised.value.detail)
    table = world.table()
    table.stage(remove_all=True)
    table.commit(app_id=other, version_marker=Lsn(9), operation="REPLICATION")
    assert world.target().rows == 0


@pytest.mark.parametrize("returned", [False, True])
def test_a_dropped_subscription_is_not_another_one(world: World, returned: bool) -> None:
    other = filled_by_another(world, returned)
    with world.catalog.write() as t:
        t.subscriptions.delete(other.oid)
    assert world.target().rows == 0


@pytest.mark.parametrize("kept", [True, False])
def test_a_table_that_a_dropped_subscription_has_left(world: World, kept: bool) -> None:
    """It is replaced where it was taken in with its rows, and never by a first copy."""
    with world.catalog.write() as t:
        t.relations.delete_all(world.subscription.oid)
        t.subscriptions.delete(world.subscription.oid)
        world.subscription = t.subscriptions.create(
            "s", conninfo="host=h", publications=["p"], slot_name="s"
        )
        state = SubscriptionRelState.READY if kept else SubscriptionRelState.INIT
        t.relations.add(world.subscription.oid, {("public", "t"): OID}, state)
    if not kept:
        refused(world)
        return
    world.catalog.bind(world.rel, OID, world.table().id)
    world.catalog.copy_again(world.rel, OID)
    assert world.target().rows == 0
