"""A slot as a stream of Spark, of a node and of a stock server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.walreceiver.slot_source import PenstockSlot, SlotStreamReader
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


class Reader:
    """A query that appends to a folder; each ``run`` is one of a new driver with its checkpoint."""

    def __init__(self, spark: Any, folder: Path, conninfo: str, **options: str) -> None:
        self._spark, self._folder = spark, folder
        self._options = {"conninfo": conninfo, "slot": "spark", **options}
        spark.dataSource.register(PenstockSlot)

    def run(self) -> list[str]:
        """All lines so far, in no order, without BEGIN and COMMIT."""
        stream = self._spark.readStream.format("penstock_slot").options(**self._options).load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .start(str(self._folder / "rows"))
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        rows = self._spark.read.parquet(str(self._folder / "rows")).collect()
        return sorted(row.data for row in rows if row.data.startswith("table"))


@part_of_make_faults
@pytest.mark.parametrize("where", ["node", in_make_faults("server")])
def test_each_change_comes_once(
    where: str,
    spark: Any,
    lake: LakeNode,
    database_on: Callable[..., Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execute: Callable[..., object] = lake.execute
    conninfo = lake.conninfo()
    if where == "server":
        database = database_on(17)  # the build of 18 is without contrib
        execute, conninfo = database.execute, database.conninfo
    execute("CREATE TABLE streamed (id integer PRIMARY KEY, v text)")
    execute("SELECT pg_create_logical_replication_slot('spark', 'test_decoding')")
    reader = Reader(spark, tmp_path, conninfo, **{"plugin.include-xids": "0"})
    execute("INSERT INTO streamed VALUES (1, 'one')")
    one = "table public.streamed: INSERT: id[integer]:1 v[text]:'one'"
    assert reader.run() == [one]
    # A driver that ends before the slot has moved: the checkpoint knows better than the slot.
    monkeypatch.setattr(SlotStreamReader, "commit", lambda self, end: None)
    execute("UPDATE streamed SET v = 'uno'")
    two = "table public.streamed: UPDATE: id[integer]:1 v[text]:'uno'"
    assert reader.run() == sorted([one, two])
    execute("DELETE FROM streamed")
    three = "table public.streamed: DELETE: id[integer]:1"
    assert reader.run() == sorted([one, two, three])
    assert reader.run() == sorted([one, two, three])
    execute("INSERT INTO streamed VALUES (4)")
    execute("SELECT pg_replication_slot_advance('spark', pg_current_wal_flush_lsn())")
    with pytest.raises(StreamingQueryException, match="changes of the batch may be gone"):
        reader.run()
    execute("SELECT pg_drop_replication_slot('spark')")


@pytest.mark.parametrize("where", ["node", in_make_faults("server")])
def test_a_data_frame_leaves_the_slot_where_it_is(
    where: str, spark: Any, lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    source: Any = lake if where == "node" else database_on(17)
    conninfo = lake.conninfo() if where == "node" else source.conninfo
    source.execute("CREATE TABLE framed (id integer PRIMARY KEY)")
    source.execute("SELECT pg_create_logical_replication_slot('framed', 'test_decoding')")
    source.execute("INSERT INTO framed VALUES (1)")
    spark.dataSource.register(PenstockSlot)
    options = {"conninfo": conninfo, "slot": "framed", "plugin.include-xids": "0"}
    frame = spark.read.format("penstock_slot").options(**options).load()
    one = ["BEGIN", "table public.framed: INSERT: id[integer]:1", "COMMIT"]
    assert [row.data for row in frame.collect()] == one
    assert [row.data for row in frame.filter("data LIKE 'table%'").collect()] == one[1:2]
    source.execute("INSERT INTO framed VALUES (2)")
    assert [row.data for row in frame.collect()] == one, "it ends where it was loaded"
    binary = spark.read.format("penstock_slot").options(**options, binary="true").load()
    found = [bytes(row.data).decode() for row in binary.collect()]
    assert found == [*one, "BEGIN", "table public.framed: INSERT: id[integer]:2", "COMMIT"]
    source.execute("SELECT pg_drop_replication_slot('framed')")
    with pytest.raises(Exception, match='replication slot "framed" does not exist'):
        frame.collect()


def test_what_it_needs(spark: Any, lake: LakeNode, tmp_path: Path) -> None:
    spark.dataSource.register(PenstockSlot)
    stream = spark.readStream.format("penstock_slot")
    for options, message in (
        ({"slot": "a"}, 'needs the option "conninfo"'),
        ({"conninfo": "", "slot": "a", "nothing": "1"}, 'needs the option "conninfo"'),
        ({"conninfo": "host=h", "slot": "a", "nothing": "1"}, 'format penstock_slot: "nothing"'),
    ):
        with pytest.raises(Exception, match=message):
            stream.options(**options).load()
