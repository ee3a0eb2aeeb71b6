"""What a stream is told of tables that were replaced, or cannot be published; without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from penstock.catalog import Catalog, LakeTransaction
from penstock.decoding import RelationData
from penstock.errors import FeatureNotSupported, RequiredChangesRemoved
from penstock.lakehouse.actions import grouped_mark
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pgoutput.options import PgoutputOptions
from penstock.walsender.decoding import Decoding, RelationSyncCache
from penstock.walsender.decoding_options import DecodingOptions, PublishedAt
from penstock.walsender.every_table import EveryTable
from penstock.walsender.sequencer import Sequencer

ONE = pa.table({"id": [1]})


class Lake:
    """Tables, one publication of all of them, one of those that are named, one of another."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog.create(f"sqlite:///{folder / 'state.db'}")
        self.warehouse = Warehouse(str(folder / "warehouse"))
        self.sequencer = Sequencer(self.catalog, self.warehouse)
        self.read_to = Lsn(0)
        with self.catalog.write() as t:
            t.publications.create("every", all_tables=True)
            t.publications.create("named")
            t.publications.create("other")

    def name(self, publication: str, table: str) -> None:
        with self.catalog.write() as t:
            oid = t.tables.get("public", table).oid
            t.publications.add_relation(t.publications.get(publication).oid, oid, None, None)

    def uri(self, name: str) -> str:
        return self.warehouse.table_uri("public", name)

    def write(self, name: str, rows: pa.Table = ONE) -> None:
        write_deltalake(self.uri(name), rows, mode="append")

    def columns(self, name: str, **kinds: Any) -> None:
        """A commit that changes nothing but the columns."""
        log = Path(self.uri(name).removeprefix("file://")) / "_delta_log"
        lines = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
        (metadata,) = [line for line in lines if "metaData" in line]
        fields = [
            {"name": column, "type": kind, "nullable": True, "metadata": {}}
            for column, kind in kinds.items()
        ]
        metadata["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": fields})
        version = len(list(log.glob("*.json")))
        (log / f"{version:020}.json").write_text(json.dumps(metadata))

    def new(self) -> tuple[LakeTransaction, ...]:
        """Transactions since the last call."""
        self.sequencer.step()
        with self.catalog.read() as t:
            found = t.transactions.after(self.read_to, 100)
            self.read_to = t.transactions.end()
        return found

    def stream(self, publication: str) -> Stream:
        published = RelationSyncCache(self.catalog, (publication,), 18)
        return Stream(self, published, DecodingOptions(PgoutputOptions(1, (publication,))))

    def plugin_stream(self) -> Stream:
        return Stream(self, EveryTable(), DecodingOptions())


class Stream:
    def __init__(self, lake: Lake, published: PublishedAt, options: DecodingOptions) -> None:
        self.decoding = Decoding(
            None,  # type: ignore[arg-type]
            lake.warehouse,
            lake.catalog,
            published,
            options,
            lambda: 1 << 20,
        )

    def truncates(self, transactions: tuple[LakeTransaction, ...]) -> list[list[str]]:
        """The relations of each transaction's TRUNCATE."""
        plans, _ = self.decoding._plans(transactions)
        return [[r.name for r in plan.emptied.relations] if plan.emptied else [] for plan in plans]

    def described(self, transactions: tuple[LakeTransaction, ...]) -> list[RelationData]:
        """What an output plugin is told of the only table of each."""
        plans, _ = self.decoding._plans(transactions)
        return [told for plan in plans for told in plan.described.values()]

    def files(self, transactions: tuple[LakeTransaction, ...]) -> list[int]:
        """How many files of each transaction are sent, until one fails."""
        plans, error = self.decoding._plans(transactions)
        if error is not None:
            raise error
        return [len(plan.items) for plan in plans]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(tmp_path)
    lake.write("a")
    lake.write("b")
    lake.sequencer.step(discover=True)
    lake.name("named", "a")
    lake.name("other", "b")
    yield lake
    lake.catalog.close()


@pytest.mark.parametrize("known", [False, True], ids=["fresh", "running"])
def test_entries_of_another_log_are_never_taken_for_changes(lake: Lake, known: bool) -> None:
    streams = {name: lake.stream(name) for name in ("every", "named", "other")}
    lake.write("a")
    first = lake.new()
    if known:
        assert [streams[name].files(first) for name in streams] == [[1], [1], [0]]
    lake.write("a")
    second = lake.new()
    lake.warehouse.remove("public", "a")
    for _ in range(5):
        lake.write("a", pa.table({"id": [100]}))
    # the sequencer has not noticed it
    for name in ("every", "named"):
        with pytest.raises(RequiredChangesRemoved) as lost:
            streams[name].files(second)
        assert "another one made in its place" in (lost.value.detail or "")
    lake.write("b")
    third = lake.new()
    for name in ("every", "named"):
        with pytest.raises(RequiredChangesRemoved) as lost:
            streams[name].files(third)
        assert "another one made in its place" in (lost.value.detail or "")
    assert streams["other"].files(second + third)[-1] == 1, "others go on"


