"""Relations that are renamed, exchanged, dropped and made again at the publisher: no row goes to a
table that is not its own, and none is lost. What cannot go on stops, and goes on as its hint says.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.errors import ConnectionFailure
from penstock.failpoint import BEFORE_CUT
from penstock.node.status import SubscriptionStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_REFRESH = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
_HINT = f"Run {_REFRESH}, and then ALTER SUBSCRIPTION s ENABLE."
_TWO = (
    "CREATE TABLE a (id integer PRIMARY KEY, v text);"
    "CREATE TABLE b (id integer PRIMARY KEY, v text);"
    "INSERT INTO a SELECT i, 'a' || i FROM generate_series(1, 10) i;"
    "INSERT INTO b SELECT i, 'b' || i FROM generate_series(5, 20) i;"
)


def assert_equal(node: LocalNode, database: Database, *tables: str, schema: str = "public") -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"{schema}.{table}")
            found = node.rows(table, schema=schema)
            assert not (lack := difference(table, wanted, found)), str(lack)


def subscribed(
    local_node: Callable[..., LocalNode],
    database: Database,
    setup: str,
    publication: str = "FOR ALL TABLES",
) -> LocalNode:
    """A node with subscription s to all tables of ``setup``, caught up."""
    database.execute(f"{setup}; CREATE PUBLICATION p {publication}")
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    return node


def in_one_batch(node: LocalNode, database: Database, *transactions: str) -> None:
    """Transactions while the node is stopped: what has come is applied together."""
    node.node.stop()
    for transaction in transactions:
        database.execute(transaction)
    node.node.start()


def stopped_with(node: LocalNode, message: str) -> SubscriptionStatus:
    status = node.stopped("s")
    assert status.error == message
    assert str(status.error_hint).startswith(_HINT)
    return status


def does_what_the_hint_says(node: LocalNode, database: Database, *, stops: bool = True) -> None:
    """ENABLE alone does not get around it, REFRESH and ENABLE do."""
    if stops:
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        assert str(node.stopped("s").error_hint).startswith(_HINT)
    node.node.sql(f"{_REFRESH}; ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)


def test_a_table_that_is_renamed_inside_of_a_batch(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = subscribed(local_node, database, _TWO, "FOR TABLE a, b")
    before = node.cut()
    in_one_batch(
        node,
        database,
        *(f"INSERT INTO a VALUES ({i}, 'x')" for i in range(100, 110)),
        "BEGIN; ALTER TABLE a RENAME TO c; INSERT INTO c VALUES (1000, 'y'); COMMIT",
        "INSERT INTO b VALUES (1000, 'z')",
    )
    # What PostgreSQL's subscriber says.
    stopped_with(node, 'logical replication target relation "public.c" does not exist')
    assert len(node.rows("a")) in range(10, 21)
    does_what_the_hint_says(node, database)
    assert_equal(node, database, "b", "c")
    assert set(node.cut().tables) == {("public", "b"), ("public", "c")}
    # The Delta table of the old name is as it was.
    old = before.tables["public", "a"]
    assert len(delta_rows(old.uri)) in range(10, 21)


@pytest.mark.parametrize("version", [14, 18])
def test_two_tables_exchange_their_names(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database], version: int
) -> None:
    database = database_on(version)
    node = subscribed(local_node, database, _TWO, "FOR TABLE a, b")
    before = node.cut()
    in_one_batch(
        node,
        database,
        "UPDATE a SET v = 'old a'",
        "BEGIN; UPDATE a SET v = 'last a' WHERE id < 5; ALTER TABLE a RENAME TO x;"
        "ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b;"
        "UPDATE a SET v = 'now a' WHERE id < 10; DELETE FROM b WHERE id = 3; COMMIT",
    )
    status = node.stopped("s")
    assert "exchanged their names" in str(status.error_detail)
    for name in ("a", "b"):
        assert not [row for row in node.rows(name) if row[1] in ("last a", "now a")]
    does_what_the_hint_says(node, database)
    assert_equal(node, database, "a", "b")
    # Readers of an older cut still see what was there then.
    for (_, name), pin in before.tables.items():
        rows = delta_rows(pin.uri, pin.version)
        assert {str(row[1])[0] for row in rows} == {name}


def test_a_table_that_is_dropped_and_made_again(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = subscribed(local_node, database, _TWO)
    before = node.cut()
    in_one_batch(
        node,
        database,
        "INSERT INTO a VALUES (11, 'before')",
        "DROP TABLE a; CREATE TABLE a (key text PRIMARY KEY, n integer, id integer)",
        "INSERT INTO a SELECT 'k' || i, i, i FROM generate_series(1, 7) i",
        "UPDATE b SET v = 'now'",
    )
    stopped_with(node, 'relation "public.a" is not the one that was copied')
    does_what_the_hint_says(node, database)
    assert_equal(node, database, "a", "b")
    # In place: the Delta table is the same one, and an older cut reads its older version.
    (old, new) = (cut.tables["public", "a"] for cut in (before, node.cut()))
    assert old.uri == new.uri
    assert old.version < new.version
    assert sorted(delta_rows(old.uri, old.version)) == [(i, f"a{i}") for i in range(1, 11)]
    database.execute("UPDATE a SET n = -n; DELETE FROM a WHERE id = 4; INSERT INTO a VALUES ('z')")
    node.caught_up("s", database)
    assert_equal(node, database, "a", "b")


def test_a_name_that_was_another_ones_for_a_while(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = subscribed(local_node, database, _TWO, "FOR TABLE a, b")
    in_one_batch(
        node,
        database,
        "ALTER TABLE a RENAME TO c; TRUNCATE c; INSERT INTO c VALUES (7, 'seven')",
        "ALTER TABLE c RENAME TO a; INSERT INTO a VALUES (8, 'eight')",
    )
    stopped_with(node, 'logical replication target relation "public.c" does not exist')
    does_what_the_hint_says(node, database)
    assert_equal(node, database, "a", "b")
    # A TRUNCATE alone, of a table that went to another schema.
    database.execute("CREATE SCHEMA s; ALTER TABLE a SET SCHEMA s; TRUNCATE s.a, b")
    stopped_with(node, 'logical replication target relation "s.a" does not exist')
    does_what_the_hint_says(node, database)
    assert_equal(node, database, "b")
    assert_equal(node, database, "a", schema="s")
    database.execute("ALTER SCHEMA s RENAME TO s2; INSERT INTO s2.a VALUES (1, 'one')")
    stopped_with(node, 'logical replication target relation "s2.a" does not exist')
    does_what_the_hint_says(node, database)
    assert_equal(node, database, "a", schema="s2")


def test_what_is_not_in_the_subscription_is_ignored_until_it_is(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = subscribed(
        local_node,
        database,
        _TWO + "CREATE TABLE root (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100);"
        "INSERT INTO root VALUES (1, 'leaf')",
    )
    database.execute("CREATE TABLE fresh (id integer PRIMARY KEY); INSERT INTO fresh VALUES (1)")
    database.execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    database.execute("INSERT INTO root VALUES (2, 'via root'); UPDATE a SET v = 'now'")
    node.caught_up("s", database)
    assert_equal(node, database, "a", "b")
    assert ("public", "fresh") not in node.cut().tables
    node.node.sql(_REFRESH)
    node.caught_up("s", database)
    assert_equal(node, database, "a", "b", "fresh", "root")
    database.execute("ALTER PUBLICATION p SET (publish_via_partition_root = false)")
    database.execute("INSERT INTO root VALUES (3, 'leaf'); INSERT INTO fresh VALUES (2)")
    node.node.sql(_REFRESH)
    node.caught_up("s", database)
    assert_equal(node, database, "a", "b", "fresh", "leaf")


def test_applied_changes_are_not_followed_again(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADD COLUMN in a batch whose cut is never written, and a table that joins meanwhile."""
    node = subscribed(local_node, database, _TWO, "FOR TABLE a")
    failures: list[str] = []

    def fail_once(name: str) -> None:
        if name == BEFORE_CUT and not failures:
            failures.append(name)
            raise ConnectionFailure("the connection was lost before the cut")

    monkeypatch.setattr("penstock.subscription.apply.failpoint", fail_once)
    in_one_batch(
        node,
        database,
        "UPDATE a SET v = 'before' WHERE id = 1",
        "ALTER TABLE a ADD COLUMN n integer; UPDATE a SET n = 5 WHERE id < 4",
        "ALTER PUBLICATION p ADD TABLE b",
    )
    node.node.sql(_REFRESH)
    node.caught_up("s", database)
    assert failures
    assert_equal(node, database, "a", "b")


