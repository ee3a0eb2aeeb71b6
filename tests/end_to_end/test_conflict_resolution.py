"""``conflict_resolution``: what the target has stays or goes, and is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from end_to_end.local_node import LocalNode
from end_to_end.test_conflicts_table import conflicts
from fix_postgres import Database
from penstock.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_STREAMED = range(1000, 4000)


def local_rows(warehouse: Path, table: str, keys: list[int]) -> None:
    """What somebody else has written."""
    rows = pa.table({"id": pa.array(keys, pa.int32()), "v": ["local"] * len(keys)})
    target = DeltaTable(str(warehouse / "public" / table))
    write_deltalake(target, rows.cast(pa.schema(target.schema().to_arrow())), mode="append")


@pytest.mark.parametrize("resolution", ["apply_remote", "keep_local"])
def test_existing_keys_are_no_errors(
    local_node: Callable[..., LocalNode],
    database: Database,
    resolution: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text);"
        "CREATE TABLE r (id integer PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t, r"
    )
    node = local_node()
    node.node.sql(
        "CREATE TABLE t (id integer PRIMARY KEY, v text);"
        "CREATE TABLE r (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF r FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF r FOR VALUES FROM (10) TO (5000)"
    )
    local_rows(node.warehouse, "t", [1, 2, 3, 4, 1500])
    local_rows(node.warehouse, "low", [1, 2])
    node.subscribe("s", database, "p", f"copy_data = false, conflict_resolution = {resolution}")
    node.caught_up("s", database)
    remote = resolution == "apply_remote"
    for table in "tr":
        database.execute(f"INSERT INTO {table} VALUES (1, 'remote'), (20, 'moves'), (30, 'stays')")
        database.execute(f"UPDATE {table} SET id = 2, v = 'moved' WHERE id = 20")
    node.caught_up("s", database)
    expected = {1: "remote", 2: "moved"} if remote else {1: "local", 2: "local", 20: "moves"}
    expected |= {30: "stays"}
    low_and_high = dict([*node.rows("low"), *node.rows("high")])
    assert low_and_high == expected
    assert dict(node.rows("t")) == {3: "local", 4: "local", 1500: "local"} | expected
    # later changes are of the row that is there; one that comes and goes takes it along
    database.execute("UPDATE t SET v = 'again' WHERE id = 1")
    database.execute("INSERT INTO t VALUES (3, 'short'); DELETE FROM t WHERE id = 3")
    first, last = _STREAMED[0], _STREAMED[-1]
    database.execute(f"INSERT INTO t SELECT i, 'streamed' FROM generate_series({first}, {last}) i")
    node.caught_up("s", database)
    expected |= {1: "again", 4: "local"} | dict.fromkeys(_STREAMED, "streamed")
    expected |= {} if remote else {1500: "local"}
    assert dict(node.rows("t")) == expected
    told = [row for row in conflicts(node.warehouse) if row["relation"] == "public.t"]
    assert [(row["conflict_type"], json.loads(row["replica_identity"])) for row in told] == [
        ("insert_exists", {"id": 1}),
        ("update_exists", {"id": 2}),
        ("insert_exists", {"id": 3}),
        ("insert_exists", {"id": 1500}),
    ]
    assert {row["resolution"] for row in told} == {resolution}
    local = ["(1, local)", "(2, local)", "(3, local)", "(1500, local)"]
    assert [row["local_row"] for row in told] == local
    transactions = {(row["remote_xid"], row["finish_lsn"]) for row in told}
    assert len(transactions) == 4
    for row in told:
        assert Lsn.parse(row["finish_lsn"]) < row["remote_commit_lsn"]
    assert json.loads(told[1]["remote_tuple"]) == {"id": 2, "v": "moved"}
    said = "\n".join(caplog.messages)
    assert (
        "Key (id)=(2); existing local row (2, local); remote row (2, moved); "
        "replica identity (id)=(20). " in said
    )
    line = (
        r'conflict=update_exists\nDETAIL:  Key already exists in unique index "{}_pkey", '
        r"modified locally in transaction \d+ at \S+ \S+\+00\.\n"
    )
    for table in ("t", "low"):
        assert re.search(line.format(table), said)
    counted = node.node.sql(
        "SELECT apply_error_count, confl_insert_exists, confl_update_exists"
        " FROM pg_stat_subscription_stats"
    )
    assert counted.rows == ((0, 4, 2),)


def test_it_is_a_remedy_for_a_stopped_subscription(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("s", database, "p", "history = true")
    node.caught_up("s", database)
    local_rows(node.warehouse, "t", [1])
    database.execute("INSERT INTO t VALUES (1, 'remote')")
    status = node.stopped("s")
    assert "conflict_resolution" in str(status.error_hint)
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    assert "conflict=insert_exists" in str(node.stopped("s").error)
    (error,) = conflicts(node.warehouse)  # though it was tried twice
    node.node.sql("ALTER SUBSCRIPTION s SET (conflict_resolution = apply_remote)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert node.rows("t") == [(1, "remote")]
    resolved = next(row for row in conflicts(node.warehouse) if row["resolution"] != "error")
    same = {"log_time", "resolution"}
    assert {k: v for k, v in error.items() if k not in same} == {
        k: v for k, v in resolved.items() if k not in same
    }
    assert (resolved["resolution"], resolved["local_row"]) == ("apply_remote", "(1, local)")


def test_a_table_that_is_parked_tells_its_conflict(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text); CREATE TABLE u (id integer PRIMARY KEY);"
        "CREATE PUBLICATION p FOR TABLE t, u"
    )
    node = local_node()
    node.subscribe("s", database, "p", "on_table_error = park")
    node.caught_up("s", database)
    local_rows(node.warehouse, "t", [1])
    for number in range(3):  # some of them in one batch
        database.execute(
            f"INSERT INTO t VALUES ({number}, 'remote'); INSERT INTO u VALUES ({number})"
        )
    node.caught_up_but_parked("s", database)
    assert len(node.rows("u")) == 3
    (error,) = conflicts(node.warehouse)
    assert (error["relation"], error["local_row"]) == ("public.t", "(1, local)")
    assert (error["resolution"], error["local_origin"]) == ("error", None)
