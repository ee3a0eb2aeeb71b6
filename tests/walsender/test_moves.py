"""A move of rows that was stopped between its two commits: the sequencer finishes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaRs
from deltalake import QueryBuilder
from pyroaring import BitMap

from end_to_end.compare import delta_rows
from penstock.attribute import Attribute
from penstock.catalog import Catalog, LakeTable, LakeTransaction
from penstock.commands import execute
from penstock.commands.scope import CommandScope, PublisherSession
from penstock.errors import ObjectInUse, PenstockError
from penstock.executor.row_moves import Departures, RowMoves
from penstock.lakehouse.files import FileWriter, WrittenFile
from penstock.lakehouse.log import entry_uri
from penstock.lakehouse.row_moves import Arrivals, departure_mark
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.sql import parse_script
from penstock.walsender.sequencer import Sequencer

_SCHEMA = TableSchema((Column("id", Attribute("id", 20), pa.int64()),), ("id",))


class World:
    """Tables a and b with the rows 1 and 2, and what was sequenced since."""

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self.catalog = catalog
        self.warehouse = Warehouse(str(folder), fsync=False)
        self.sequencer = Sequencer(catalog, self.warehouse)
        self.add("a", 1)
        self.add("b", 2)

    def add(self, name: str, number: int) -> None:
        table = self.warehouse.create("public", name, _SCHEMA)
        table.stage(written=self.write(table, number))
        self.commit(table)
        self.at = self.sequencer.position(discover=True).lsn

    def write(self, table: DeltaTable, *ids: int) -> list[WrittenFile]:
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        return FileWriter(self.warehouse.storage, table.uri, table.schema.arrow()).write([rows])

    def table(self, name: str) -> DeltaTable:
        table = self.warehouse.open("public", name)
        assert table is not None
        return table

    def commit(self, table: DeltaTable, **metadata: object) -> None:
        table.commit(
            app_id="test",
            version_marker=table.version + 1,
            operation="WRITE",
            user_metadata=metadata,
        )

    def depart(self, name: str = "a", *to: tuple[str, int]) -> None:
        """The row of a table has left for others; by default for b, as 10."""
        table = self.table(name)
        coming = []
        for target, number in to or (("b", 10),):
            other = self.table(target)
            files = self.write(other, number)
            coming.append(Arrivals.of_written("g", self.leaf(target).oid, other.version, files))
        table.stage(deleted={path: BitMap([0]) for path in table.files})
        self.commit(table, **departure_mark("g", coming))

    def leaf(self, name: str) -> LakeTable:
        with self.catalog.read() as t:
            return t.tables.get("public", name)

    def exchange(self) -> list[Departures]:
        """All of a has become 10 of b, and all of b 20 of a."""
        tables = {name: self.table(name) for name in "ab"}
        found = []
        for source, target, number in (("a", "b", 10), ("b", "a", 20)):
            files = self.write(tables[target], number)
            coming = Arrivals.of_written("g", self.leaf(target).oid, tables[target].version, files)
            gone = {path: BitMap([0]) for path in tables[source].files}
            found.append(Departures(tables[source], {}, gone, (), [coming]))
        return found

    def rows(self, name: str) -> list[int]:
        table = DeltaRs(self.warehouse.table_uri("public", name))
        found = QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id")
        return [row for batch in found.read_all().to_batches() for row in batch[0].to_pylist()]

    def new(self) -> list[LakeTransaction]:
        """What goes into the log now."""
        self.sequencer.step()
        with self.catalog.read() as t:
            found = list(t.transactions.after(self.at, 100))
            self.at = t.transactions.end()
        return found

    def names(self, transaction: LakeTransaction) -> list[tuple[str, int, int]]:
        with self.catalog.read() as t:
            tables = {table.oid: table.name for table in t.tables.all()}
        return sorted(
            (tables[m.relation], m.from_version, m.to_version) for m in transaction.members
        )


@pytest.fixture
def world(catalog: Catalog, tmp_path: Path) -> Iterator[World]:
    yield World(catalog, tmp_path / "warehouse")


def test_it_is_finished_and_one_transaction(world: World) -> None:
    world.depart()
    (transaction,) = world.new()
    assert world.names(transaction) == [("a", 1, 2), ("b", 1, 2)]
    assert (world.rows("a"), world.rows("b")) == ([], [2, 10])
    assert world.new() == []
    assert world.table("b").version == 2


def test_another_commit_to_where_the_rows_go(world: World) -> None:
    world.depart()
    b = world.table("b")
    b.stage(written=world.write(b, 3))
    world.commit(b)
    found = [world.names(transaction) for transaction in world.new()]
    assert found == [[("b", 1, 2)], [("a", 1, 2), ("b", 2, 3)]]
    assert world.rows("b") == [2, 3, 10]


def test_nobody_is_told_that_rows_have_gone_before_they_come(world: World) -> None:
    world.depart()
    a, torn = world.table("a"), entry_uri(world.table("b").uri, 2)
    Path(local_path(torn)).write_text("{")
    a.stage(written=world.write(a, 4))
    world.commit(a)
    assert world.new() == []
    assert {trouble.name for trouble in world.sequencer.troubles.all()} == {"public.b"}
    Path(local_path(torn)).unlink()
    found = [world.names(transaction) for transaction in world.new()]
    assert found == [[("a", 1, 2), ("b", 1, 2)], [("a", 2, 3)]]
    assert (world.rows("a"), world.rows("b")) == ([4], [2, 10])
    assert world.sequencer.troubles.all() == ()


def test_two_tables_leave_for_one(world: World) -> None:
    """Rows of one have arrived when those of the other are looked for."""
    world.add("c", 3)
    world.depart("a", ("b", 10))
    world.depart("c", ("b", 30))
    (transaction,) = world.new()
    assert world.names(transaction) == [("a", 1, 2), ("b", 1, 3), ("c", 1, 2)]
    assert [world.rows(name) for name in "abc"] == [[], [2, 10, 30], []]
    assert world.new() == []


def test_rows_that_came_wait_for_those_that_did_not(world: World) -> None:
    """The row has left for b and c, and c cannot be written: nobody is told of b either."""
    world.add("c", 3)
    world.depart("a", ("b", 10), ("c", 11))
    torn = Path(local_path(entry_uri(world.table("c").uri, 2)))
    torn.write_text("{")
    assert world.new() == []
    assert world.rows("b") == [2, 10]
    assert world.new() == []
    torn.unlink()
    (transaction,) = world.new()
    assert world.names(transaction) == [("a", 1, 2), ("b", 1, 2), ("c", 1, 2)]
    assert world.rows("c") == [3, 11]


def test_rows_change_places(world: World) -> None:
    """Two commits of each table, one step of each in one transaction."""
    leaves = (world.leaf("a"), world.leaf("b"))
    RowMoves(world.warehouse, world.sequencer).commit(world.exchange(), leaves, "g")
    (transaction,) = world.new()
    assert world.names(transaction) == [("a", 1, 3), ("b", 1, 3)]
    assert (world.rows("a"), world.rows("b")) == ([20], [10])


@pytest.mark.parametrize("name", ["a", "b"])
def test_another_commit_to_what_rows_leave(world: World, name: str) -> None:
    """The statement fails; what has left has arrived, and nothing else has."""
    departures = world.exchange()
    other = world.table(name)
    other.stage(written=world.write(other, 7))
    world.commit(other)
    leaves = (world.leaf("a"), world.leaf("b"))
    with pytest.raises(PenstockError, match="could not serialize access") as refused:
        RowMoves(world.warehouse, world.sequencer).commit(departures, leaves, "g")
    assert refused.value.sqlstate == ("40001" if name == "a" else "40003")
    hint = "Run the statement again." if name == "a" else 'The rows of "public.a" are changed'
    assert str(refused.value.hint).startswith(hint)
    world.new()
    after = ([1, 7], [2]) if name == "a" else ([], [2, 7, 10])
    assert (world.rows("a"), world.rows("b")) == after


def test_columns_stay_as_they_are_while_rows_are_on_their_way(world: World) -> None:
    """Their files have the columns of before: a dropped one would come back with its values."""
    with world.catalog.write() as t:
        parent = t.tables.create("public", "p", None, partition_key="RANGE (id)")
        for name in "ab":
            t.tables.save(replace(t.tables.get("public", name), parent=parent.oid))
    world.warehouse.create("public", "p", _SCHEMA)
    world.depart()
    (statement,) = parse_script("ALTER TABLE p ADD COLUMN v bigint DEFAULT 7")
    scope = CommandScope(world.warehouse)
    with pytest.raises(ObjectInUse, match="rows are being moved"):
        execute(statement, world.catalog, _no_publisher, scope)
    world.sequencer.step()
    execute(statement, world.catalog, _no_publisher, scope)
    b = world.table("b")
    assert sorted(delta_rows(b.uri, b.version)) == [(2, 7), (10, 7)]


def _no_publisher(conninfo: str, application_name: str) -> PublisherSession:
    raise AssertionError("nobody is asked")
