"""A live subscription whose tables change: more tables, added and changed columns, any key."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final

import psycopg
import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import NotInPrerequisiteState
from penstock.node import running
from penstock.node.running import RunningNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def assert_equal(
    node: LocalNode, database: Database, *tables: str, as_text: tuple[str, ...] = ()
) -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}", as_text=as_text)
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def test_tables_join_while_the_others_go_on(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE counter (id integer PRIMARY KEY, n integer NOT NULL);"
        "INSERT INTO counter VALUES (1, 0);"
        "CREATE TABLE late (id integer PRIMARY KEY, n integer NOT NULL, filler text);"
        "INSERT INTO late SELECT i, 0, repeat('x', 200) FROM generate_series(1, 20000) i;"
        "CREATE PUBLICATION p FOR TABLE counter"
    )
    node = local_node(copy_unit_size="1MB")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    ended = threading.Event()

    def write() -> None:
        rng = random.Random(1)
        with psycopg.connect(database.conninfo) as connection:
            while not ended.wait(0.01):
                connection.execute("UPDATE counter SET n = n + 1")
                key = rng.randint(1, 20_000)
                connection.execute("UPDATE late SET n = n + 1 WHERE id = %s", (key,))
                connection.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        database.execute("ALTER PUBLICATION p ADD TABLE late")
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        node.caught_up("s", database)
        for _ in range(5):
            # Every transaction adds 1 to the counter and 1 to a row of the late table.
            pins = node.cut().tables
            added = {
                table: sum(row[1] for row in delta_rows(pin.uri, pin.version))
                for table, pin in pins.items()
            }
            assert added["public", "late"] == added["public", "counter"] > 0
            node.new_cut("s")
    finally:
        ended.set()
        writer.join()
    node.caught_up("s", database)
    assert_equal(node, database, "counter", "late")


def test_a_dropped_table_leaves_and_the_others_go_on(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY); CREATE TABLE often (id integer PRIMARY KEY);"
        "CREATE PUBLICATION p FOR TABLE t, often"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    with pytest.raises(NotInPrerequisiteState, match="could not drop relation mapping"):
        node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE often; DROP TABLE often")
    node.caught_up("s", database)
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(database.conninfo, autocommit=True) as connection:
            for i in range(1_000_000):
                connection.execute(f"INSERT INTO t VALUES ({i}); INSERT INTO often VALUES ({i})")
                if ended.wait(0.005):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            node.new_cut("s")
            node.node.sql("DROP TABLE often")
            assert not node.node.sql("SELECT 1 FROM pg_class WHERE relname = 'often'").rows
            wait_until(lambda: ("public", "often") not in node.cut().tables, "a cut without it")
            assert not (node.warehouse / "public" / "often").exists()
            node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
            node.caught_up("s", database)
    finally:
        ended.set()
        writer.join()
    node.caught_up("s", database)
    assert_equal(node, database, "t", "often")


def test_rows_right_after_refresh_without_a_copy(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They reach a session that nobody has told of the new tables."""
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY);"
        "CREATE TABLE again (id integer PRIMARY KEY);"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    node = local_node()
    node.subscribe("s", database, "p", "on_table_error = park")
    node.caught_up("s", database)
    monkeypatch.setattr(RunningNode, "_look", lambda self, before: before)
    database.execute(
        "CREATE TABLE late (id integer PRIMARY KEY);"
        "DROP TABLE again; CREATE TABLE again (id integer PRIMARY KEY)"
    )
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)")
    database.execute(
        "INSERT INTO late VALUES (1); INSERT INTO again VALUES (1); INSERT INTO t VALUES (1)"
    )
    node.caught_up("s", database)
    assert_equal(node, database, "t", "late", "again")


def test_an_added_column_is_added(local_node: Callable[..., LocalNode], database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text);"
        "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 100) i;"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute("UPDATE t SET v = 'before' WHERE id = 1")
    database.execute("ALTER TABLE t ADD COLUMN n integer, ADD COLUMN at timestamp")
    database.execute("UPDATE t SET n = 5, at = '2024-02-29 12:00:00' WHERE id BETWEEN 2 AND 10")
    database.execute("INSERT INTO t VALUES (1000, 'new', 6)")
    node.caught_up("s", database)
    assert_equal(node, database, "t")


