"""The workload itself: it keeps its invariants on PostgreSQL, and the invariants see damage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from faults.bank import TABLES, Bank
from faults.invariants import Digest, as_digest, digest_sql, violations
from fix_postgres import Database


@contextlib.contextmanager
def one_moment(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with contextlib.closing(database.connect(autocommit=False)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # Before the snapshot is taken, since TRUNCATE is not MVCC-safe.
        connection.execute("LOCK TABLE scratch, scratch_more IN ACCESS SHARE MODE")
        yield connection


def digests(connection: psycopg.Connection[Any], tables: tuple[str, ...]) -> dict[str, Digest]:
    found = {}
    for table in tables:
        cursor = connection.execute(digest_sql(table))
        names = [column.name for column in cursor.description or ()]
        found[table] = as_digest(table, names, cursor.fetchall())
    return found


def test_the_invariants_hold_at_every_moment_of_the_publisher(database: Database) -> None:
    bank = Bank(lambda: psycopg.connect(database.conninfo), seed=1, rate=1000)
    bank.create()
    tables = (*TABLES, bank.add_late_table(rows=30_000))
    bank.start()
    looks, deadline = 0, time.monotonic() + 20
    try:
        while (bank.committed < 300 or looks < 10) and time.monotonic() < deadline:
            with one_moment(database) as connection:
                assert violations(digests(connection, tables)) == []
            looks += 1
    finally:
        bank.stop()
    assert bank.committed >= 300
    assert database.value("SELECT count(*) FROM checking WHERE length(note) > 6000") > 0
    assert database.value("SELECT count(*) FROM scratch") < 500


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM checking WHERE id = (SELECT min(id) FROM checking WHERE balance = 0)",
        "UPDATE savings SET balance = balance + 1 WHERE iban = (SELECT min(iban) FROM savings)",
        "INSERT INTO transfers VALUES (1, 'a', 'b', 1)",
        "UPDATE checking SET note = NULL WHERE id = 3",
        "INSERT INTO journal VALUES ('fee', 0)",
        "UPDATE totals SET value = value + 1 WHERE name = 'scratch'",
        "UPDATE late_0 SET balance = balance + 1 WHERE id = 1",
    ],
)
def test_one_lost_or_doubled_change_is_seen(database: Database, damage: str) -> None:
    bank = Bank(lambda: psycopg.connect(database.conninfo), seed=1)
    bank.create()
    tables = (*TABLES, bank.add_late_table(rows=10))
    database.execute("UPDATE checking SET balance = balance - 1000 WHERE id = 1")
    database.execute("UPDATE checking SET balance = balance + 1000 WHERE id = 2")
    with one_moment(database) as connection:
        assert violations(digests(connection, tables)) == []
    database.execute(damage)
    with one_moment(database) as connection:
        assert len(violations(digests(connection, tables))) == 1
