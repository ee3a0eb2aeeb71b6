"""What UPDATE tells subscribers, on a node and on a stock publisher: the same changes of rows.

Both have the same tables and statements, and a stock subscriber each, whose triggers write down
what is applied. Where an UPDATE gives a key to a row that another row of it had, a node sends what
can be applied in any case, and only the rows are the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from pipeline.published import vacuum
from publishing.heard import heard, listen
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = (
    "CREATE TABLE keyed (id int PRIMARY KEY, v int, w text)",
    "CREATE TABLE two (id int, b text, v int, PRIMARY KEY (id, b))",
    "CREATE TABLE full_keyed (id int PRIMARY KEY, v int)",
    "CREATE TABLE keyless (id int, v int)",
    "CREATE TABLE filtered (id int PRIMARY KEY, v int)",
    "CREATE TABLE listed (id int PRIMARY KEY, v int, w text)",
)
_FULL = (
    "ALTER TABLE full_keyed REPLICA IDENTITY FULL",
    "ALTER TABLE keyless REPLICA IDENTITY FULL",
)
_ROWS = (
    "INSERT INTO keyed SELECT n, n % 7, 'w' FROM generate_series(1, 40) AS g(n)",
    "INSERT INTO two SELECT n / 2, CASE WHEN n % 2 = 0 THEN 'x' ELSE 'y' END, n"
    " FROM generate_series(1, 40) AS g(n)",
    "INSERT INTO full_keyed SELECT n, NULL FROM generate_series(1, 40) AS g(n)",
    "INSERT INTO keyless SELECT n % 10, n % 3 FROM generate_series(1, 40) AS g(n)",
    "INSERT INTO keyless VALUES (NULL, NULL), (NULL, NULL), (5, NULL)",
    "INSERT INTO filtered SELECT n, n FROM generate_series(1, 40) AS g(n)",
    "INSERT INTO listed SELECT n, n, 'private' FROM generate_series(1, 40) AS g(n)",
)
_NAMES = ("keyed", "two", "full_keyed", "keyless", "filtered", "listed")
_PUBLICATION = (
    "CREATE PUBLICATION updates FOR TABLE keyed, two, full_keyed, keyless,"
    " filtered WHERE (id < 50), listed (id, v)"
)


@dataclass
class Publishers:
    """A node and a stock publisher with the same tables, and a stock subscriber of each."""

    lake: LakeNode
    stock: Database
    of_lake: Database
    of_stock: Database

    def both(self, *statements: str) -> None:
        self.lake.execute(*statements)
        for statement in statements:
            self.stock.execute(statement)

    def subscribe(self, name: str, tables: Sequence[str], heard_of: Sequence[str]) -> None:
        for target in (self.of_lake, self.of_stock):
            for table in tables:
                target.execute(table)
        self.lake.subscribe(self.of_lake, name, name, "disable_on_error = true")
        conninfo = self.stock.conninfo.replace("'", "''")
        self.of_stock.execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {name}"
        )
        self.lake.copied(self.of_stock, name)
        for target in (self.of_lake, self.of_stock):
            listen(target, *heard_of)

    def caught_up(self, name: str) -> None:
        self.lake.caught_up(name)
        at = self.stock.value("SELECT pg_current_wal_lsn()")
        wait_until(
            lambda: self.stock.value(
                "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s",
                (at, name),
            ),
            "the stock subscriber",
        )

    def compare(self, name: str, tables: Sequence[str]) -> None:
        self.caught_up(name)
        for table in tables:
            query = f"SELECT t::text FROM {table} t ORDER BY 1"
            assert self.of_lake.rows(query) == self.of_stock.rows(query), table
        assert heard(self.of_lake) == heard(self.of_stock)


@pytest.fixture
def publishers(lake: LakeNode, subscriber: Callable[..., Database]) -> Iterator[Publishers]:
    of_lake, of_stock, stock = subscriber(16), subscriber(16), subscriber(18)
    yield Publishers(lake, stock, of_lake, of_stock)


def _statements(rng: random.Random) -> Iterator[str]:
    for name in rng.sample(_NAMES, len(_NAMES)) * 3:
        where = rng.choice(
            ["id % 3 = 1", "v % 2 = 0", "id < 20", "id IN (1, 2, 3, 30)", "v IS NULL"]
        )
        value = rng.choice(["id + 40", "-id", "id + 1000", "45 - id", "id * 1000", "abs(id) - 7"])
        also = rng.choice(["", ", v = coalesce(v, 0) + 1"])
        what = "v = id + coalesce(v, 1)" if rng.random() < 0.2 else f"id = {value}{also}"
        yield f"UPDATE {name} SET {what} WHERE {where}"


def _goes_round(statement: str, stock: Database) -> bool:
    """Whether a key goes from one row to another, or is there already; tried and undone."""
    if "keyless" in statement:
        return False
    with stock.connect(autocommit=False) as session:
        try:
            found = session.execute(f"{statement} RETURNING old.id, new.id").fetchall()
        except psycopg.errors.UniqueViolation:
            return True
        finally:
            session.rollback()
    changed = [(old, new) for old, new in found if old != new]
    return bool({old for old, _ in changed} & {new for _, new in changed})


def test_the_same_changes_as_of_a_stock_publisher(publishers: Publishers) -> None:
    publishers.both(*_TABLES, *_FULL, *_ROWS, _PUBLICATION)
    targets = [table.replace(", w text", "") if "listed" in table else table for table in _TABLES]
    publishers.subscribe("updates", [*targets, *_FULL], _NAMES)
    done = 0
    for statement in _statements(random.Random(5)):
        if not _goes_round(statement, publishers.stock):
            publishers.both(statement)
            done += 1
    assert done > 10
    publishers.compare("updates", _NAMES)
    assert any(
        operation == "UPDATE" for told in heard(publishers.of_lake) for _, operation, *_ in told
    )


def test_keys_that_go_from_row_to_row(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    """A stock publisher fails here itself, or its subscriber does: so does the node where it is a
    primary key, which that of the identity is not."""
    lake.execute(
        "CREATE TABLE round (id int, v text)",
        "ALTER TABLE round REPLICA IDENTITY USING KEY (id)",
        "INSERT INTO round SELECT n, n::text FROM generate_series(1, 20) AS g(n)",
        "CREATE PUBLICATION round FOR TABLE round",
    )
    target = subscriber()
    target.execute("CREATE TABLE round (id int PRIMARY KEY, v text)")
    lake.subscribe(target, "round", "round", "disable_on_error = true")
    lake.execute(
        "UPDATE round SET id = id + 1",
        "UPDATE round SET id = 21 - id WHERE id < 21",
        "UPDATE round SET id = id + 10 WHERE id % 2 = 0",
    )
    lake.caught_up("round")
    rows = sorted(lake.rows("SELECT id, v FROM round"))
    assert sorted(target.rows("SELECT id, v FROM round")) == rows


@part_of_make_faults
def test_a_slot_that_lags(lake: LakeNode, subscriber: Callable[..., Database], spark: Any) -> None:
    """The files have been compacted, changed again and vacuumed as their retention says, and the
    node was started again."""
    lake.execute(
        "CREATE TABLE lags (id int PRIMARY KEY, v text)",
        "INSERT INTO lags VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "CREATE PUBLICATION lags FOR TABLE lags",
    )
    target = subscriber()
    target.execute("CREATE TABLE lags (id int PRIMARY KEY, v text, own text DEFAULT 'mine')")
    lake.subscribe(target, "lags", "lags")
    listen(target, "lags")
    target.execute("UPDATE lags SET own = 'kept'")
    target.execute("ALTER SUBSCRIPTION lags DISABLE")
    wait_until(
        lambda: (
            not lake.rows("SELECT 1 FROM pg_replication_slots WHERE active AND slot_name = 'lags'")
        ),
        "the end of the stream",
    )
    lake.execute("UPDATE lags SET id = id + 10 WHERE id < 3", "INSERT INTO lags VALUES (5, 'e')")
    uri = _uri(lake, "lags")
    spark.sql(f"OPTIMIZE delta.`{uri}`").collect()
    lake.execute("UPDATE lags SET id = 100, v = 'x' WHERE id = 11", "DELETE FROM lags WHERE id = 3")
    vacuum(spark, uri, hours=48)
    folder = Path(uri) / "_change_data"
    assert len(list(folder.glob("*.parquet"))) >= 2
    lake.connection.close()
    lake.node.stop()
    lake.node.start()
    lake.connection = lake.connect()
    target.execute("ALTER SUBSCRIPTION lags ENABLE")
    lake.caught_up("lags")
    assert sorted(target.rows("SELECT * FROM lags")) == [
        (5, "e", "mine"), (12, "b", "kept"), (100, "x", "kept"),
    ]  # fmt: skip
    vacuum(spark, uri)
    assert not list(folder.glob("*.parquet")), "as old as the data files that went"


def test_others_see_nothing_of_it(lake: LakeNode, spark: Any) -> None:
    """No file beside the table where no key changes; the schema and the protocol stay."""
    lake.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, v int)",
        "INSERT INTO plain VALUES (1, 1), (2, 2)",
        "UPDATE plain SET v = v + 1",
        "UPDATE plain SET id = id WHERE id = 1",
    )
    uri = _uri(lake, "plain")
    assert not list((Path(uri) / "_change_data").glob("*.parquet"))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{uri}`").collect()
    assert [row.userMetadata for row in history if row.operation == "UPDATE"] == [None, None]


@part_of_make_faults
def test_tables_without_deletion_vectors(lake: LakeNode, spark: Any) -> None:
    """Delta rewrites the files with rows that are meant, not those that a task has read next."""
    lake.execute(
        "CREATE TABLE without (id int, v text)",
        *(f"INSERT INTO without VALUES ({n}, 'v{n}')" for n in range(8)),
    )
    spark.sql(
        f"ALTER TABLE delta.`{_uri(lake, 'without')}` "
        "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
    )
    with lake.connect() as session:
        assert session.execute("UPDATE without SET id = 10 WHERE v = 'v3'").rowcount == 1
        assert session.execute("UPDATE without SET id = 20 WHERE v > 'v5'").rowcount == 2
        assert session.execute("DELETE FROM without WHERE v IN ('v1', 'v4')").rowcount == 2
    assert sorted(lake.rows("SELECT v, id FROM without")) == [
        ("v0", 0), ("v2", 2), ("v3", 10), ("v5", 5), ("v6", 20), ("v7", 20),
    ]  # fmt: skip


def _uri(lake: LakeNode, table: str) -> str:
    return f"{lake.node.folder}/warehouse/public/{table}"


# Rows that move between partitions

_TREE = (
    "CREATE TABLE {0} (a int, b text, v int, PRIMARY KEY (a, b)) PARTITION BY RANGE (a)",
    "CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE {0}_2 PARTITION OF {0} FOR VALUES FROM (10) TO (20) PARTITION BY LIST (b)",
    "CREATE TABLE {0}_2_x PARTITION OF {0}_2 FOR VALUES IN ('x')",
    "CREATE TABLE {0}_2_y PARTITION OF {0}_2 DEFAULT",
    "CREATE TABLE {0}_d PARTITION OF {0} DEFAULT",
    "INSERT INTO {0} SELECT n, CASE WHEN n % 2 = 0 THEN 'x' ELSE 'y' END, n"
    " FROM generate_series(1, 25) AS g(n) WHERE n < 10 OR n > 19",
)
_MOVES = (
    "UPDATE {0} SET a = a + 10 WHERE a IN (3, 4)",
    "UPDATE {0} SET a = 100 + a, v = v + 1 WHERE v < 3 OR v > 23",
    "UPDATE {0}_2 SET b = 'x', v = 0 WHERE a = 13",
    "UPDATE {0} SET b = 'new' || b WHERE v > 20",
    "UPDATE {0} SET a = a % 10 + 30, b = b || a::text",
    "UPDATE {0} SET v = v + 1, a = a - 25",
)


@part_of_make_faults
@pytest.mark.parametrize("via_root", [False, True])
def test_rows_that_move_between_partitions(publishers: Publishers, via_root: bool) -> None:
    name = "as_root" if via_root else "as_leaves"
    publishers.both(
        *(text.format(name) for text in _TREE),
        f"CREATE PUBLICATION {name} FOR TABLE {name}"
        f" WITH (publish_via_partition_root = {via_root})",
    )
    leaves = [f"{name}{leaf}" for leaf in ("_1", "_2_x", "_2_y", "_d")]
    tables = [name] if via_root else leaves
    columns = "(a int, b text, v int, PRIMARY KEY (a, b))"
    publishers.subscribe(name, [f"CREATE TABLE {table} {columns}" for table in tables], tables)
    publishers.both(*(text.format(name) for text in _MOVES))
    for leaf in leaves:
        query = f"SELECT a, b, v FROM {leaf} ORDER BY 1, 2"
        assert publishers.lake.rows(query) == publishers.stock.rows(query)
    publishers.compare(name, tables)
