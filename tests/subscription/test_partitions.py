"""Partitions of a target: rows that move, and batches that only some of them have got."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.attribute import Attribute
from penstock.catalog import LakeTable
from penstock.errors import (
    FeatureNotSupported,
    ReplicationConflict,
    StateMismatch,
    UndefinedObject,
)
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import Lsn
from penstock.pipeline.apply import TableOutcome, run_batch
from penstock.pipeline.fold import fold
from penstock.pipeline.table_work import TableWork
from penstock.relation import ReplicaIdentity
from penstock.subscription.partitions import Partitions, open_partitions
from pipeline.history import Message, Publisher, batches, multiset, record_batch
from pipeline.lake import APP, Lake

pytestmark = pytest.mark.spark

TYPES = {"a": pa.int32(), "b": pa.string(), "big": pa.string(), "n": pa.int64()}
OIDS = {"a": 23, "b": 25, "big": 25, "n": 20}
TREE = (
    LakeTable(1, "public", "root", None, partition_key="RANGE (a)"),
    LakeTable(2, "public", "low", "", parent=1, bound="FOR VALUES FROM (0) TO (100)"),
    LakeTable(
        3,
        "public",
        "mid",
        None,
        parent=1,
        bound="FOR VALUES FROM (100) TO (200)",
        partition_key="HASH (a)",
    ),
    LakeTable(4, "public", "mid0", "", parent=3, bound="FOR VALUES WITH (modulus 2, remainder 0)"),
    LakeTable(5, "public", "mid1", "", parent=3, bound="FOR VALUES WITH (modulus 2, remainder 1)"),
    LakeTable(6, "public", "other", "", parent=1, bound="DEFAULT"),
)
LEAVES = ("low", "mid0", "mid1", "other")


@dataclass
class World:
    """A publisher's table ``t`` that goes to the leaves of ``root``."""

    lake: Lake
    source: Publisher
    dice: random.Random

    def __post_init__(self) -> None:
        self.make("root", list(TYPES), self.source.key)
        for name in LEAVES:
            columns = list(TYPES)
            self.dice.shuffle(columns)
            self.make(name, columns, ())

    def make(self, name: str, columns: Sequence[str], key: tuple[str, ...]) -> None:
        made = tuple(Column(n, Attribute(n, OIDS[n]), TYPES[n]) for n in columns)
        self.lake.warehouse.create("public", name, TableSchema(made, key))

    def table(self, name: str) -> DeltaTable:
        found = self.lake.warehouse.open("public", name)
        assert found is not None
        return found

    def open(self) -> tuple[DeltaTable, Partitions]:
        root = self.table("root")
        common = Lsn(root.transaction_version(APP) or 0)
        return root, open_partitions(self.lake.warehouse, TREE, root.schema, APP, common)

    def stage(
        self, root: DeltaTable, partitions: Partitions, messages: Sequence[Message]
    ) -> TableOutcome:
        changes, truncates = batches(messages, self.source.types)
        net = fold(changes, root.schema, truncates=truncates)
        leaves = partitions.work
        partitions.touched |= leaves.touched(net)
        work = TableWork(root, net, leaves=leaves)
        (outcome,) = run_batch(self.lake.spark, [work], self.lake.options)
        return outcome

    def follow(self, kills: int) -> TableOutcome:
        """Apply what has come; die so many times, each after some of the commits."""
        messages = self.source.take_messages()
        self.lake.lsn += 10
        for _ in range(kills):
            root, partitions = self.open()
            self.stage(root, partitions, messages)
            due = partitions.to_commit(Lsn(self.lake.lsn))
            self.commit(self.dice.sample(due, self.dice.randrange(len(due) + 1)))
        root, partitions = self.open()
        outcome = self.stage(root, partitions, messages)
        self.commit(partitions.to_commit(Lsn(self.lake.lsn)))
        self.commit([root])
        partitions.together()
        return outcome

    def commit(self, tables: Sequence[DeltaTable]) -> None:
        for table in tables:
            table.commit(app_id=APP, version_marker=self.lake.lsn, operation="REPLICATION")

    def check(self) -> None:
        """Each leaf has its rows, and no other."""
        _, partitions = self.open()
        assert partitions.half_applied is None
        rows = self.source.rows
        table = pa.Table.from_batches([record_batch(rows, list(TYPES), TYPES)])
        numbers = partitions.routing.leaves(table)
        for number, leaf in enumerate(partitions.leaves):
            mine = [row for row, at in zip(rows, numbers, strict=True) if at == number]
            found = [{n: row[n] for n in TYPES} for row in self.lake.read(leaf.newest)]
            assert multiset(found) == multiset(mine), leaf.name


def change(source: Publisher, dice: random.Random) -> None:
    step = dice.random()
    if step < 0.4 or not source.rows:
        keys = {(row["a"], row["b"]) for row in source.rows}
        a = dice.randrange(300)
        if (a, "x") not in keys:
            source.insert({"a": a, "b": "x", "big": f"toast {dice.random()}", "n": 0})
        return
    at = dice.randrange(len(source.rows))
    if step < 0.5:
        source.delete(at)
        return
    values = {"n": dice.randrange(9)}
    if step < 0.8:
        taken = {(row["a"], row["b"]) for row in source.rows}
        moved = dice.randrange(300)
        if (moved, source.rows[at]["b"]) not in taken:
            values["a"] = moved
    if step > 0.9:
        source.update(at, {**values, "big": f"new toast {dice.random()}"})
    else:
        source.update(at, values, frozenset({"big"}))


