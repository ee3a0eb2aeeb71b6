"""Target tables that were there before, of another shape than the publisher's, beside a stock one.

The same CREATE TABLE on the node and on PostgreSQL 18, the same changes at one publisher: the same
rows, by copy, by stream and by the backlog's COPY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_PUBLISHED = """
CREATE TABLE wide (id int PRIMARY KEY, a smallint, r real, n numeric(8,2), c varchar(10), d date,
  i int, m numeric(6,3), big text);
ALTER TABLE wide ALTER big SET STORAGE EXTERNAL;
CREATE TABLE two (a int, b int, v text, big text, PRIMARY KEY (a, b));
ALTER TABLE two ALTER big SET STORAGE EXTERNAL;
CREATE TABLE full_row (a int, b real, v text);
ALTER TABLE full_row REPLICA IDENTITY FULL;
CREATE TABLE bag (a int, f real);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE wider_bag (a int, big text);
ALTER TABLE wider_bag REPLICA IDENTITY FULL; ALTER TABLE wider_bag ALTER big SET STORAGE EXTERNAL;
INSERT INTO wider_bag SELECT i, repeat('w', 5000) FROM generate_series(1, 6) i;
CREATE TABLE sparks (id int PRIMARY KEY, v varchar(9), r real);
CREATE TABLE narrow (id bigint PRIMARY KEY, a int, t varchar);
INSERT INTO narrow VALUES (1, 32767, 'one'), (-2147483648, -32768, E'\\\\x00ff'), (3, NULL, '');
INSERT INTO sparks SELECT i, 'v', i / 10.0 FROM generate_series(1, 9) i;
INSERT INTO wide SELECT i, i, i / 10.0, i * 1.25, 'c' || i, '2024-02-29', i, i, repeat('x', 5000)
  FROM generate_series(-5, 9) i;
