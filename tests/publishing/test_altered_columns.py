"""Columns are dropped and added on a publisher: what its subscriber has then, and what one that has
lagged behind has, is what the subscriber of a server has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.executor import rows as executor_rows
from penstock.executor.modify import ModifyByFiles
from penstock.pipeline.routed_writer import RoutedWriter
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLE = "CREATE TABLE {t} (id int PRIMARY KEY, a text, b int)"
_TARGET = "CREATE TABLE {t} (id int PRIMARY KEY, a text, b int DEFAULT -1, c int DEFAULT -2)"
_STEPS = (
    "INSERT INTO {t} VALUES (2, 'two', 20)",
    "ALTER TABLE {t} DROP COLUMN b",
    "UPDATE {t} SET a = 'without b' WHERE id = 1",
    "INSERT INTO {t} VALUES (3, 'three'), (4, 'four')",
    "ALTER TABLE {t} ADD COLUMN b int",
    "UPDATE {t} SET a = 'with b again' WHERE id = 2",
    "ALTER TABLE {t} ADD COLUMN c int DEFAULT 7",
    "INSERT INTO {t} VALUES (5, 'five', 50)",
    "UPDATE {t} SET a = 'with c' WHERE id = 3",
    "DELETE FROM {t} WHERE id = 4",
    "ALTER TABLE {t} DROP COLUMN b, ADD COLUMN b int DEFAULT 9",
    "UPDATE {t} SET a = 'last' WHERE id = 1",
)


@pytest.mark.parametrize("identity", [in_make_faults("DEFAULT"), "FULL"])
@pytest.mark.parametrize("lags", [False, True], ids=["follows", "lags"])
def test_a_subscriber_has_what_that_of_a_server_has(
    lake: LakeNode,
    subscriber: Callable[..., Database],
    database_on: Callable[..., Database],
    identity: str,
    lags: bool,
) -> None:
    name = f"altered_{identity.lower()}_{'lags' if lags else 'follows'}"
    publisher, ours, theirs = database_on(16), subscriber(18), subscriber(18)
    begin = (
        _TABLE,
        f"ALTER TABLE {{t}} REPLICA IDENTITY {identity}",
        "INSERT INTO {t} VALUES (1, 'one', 10)",
        f"CREATE PUBLICATION {name} FOR TABLE {{t}}",
    )
    for target in (ours, theirs):
        target.execute(_TARGET.format(t=name))
    for statement in begin:
        publisher.execute(statement.format(t=name))
        lake.execute(statement.format(t=name))
    lake.subscribe(ours, name, name)
    theirs.execute(
        f"CREATE SUBSCRIPTION {name} CONNECTION '{publisher.conninfo}' PUBLICATION {name}"
    )
    lake.copied(theirs, name)
    if lags:
        ours.execute(f"ALTER SUBSCRIPTION {name} DISABLE")
    for statement in _STEPS:
        publisher.execute(statement.format(t=name))
        lake.execute(statement.format(t=name))
    if lags:
        ours.execute(f"ALTER SUBSCRIPTION {name} ENABLE")
    end = publisher.value("SELECT pg_current_wal_flush_lsn()::text")
    passed = (
        "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    )
    wait_until(lambda: bool(publisher.value(passed, (end, name))), "the server's subscriber")
    lake.caught_up(name)
    rows = f"SELECT id, a, b, c FROM {name} ORDER BY id"
    assert ours.rows(rows) == theirs.rows(rows)
    assert lake.rows(rows) == publisher.rows(rows)


def test_a_copy_has_the_rows_as_they_are_now(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    lake.execute(
        "CREATE TABLE filled (id int PRIMARY KEY, a text)",
        "INSERT INTO filled SELECT i, 'x' FROM generate_series(1, 50) i",
        "DELETE FROM filled WHERE id % 10 = 0",
        "ALTER TABLE filled ADD COLUMN b bool DEFAULT false NOT NULL, DROP COLUMN a",
        "INSERT INTO filled VALUES (60, true)",
        "CREATE PUBLICATION filled FOR TABLE filled",
    )
    database = subscriber(17)
    database.execute("CREATE TABLE filled (id int PRIMARY KEY, b bool)")
    lake.subscribe(database, "filled", "filled")
    rows = "SELECT id, b FROM filled"
    assert Counter(database.rows(rows)) == Counter(lake.rows(rows))
    assert Counter(b for _, b in database.rows(rows)) == {False: 45, True: 1}


@pytest.mark.parametrize("with_spark", [False, True], ids=["files", "Spark"])
def test_rows_that_were_made_without_a_column_are_made_again(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch, with_spark: bool
) -> None:
    """Where a server lets ALTER TABLE wait, the statement is to be run again."""
    name = "made_by_spark" if with_spark else "made_by_files"
    lake.execute(f"CREATE TABLE {name} (id int)")
    write: Any = executor_rows._write if with_spark else RoutedWriter.add

    def late(*arguments: Any) -> Any:
        written = write(*arguments)
        with lake.connect() as other:
            other.execute(f"ALTER TABLE {name} ADD COLUMN b int DEFAULT 7")
        return written

    with monkeypatch.context() as patched:
        if with_spark:
            patched.setattr(ModifyByFiles, "insert_alone", lambda *_: None)
            patched.setattr(executor_rows, "_write", late)
        else:
            patched.setattr(RoutedWriter, "add", late)
        with pytest.raises(psycopg.errors.SerializationFailure):
            lake.execute(f"INSERT INTO {name} VALUES (1)")
    assert lake.rows(f"SELECT * FROM {name}") == []
    lake.execute(f"INSERT INTO {name} VALUES (1)")
    assert lake.rows(f"SELECT * FROM {name}") == [(1, 7)]