def test_columns_that_exchange_their_names(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = subscribed(
        local_node,
        database,
        "CREATE TABLE t (id integer PRIMARY KEY, x text, y text);"
        "INSERT INTO t SELECT i, 'x', 'y' FROM generate_series(1, 5) i",
    )
    in_one_batch(
        node,
        database,
        "UPDATE t SET x = 'X' WHERE id = 1",
        "BEGIN; ALTER TABLE t RENAME x TO z; ALTER TABLE t RENAME y TO x;"
        "ALTER TABLE t RENAME z TO y; UPDATE t SET x = 'new' WHERE id = 2; COMMIT",
    )
    stopped_with(
        node,
        'relation "public.t" was changed at the publisher in a way that its changes do not tell',
    )
    does_what_the_hint_says(node, database)
    with database.connect() as connection:
        wanted = publisher_rows(connection, "public.t", columns=("id", "x", "y"))
    pin = node.cut().tables["public", "t"]
    found = node.node.spark.read.format("delta").option("versionAsOf", pin.version).load(pin.uri)
    assert sorted(tuple(row) for row in found.select("id", "x", "y").collect()) == sorted(wanted)


@pytest.mark.parametrize(
    "version", [14, *(pytest.param(v, marks=part_of_make_faults) for v in (15, 16, 17)), 18]
)
def test_key_columns_are_those_that_the_relation_message_flags(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database], version: int
) -> None:
    database = database_on(version)
    node = subscribed(
        local_node,
        database,
        "CREATE TABLE t (id integer, v text, w text, PRIMARY KEY (id) INCLUDE (v));"
        "CREATE TABLE u (w text NOT NULL, id integer NOT NULL, v text NOT NULL);"
        "CREATE UNIQUE INDEX u_key ON u (id, w) INCLUDE (v);"
        "ALTER TABLE u REPLICA IDENTITY USING INDEX u_key;"
        "INSERT INTO t SELECT i, 'v', 'w' FROM generate_series(1, 9) i;"
        "INSERT INTO u SELECT 'w', i, 'v' FROM generate_series(1, 9) i",
    )
    for table in ("t", "u"):
        database.execute(
            f"UPDATE {table} SET v = 'changed' WHERE id < 4;"
            f"UPDATE {table} SET id = id + 100 WHERE id = 5; DELETE FROM {table} WHERE id = 6"
        )
    node.caught_up("s", database)
    assert_equal(node, database, "t", "u")


