"""Partitions of a table that a subscription fills stay as they are in the middle of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog import Catalog, Subscription, SubscriptionRelState
from penstock.commands import change_columns, execute
from penstock.commands.scope import Scope
from penstock.commands.subscription_targets import check_targets
from penstock.errors import FeatureNotSupported, ObjectInUse
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.sql import parse_script

TABLES = """
CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE t_10 PARTITION OF t FOR VALUES FROM (10) TO (20) PARTITION BY LIST (a);
CREATE TABLE t_11 PARTITION OF t_10 FOR VALUES IN (11);
CREATE TABLE loose (a int PRIMARY KEY);
"""
CHANGES = (
    "CREATE TABLE t_20 PARTITION OF t FOR VALUES FROM (20) TO (30)",
    "CREATE TABLE t_12 PARTITION OF t_10 FOR VALUES IN (12)",
    "ALTER TABLE t_10 ATTACH PARTITION loose FOR VALUES IN (13)",
    "ALTER TABLE t DETACH PARTITION t_0",
    "DROP TABLE t_11",
    "ALTER TABLE t ADD COLUMN b int",
)


class World:
    def __init__(self, folder: Path, catalog: Catalog) -> None:
        self.catalog = catalog
        self.warehouse = Warehouse(str(folder / "wh"), fsync=False)
        self.run(TABLES)
        with catalog.write() as t:
            made = t.subscriptions.create("s", conninfo="", publications=("p",), slot_name="s")
            t.relations.add(made.oid, {("public", "t"): 1}, SubscriptionRelState.READY)
        self.subscription: Subscription = made

    def run(self, script: str) -> None:
        for statement in parse_script(script):
            execute(statement, self.catalog, _no_publisher, Scope(self.warehouse))

    def commit(self, name: str, marker: int) -> None:
        table = self.warehouse.open("public", name)
        assert table is not None
        table.commit(
            app_id=self.subscription.app_id, version_marker=marker, operation="REPLICATION"
        )


def _no_publisher(conninfo: str, name: str) -> object:
    raise AssertionError("nobody is asked")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        yield World(tmp_path, catalog)


@pytest.mark.parametrize("change", CHANGES)
def test_not_in_the_middle_of_a_batch(world: World, change: str) -> None:
    for name in ("t_0", "t_11", "t"):
        world.commit(name, 50)
    world.commit("t_11", 60)
    with pytest.raises(ObjectInUse, match="is in the middle of a batch") as refused:
        world.run(change)
    assert refused.value.sqlstate == "55006"
    world.commit("t", 60)
    world.run(change)


def test_what_is_in_a_cut_is_no_middle(world: World) -> None:
    """Without a copy, partitions may have been targets themselves, further on."""
    world.commit("t_0", 70)
    root = world.warehouse.open("public", "t")
    assert root is not None
    with pytest.raises(ObjectInUse):
        world.run(CHANGES[3])
    world.warehouse.cuts.append(
        CutOwner("s", world.subscription.app_id),
        Lsn(70),
        None,
        {("public", "t"): CutTable(root.uri, root.version, root.id)},
    )
    world.run(CHANGES[3])


def test_a_partition_and_its_table_in_one_subscription(world: World) -> None:
    with world.catalog.read() as t:
        check_targets(t, [("public", "t"), ("public", "loose"), ("public", "nowhere")])
        check_targets(t, [("public", "t_0"), ("public", "t_10")])
        for partition in ("t_0", "t_10", "t_11"):
            with pytest.raises(FeatureNotSupported, match=f"public.{partition}"):
                check_targets(t, [("public", partition), ("public", "t")])


def test_a_target_of_its_own_is_no_partition(world: World) -> None:
    """Its own changes would be taken for those of a batch that the others lack."""
    with world.catalog.write() as t:
        tables = {("public", "loose"): 2, ("public", "t_20"): 3}
        t.relations.add(world.subscription.oid, tables, SubscriptionRelState.INIT)
    for change in (CHANGES[0], CHANGES[2]):
        with pytest.raises(FeatureNotSupported, match="a partition of") as refused:
            world.run(change)
        assert refused.value.detail == 'Subscription "s" fills both.'
    assert world.warehouse.open("public", "t_20") is None


def test_changes_that_come_later_in_the_table_are_waited_for(world: World) -> None:
    world.commit("t", 50)
    world.commit("loose", 90)
    with pytest.raises(ObjectInUse, match="come later there"):
        world.run(CHANGES[2])
    world.commit("t", 90)
    world.run(CHANGES[2])


@pytest.mark.parametrize("moment", ["_staged", "_check_nothing_moves"])
def test_a_batch_that_comes_meanwhile_changes_no_columns(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It would have to go on by the columns that its partitions had."""
    for name in ("t_0", "t_11", "t"):
        world.commit(name, 50)
    found = getattr(change_columns, moment)
    came: list[str] = []

    def late(*arguments: object) -> object:
        if not came:
            came.append("t_0")
            world.commit("t_0", 60)
        return found(*arguments)

    monkeypatch.setattr(change_columns, moment, late)
    with pytest.raises(ObjectInUse, match="is in the middle of a batch"):
        world.run(CHANGES[-1])
    for name in ("t", "t_0", "t_10", "t_11"):
        table = world.warehouse.open("public", name)
        assert table is not None
        assert [column.name for column in table.schema.columns] == ["a"]
