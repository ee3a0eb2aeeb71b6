"""A slot of the plugin arrow, read by a Python program."""

from __future__ import annotations

import threading
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.errors import NotInPrerequisiteState, ObjectInUse
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _kinds(batches: list[pa.RecordBatch]) -> list[str]:
    return [batch.schema.metadata[b"kind"].decode() for batch in batches]


def test_batches_of_a_slot(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE batched (id integer PRIMARY KEY, v text, n numeric(6,2))",
        "SELECT pg_create_logical_replication_slot('batched', 'arrow')",
        "INSERT INTO batched VALUES (1, NULL, 1.5)",
        "UPDATE batched SET id = 3 WHERE id = 1",
    )
    with lake.node.changes("batched") as changes:
        found = list(changes)
        with pytest.raises(ObjectInUse, match='replication slot "batched" is active'):
            lake.node.changes("batched")
    assert _kinds(found) == ["begin", "change", "commit"] * 2
    inserted, updated = found[1], found[4]
    assert inserted.schema.metadata[b"table"] == b"batched"
    assert inserted.column("new").to_pylist() == [{"id": 1, "v": None, "n": Decimal("1.50")}]
    assert updated.column("old").to_pylist() == [{"id": 1}]
    assert [row["id"] for row in updated.column("new").to_pylist()] == [3]

    with lake.node.changes("batched") as changes:  # nothing was confirmed
        first = [next(batches) for batches in [iter(changes)] for _ in range(3)]
        assert _kinds(first) == _kinds(found[:3])
        changes.confirm(first[2].schema.metadata[b"end_lsn"].decode())
        changes.confirm(1 << 62)  # never beyond what has been given
    with lake.node.changes("batched") as changes:
        assert _kinds([next(iter(changes))]) == ["begin"]
        assert _kinds(list(changes)) == ["change", "commit"]  # nothing is lost with an iterator


def test_a_program_that_follows(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE followed (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('followed', 'arrow')",
    )
    with lake.node.changes("followed", follow=True) as changes:
        batches = iter(changes)
        threading.Timer(0.2, lake.execute, ["INSERT INTO followed VALUES (1)"]).start()
        assert _kinds([next(batches) for _ in range(3)]) == ["begin", "change", "commit"]
        threading.Timer(0.2, changes.stop).start()
        assert list(batches) == []


def test_a_slot_of_another_plugin(lake: LakeNode) -> None:
    lake.execute("SELECT pg_create_logical_replication_slot('textual', 'test_decoding')")
    with pytest.raises(NotInPrerequisiteState, match='created for the output plugin "arrow"'):
        lake.node.changes("textual")
