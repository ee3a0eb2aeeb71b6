"""Tables that leave a subscription and come back into it: the copy from before is replaced in one
commit, and what somebody else has put in its place is left alone.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_REFRESH = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text);"
    "INSERT INTO t SELECT i, 'first' FROM generate_series(1, 10) i;"
    "CREATE TABLE root (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100);"
    "INSERT INTO root SELECT i, 'first' FROM generate_series(1, 10) i;"
    "CREATE PUBLICATION p FOR ALL TABLES"
)


@pytest.fixture
def node(local_node: Callable[..., LocalNode], database: Database) -> LocalNode:
    database.execute(_SETUP)
    # Between two renames of folders nobody should try again.
    node: LocalNode = local_node(wal_retrieve_retry_interval="5s")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    return node


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def refreshed(node: LocalNode, database: Database, change: str) -> list[str]:
    """What REFRESH says after a change at the publisher."""
    database.execute(change)
    result = node.node.sql(_REFRESH)
    node.caught_up("s", database)
    return [notice.message for notice in result.notices]


def not_empty(node: LocalNode, table: str) -> None:
    told = f'target table "public.{table}" is not empty'
    node.wait_for("s", told, lambda s: told in [t.error for t in s.tables])


def test_a_table_that_is_renamed_there_and_back(node: LocalNode, database: Database) -> None:
    before = node.cut().tables["public", "t"]
    rows_before = delta_rows(before.uri, before.version)
    for turn, (name, other) in enumerate((("u", "t"), ("t", "u"), ("u", "t"), ("t", "u"))):
        told = refreshed(node, database, f"ALTER TABLE {other} RENAME TO {name}")
        assert (f'table "public.{name}" will be copied again' in told) == (turn > 0)
        assert_equal(node, database, name)
        database.execute(
            f"UPDATE {name} SET v = 'now {name}' WHERE id < 5; DELETE FROM {name} WHERE id = 9;"
            f"INSERT INTO {name} VALUES (9, 'on')"
        )
        node.caught_up("s", database)
        assert_equal(node, database, name)
    assert not difference("t", rows_before, delta_rows(before.uri, before.version))


@part_of_make_faults
def test_publish_via_partition_root_twice(node: LocalNode, database: Database) -> None:
    for turn, (via_root, name) in enumerate((("true", "root"), ("false", "leaf")) * 2):
        change = f"ALTER PUBLICATION p SET (publish_via_partition_root = {via_root})"
        refreshed(node, database, change)
        assert_equal(node, database, "t", name)
        database.execute(f"UPDATE root SET v = 'v{turn}' WHERE id > {turn}")
        node.caught_up("s", database)
        assert_equal(node, database, "t", name)


def test_a_restart_between_leaving_and_coming_back(node: LocalNode, database: Database) -> None:
    refreshed(node, database, "ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    node.node.stop()
    database.execute("ALTER PUBLICATION p SET (publish_via_partition_root = false)")
    node.node.sql(_REFRESH)
    node.node.start()
    node.caught_up("s", database)
    assert_equal(node, database, "t", "leaf")


@part_of_make_faults
def test_rows_that_others_have_written_since_are_theirs(
    node: LocalNode, database: Database
) -> None:
    refreshed(node, database, "ALTER TABLE t RENAME TO u")
    folder = node.warehouse / "public" / "t"
    node.node.spark.sql(f"INSERT INTO delta.`{folder}` VALUES (500, 'mine')")
    database.execute("ALTER TABLE u RENAME TO t")
    node.node.sql(_REFRESH)
    not_empty(node, "t")
    assert (500, "mine") in [tuple(row) for row in node.node.spark.read.load(str(folder)).collect()]
    folder.rename(folder.with_name("t_mine"))
    node.caught_up("s", database)
    assert_equal(node, database, "t")


def test_another_table_in_its_place_is_refused(node: LocalNode, database: Database) -> None:
    """Its folder holds the copy of another table of the same subscription; then one that somebody
    has made where the log goes on."""
    refreshed(node, database, "ALTER TABLE t RENAME TO u")
    folder = node.warehouse / "public"
    (folder / "t").rename(folder / "t_first")
    (folder / "leaf").rename(folder / "t")
    (folder / "t_first").rename(folder / "leaf")
    database.execute(
        "ALTER PUBLICATION p SET (publish_via_partition_root = true); ALTER TABLE u RENAME TO t"
    )
    node.node.sql(_REFRESH)
    not_empty(node, "t")
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()  # it would copy where there is no table for a moment
    (folder / "t").rename(folder / "t_second")
    (folder / "leaf").rename(folder / "t")
    node.node.spark.sql(
        f"CREATE OR REPLACE TABLE delta.`{folder / 't'}` USING delta AS SELECT 7 AS id, 'mine' AS v"
    )
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    not_empty(node, "t")
    (folder / "t").rename(folder / "t_third")
    node.caught_up("s", database)
    assert_equal(node, database, "t")


def test_the_table_of_a_dropped_subscription_is_refused(
    node: LocalNode, database: Database
) -> None:
    node.node.sql("DROP SUBSCRIPTION s")
    node.subscribe("s", database, "p")
    not_empty(node, "t")
