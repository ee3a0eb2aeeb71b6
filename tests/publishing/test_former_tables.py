"""Tables are altered while their subscriber lags: it has then what the subscriber of a server has,
which gets changes as the tables were when they were made.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_BEFORE = (
    "CREATE SCHEMA was",
    "CREATE SCHEMA is_now",
    "CREATE TABLE was.moved (id int PRIMARY KEY, a text)",
    "CREATE TABLE no_key (id int PRIMARY KEY, a text)",
    "CREATE TABLE new_key (id int PRIMARY KEY, a text)",
    "CREATE TABLE no_index (id int NOT NULL, a text)",
    "CREATE UNIQUE INDEX no_index_id ON no_index (id)",
    "ALTER TABLE no_index REPLICA IDENTITY USING INDEX no_index_id",
    "CREATE TABLE other_index (id int NOT NULL, a text NOT NULL)",
    "CREATE UNIQUE INDEX other_index_id ON other_index (id)",
    "CREATE UNIQUE INDEX other_index_a ON other_index (a)",
    "ALTER TABLE other_index REPLICA IDENTITY USING INDEX other_index_id",
)
_TABLES = ("was.moved", "no_key", "new_key", "no_index", "other_index")
_CHANGES = ("UPDATE {t} SET a = 'x' WHERE id = 1", "DELETE FROM {t} WHERE id = 2")
_AFTER = (
    "ALTER TABLE was.moved SET SCHEMA is_now",
    "INSERT INTO is_now.moved VALUES (3, 'three')",
    "ALTER TABLE no_key DROP COLUMN id",
    "INSERT INTO no_key VALUES ('three')",
    "ALTER TABLE new_key ADD COLUMN k int DEFAULT 5 NOT NULL",
    "CREATE UNIQUE INDEX new_key_k ON new_key (k)",
    "ALTER TABLE new_key REPLICA IDENTITY USING INDEX new_key_k",
    "INSERT INTO new_key VALUES (3, 'three', 3)",
    "DROP INDEX no_index_id",
    "INSERT INTO no_index VALUES (3, 'three')",
    "ALTER TABLE other_index REPLICA IDENTITY USING INDEX other_index_a",
    "INSERT INTO other_index VALUES (3, 'three')",
)
_TARGETS = (
    "CREATE SCHEMA was",
    "CREATE SCHEMA is_now",
    "CREATE TABLE was.moved (id int PRIMARY KEY, a text)",
    "CREATE TABLE is_now.moved (id int PRIMARY KEY, a text)",
    "CREATE TABLE no_key (id int PRIMARY KEY DEFAULT 7, a text)",
    "CREATE TABLE new_key (id int PRIMARY KEY, a text, k int)",
    "CREATE TABLE no_index (id int PRIMARY KEY, a text)",
    "CREATE TABLE other_index (id int PRIMARY KEY, a text)",
)


def test_changes_are_sent_as_the_tables_were(
    lake: LakeNode,
    subscriber: Callable[..., Database],
    database_on: Callable[..., Database],
) -> None:
    publisher, ours, theirs = database_on(16), subscriber(18), subscriber(18)
    for statement in _TARGETS:
        ours.execute(statement)
        theirs.execute(statement)
    rows = ", ".join(f"({number}, '{number}')" for number in (1, 2))
    begin = [*_BEFORE, *(f"INSERT INTO {table} VALUES {rows}" for table in _TABLES)]
    begin.append(f"CREATE PUBLICATION former FOR TABLE {', '.join(_TABLES)}")
    for statement in begin:
        publisher.execute(statement)
        lake.execute(statement)
    lake.subscribe(ours, "former", "former")
    theirs.execute(
        f"CREATE SUBSCRIPTION former CONNECTION '{publisher.conninfo}' PUBLICATION former"
    )
    lake.copied(theirs, "former")
    ours.execute("ALTER SUBSCRIPTION former DISABLE")
    for statement in (*(c.format(t=table) for table in _TABLES for c in _CHANGES), *_AFTER):
        publisher.execute(statement)
        lake.execute(statement)
    ours.execute("ALTER SUBSCRIPTION former ENABLE")
    end = publisher.value("SELECT pg_current_wal_flush_lsn()::text")
    passed = (
        "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    )
    wait_until(lambda: bool(publisher.value(passed, (end, "former"))), "the server's subscriber")
    lake.caught_up("former")
    for table in (*_TABLES, "is_now.moved"):
        query = f"SELECT * FROM {table} ORDER BY id"
        assert (table, ours.rows(query)) == (table, theirs.rows(query))
