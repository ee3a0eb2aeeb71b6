"""Changes of rows that the target does not have are in the conflicts table, each once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from end_to_end.compare import query
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import failpoint
from penstock.embedded import wait_until
from penstock.lsn import Lsn
from penstock.pipeline.net_change import KEPT

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = """
CREATE TABLE t (a integer, b text, v text, PRIMARY KEY (a, b));
CREATE TABLE keyless (v text, at timestamptz);
ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO t SELECT i, 'k', 'v' FROM generate_series(1, 100) i;
INSERT INTO keyless VALUES ('x', '2024-02-03 04:05:06+00');
CREATE PUBLICATION p FOR TABLE t, keyless
"""


def conflicts(warehouse: Path) -> list[dict[str, Any]]:
    """In the order in which their transactions ended."""
    table = DeltaTable(str(warehouse / "_penstock" / "conflicts"))
    rows = query("SELECT * FROM c", c=table).to_pylist()
    return sorted(rows, key=lambda row: (row["remote_commit_lsn"], row["replica_identity"] or "~"))


def end_of(database: Database, *statements: str) -> int:
    """Run a transaction; where WAL ended after it, at least."""
    database.execute(f"BEGIN; {'; '.join(statements)}; COMMIT")
    return int(database.value("SELECT pg_current_wal_lsn() - '0/0'"))


@pytest.fixture
def behind(
    local_node: Callable[..., LocalNode], database: Database
) -> Iterator[tuple[LocalNode, Database]]:
    """A node without the rows that the publisher has."""
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p", "copy_data = false")
    node.caught_up("s", database)
    yield node, database


def test_each_tells_key_row_and_transaction(behind: tuple[LocalNode, Database]) -> None:
    node, database = behind
    first = end_of(
        database, "UPDATE t SET v = 'new' WHERE a = 1", "INSERT INTO t VALUES (0, '', '')"
    )
    second = end_of(database, "DELETE FROM t WHERE a = 2", "DELETE FROM keyless")
    node.caught_up("s", database)
    third = end_of(database, "UPDATE t SET v = repeat('x', 10) WHERE a > 50")
    node.caught_up("s", database)
    assert node.rows("t") == [(0, "", "")]
    update, delete, whole, *many = conflicts(node.warehouse)
    told = ("subscription", "relation", "conflict_type", "changes")
    assert [update[name] for name in told] == ["s", "public.t", "update_missing", 1]
    assert json.loads(update["replica_identity"]) == {"a": 1, "b": "k"}
    assert json.loads(update["remote_tuple"]) == {"a": 1, "b": "k", "v": "new"}
    assert update["remote_commit_lsn"] <= first < delete["remote_commit_lsn"] <= second
    assert update["log_time"] > update["remote_commit_time"]
    assert (delete["conflict_type"], delete["remote_tuple"]) == ("delete_missing", None)
    assert json.loads(delete["replica_identity"]) == {"a": 2, "b": "k"}
    assert (whole["relation"], whole["conflict_type"]) == ("public.keyless", "delete_missing")
    assert json.loads(whole["replica_identity"])["v"] == "x"
    assert sum(row["changes"] for row in many) == 50
    assert len(many) == KEPT + 1
    assert many[-1]["replica_identity"] is None
    assert {row["remote_commit_lsn"] <= third for row in many} == {True}


def test_without_conflicts_there_is_no_table(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute("UPDATE t SET v = 'w'; DELETE FROM keyless")
    node.caught_up("s", database)
    assert not (node.warehouse / "_penstock" / "conflicts").exists()


def follow(node: NodeProcess, database: Database) -> None:
    target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def reached() -> bool:
        return Lsn.parse(node.status()[0]["cut_lsn"] or "0/0") >= target

    node.wait_for("a cut with all of it", reached)


@part_of_make_faults
def test_a_kill_before_the_batch_is_committed_doubles_none(
    tmp_path: Path, database: Database
) -> None:
    database.execute(_TABLES)
    node = NodeProcess(tmp_path / "node")
    try:
        node.init()
        node.sql(
            f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p"
            " WITH (copy_data = false)"
        )
        for number in range(3):
            node.start(f"{failpoint.AFTER_CONFLICTS}:1")
            node.wait_for("the stream", lambda: node.status()[0]["state"] == "streaming")
            database.execute(f"UPDATE t SET v = 'a' WHERE a = {10 * number + 1}")
            assert node.wait_end(60) == -9
            database.execute(f"UPDATE t SET v = 'b' WHERE a = {10 * number + 2}")
            node.start()
            follow(node, database)
            node.kill9()
        keys = [json.loads(row["replica_identity"])["a"] for row in conflicts(node.warehouse)]
        assert keys == [1, 2, 11, 12, 21, 22]
        # an error: its row is there before the worker stops, and does not come again
        target = DeltaTable(str(node.warehouse / "public" / "t"))
        row = pa.table({"a": pa.array([500], pa.int32()), "b": ["k"], "v": ["local"]})
        write_deltalake(target, row, mode="append")
        node.start(f"{failpoint.AFTER_CONFLICTS}:1")
        node.wait_for("the stream", lambda: node.status()[0]["state"] == "streaming")
        end_of(database, "UPDATE t SET v = 'c' WHERE a = 40", "INSERT INTO t VALUES (500, 'k')")
        assert node.wait_end(60) == -9
        node.start()
        wait_until(lambda: node.status()[0]["state"] == "stopped", "the error", state=node.log_tail)
        (error,) = [row for row in conflicts(node.warehouse) if row["resolution"]]
        assert (error["resolution"], error["local_row"]) == ("error", "(500, k, local)")
        node.sql("ALTER SUBSCRIPTION s SET (conflict_resolution = keep_local)")
        node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.kill9()
        node.start()
        follow(node, database)
        found = [(row["conflict_type"], row["resolution"]) for row in conflicts(node.warehouse)][6:]
        assert sorted(map(str, found)) == [
            "('insert_exists', 'error')",
            "('insert_exists', 'keep_local')",
            "('update_missing', None)",
        ]
    finally:
        node.close()
