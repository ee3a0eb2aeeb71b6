"""Which changes go to which table, decided by OIDs at their places in the stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.attribute import Attribute
from penstock.catalog import Catalog, SubscriptionRel, SubscriptionRelState
from penstock.errors import (
    ApplierReplaced,
    CommitConflict,
    RelationChanged,
    StateMismatch,
    StorageError,
)
from penstock.lakehouse.log_store import Unguarded
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import ChangeBatch, DecodedChunk, TruncateEvent
from penstock.relation import Relation, ReplicaIdentity
from penstock.subscription.in_doubt_commits import InDoubtCommits
from penstock.subscription.parking import is_own
from penstock.subscription.partitions import Partitions
from penstock.subscription.relation_map import shares
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets
from subscription.no_definitions import a_subscription, no_definitions

APP = "app"


def relation(oid: int, name: str, schema: str = "public") -> Relation:
    key = Attribute("id", 23, key=True)
    return Relation(oid, schema, name, ReplicaIdentity.DEFAULT, (key,))


def changes(of: Relation, *sequence: int) -> ChangeBatch:
    rows = pa.record_batch({"id": pa.array(sequence, pa.int32())})
    inserts = np.full(len(sequence), ord("I"), np.uint8)
    none = np.zeros(len(sequence), np.uint8)
    return ChangeBatch(of, np.array(sequence, np.int64), inserts, rows, {}, None, none)


def truncate(sequence: int, *of: Relation) -> TruncateEvent:
    return TruncateEvent(sequence, tuple(r.oid for r in of), False, False, of)


def chunk(*parts: ChangeBatch | TruncateEvent) -> DecodedChunk:
    """Transactions of ten messages; transaction n ends at LSN 10 n + 10, with message 10 n + 9."""
    commits = np.arange(9, 100, 10, dtype=np.int64)
    return DecodedChunk(
        tuple(part for part in parts if isinstance(part, ChangeBatch)),
        tuple(part for part in parts if isinstance(part, TruncateEvent)),
        commits,
        commits,
        commits + 1,
        commits,
    )


class World:
    """A subscription with tables a (OID 1) and b (OID 2), committed up to LSN 50."""

    def __init__(self, folder: Path, catalog: Catalog) -> None:
        self.catalog = catalog
        self.warehouse = Warehouse(str(folder / "wh"), fsync=False)
        with catalog.write() as t:
            subscription = t.subscriptions.create(
                "s", conninfo="", publications=("p",), slot_name="s"
            )
            self.oid = subscription.oid
            oids = {("public", "a"): 1, ("public", "b"): 2}
            t.relations.add(subscription.oid, oids, SubscriptionRelState.READY)
        for name in ("a", "b"):
            table = self.warehouse.create(
                "public", name, TableSchema.of_relation(relation(1, name))
            )
            table.commit(app_id=APP, version_marker=50, operation="TEST")

    def divide(self, name: str) -> None:
        """Partition a table; its partitions are where it is."""
        schema = TableSchema.of_relation(relation(1, name))
        with self.catalog.write() as t:
            root = t.tables.create("public", name, None, partition_key="LIST (id)")
            for number in range(2):
                leaf = f"{name}_{number}"
                bound = f"FOR VALUES IN ({number})"
                uri = self.warehouse.table_uri("public", leaf)
                t.tables.create("public", leaf, uri, parent=root.oid, bound=bound)
        for number in range(2):
            table = self.warehouse.create("public", f"{name}_{number}", schema)
            table.commit(app_id=APP, version_marker=50, operation="TEST")

    def rel(self, name: str) -> SubscriptionRel:
        return next(rel for rel in self.catalog.relations(self.oid) if rel.table == name)

    def targets(self, in_doubt: InDoubtCommits | None = None) -> Targets:
        warehouse = Warehouse(self.warehouse.uri, fsync=False)
        targets = Targets(
            warehouse, a_subscription(APP), self.catalog, no_definitions(), None, in_doubt
        )
        for rel in self.catalog.relations(self.oid):
            assert targets.open(rel) is not None
        return targets

    def shares(self, *parts: ChangeBatch | TruncateEvent) -> dict[str, tuple[int, int]]:
        """Rows and truncates by table."""
        found = list(shares(chunk(*parts), self.targets(), Lsn(100)))
        for share in found:
            if share.error is not None:
                raise share.error
        return {s.target.rel.table: (s.rows, len(s.truncates)) for s in found}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        yield World(tmp_path, catalog)


def test_only_what_is_not_applied_is_looked_at(world: World) -> None:
    """What came under other names before the tables' own LSN (50) was decided upon then."""
    a, b = relation(1, "a"), relation(2, "b")
    assert world.shares(
        changes(relation(1, "c"), 1, 2, 3),
        changes(relation(3, "a"), 11, 12),
        truncate(15, relation(2, "a")),
        changes(a, 48, 61, 62),
        truncate(63, a, b, relation(9, "other")),
    ) == {"a": (2, 1), "b": (0, 1)}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (changes(relation(1, "c"), 51), 'relation "public.c" does not exist'),
        (changes(relation(1, "a", "moved"), 51), 'relation "moved.a" does not exist'),
        (truncate(51, relation(2, "b"), relation(1, "c")), 'relation "public.c" does not exist'),
        (changes(relation(1, "b"), 51), 'is the one that was copied as "public.a"'),
        (changes(relation(3, "a"), 51), 'relation "public.a" is not the one that was copied'),
        (truncate(51, relation(3, "a")), 'relation "public.a" is not the one that was copied'),
    ],
)
def test_another_relation_stops_until_it_is_copied(
    world: World, part: ChangeBatch | TruncateEvent, message: str
) -> None:
    with pytest.raises(RelationChanged, match=message):
        world.shares(changes(relation(2, "b"), 51), part)
    assert message in str(world.rel("a").conflict)
    with pytest.raises(RelationChanged, match=r'table "public.a" must be copied again'):
        world.targets()
    with world.catalog.write() as t:
        again = t.relations.copy_again(world.rel("a"), 3)
    assert (again.state, again.relid, again.conflict) == (SubscriptionRelState.INIT, 3, None)
    # The copy may replace this Delta table, and no other.
    table = world.warehouse.open("public", "a")
    assert table is not None
    assert again.table_id == table.id


