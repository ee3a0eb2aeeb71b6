"""A block whose commit to one table is gone from that table's log: the others are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from penstock.catalog import BlockCommit
from penstock.lakehouse.actions import block_mark
from walsender.test_identity import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Tables a and b, published, each with one version."""
    lake = Lake(tmp_path)
    for name in "ab":
        lake.write(name, 0)
    lake.sequencer.step(discover=True)
    lake.publish("a", "b")
    yield lake
    lake.catalog.close()


def put(lake: Lake, name: str, group: str, *, undone: bool = False) -> None:
    """A commit of a block over both tables."""
    oids = [lake.table(each).oid for each in "ab"]
    mark = json.dumps(block_mark(group, oids, undone=undone))
    properties = CommitProperties({"userMetadata": mark})
    rows = pa.table({"id": [1]})
    write_deltalake(lake.uri(name), rows, mode="append", commit_properties=properties)


def lose(lake: Lake, name: str, upto: int) -> None:
    """Entries up to a version, as log cleanup does when nobody has looked for long."""
    DeltaTable(lake.uri(name)).create_checkpoint()
    for version in range(upto + 1):
        (lake.log_folder(name) / f"{version:020}.json").unlink()


def told(lake: Lake) -> list[tuple[str, int, int, bool]]:
    """Table, versions before and after, whether that was lost; of each member."""
    names = {lake.table(name).oid: name for name in "ab"}
    return [
        (names[m.relation], m.from_version, m.to_version, m.lost_to is not None)
        for transaction in lake.log()
        for m in transaction.members
    ]


@pytest.mark.parametrize("checked", ["before", "after", "never"])
def test_the_other_tables_wait_no_longer(lake: Lake, checked: str) -> None:
    """The gap is told first, whoever finds it: who streams both tables is sent no half a block."""
    put(lake, "b", "g")
    put(lake, "a", "g")
    lake.write("a", 2)
    lose(lake, "a", 1)
    if checked == "before":
        lake.sequencer.check_logs()
    lake.sequencer.step()
    if checked == "after":
        lake.sequencer.check_logs()
    for _ in range(3):
        lake.sequencer.step()
    lake.write("b", 3)
    lake.write("a", 3)
    lake.sequencer.step()
    assert told(lake)[:2] == [("a", 0, 2, True), ("b", 0, 1, False)]
    assert sorted(told(lake)[2:]) == [("a", 2, 3, False), ("b", 1, 2, False)]


def test_a_block_that_is_noted_or_comes_is_waited_for(lake: Lake) -> None:
    put(lake, "b", "g")
    with lake.catalog.write() as t:
        t.block_commits.put(BlockCommit("g", (1, 2), "[]"))
    lake.write("a", 2)
    for _ in range(3):
        lake.sequencer.step()
    assert told(lake) == [("a", 0, 1, False)]
    put(lake, "a", "g")
    with lake.catalog.write() as t:
        t.block_commits.delete("g")
    for _ in range(2):
        lake.sequencer.step()
    assert told(lake)[1:] == [("b", 0, 1, False), ("a", 1, 2, False)]


def test_a_way_back_that_is_gone(lake: Lake) -> None:
    """Of b everything is lost that the log of transactions has not yet, and a goes on."""
    for name in "ab":
        put(lake, name, "g")
    for name in "ab":
        put(lake, name, "g", undone=True)
    lake.write("b", 3)
    DeltaTable(lake.uri("b")).create_checkpoint()
    (lake.log_folder("b") / f"{2:020}.json").unlink()
    for _ in range(4):
        lake.sequencer.step()
    lake.write("a", 3)
    lake.sequencer.step()
    assert told(lake) == [("b", 0, 3, True), ("a", 2, 3, False)]
