"""Another writer takes away a column that is followed: it does not come back without its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

Write = Callable[[str, Any], None]


def by_delta_rs(uri: str, spark: Any) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]})
    write_deltalake(uri.removeprefix("file://"), rows, mode="overwrite", schema_mode="overwrite")


def by_spark(uri: str, spark: Any) -> None:
    rows = spark.sql("SELECT int(i) AS id, chr(96 + i) AS v FROM VALUES (1), (2) AS t (i)")
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.save(uri)


def follow(node: LocalNode, database: Database, options: str) -> str:
    database.execute(
        "CREATE TABLE t0 (id int PRIMARY KEY, g text, v text);"
        "INSERT INTO t0 VALUES (1, 'g1', 'a'), (2, 'g2', 'b'); CREATE PUBLICATION p FOR TABLE t0"
    )
    node.subscribe("s", database, "p", options)
    node.caught_up("s", database)
    return node.cut().tables["public", "t0"].uri


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("write", [by_delta_rs, by_spark])
def test_it_stops(
    local_node: Callable[..., LocalNode], database: Database, spark: Any, write: Write, away: bool
) -> None:
    """``away``: in a session that has begun since."""
    node = local_node()
    uri = follow(node, database, "")
    if away:
        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        node.no_worker()
    write(uri, spark)
    if away:
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    database.execute("UPDATE t0 SET v = 'c' WHERE id = 1")
    status = node.stopped("s")
    assert status.error is not None
    missing = 'logical replication target relation "public.t0" is missing replicated column: "g"'
    assert missing in str(status.error)
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION; ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert sorted(node.rows("t0")) == sorted(database.rows("SELECT * FROM t0"))
    database.execute("ALTER TABLE t0 ADD n int; UPDATE t0 SET n = 1 WHERE id = 2")
    node.caught_up("s", database)
    assert sorted(node.rows("t0")) == [(1, "g1", "c", None), (2, "g2", "b", 1)]


@pytest.mark.parametrize("schema_change", ["follow", in_make_faults("widen")])
def test_it_is_copied_again(
    local_node: Callable[..., LocalNode], database: Database, spark: Any, schema_change: str
) -> None:
    node = local_node()
    uri = follow(node, database, f"schema_change = {schema_change}")
    by_delta_rs(uri, spark)
    database.execute("UPDATE t0 SET v = 'c' WHERE id = 1")
    node.caught_up("s", database)
    there = {(1, "g1", "c"), (2, "g2", "b")}
    node.wait_for("s", "the copy", lambda _: set(node.rows("t0")) == there)
    assert sorted(node.rows("t0")) == sorted(database.rows("SELECT * FROM t0"))