def test_another_delta_table_in_the_place_of_the_copied_one(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = subscribed(local_node, database, _TWO)
    folder = node.warehouse / "public"
    node.node.stop()
    (folder / "a").rename(folder / "kept")
    (folder / "b").rename(folder / "a")
    database.execute("UPDATE a SET v = 'now'")
    node.node.start()
    status = node.stopped("s")
    assert status.error == 'target table "public.a" is not the one that was copied'
    assert status.error_hint is not None
    (folder / "a").rename(folder / "b")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    # Absence is no emptiness either.
    assert node.stopped("s").error == 'target table "public.a" is not the one that was copied'
    (folder / "kept").rename(folder / "a")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert_equal(node, database, "a", "b")


@part_of_make_faults
def test_tables_whose_names_join_to_the_same_text(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = subscribed(
        local_node,
        database,
        'CREATE SCHEMA "a.b"; CREATE TABLE "a.b".c (id integer PRIMARY KEY, v text);'
        'CREATE SCHEMA a; CREATE TABLE a."b.c" (id integer PRIMARY KEY, v text);'
        'CREATE TABLE "order items" (id integer PRIMARY KEY);'
        'CREATE TABLE "order_items-98f422a4" (id integer PRIMARY KEY);'
        "INSERT INTO \"a.b\".c VALUES (1, 'one'); INSERT INTO a.\"b.c\" VALUES (2, 'two');"
        'INSERT INTO "order items" VALUES (1)',
    )
    database.execute(
        "INSERT INTO \"a.b\".c VALUES (3, 'three'); INSERT INTO a.\"b.c\" VALUES (3, 'drei');"
        'INSERT INTO "order items" VALUES (2); INSERT INTO "order_items-98f422a4" VALUES (3)'
    )
    node.caught_up("s", database)
    read = node.node.read
    assert sorted(map(tuple, read('"a.b".c').collect())) == [(1, "one"), (3, "three")]
    assert sorted(map(tuple, read(("a", "b.c")).collect())) == [(2, "two"), (3, "drei")]
    assert sorted(map(tuple, read('"order items"').collect())) == [(1,), (2,)]
    assert sorted(map(tuple, read('public."order_items-98f422a4"').collect())) == [(3,)]
    applied = {table.name: table.rows_applied for table in node.status("s").tables}
    assert applied == {
        '"a.b".c': 1,
        'a."b.c"': 1,
        "public.order items": 1,
        "public.order_items-98f422a4": 1,
    }