INSERT INTO wide VALUES (100);
INSERT INTO wide VALUES (101, 7, 'NaN', 999999.99, 'é', '0001-01-01', 3, -0.001);
INSERT INTO two SELECT i, i + 50, 'v', repeat('y', 5000) FROM generate_series(1, 9) i;
INSERT INTO full_row SELECT i, i / 10.0, 'f' FROM generate_series(1, 9) i;
INSERT INTO bag VALUES (1, 0.1), (1, 0.1), (2, NULL), (NULL, 3.3);
CREATE PUBLICATION p FOR ALL TABLES
"""
_TARGETS = (
    "CREATE TABLE wide (big text, m numeric, note text DEFAULT 'here', i text, d timestamp,"
    " c text, n numeric(20,4), r double precision, a int, id bigint PRIMARY KEY,"
    " twice bigint GENERATED ALWAYS AS (id * 2) STORED, nothing int)",
    "CREATE TABLE two (extra int DEFAULT 7, v text, b bigint PRIMARY KEY, a bigint, big text)",
    "CREATE TABLE full_row (v text, b double precision, a bigint PRIMARY KEY)",
    "CREATE TABLE bag (f double precision, a bigint)",
    "CREATE TABLE wider_bag (own int, big text, a bigint, twice bigint"
    " GENERATED ALWAYS AS (a * 2) STORED)",
    "CREATE TABLE narrow (t bytea, id int PRIMARY KEY, a smallint)",
)
_OF_SPARK = "CREATE TABLE {} (extra text, r double precision, v text, id bigint {})"
_COLUMNS = {
    "wide": ("id", "a", "r::text", "n", "c", "d", "i", "m", "big", "note", "twice", "nothing"),
    "two": ("a", "b", "v", "big", "extra"),
    "full_row": ("a", "b", "v"),
    "bag": ("a", "f"),
    "sparks": ("id", "v", "r", "extra"),
    "narrow": ("id", "a", "t"),
    "wider_bag": ("a", "own", "big", "twice"),
}
_CHANGES = (
    "UPDATE wide SET c = 'new' WHERE id < 0; UPDATE wide SET id = -id, r = 0.7 WHERE id > 5",
    "INSERT INTO wide VALUES (200, 32767, 3.4e38, 0.01, 'z', '2030-01-01', 5, 1.5, NULL)",
    "BEGIN; DELETE FROM wide WHERE id IN (1, 2, 101); INSERT INTO wide VALUES (1, 1); COMMIT",
    "UPDATE two SET v = 'w' WHERE a < 4; UPDATE two SET b = b + 100 WHERE a = 5",
    "UPDATE two SET a = a + 100 WHERE a = 6; DELETE FROM two WHERE a = 7",
    "UPDATE full_row SET v = 'g', b = 2.2 WHERE a < 4; DELETE FROM full_row WHERE a = 5",
    "UPDATE sparks SET v = 'w', r = 2.3 WHERE id < 3; DELETE FROM sparks WHERE id = 4",
    "UPDATE sparks SET id = 40 WHERE id = 5; INSERT INTO sparks VALUES (50, 'x')",
    "UPDATE wider_bag SET a = a + 10 WHERE a < 3; DELETE FROM wider_bag WHERE a = 3;"
    " UPDATE wider_bag SET a = a + 10 WHERE a = 11;"
    " INSERT INTO wider_bag VALUES (7, 'x'), (7, 'x')",
    "UPDATE narrow SET id = 2147483647, t = E'\\\\\\\\ \\\\101 é' WHERE id = 1;"
    " DELETE FROM narrow WHERE id < 0",
    "DELETE FROM bag WHERE ctid = '(0,1)'; UPDATE bag SET f = 4.4 WHERE a IS NULL",
)


def _rows(node: LocalNode, table: str) -> list[tuple[Any, ...]]:
    columns = [name.removesuffix("::text") for name in _COLUMNS[table]]
    return [tuple(row) for row in node.node.read(table).select(*columns).collect()]


def _equal(node: LocalNode, stock: Database) -> None:
    for table, columns in _COLUMNS.items():
        wanted = stock.rows(f"SELECT {', '.join(columns)} FROM {table}")
        found = _rows(node, table)
        if table == "wide":
            wanted = [(*row[:2], _real(row[2]), *row[3:7], str(row[7]), *row[8:]) for row in wanted]
            found = [(*row[:2], str(row[2]), *row[3:]) for row in found]
            wanted = [tuple(None if v == "None" else v for v in row) for row in wanted]
            found = [tuple(None if v == "None" else v for v in row) for row in found]
        assert sorted(found, key=repr) == sorted(wanted, key=repr), table


def _real(text: str | None) -> str:
    return str(None if text is None else float(text))


@part_of_make_faults
def test_rows_are_those_of_a_stock_subscriber(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database], spark: Any
) -> None:
    publisher, stock, node = database_on(17), database_on(18), local_node()
    publisher.execute(_PUBLISHED)
    for statement in _TARGETS:
        stock.execute(statement)
        node.node.sql(statement)
    stock.execute(_OF_SPARK.format("sparks", "PRIMARY KEY"))
    made = _OF_SPARK.format(f"delta.`{node.warehouse}/public/sparks`", "").replace("text", "string")
    spark.sql(
        f"{made.replace('double precision', 'double')} USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    node.subscribe("s", publisher, "p")
    stock.execute(f"CREATE SUBSCRIPTION shapes CONNECTION '{publisher.conninfo}' PUBLICATION p")
    synced = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
    try:
        node.caught_up("s", publisher)
        wait_until(lambda: stock.value(synced), "the copies", 60)
        _equal(node, stock)
        for change in _CHANGES:
            publisher.execute(change)
        node.caught_up("s", publisher)
        publisher.wait_confirmed("shapes", 60)
        _equal(node, stock)
        assert node.node.verify(subscription="s").equal
        publisher.execute("TRUNCATE wide, bag; INSERT INTO wide VALUES (1, 2, 0.1)")
        node.caught_up("s", publisher)
        publisher.wait_confirmed("shapes", 60)
        _equal(node, stock)
    finally:
        stock.execute("DROP SUBSCRIPTION shapes")


def test_a_value_that_a_narrower_type_cannot_hold(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a bigint, b text); CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.node.sql("CREATE TABLE t (id int PRIMARY KEY, a int, b bytea)")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    for value in (2147483647, 2147483648):
        database.execute(f"INSERT INTO t VALUES ({value - 2147483640}, {value}, 'a')")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    status = node.stopped("s")
    assert status.error == 'value "2147483648" is out of range for type integer'
    assert status.error_detail == 'Table "public.t", column "a".'
    assert [row[0] for row in node.rows("t")] == [7]


@part_of_make_faults
def test_a_primary_key_that_moves_on_both_sides(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    """To another column, to two, and away for a moment: as with a stock subscriber."""
    publisher, stock, node = database_on(17), database_on(18), local_node()
    create = "CREATE TABLE k (a int PRIMARY KEY, b int, c int)"
    publisher.execute(f"{create}; CREATE PUBLICATION p FOR TABLE k (a, b)")
    publisher.execute("INSERT INTO k VALUES (1, 7, 333), (2, 990, 444), (3, 100000, 5)")
    stock.execute(create)
    node.node.sql(create)
    node.subscribe("s", publisher, "p")
    stock.execute(f"CREATE SUBSCRIPTION keys CONNECTION '{publisher.conninfo}' PUBLICATION p")
    node.caught_up("s", publisher)
    try:
        for key in ("b", "b, a", "a"):
            for each in (publisher.execute, stock.execute, node.node.sql):
                each("ALTER TABLE k DROP CONSTRAINT k_pkey")
                each(f"ALTER TABLE k ADD PRIMARY KEY ({key})")
            publisher.execute("UPDATE k SET b = b * 2, c = c * 3")
            publisher.execute("UPDATE k SET a = a + 10 WHERE b % 3 = 0; DELETE FROM k WHERE a = 1")
            publisher.execute("INSERT INTO k SELECT max(a) + 1, max(b) + 1 FROM k")
            node.caught_up("s", publisher)
            publisher.wait_confirmed("keys", 60)
            found = [tuple(row) for row in node.node.read("k").collect()]
            assert sorted(found) == sorted(stock.rows("SELECT a, b, c FROM k")), key
    finally:
        stock.execute("DROP SUBSCRIPTION keys")


@part_of_make_faults
def test_a_table_without_columns(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    """Its rows are counted, and are there when it gets a column."""
    database.execute(
        "CREATE TABLE e (); ALTER TABLE e REPLICA IDENTITY FULL; CREATE TABLE i ();"
        "INSERT INTO e DEFAULT VALUES; INSERT INTO e DEFAULT VALUES; INSERT INTO i DEFAULT VALUES;"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    assert (len(node.rows("e")), len(node.rows("i"))) == (2, 1)
    database.execute(
        "INSERT INTO e DEFAULT VALUES; INSERT INTO e DEFAULT VALUES; INSERT INTO i DEFAULT VALUES"
    )
    database.execute("DELETE FROM e WHERE ctid = '(0,2)'")
    node.caught_up("s", database)
    assert (len(node.rows("e")), len(node.rows("i"))) == (3, 2)
    database.execute("ALTER TABLE e ADD x int; ALTER TABLE i ADD x int; INSERT INTO i VALUES (5)")
    database.execute("UPDATE e SET x = 7 WHERE ctid = '(0,1)'; INSERT INTO e VALUES (8)")
    node.caught_up("s", database)
    for table, wanted in (("e", ["7", "8", "None", "None"]), ("i", ["5", "None", "None"])):
        pin = node.cut().tables["public", table]
        found = spark.sql(f"SELECT x FROM delta.`{pin.uri}` VERSION AS OF {pin.version}").collect()
        assert sorted(str(x) for (x,) in found) == wanted
    assert node.node.verify(subscription="s").equal
    database.execute("TRUNCATE e; INSERT INTO e VALUES (1)")
    node.caught_up("s", database)
    assert len(node.rows("e")) == 1