def test_output_plugins_miss_no_table_unawares(lake: Lake) -> None:
    """Nobody publishes it; what was there before and comes after is told."""
    lake.write("c")
    lake.sequencer.step(discover=True)
    lake.write("c")
    before = lake.new()
    lake.warehouse.remove("public", "c")
    lake.write("c")
    lake.sequencer.check_logs()
    lake.sequencer.step(discover=True)
    replaced = lake.new()
    for _ in range(2):
        lake.write("c")
    DeltaTable(lake.uri("c")).create_checkpoint()
    log = Path(lake.uri("c").removeprefix("file://")) / "_delta_log"
    for version in range(2):
        (log / f"{version:020}.json").unlink()
    lake.sequencer.check_logs()
    gap = lake.new()
    lake.write("c")
    after = lake.new()
    stream = lake.plugin_stream()
    for lost, detail in ((before + replaced, "another one made"), (gap, "goes on at 2")):
        with pytest.raises(RequiredChangesRemoved, match="can no longer get changes") as raised:
            stream.files(lost)
        assert detail in (raised.value.detail or "")
        assert (raised.value.hint or "").startswith("Drop the slot and make it again.")
    assert stream.files(after) == [1]
    assert lake.stream("other").files(before + replaced + gap + after) == [0, 0, 0, 0]
    assert lake.stream("named").files(gap) == [0]


def test_what_cannot_be_published_is_left_out_where_nobody_named_it(lake: Lake) -> None:
    nested = pa.table({"id": [1], "v": [[[1]]]})
    lake.write("c", nested)
    lake.sequencer.step(discover=True)
    lake.name("other", "c")
    lake.write("c", nested)
    lake.write("a")
    transactions = lake.new()
    assert lake.stream("every").files(transactions) == [0, 1]
    with pytest.raises(FeatureNotSupported, match='cannot publish changes of table "c"'):
        lake.stream("other").files(transactions)


def test_what_becomes_unpublishable_stops_who_may_have_it(lake: Lake) -> None:
    nested = {"type": "array", "elementType": "integer", "containsNull": True}
    lake.columns("a", id="long", v={"type": "array", "elementType": nested, "containsNull": True})
    changed = lake.new()
    lake.write("b")
    after = lake.new()
    with pytest.raises(FeatureNotSupported):
        lake.stream("every").files(changed)
    assert lake.stream("every").files(after) == [1], "a stream that begins later never had it"
    assert lake.stream("other").files(changed + after) == [0, 1]
    lake.columns("a", id="long")
    lake.write("a")
    healed = lake.new()
    assert lake.stream("named").files(changed + healed)[-1] == 1, "no row moved in between"


def test_plugins_are_told_of_a_table_as_it_was(lake: Lake) -> None:
    """Of each transaction, though many are planned together."""
    lake.write("a")
    transactions = lake.new()
    stream = lake.plugin_stream()
    log = Path(lake.uri("a").removeprefix("file://")) / "_delta_log"
    lines = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    (metadata,) = [line for line in lines if "metaData" in line]
    schema = metadata["metaData"]["schemaString"].replace('"nullable":true', '"nullable":false')
    metadata["metaData"]["schemaString"] = schema
    (log / f"{2:020}.json").write_text(json.dumps(metadata))
    lake.write("a", pa.table({"id": [2]}, pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    after = stream.described(transactions + lake.new())
    assert after[0].relation == after[-1].relation
    assert [told.attributes[0].not_null for told in after] == [False, True]


def test_columns_that_change_send_nothing(lake: Lake) -> None:
    lake.columns("a", id="long", more="string")
    assert lake.stream("every").files(lake.new()) == [0]


def test_an_update_is_nothing_to_who_wants_no_updates(lake: Lake) -> None:
    """Without a key it would be an insert of the new row."""
    with lake.catalog.write() as t:
        publication = t.publications.create("inserts", update=False, delete=False)
        t.publications.add_relation(publication.oid, t.tables.get("public", "a").oid, None, None)
    lake.new()
    DeltaTable(lake.uri("a")).update({"id": "id + 1"})
    updated = lake.new()
    assert lake.stream("inserts").files(updated) == [0]
    assert lake.stream("named").files(updated) == [1]
    lake.write("a")
    assert lake.stream("inserts").files(updated + lake.new()) == [0, 1]


def test_truncate_of_a_partition_is_none_of_its_root(lake: Lake) -> None:
    """TRUNCATE of the root is; of a part of the tree that is published by itself, of that."""
    oids = {}
    with lake.catalog.write() as t:
        for name, parent in (("root", None), ("middle", "root")):
            made = t.tables.create("public", name, None, partition_key="LIST (id)")
            oids[name] = made.oid
            t.tables.save(replace(made, parent=oids.get(parent or ""), bound="DEFAULT"))
        for name, parent in (("a", "middle"), ("b", "root")):
            found = t.tables.get("public", name)
            oids[name] = found.oid
            t.tables.save(replace(found, parent=oids[parent], bound="DEFAULT"))
        for publication, table, via_root in (
            ("whole", "root", True), ("part", "middle", True), ("leaves", "root", False),
        ):  # fmt: skip
            made_oid = t.publications.create(publication, via_root=via_root).oid
            t.publications.add_relation(made_oid, oids[table], None, None)
    lake.new()

    def truncated(tables: str, *named: str) -> list[list[str]]:
        mark = grouped_mark(str(named), [oids[name] for name in named])
        for name in tables:
            lake.write(name)
        lake.new()
        with lake.sequencer.one_transaction():
            for name in tables:
                properties = CommitProperties({"userMetadata": json.dumps(mark)})
                DeltaTable(lake.uri(name)).delete(commit_properties=properties)
        found = lake.new()
        streams = map(lake.stream, ("whole", "part", "leaves"))
        assert len(found) == 1
        return [sorted(stream.truncates(found)[0]) for stream in streams]

    assert truncated("a", "a") == [[], [], ["a"]]
    assert truncated("a", "middle", "a") == [[], ["middle"], ["a"]]
    assert truncated("ab", "root", "middle", "a", "b") == [["root"], ["middle"], ["a", "b"]]
    # one that has stopped before its second table
    assert truncated("a", "root", "middle", "a", "b") == [[], ["middle"], ["a"]]
