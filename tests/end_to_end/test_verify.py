"""Tables against their publisher's at one LSN: equal ones are equal, what was damaged is named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.node.verify import VerifiedTable, VerifyOptions, VerifyProgress
from pgtypes.server_values import ARRAYS, OTHERS, SCALARS, TYPES_OF_OTHERS

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

LocalNodes = Callable[..., LocalNode]


def subscribed(node: LocalNode, database: Database, *, options: str = "") -> None:
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    node.subscribe("s", database, "p", options)
    node.caught_up("s", database)


def verified(node: LocalNode, table: str, **options: Any) -> VerifiedTable:
    """One table, which is compared."""
    found = node.node.verify([table], options=VerifyOptions(**options))
    (one,) = found.tables
    assert one.reason is None, one
    return one


def summary(table: VerifiedTable) -> list[tuple[Any, ...]]:
    """Kind, key, columns and count of the differences that are named."""
    assert table.difference is not None
    return [
        (each.kind, *(text for _, text in each.key), *each.columns, each.count)
        for each in table.difference.examples
    ]


def kinds(table: VerifiedTable) -> dict[str, int]:
    assert table.difference is not None
    assert table.difference.whole
    return table.difference.kinds


def damage(node: LocalNode, spark: Any, table: str, statement: str) -> None:
    """A statement of Spark's on the Delta table beside the node; ``{}`` is the table."""
    uri = node.cut().tables["public", table].uri
    spark.sql(statement.replace("{}", f"delta.`{uri}`"))


def test_tables_of_all_types_are_equal_copied_and_streamed(
    local_node: LocalNodes, database: Database
) -> None:
    database.execute(TYPES_OF_OTHERS)
    quoted = {
        name: [f"$q${value}$q$::{name}" for value in values]
        for name, values in {**SCALARS, **OTHERS}.items()
    }
    columns = {f"c{n}": each for n, each in enumerate({**quoted, **ARRAYS}.items())}
    count = max(len(values) for _, values in columns.values()) + 1
    selected = ", ".join(
        f"(ARRAY[{', '.join(f'({v})::text' for v in [*values, 'NULL'])}])"
        f"[1 + i % {len(values) + 1}]::{name}"
        for name, values in columns.values()
    )
    definition = ", ".join(f"{column} {name}" for column, (name, _) in columns.items())
    database.execute(
        f"CREATE TABLE keyed (id integer PRIMARY KEY, {definition});"
        f"CREATE TABLE whole (id integer, {definition}); ALTER TABLE whole REPLICA IDENTITY FULL;"
    )
    rows = f"SELECT i, {selected} FROM generate_series"
    for table in ("keyed", "whole"):
        database.execute(f"INSERT INTO {table} {rows}(1, {count}) i")
    node = local_node()
    subscribed(node, database)
    for table in ("keyed", "whole"):
        database.execute(f"INSERT INTO {table} {rows}(1000, {1000 + count}) i")
    database.execute("UPDATE keyed SET id = id + 5000 WHERE id BETWEEN 5 AND 1001")
    found = node.node.verify()
    assert found.equal, found
    told = {t.name: t.difference.node_rows for t in found.tables if t.difference is not None}
    assert told == {"public.keyed": 2 * count + 1, "public.whole": 2 * count + 1}


@part_of_make_faults
def test_large_tables_are_compared_by_spark(
    local_node: LocalNodes,
    database_on: Callable[..., Database],
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.pipeline.compare_tables.HERE_BYTES", 0)
    database = database_on(17)
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, b text);"
        "INSERT INTO t SELECT i, repeat('x', 40) FROM generate_series(1, 20000) i"
    )
    node = local_node(copy_unit_size="128kB")
    subscribed(node, database)
    seen: list[VerifyProgress] = []
    assert verified(node, "t", progress=seen.append).equal
    damage(node, spark, "t", "DELETE FROM {} WHERE a IN (10000, 20000)")
    assert summary(verified(node, "t")) == [("missing", "10000", 1), ("missing", "20000", 1)]
    done = [each.rows.bytes for each in seen if each.rows is not None]
    assert done == sorted(done)
    assert len(set(done)) > 2


