"""Transactions that a publisher streams before they have committed, on stock servers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import HEAVY, in_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = """
CREATE TABLE a (id integer PRIMARY KEY, v text, n integer);
CREATE TABLE b (id integer PRIMARY KEY, v text, n integer);
ALTER TABLE b REPLICA IDENTITY FULL;
INSERT INTO a SELECT i, repeat('a', 500), 0 FROM generate_series(1, 600) i;
INSERT INTO b SELECT i, repeat('b', 500), 0 FROM generate_series(1, 600) i;
CREATE PUBLICATION p FOR TABLE a, b
"""
_TXNS = (
    "SELECT coalesce(sum(stream_txns), 0) FROM pg_stat_replication_slots"
    " JOIN pg_replication_slots USING (slot_name) WHERE database = current_database()"
)
_CONFIRMED = (
    "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = 's'"
    " AND database = current_database()"
)


def streams(database: Database) -> None:
    """Let the server stream what is small, too."""
    settings = {"logical_decoding_work_mem": "64kB"}
    if database.server.version >= 16:
        settings["debug_logical_replication_streaming"] = "immediate"
    for name, value in settings.items():
        database.execute(f"ALTER DATABASE {database.name} SET {name} = '{value}'")
    database.execute(_TABLES)


def spooled(node: LocalNode) -> list[Path]:
    return list(node.folder.rglob("*.frames"))


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for table in tables or ("a", "b"):
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


class Writer:
    """An open transaction of a story. Each writes rows of its own, so that none waits."""

    def __init__(self, connection: psycopg.Connection[Any], number: int, seed: int) -> None:
        self.connection = connection
        self.number = number
        self.rng = random.Random(f"{seed}/{number}")
        self.savepoints: list[str] = []

    def step(self) -> None:
        kind = self.rng.choices(
            ["insert", "update", "delete", "savepoint", "rollback to", "release", "commit",
             "rollback"],
            [20, 30, 10, 12, 8, 5, 10, 5],
        )[0]  # fmt: skip
        table, rng = self.rng.choice("ab"), self.rng
        mine = f"id % 3 = {self.number} AND random() < 0.2"
        match kind:
            case "insert":
                self.connection.execute(
                    f"INSERT INTO {table} SELECT i, repeat('x', 300), 1"
                    f" FROM generate_series(1, 3000) i WHERE i % 3 = {self.number}"
                    f" AND random() < 0.05 ON CONFLICT DO NOTHING"
                )
            case "update":
                self.connection.execute(
                    f"UPDATE {table} SET n = n + 1, v = repeat('{rng.randint(0, 9)}', 400)"
                    f" WHERE {mine}"
                )
            case "delete":
                self.connection.execute(f"DELETE FROM {table} WHERE {mine}")
            case "savepoint":
                self.savepoints.append(f"s{rng.randint(1, 10**6)}")
                self.connection.execute(f"SAVEPOINT {self.savepoints[-1]}")
            case "rollback to" | "release" if self.savepoints:
                at = rng.randrange(len(self.savepoints))
                name = self.savepoints[at]
                self.savepoints = self.savepoints[:at]
                self.connection.execute(f"{kind} savepoint {name}")
            case "commit" | "rollback":
                self.savepoints = []
                self.connection.execute(kind)


@pytest.mark.parametrize(
    ("version", "seed"),
    [
        in_make_faults(14, 14),
        (18, 18),
        *(in_make_faults(version, version) for version in (15, 16)),
        *(in_make_faults(18, seed) for seed in range(1, 7)),
    ],
)
def test_a_story_of_interleaved_transactions(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    version: int,
    seed: int,
) -> None:
    database = database_on(version)
    streams(database)
    # a piece is so small that transactions go to disk and come back in parts
    node = local_node(logical_decoding_work_mem="64kB")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    writers = [Writer(database.connect(autocommit=False), i, seed) for i in range(3)]
    rng = random.Random(seed)
    for number in range(240 if HEAVY else 100):
        rng.choice(writers).step()
        if number == 50:
            node.node.sql("ALTER SUBSCRIPTION s DISABLE")
            node.no_worker()
            node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    for writer in writers:
        writer.connection.commit()
    node.caught_up("s", database)
    assert_equal(node, database)
    assert database.value(_TXNS) > 5
    assert not spooled(node)


def test_an_open_transaction_holds_up_nothing_and_leaves_nothing(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    streams(database)
    node = local_node(logical_decoding_work_mem="64kB")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    with database.connect(autocommit=False) as connection:
        connection.execute("UPDATE a SET v = repeat('z', 1000)")
        wait_until(lambda: bool(spooled(node)), "a part of the transaction on disk")
        database.execute("UPDATE b SET n = 7")
        node.caught_up("s", database)  # a cut beyond what is open
        assert_equal(node, database)
        target = database.value("SELECT pg_current_wal_flush_lsn() - '0/0'")
        wait_until(lambda: database.value(_CONFIRMED) >= target, "the acknowledgement")
        connection.rollback()
    wait_until(lambda: not spooled(node), "the end of its files")
    database.execute("UPDATE a SET n = 8 WHERE id = 1")
    node.caught_up("s", database)
    assert_equal(node, database)


def test_a_definition_that_changes_in_an_open_transaction(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """Others go on with the old one until it has committed, and with it if it never does."""
    streams(database)
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    for end in ("ROLLBACK", "COMMIT"):
        with database.connect(autocommit=False) as connection:
            connection.execute("UPDATE a SET n = 1 WHERE id <= 10")
            connection.execute("SAVEPOINT s")
            connection.execute("ALTER TABLE a ADD COLUMN gone integer")
            connection.execute("UPDATE a SET gone = 6 WHERE id <= 20")
            connection.execute("ROLLBACK TO s")
            connection.execute("ALTER TABLE a ADD COLUMN more integer")
            connection.execute("UPDATE a SET n = 2, more = 3 WHERE id <= 30")
            database.execute("UPDATE b SET n = n + 1 WHERE id <= 40")
            node.caught_up("s", database)
            connection.execute(end)
        database.execute("UPDATE a SET n = 4 WHERE id BETWEEN 25 AND 50")
        node.caught_up("s", database)
        assert_equal(node, database)


@pytest.mark.parametrize(
    ("options", "streamed", "stored"),
    [("", True, "p"), ("streaming = on", True, "t"), ("streaming = off", False, "f")],
)
def test_the_option(
    local_node: Callable[..., LocalNode],
    database: Database,
    options: str,
    streamed: bool,
    stored: str,
) -> None:
    streams(database)
    node = local_node()
    node.subscribe("s", database, "p", options)
    node.caught_up("s", database)
    assert node.node.sql("SELECT substream FROM pg_subscription").rows == ((stored,),)
    database.execute("UPDATE a SET n = 1")
    node.caught_up("s", database)
    assert (database.value(_TXNS) > 0) is streamed
    streaming = "off" if streamed else "parallel"
    workers = "SELECT pid FROM pg_stat_subscription WHERE pid IS NOT NULL"
    former = node.node.sql(workers).rows
    node.node.sql(f"ALTER SUBSCRIPTION s SET (streaming = {streaming})")
    wait_until(lambda: node.node.sql(workers).rows not in ((), former), "another worker")
    before = database.value(_TXNS)
    database.execute("UPDATE a SET n = 2")
    node.caught_up("s", database)
    assert (database.value(_TXNS) > before) is not streamed
    assert_equal(node, database)