def test_names_that_are_not_members_are_ignored(world: World) -> None:
    assert world.shares(changes(relation(7, "new"), 51), truncate(52, relation(8, "x"))) == {}


def test_rows_of_an_older_store_are_bound_to_what_they_are(world: World) -> None:
    with world.catalog.write() as t:
        for rel in t.relations.all(world.oid):
            t.relations.remove(rel)
        t.relations.add(world.oid, [("public", "a")], SubscriptionRelState.READY)
    assert (world.rel("a").relid, world.rel("a").table_id) == (None, None)
    (target,) = world.targets()
    assert world.rel("a").table_id == target.table.id
    # Not by what was applied before, nor by another name.
    assert world.shares(changes(relation(6, "a"), 11), changes(relation(7, "x"), 51)) == {}
    assert world.rel("a").relid is None
    assert world.shares(changes(relation(5, "a"), 51)) == {"a": (1, 0)}
    assert world.rel("a").relid == 5


def test_one_relation_has_one_target(world: World) -> None:
    world.targets()
    world.catalog.bind(world.rel("b"), 1, None)
    with pytest.raises(RelationChanged, match="are copies of one relation"):
        world.targets()
    # Nor does the refused one come into a cut with those that go on.
    targets = Targets(world.warehouse, a_subscription(APP), world.catalog, no_definitions())
    assert targets.open(world.rel("a")) is not None
    with pytest.raises(RelationChanged):
        targets.open(world.rel("b"))
    assert [target.rel.table for target in targets] == ["a"]


def test_a_row_is_not_bound_to_a_relation_that_has_a_target(world: World) -> None:
    with world.catalog.write() as t:
        t.relations.remove(world.rel("b"))
        t.relations.add(world.oid, [("public", "b")], SubscriptionRelState.READY)
    targets = world.targets()
    target = targets.named(("public", "b"))
    assert target is not None
    with pytest.raises(RelationChanged, match="are copies of one relation"):
        targets.bind(target, 1)
    assert world.rel("b").relid is None


@dataclass(frozen=True)
class _Late(Unguarded):
    """A store whose puts seem to fail, and arrive later."""

    sent: list[tuple[str, int, Sequence[str]]]

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        self.sent.append((table_uri, version, lines))
        raise StorageError("timeout")

    def checkpoint(self, table_uri: str, properties: Mapping[str, str]) -> None: ...