def test_what_was_damaged_is_named(local_node: LocalNodes, database: Database, spark: Any) -> None:
    database.execute(
        "CREATE TABLE t (a integer, b text, v numeric(10, 2), w double precision, x text[],"
        " PRIMARY KEY (a, b));"
        "INSERT INTO t SELECT i, 'b' || i, i, 0, ARRAY['x', NULL] FROM generate_series(1, 5000) i"
    )
    node = local_node()
    subscribed(node, database)
    assert verified(node, "t").equal
    damage(node, spark, "t", "DELETE FROM {} WHERE a IN (7, 4000)")
    other, minus_zero = "IF(a = 1234, {}, {})", "IF(a = 77, -0D, w)"
    damage(
        node,
        spark,
        "t",
        f"UPDATE {{}} SET v = {other.format('v + 0.01', 'v')}, w = {minus_zero},"
        f" x = IF(a = 1234, array('x'), x) WHERE a IN (77, 1234)",
    )
    damage(
        node,
        spark,
        "t",
        "INSERT INTO {} SELECT IF(a = 5, a + 10000, a), b, v, w, x FROM {} WHERE a IN (5, 6)",
    )
    found = verified(node, "public.t")
    assert summary(found) == [
        ("different", "77", "b77", "w", 1),
        ("different", "1234", "b1234", "v", "x", 1),
        ("doubled", "6", "b6", 1),
        ("extra", "10005", "b5", 1),
        ("missing", "7", "b7", 1),
        ("missing", "4000", "b4000", 1),
    ]
    assert kinds(found) == {"different": 2, "doubled": 1, "extra": 1, "missing": 2}
    assert found.difference is not None
    assert (found.difference.publisher_rows, found.difference.node_rows) == (5000, 5000)
    few = verified(node, "t", examples=1)
    assert len(summary(few)) == 4
    assert kinds(few) == kinds(found)


def test_null_an_empty_list_and_a_list_of_null_differ(
    local_node: LocalNodes, database_on: Callable[..., Database], spark: Any
) -> None:
    database = database_on(16)
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, x integer[], y text);"
        "INSERT INTO t VALUES (1, '{}', ''), (2, NULL, NULL), (3, '{NULL}', ''), (4, '{1}', '')"
    )
    node = local_node()
    subscribed(node, database)
    assert verified(node, "t").equal
    empty, null = "CAST(array() AS array<int>)", "CAST(NULL AS array<int>)"
    lists = f"CASE a WHEN 1 THEN {null} WHEN 4 THEN array(1, CAST(NULL AS int)) ELSE {empty} END"
    damage(node, spark, "t", f"UPDATE {{}} SET x = {lists}, y = CASE WHEN y IS NULL THEN '' END")
    assert summary(verified(node, "t")) == [
        ("different", str(key), "x", "y", 1) for key in (1, 2, 3, 4)
    ]


def test_rows_of_a_table_without_key_are_counted(
    local_node: LocalNodes, database_on: Callable[..., Database], spark: Any
) -> None:
    database = database_on(14)
    database.execute(
        "CREATE TABLE t (a integer, b text); ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t SELECT i % 3, 'x' FROM generate_series(1, 300) i;"
        "INSERT INTO t VALUES (NULL, NULL)"
    )
    node = local_node()
    subscribed(node, database)
    database.execute("INSERT INTO t SELECT i % 3, 'x' FROM generate_series(1, 300) i")
    assert verified(node, "t").equal
    damage(node, spark, "t", "DELETE FROM {} WHERE a = 0")
    damage(node, spark, "t", "INSERT INTO {} VALUES (1, 'x'), (1, 'x'), (7, 'y'), (7, 'y')")
    found = verified(node, "t")
    assert summary(found) == [
        ("doubled", "1", "x", 2),
        ("extra", "7", "y", 2),
        ("missing", "0", "x", 200),
    ]
    assert kinds(found) == {"doubled": 2, "extra": 2, "missing": 200}


def test_more_than_can_be_told_is_told_in_part(
    local_node: LocalNodes, database: Database, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.compare_tables._TOLD_ROWS", 50)
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY);INSERT INTO t SELECT generate_series(1, 20000)"
    )
    node = local_node()
    subscribed(node, database)
    damage(node, spark, "t", "DELETE FROM {}")
    found = verified(node, "t", examples=3).difference
    assert found is not None
    assert not found.whole
    assert len(found.examples) == 3
    assert 3 < found.kinds["missing"] <= 50
    assert (found.publisher_rows, found.node_rows) == (20000, 0)


@part_of_make_faults
@pytest.mark.parametrize("version", [in_make_faults(15), 18])
def test_columns_rows_and_partitions_are_those_of_the_publication(
    local_node: LocalNodes, database_on: Callable[..., Database], spark: Any, version: int
) -> None:
    database = database_on(version)
    database.execute(
        "CREATE TABLE filtered (a integer PRIMARY KEY, b text, secret text);"
        "CREATE TABLE parts (a integer PRIMARY KEY, b text) PARTITION BY RANGE (a);"
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (1000);"
        "CREATE TABLE leaf_wise (LIKE parts INCLUDING ALL) PARTITION BY RANGE (a);"
        "CREATE TABLE leaf PARTITION OF leaf_wise FOR VALUES FROM (0) TO (1000);"
        "CREATE TABLE made (a integer PRIMARY KEY, g integer GENERATED ALWAYS AS (a * 2) STORED);"
        "INSERT INTO filtered SELECT i, 'b' || i, 's' FROM generate_series(1, 500) i;"
        "INSERT INTO parts SELECT i, 'b' FROM generate_series(1, 500) i;"
        "INSERT INTO leaf_wise SELECT i, 'b' FROM generate_series(1, 500) i;"
        "INSERT INTO made SELECT generate_series(1, 500);"
        "CREATE PUBLICATION p FOR TABLE filtered (a, b) WHERE (a % 3 <> 0), TABLE leaf_wise, made;"
        "CREATE PUBLICATION r FOR TABLE parts WITH (publish_via_partition_root)"
    )
    node = local_node()
    node.subscribe("s", database, "p, r")
    node.caught_up("s", database)
    database.execute(
        "UPDATE filtered SET a = a + 1000 WHERE a < 100;"
        "INSERT INTO parts SELECT i, 'b' FROM generate_series(501, 600) i;"
        "UPDATE leaf_wise SET b = 'c' WHERE a < 50; DELETE FROM made WHERE a % 7 = 0"
    )
    found = node.node.verify()
    rows = {t.name: t.difference.node_rows for t in found.tables if t.difference is not None}
    assert found.equal, found
    assert rows == {
        "public.filtered": database.value("SELECT count(*) FROM filtered WHERE a % 3 <> 0"),
        "public.leaf": 500,
        "public.made": database.value("SELECT count(*) FROM made"),
        "public.parts": 600,
    }
    damage(node, spark, "filtered", "INSERT INTO {} VALUES (3, 'b3')")
    damage(node, spark, "parts", "DELETE FROM {} WHERE a = 555")
    assert summary(verified(node, "filtered")) == [("extra", "3", 1)]
    assert summary(verified(node, "parts")) == [("missing", "555", 1)]