def test_a_changed_type_stops_and_names_table_column_types_and_remedy(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, n integer);"
        "CREATE TABLE u (id integer PRIMARY KEY);"
        "INSERT INTO t SELECT i, i FROM generate_series(1, 10) i;"
        "CREATE PUBLICATION p FOR TABLE t, u"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    before = node.rows("t")
    database.execute("ALTER TABLE t ALTER COLUMN n TYPE text")
    database.execute("UPDATE t SET n = 'x' WHERE id = 1; INSERT INTO u VALUES (1)")
    status = node.stopped("s")
    said = f"{status.error} {status.error_detail}"
    for word in ("public.t", '"n"', "integer", "string"):
        assert word in said
    assert node.rows("t") == before
    again = "ALTER SUBSCRIPTION s REFRESH PUBLICATION", "ALTER SUBSCRIPTION s ENABLE"
    assert f"{again[0]}, and then {again[1]}." in str(status.error_hint)
    node.node.sql("; ".join(again))
    node.caught_up("s", database)
    assert_equal(node, database, "t", "u")


_KEYS: Final = (
    ("a integer, b text, PRIMARY KEY (a, b)", "i % 10, 'b' || i", "a = a + 100"),
    ("a text PRIMARY KEY", "'k' || i", "a = a || 'é '"),
    ("a uuid PRIMARY KEY", "md5(i::text)::uuid", "a = md5(a::text)::uuid"),
    ("a numeric PRIMARY KEY", "i / 7.0", "a = a + 1000.50"),
    ("a numeric(30,5) PRIMARY KEY", "i / 7.0", "a = a + 1e20"),
    (
        "a timestamptz PRIMARY KEY",
        "timestamptz 'epoch' + i * interval '1 us'",
        "a = a + interval '1 year'",
    ),
    (
        "a bytea, b date, PRIMARY KEY (b, a)",
        "decode(md5(i::text), 'hex'), date '2000-1-1' + i % 9",
        "b = b - 1000",
    ),
    ("a bigint, b boolean, c smallint, PRIMARY KEY (a, b, c)", "i, i % 2 = 0, i % 3", "a = -a"),
    ("a double precision PRIMARY KEY", "i / 7.0", "a = -a"),
)
"""Columns, their values, and an UPDATE that changes the key."""


def test_any_key(local_node: Callable[..., LocalNode], database: Database) -> None:
    tables = {f"t{number}": key for number, key in enumerate(_KEYS)}
    for table, (columns, keys, _) in tables.items():
        database.execute(
            f"CREATE TABLE {table} ({columns}, v text);"
            f"INSERT INTO {table} SELECT {keys}, repeat(md5(i::text), 300)"
            " FROM generate_series(1, 200) i;"
            f"ALTER TABLE {table} ADD COLUMN n integer"
        )
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    for table, (_, _, moved) in tables.items():
        some = f"ctid IN (SELECT ctid FROM {table} LIMIT 20)"
        database.execute(f"UPDATE {table} SET n = 1 WHERE {some}")
        database.execute(f"UPDATE {table} SET {moved} WHERE {some}")
        database.execute(f"DELETE FROM {table} WHERE {some}")
        database.execute(
            f"BEGIN; CREATE TEMP TABLE kept AS SELECT * FROM {table} WHERE {some};"
            f"DELETE FROM {table} WHERE {some}; INSERT INTO {table} SELECT * FROM kept;"
            f"UPDATE {table} SET n = 2; COMMIT"
        )
    node.caught_up("s", database)
    for table, (columns, _, _) in tables.items():
        # A numeric without precision is kept as text.
        as_text = ("a",) if "a numeric PRIMARY" in columns else ()
        assert_equal(node, database, table, as_text=as_text)


@part_of_make_faults
def test_an_error_is_not_kept_waiting_by_a_copy_that_waits(
    local_node: Callable[..., LocalNode],
    database: Database,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy waits for a transaction that is open at the publisher. ENABLE waits for neither, and
    may come before the launcher has seen the error."""
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY); CREATE TABLE late (id integer PRIMARY KEY);"
        "CREATE TABLE other (id integer); CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute("ALTER PUBLICATION p ADD TABLE late")
    waits = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
    rows = f"delta.`{node.cut().tables['public', 't'].uri}`"
    with database.connect(autocommit=False) as open_one:
        open_one.execute("INSERT INTO other VALUES (1)")
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        wait_until(lambda: database.rows(waits), "a copy that waits")
        spark.sql(f"INSERT INTO {rows} VALUES (1)").collect()
        monkeypatch.setattr(running, "_LOOK_INTERVAL", 8)
        database.execute("INSERT INTO t VALUES (1), (2)")
        node.stopped("s")
        spark.sql(f"DELETE FROM {rows} WHERE id = 1").collect()
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        wait_until(lambda: sorted(node.rows("t")) == [(1,), (2,)], "the rows")
    node.caught_up("s", database)