def test_a_race_that_was_lost_to_an_own_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that arrives after the session that sent it is no other applier's."""
    in_doubt = InDoubtCommits()
    late = _Late([])
    with monkeypatch.context() as outage:
        outage.setattr(Warehouse, "store", late)
        before = world.targets(in_doubt)
        with pytest.raises(StorageError, match="timeout"):
            in_doubt.commit(_open(before).table, APP, Lsn(60), "TEST")
    targets = world.targets(in_doubt)
    target = _open(targets)
    world.warehouse.store.put(*late.sent[0])
    with pytest.raises(CommitConflict):
        in_doubt.commit(target.table, APP, Lsn(70), "TEST")
    targets.load_again(target)
    assert target.marker == 60
    in_doubt.commit(target.table, APP, Lsn(70), "TEST")
    target.committed(Lsn(70))
    rival = world.warehouse.open("public", "a")
    assert rival is not None
    rival.commit(app_id=APP, version_marker=80, operation="TEST")
    with pytest.raises(ApplierReplaced):
        targets.load_again(target)


def test_a_late_commit_to_a_partition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not arrived when the next session begins never does; what has is half of a batch. A
    late commit of the root, which has no rows, is known as that of any table is."""
    in_doubt = InDoubtCommits()
    world.divide("a")
    late = _Late([])
    with monkeypatch.context() as outage:
        outage.setattr(Warehouse, "store", late)
        leaves = _partitions(_open(world.targets(in_doubt))).leaves
        for leaf in leaves:
            with pytest.raises(StorageError, match="timeout"):
                in_doubt.commit(leaf.table, APP, Lsn(60), "TEST")
    world.warehouse.store.put(*late.sent[0])
    targets = world.targets(in_doubt)
    assert [leaf.half_applied for leaf in _partitions(_open(targets)).leaves] == [60, None]
    with pytest.raises(CommitConflict):
        world.warehouse.store.put(*late.sent[1])
    target = _open(targets)
    for table in target.to_commit(Lsn(60)):
        in_doubt.commit(table, APP, Lsn(60), "TEST")
    late.sent.clear()
    with monkeypatch.context() as outage:
        outage.setattr(Warehouse, "store", late)
        root = _open(world.targets(in_doubt)).table
        with pytest.raises(StorageError, match="timeout"):
            in_doubt.commit(root, APP, Lsn(60), "TEST")
    again = world.targets(in_doubt)
    target = _open(again)
    assert target.half_applied == 60 and target.to_commit(Lsn(60)) == []
    world.warehouse.store.put(*late.sent[0])
    with pytest.raises(CommitConflict):
        in_doubt.commit(target.table, APP, Lsn(60), "TEST")
    again.load_again(target, Lsn(60))
    assert target.marker == 60 and target.half_applied is None


def _partitions(target: Target) -> Partitions:
    assert target.partitions is not None
    return target.partitions


def _open(targets: Targets) -> Target:
    found = targets.named(("public", "a"))
    assert found is not None
    return found


def test_another_delta_table_is_refused(world: World) -> None:
    world.targets()
    world.warehouse.remove("public", "a")
    with pytest.raises(StateMismatch, match="is not the one that was copied") as none:
        world.targets()
    assert is_own(none.value)
    assert "There is none now" in str(none.value.detail)
    world.warehouse.create("public", "a", TableSchema.of_relation(relation(1, "a")))
    with pytest.raises(StateMismatch, match="is not the one that was copied"):
        world.targets()


def test_columns_that_exchange_names(world: World) -> None:
    def with_columns(*names: str) -> Relation:
        columns = tuple(Attribute(name, 25) for name in names)
        key = Attribute("id", 23, key=True)
        return Relation(1, "public", "a", ReplicaIdentity.DEFAULT, (key, *columns))

    targets = world.targets()
    target: Target | None = targets.of(1)
    assert target is not None
    targets.follow(target, with_columns("x"))
    targets.follow(target, with_columns("x", "y", "z"))
    targets.follow(target, with_columns("x", "y", "z"))
    with pytest.raises(RelationChanged, match="have exchanged their names"):
        targets.follow(target, with_columns("y", "x", "z"))
    assert "exchanged" in str(world.rel("a").conflict)
