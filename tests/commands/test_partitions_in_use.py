"""Partitions of a table that a subscription fills stay as they are in the middle of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.catalog import Catalog, Member, Slot, Subscription, SubscriptionRelState
from penstock.commands import execute, subscription_targets, tablecmds
from penstock.commands.scope import CommandScope
from penstock.commands.subscription_targets import check_targets
from penstock.errors import FeatureNotSupported, InvalidParameterValue, ObjectInUse
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.sql import parse_script
from penstock.walreceiver.publisher import Publisher

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
            execute(statement, self.catalog, _no_publisher, CommandScope(self.warehouse))

    def commit(self, name: str, marker: int, *rows: int | None) -> None:
        table = self.warehouse.open("public", name)
        assert table is not None
        if rows:
            writer = FileWriter(table.storage, table.uri, table.schema.arrow())
            table.stage(written=writer.write([pa.table({"a": pa.array(rows, pa.int32())})]))
        table.commit(
            app_id=self.subscription.app_id, version_marker=marker, operation="REPLICATION"
        )


def _no_publisher(conninfo: str, application_name: str) -> Publisher:
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


@pytest.mark.parametrize("verb", ["SET", "ADD", "DROP"])
def test_no_other_publications_in_the_middle_of_a_batch(
    world: World, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of it might not come any more."""
    monkeypatch.setattr(subscription_targets, "_PATIENCE_S", 0.1)
    with world.catalog.write() as t:
        t.subscriptions.save(replace(world.subscription, publications=("p", "r")))
    for name in ("t_0", "t_11", "t"):
        world.commit(name, 50)
    world.commit("t_11", 60)
    name = "q" if verb == "ADD" else "p"
    change = f"ALTER SUBSCRIPTION s {verb} PUBLICATION {name} WITH (refresh = false)"
    with pytest.raises(ObjectInUse, match="is in the middle of a batch") as refused:
        world.run(change)
    assert "ALTER SUBSCRIPTION s REFRESH TABLE public.t." in str(refused.value.hint)
    world.commit("t", 60)
    world.run(change)


def test_a_copy_is_no_batch(world: World) -> None:
    """It was killed between two partitions, and begins again; and a parked table has no batch."""
    world.commit("t_11", 60)
    with pytest.raises(ObjectInUse):
        world.run(CHANGES[3])
    with world.catalog.write() as t:
        (rel,) = t.relations.all(world.subscription.oid)
        t.relations.copy_again(rel, 1)
    world.run(CHANGES[3])
    world.run("ALTER SUBSCRIPTION s SET PUBLICATION q WITH (refresh = false)")


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


def test_no_row_of_the_default_partition_belongs_to_another(world: World) -> None:
    """Also where file statistics cannot tell."""
    world.run(
        "CREATE TABLE u (a int) PARTITION BY RANGE (a);"
        "CREATE TABLE u_d PARTITION OF u DEFAULT PARTITION BY LIST (a);"
        "CREATE TABLE u_25 PARTITION OF u_d FOR VALUES IN (25, NULL);"
        "CREATE TABLE u_rest PARTITION OF u_d DEFAULT;"
        "CREATE TABLE u_new (a int)"
    )
    world.commit("u_25", 1, 25, None)
    world.commit("u_rest", 1, 15, 45)
    world.commit("u_rest", 2, 70)
    for range_ in ("(20) TO (26)", "(45) TO (46)", "(60) TO (MAXVALUE)", "(MINVALUE) TO (16)"):
        for statement in (
            "CREATE TABLE u_0 PARTITION OF u FOR VALUES FROM ",
            "ALTER TABLE u ATTACH PARTITION u_new FOR VALUES FROM ",
        ):
            with pytest.raises(InvalidParameterValue, match="violated by some row") as refused:
                world.run(statement + range_)
            assert refused.value.sqlstate == "23514"
    assert world.warehouse.open("public", "u_0") is None
    with pytest.raises(InvalidParameterValue, match='"u_rest" would be violated'):
        world.run("CREATE TABLE u_0 PARTITION OF u_d FOR VALUES IN (7, 15)")
    world.run(
        "CREATE TABLE u_0 PARTITION OF u FOR VALUES FROM (30) TO (45);"
        "ALTER TABLE u ATTACH PARTITION u_new FOR VALUES FROM (71) TO (MAXVALUE);"
        "CREATE TABLE u_1 PARTITION OF u_d FOR VALUES IN (7, 16)"
    )


def test_what_a_table_was_before_is_sent_first(world: World) -> None:
    """Rows that came and went would be told to subscribers of the partitioned table."""
    world.run("CREATE TABLE u (a int) PARTITION BY LIST (a); CREATE TABLE before (a int)")
    world.commit("before", 1, 7)
    table = world.warehouse.open("public", "before")
    assert table is not None
    table.stage(remove_all=True)
    table.commit(app_id="x", version_marker=2, operation="DELETE")
    with world.catalog.write() as t:
        oid = t.tables.get("public", "before").oid
        members = [Member(oid, table.uri, number - 1, number) for number in range(3)]
        ends = [t.transactions.append([m], commit_time=1, size=1).end for m in members]
        at = ends[0]  # the table was made
        t.slots.create(Slot("lags", "pgoutput", 5, at, at), 10)
    attach = "ALTER TABLE u ATTACH PARTITION before FOR VALUES IN (1)"
    detach = "ALTER TABLE u DETACH PARTITION before"
    world.run(f"{attach}; {detach}; CREATE PUBLICATION p FOR TABLE u")
    with pytest.raises(ObjectInUse, match='slot "lags" has not received') as refused:
        world.run(attach)
    assert refused.value.sqlstate == "55006"
    with world.catalog.write() as t:
        t.slots.confirm("lags", ends[-1], ends[-1])
    world.run(f"{attach}; {detach}")
    world.commit("before", 3)
    world.run(f"{attach}; {detach}")
    world.commit("before", 4, 7)
    table.reload()
    table.stage(remove_all=True)
    table.commit(app_id="x", version_marker=5, operation="DELETE")
    with pytest.raises(ObjectInUse, match="lags"):  # the log of transactions lags, too
        world.run(attach)


@pytest.mark.parametrize("moment", ["_stage", "check_between_batches"])
def test_a_batch_that_comes_meanwhile_changes_no_columns(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It would have to go on by the columns that its partitions had."""
    for name in ("t_0", "t_11", "t"):
        world.commit(name, 50)
    found = getattr(tablecmds, moment)
    came: list[str] = []

    def late(*arguments: object) -> object:
        if not came:
            came.append("t_0")
            world.commit("t_0", 60)
        return found(*arguments)

    monkeypatch.setattr(tablecmds, moment, late)
    with pytest.raises(ObjectInUse, match="is in the middle of a batch"):
        world.run(CHANGES[-1])
    for name in ("t", "t_0", "t_10", "t_11"):
        table = world.warehouse.open("public", name)
        assert table is not None
        assert [column.name for column in table.schema.columns] == ["a"]