@pytest.mark.parametrize(
    ("key", "identity"),
    [
        (("a", "b"), ReplicaIdentity.DEFAULT),
        (("a", "b"), ReplicaIdentity.FULL),
        ((), ReplicaIdentity.FULL),
    ],
    ids=["by key", "full, with a key", "whole rows"],
)
def test_batches_that_are_killed_between_commits(
    spark: SparkSession,
    tmp_path: Path,
    key: tuple[str, ...],
    identity: ReplicaIdentity,
) -> None:
    dice = random.Random(len(key) + len(identity.value))
    world = World(Lake(spark, tmp_path / "warehouse"), Publisher(dict(TYPES), key, identity), dice)
    for batch in range(4):
        for _ in range(60):
            change(world.source, dice)
        if batch == 2:
            world.source.truncate()
            for _ in range(5):
                change(world.source, dice)
        world.follow(kills=batch % 3)
        world.check()


def test_a_moved_row_keeps_a_value_that_its_new_leaf_never_had(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The leaf that it has left has the batch already: it is found there as it was before."""
    source = Publisher(dict(TYPES), ("a", "b"))
    world = World(Lake(spark, tmp_path / "warehouse"), source, random.Random(1))
    source.insert({"a": 1, "b": "x", "big": "only here", "n": 0})
    world.follow(kills=0)
    source.update(0, {"a": 250}, frozenset({"big"}))
    messages = source.take_messages()
    world.lake.lsn += 10
    root, partitions = world.open()
    world.stage(root, partitions, messages)
    world.commit([leaf.table for leaf in partitions.leaves if leaf.name[1] == "low"])
    assert world.lake.read(world.table("low")) == []
    _, partitions = world.open()
    assert partitions.half_applied == world.lake.lsn
    source.messages = list(messages)
    world.lake.lsn -= 10
    world.follow(kills=0)
    world.check()
    assert [row["big"] for row in world.lake.read(world.table("other"))] == ["only here"]


def test_missing_rows_are_missing_again(spark: SparkSession, tmp_path: Path) -> None:
    """What was skipped is skipped when the batch is made again, whoever has it by then."""
    source = Publisher(dict(TYPES), ("a", "b"))
    world = World(Lake(spark, tmp_path / "warehouse"), source, random.Random(2))
    source.insert({"a": 1, "b": "x", "big": "never sent", "n": 0})
    source.take_messages()
    source.insert({"a": 150, "b": "x", "big": "there", "n": 0})
    source.update(0, {"a": 151}, frozenset({"big"}))
    outcome = world.follow(kills=2)
    assert outcome.skipped is not None
    assert (outcome.skipped.update_missing, outcome.skipped.delete_missing) == (1, 0)
    del source.rows[0]
    world.check()


def test_rows_without_a_place_and_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = Publisher(dict(TYPES), ("a", "b"))
    world = World(Lake(spark, tmp_path / "warehouse"), source, random.Random(3))
    root = world.table("root")
    without_default = TREE[:-1]
    partitions = open_partitions(world.lake.warehouse, without_default, root.schema, APP, Lsn(0))
    source.insert({"a": 500, "b": "x", "big": None, "n": 0})
    with pytest.raises(ReplicationConflict) as nowhere:
        world.stage(root, partitions, source.take_messages())
    assert nowhere.value.message == 'no partition of relation "root" found for row'
    assert nowhere.value.detail == "Partition key of the failing row contains (a) = (500)."
    assert nowhere.value.sqlstate == "23514"
    other_key = TableSchema(root.schema.columns, ("b",))
    with pytest.raises(FeatureNotSupported, match="as logical replication target") as refused:
        open_partitions(world.lake.warehouse, TREE, other_key, APP, Lsn(0))
    assert '"a"' in str(refused.value.detail)
    gone = LakeTable(7, "public", "gone", "", parent=1, bound="FOR VALUES FROM (900) TO (901)")
    with pytest.raises(UndefinedObject, match=r'"public\.gone" does not exist'):
        open_partitions(world.lake.warehouse, (*TREE, gone), root.schema, APP, Lsn(0))


def test_a_log_that_does_not_reach_back(spark: SparkSession, tmp_path: Path) -> None:
    source = Publisher(dict(TYPES), ("a", "b"))
    world = World(Lake(spark, tmp_path / "warehouse"), source, random.Random(4))
    low = world.table("low")
    low.commit(app_id=APP, version_marker=7, operation="REPLICATION")
    folder = Path(low.uri.removeprefix("file://")) / "_delta_log"
    low.checkpoint()
    (folder / f"{low.version:020d}.json").unlink()
    with pytest.raises(StateMismatch, match="does not reach back"):
        world.open()
