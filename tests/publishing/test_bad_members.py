"""A PostgreSQL follows tables while others in the warehouse are broken, or replaced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def folder(lake: LakeNode, name: str) -> Path:
    schema, table = name.split(".")
    return Path(str(lake.node.folder)) / "warehouse" / schema / table


def rows_are(database: Database, table: str, *wanted: tuple[Any, ...]) -> None:
    query = f"SELECT * FROM {table} ORDER BY 1"
    wait_until(lambda: database.rows(query) == list(wanted), f"{table} with {wanted}")


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int32())})


def look(lake: LakeNode) -> None:
    """All that the node does now and then, now."""
    assert lake.node.serving is not None
    lake.node.serving.sequencer.check_logs()
    lake.node.serving.sequencer.step(discover=True)


def made(lake: LakeNode, database: Database, schema: str, *tables: str) -> None:
    lake.execute(f"CREATE SCHEMA {schema}")
    database.execute(f"CREATE SCHEMA {schema}")
    for table in tables:
        lake.execute(f"CREATE TABLE {schema}.{table} (id integer PRIMARY KEY)")
        database.execute(f"CREATE TABLE {schema}.{table} (id integer PRIMARY KEY)")


def test_broken_neighbours_stop_no_stream_no_slot_and_no_session(
    lake: LakeNode, subscriber: Callable[..., Database], tmp_path: Path
) -> None:
    database, other = subscriber(18), subscriber(15)
    made(lake, database, "one", "good", "bad")
    lake.execute("CREATE PUBLICATION one FOR TABLES IN SCHEMA one")
    lake.subscribe(database, "one", "one")
    lake.execute("INSERT INTO one.good VALUES (1)", "INSERT INTO one.bad VALUES (1)")
    rows_are(database, "one.good", (1,))
    rows_are(database, "one.bad", (1,))
    write_deltalake(str(folder(lake, "one.nested")), pa.table({"id": [1], "v": [[[1]]]}))
    (folder(lake, "one.junk") / "_delta_log").mkdir(parents=True)
    (folder(lake, "one.junk") / "_delta_log" / f"{0:020}.json").write_bytes(b'{"torn')
    # Made elsewhere, so that nobody sees the entry before it is empty.
    twin = shutil.copytree(folder(lake, "one.bad"), tmp_path / "twin")
    write_deltalake(str(twin), ids(2), mode="append")
    for path in twin.glob("*.parquet"):
        shutil.copy(path, folder(lake, "one.bad"))
    entry = folder(lake, "one.bad") / "_delta_log" / f"{2:020}.json"
    whole = (twin / "_delta_log" / entry.name).read_bytes()
    entry.write_bytes(b"")
    look(lake)
    write_deltalake(
        str(folder(lake, "one.nested")), pa.table({"id": [2], "v": [[[2]]]}), mode="append"
    )
    lake.execute("INSERT INTO one.good VALUES (2)")
    rows_are(database, "one.good", (1,), (2,))
    with lake.connect() as session:
        found = session.execute(
            "SELECT relname, state FROM pg_stat_lake_tables "
            "WHERE state <> 'followed' AND coalesce(schemaname, 'one') = 'one' ORDER BY 1"
        ).fetchall()
    assert [row for row in found if row[0] in ("bad", "nested", "one.junk")] == [
        ("bad", "unreadable"),
        ("nested", "unpublishable"),
        ("one.junk", "unreadable"),
    ]
    # a new subscription to all of the schema: what cannot be published is not in it
    other.execute(
        "CREATE SCHEMA one; CREATE TABLE one.good (id integer PRIMARY KEY); "
        "CREATE TABLE one.bad (id integer PRIMARY KEY)"
    )
    conninfo = lake.conninfo().replace("'", "''")
    other.execute(f"CREATE SUBSCRIPTION one15 CONNECTION '{conninfo}' PUBLICATION one")
    rows_are(other, "one.good", (1,), (2,))
    entry.write_bytes(whole)
    rows_are(database, "one.bad", (1,), (2,))
    rows_are(other, "one.bad", (1,), (2,))
    lake.execute("INSERT INTO one.good VALUES (3)")
    rows_are(database, "one.good", (1,), (2,), (3,))
    rows_are(other, "one.good", (1,), (2,), (3,))
    shutil.rmtree(folder(lake, "one.junk"))


def test_a_table_that_becomes_unpublishable_stops_who_has_it(
    lake: LakeNode, subscriber: Callable[..., Database], spark: Any
) -> None:
    """Left out from the beginning is one thing; with rows at the subscriber it is a loss."""
    database = subscriber(18)
    made(lake, database, "kind", "t", "other")
    lake.execute(
        "CREATE PUBLICATION kind FOR TABLES IN SCHEMA kind", "INSERT INTO kind.t VALUES (1)"
    )
    lake.subscribe(database, "kind", "kind")
    rows_are(database, "kind.t", (1,))
    uri = folder(lake, "kind.t")
    spark.sql(f"ALTER TABLE delta.`{uri}` ADD COLUMNS (s struct<a: int>)")
    lake.execute("INSERT INTO kind.other VALUES (1)")
    state = "SELECT state FROM pg_stat_lake_tables WHERE schemaname = 'kind' AND relname = 't'"
    wait_until(lambda: lake.rows(state) == [("unpublishable",)], "the state of the table")
    errors = "SELECT apply_error_count > 0 FROM pg_stat_subscription_stats WHERE subname = 'kind'"
    wait_until(lambda: database.rows(errors) == [(True,)], "the stop")
    assert database.rows("SELECT * FROM kind.other") == []


def test_a_replaced_table_ends_the_slots_that_publish_it_and_no_other(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    database = subscriber(18)
    made(lake, database, "two", "t", "other")
    lake.execute(
        "INSERT INTO two.t VALUES (1)",
        "CREATE PUBLICATION two_t FOR TABLE two.t",
        "CREATE PUBLICATION two_other FOR TABLE two.other",
    )
    lake.subscribe(database, "two_t", "two_t")
    lake.subscribe(database, "two_other", "two_other")
    rows_are(database, "two.t", (1,))
    lake.execute("INSERT INTO two.t VALUES (2)")
    rows_are(database, "two.t", (1,), (2,))
    # another table in the folder, with a longer log and as many columns
    shutil.rmtree(folder(lake, "two.t"))
    for number in range(5):
        write_deltalake(str(folder(lake, "two.t")), ids(100 + number), mode="append")
    look(lake)
    state = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'two_t'"
    wait_until(lambda: lake.rows(state) == [("lost",)], "the loss of the slot")
    lake.execute("INSERT INTO two.other VALUES (7)")
    rows_are(database, "two.other", (7,))
    assert database.rows("SELECT * FROM two.t ORDER BY 1") == [(1,), (2,)], "nothing of the new one"
    assert lake.rows("SELECT count(*) FROM pg_publication_tables WHERE pubname = 'two_t'") == [(0,)]
    # the way back, as the hint says
    database.execute("DROP SUBSCRIPTION two_t")
    database.execute("TRUNCATE two.t")
    lake.execute("ALTER PUBLICATION two_t ADD TABLE two.t")
    lake.subscribe(database, "two_t", "two_t")
    rows_are(database, "two.t", *((100 + number,) for number in range(5)))
    write_deltalake(str(folder(lake, "two.t")), ids(9), mode="append")
    rows_are(database, "two.t", (9,), *((100 + number,) for number in range(5)))


def test_drop_and_create_by_sql_in_a_running_stream(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """Rows of the new table have its own values, and go to whoever publishes it by its schema."""
    database = subscriber(18)
    made(lake, database, "three", "t")
    lake.execute("CREATE PUBLICATION three FOR TABLES IN SCHEMA three")
    lake.subscribe(database, "three", "three")
    lake.execute("INSERT INTO three.t VALUES (1)")
    rows_are(database, "three.t", (1,))
    lake.execute("DROP TABLE three.t", "CREATE TABLE three.t (id integer PRIMARY KEY, w text)")
    columns = (
        "SELECT attname FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid "
        "JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE nspname = 'three' AND relkind = 'r' AND attnum > 0 ORDER BY attnum"
    )
    assert lake.rows(columns) == [("id",), ("w",)]
    database.execute("DROP TABLE three.t")
    database.execute("CREATE TABLE three.t (id integer PRIMARY KEY, w text)")
    database.execute("ALTER SUBSCRIPTION three REFRESH PUBLICATION")
    lake.copied(database, "three")
    lake.execute("INSERT INTO three.t VALUES (2, 'x')")
    rows_are(database, "three.t", (2, "x"))