def test_a_table_that_is_partitioned_on_the_node(
    local_node: LocalNodes, database: Database, spark: Any
) -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, b text);"
        "INSERT INTO t SELECT i, 'b' FROM generate_series(1, 300) i"
    )
    node = local_node()
    node.node.sql(
        "CREATE TABLE t (a integer PRIMARY KEY, b text) PARTITION BY RANGE (a);"
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE rest PARTITION OF t DEFAULT"
    )
    subscribed(node, database)
    database.execute("UPDATE t SET a = a + 1000 WHERE a < 50")
    assert verified(node, "t").equal
    damage(node, spark, "rest", "UPDATE {} SET b = 'c' WHERE a = 200")
    assert summary(verified(node, "t")) == [("different", "200", "b", 1)]


@part_of_make_faults
def test_it_is_one_moment_while_both_sides_are_written(
    local_node: LocalNodes, database: Database
) -> None:
    database.execute(
        "CREATE TABLE accounts (id integer PRIMARY KEY, balance bigint);"
        "CREATE TABLE history (id integer, delta bigint, at timestamptz DEFAULT now());"
        "INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 1000) i"
    )
    node = local_node()
    subscribed(node, database)
    with writers(database, 2):
        for _ in range(4):
            found = node.node.verify()
            assert found.equal, found
    node.caught_up("s", database)


def writers(database: Database, count: int) -> Any:
    return _Writers(database, count)


class _Writers:
    """Transactions as pgbench makes them, with some large ones, until the block is left."""

    def __init__(self, database: Database, count: int) -> None:
        self._database = database
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(count)]
        self.done = [0] * count

    def _write(self, number: int) -> None:
        with self._database.connect(autocommit=True) as connection:
            step = 0
            while not self._stop.is_set():
                step += 1
                large = 500 if step % 50 == 0 else 1
                connection.execute(
                    "WITH changed AS (UPDATE accounts SET balance = balance + %s"
                    " WHERE id %% 1000 < %s AND id %% 2 = %s RETURNING id)"
                    " INSERT INTO history (id, delta) SELECT id, %s FROM changed",
                    (step, large + 1, number, step),
                )
                self.done[number] = step

    def __enter__(self) -> _Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert all(self.done), self.done


def test_columns_that_the_node_does_not_have_yet(
    local_node: LocalNodes, database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 3)"
    )
    node = local_node()
    subscribed(node, database)
    database.execute("ALTER TABLE t ADD COLUMN n integer DEFAULT 5")
    found = verified(node, "t")
    assert (found.equal, found.partial, found.lacking) == (False, True, ("n",))
    assert kinds(found) == {}
    database.execute("INSERT INTO t VALUES (4, 4)")
    found = verified(node, "t")
    assert (found.equal, found.lacking) == (True, ())


def test_names_are_the_publisher_s(local_node: LocalNodes, database: Database, spark: Any) -> None:
    database.execute(
        'CREATE SCHEMA "Sales"; CREATE TABLE "Sales"."Order Items" ("Id, first" integer,'
        ' "id; SECOND" text, "x" integer, "X" integer, PRIMARY KEY ("id; SECOND", "Id, first"));'
        """INSERT INTO "Sales"."Order Items" SELECT i, 'b', i, -i FROM generate_series(1, 50) i"""
    )
    node = local_node()
    subscribed(node, database)
    database.execute('UPDATE "Sales"."Order Items" SET "X" = 0 WHERE "x" = 7')
    name = '"Sales"."Order Items"'
    assert verified(node, name).equal
    uri = node.cut().tables["Sales", "Order Items"].uri
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE x = 9")
    found = verified(node, name)
    assert found.name == "Sales.Order Items"
    assert found.difference is not None
    (missing,) = found.difference.examples
    assert missing.key == (("Id, first", "9"), ("id; SECOND", "b"))
