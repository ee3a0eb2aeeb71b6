"""Hints, each followed to the letter: what they say is what helps."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres
from penstock.node.status import Health, health

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, d date);"
    "INSERT INTO t SELECT i, '2024-02-29' FROM generate_series(1, 100) i;"
    "CREATE PUBLICATION p FOR TABLE t;"
)
_NAME = 'My "s"'
_QUOTED = '"My ""s"""'
_ALTER = f"ALTER SUBSCRIPTION {_QUOTED}"


def assert_equal(node: LocalNode, database: Database, table: str = "t") -> None:
    with database.connect() as connection:
        wanted = publisher_rows(connection, f"public.{table}")
    found = node.rows(table, subscription=_NAME)
    assert not (lack := difference(table, wanted, found)), str(lack)


def following(start: Callable[..., LocalNode], database: Database, conninfo: str = "") -> LocalNode:
    node = start(wal_retrieve_retry_interval="200ms")
    subscribe(node, conninfo or database.conninfo)
    return node


def subscribe(node: LocalNode, conninfo: str) -> None:
    node.node.sql(
        f"CREATE SUBSCRIPTION {_QUOTED} CONNECTION '{conninfo}'"
        " PUBLICATION p WITH (slot_name = 'my_slot')"
    )


@pytest.mark.parametrize(
    "mend",
    [
        "UPDATE t SET d = '2025-01-01' WHERE id = 1",
        "ALTER PUBLICATION p SET TABLE t WHERE (id <> 1)",
    ],
)
def test_infinity_in_the_stream(
    local_node: Callable[..., LocalNode], database: Database, mend: str
) -> None:
    database.execute(_SETUP)
    node = following(local_node, database)
    node.caught_up(_NAME, database)
    database.execute("UPDATE t SET d = 'infinity' WHERE id = 1")
    hint = str(node.stopped(_NAME).error_hint)
    assert hint.startswith("Correct the value at the publisher, or leave it out with a row filter")
    # Corrected there, and started: the WAL still has it.
    database.execute(mend)
    node.node.sql(f"{_ALTER} ENABLE")
    assert str(node.stopped(_NAME).error_hint) == hint
    assert f"Then run {_ALTER} REFRESH PUBLICATION, and then {_ALTER} ENABLE." in hint
    node.node.sql(f"{_ALTER} REFRESH PUBLICATION")
    node.node.sql(f"{_ALTER} ENABLE")
    database.execute("INSERT INTO t VALUES (101, '2025-02-03')")
    node.caught_up(_NAME, database)
    if "WHERE (id <> 1)" in mend:
        database.execute("DELETE FROM t WHERE id = 1")
    assert_equal(node, database)


@pytest.mark.parametrize("version", [in_make_faults(15), 18])
def test_a_lost_slot(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database], version: int
) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "wal_keep_size": "0", "max_wal_size": "32MB"}
    with EmbeddedPostgres(version, settings=settings) as server:
        database = database_on(server)
        database.execute(_SETUP)
        node = following(local_node, database)
        node.caught_up(_NAME, database)
        node.node.sql(f"{_ALTER} DISABLE")
        node.no_worker()
        lose(database)
        node.wait_for(_NAME, "a lost slot", lambda s: s.wal_status == "lost")
        database.execute("UPDATE t SET d = NULL WHERE id = 5")
        node.node.sql(f"{_ALTER} ENABLE")
        status = node.stopped(_NAME)
        assert status.error == f'replication slot "my_slot" of subscription "{_NAME}" is lost'
        assert health([status], running=True) is Health.NEEDS_A_PERSON
        subscribe_again(node, database, str(status.error_hint))
        node.node.sql(f"DROP SUBSCRIPTION {_QUOTED}")


def test_a_slot_that_may_be_lost_soon(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedPostgres(18, settings={"max_slot_wal_keep_size": "80MB"}) as server:
        database = database_on(server)
        database.execute(_SETUP)
        node = following(local_node, database)
        node.caught_up(_NAME, database)
        node.node.sql(f"{_ALTER} DISABLE")
        node.no_worker()
        kept = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots"
        while database.value(kept) < 70 << 20:
            database.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 4000000))")
        said = f'replication slot "my_slot" of subscription "{_NAME}" may be lost soon'
        node.wait_for(_NAME, "a warning", lambda _: said in caplog.text)
        node.node.sql(f"DROP SUBSCRIPTION {_QUOTED}")
        assert caplog.text.count(said) == 1


def test_a_slot_that_was_dropped(local_node: Callable[..., LocalNode], database: Database) -> None:
    database.execute(_SETUP)
    node = following(local_node, database)
    node.caught_up(_NAME, database)
    node.node.sql(f"{_ALTER} DISABLE")
    node.no_worker()
    free = "SELECT active_pid IS NULL FROM pg_replication_slots WHERE slot_name = 'my_slot'"
    node.wait_for(_NAME, "the end of its stream", lambda _: database.value(free))
    database.execute(
        "SELECT pg_drop_replication_slot('my_slot'); UPDATE t SET d = NULL WHERE id = 5"
    )
    node.wait_for(_NAME, "a missing slot", lambda s: s.wal_status == "missing")
    node.node.sql(f"{_ALTER} ENABLE")
    status = node.stopped(_NAME)
    assert status.error == 'replication slot "my_slot" does not exist'
    subscribe_again(node, database, str(status.error_hint))


def lose(database: Database) -> None:
    """Write and checkpoint until the publisher gives the slot up."""
    for _ in range(50):
        database.execute(
            "CREATE TABLE filler (v text);"
            "INSERT INTO filler SELECT repeat('x', 900) FROM generate_series(1, 20000);"
            "DROP TABLE filler"
        )
        database.execute("SELECT pg_switch_wal()")
        database.execute("CHECKPOINT")
        if database.value("SELECT wal_status FROM pg_replication_slots") == "lost":
            return
    raise AssertionError("the slot is not lost")


def subscribe_again(node: LocalNode, database: Database, hint: str) -> None:
    """The hint's steps one by one, in its order."""
    match = re.fullmatch(
        r"To copy its tables again: (?P<disable>.*?); (?P<none>.*?); (?P<drop>DROP .*?); "
        r"on the publisher (?P<slot>SELECT .*?); remove the folders of its tables from the "
        r"warehouse; and then CREATE SUBSCRIPTION as before\.",
        hint,
    )
    assert match is not None, hint
    for step in ("disable", "none", "drop"):
        node.node.sql(match[step])
    database.execute(match["slot"])
    shutil.rmtree(node.warehouse / "public" / "t")
    subscribe(node, database.conninfo)
    database.execute("INSERT INTO t VALUES (102, '2025-02-03')")
    node.caught_up(_NAME, database)
    assert_equal(node, database)


@pytest.fixture
def roles(database: Database) -> Iterator[None]:
    """Others compare the roles of the whole server."""
    database.execute('CREATE ROLE owner; CREATE ROLE "Pen stock" LOGIN REPLICATION')
    yield
    for role in ("owner", '"Pen stock"'):
        database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.mark.usefixtures("roles")
def test_rights_for_this_table_and_for_those_to_come(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE SCHEMA app AUTHORIZATION owner; SET ROLE owner;"
        "CREATE TABLE app.t (id integer PRIMARY KEY); INSERT INTO app.t VALUES (1); RESET ROLE;"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    # As the last value of a name counts.
    node = following(local_node, database, f"{database.conninfo} user=''Pen stock''")
    node.wait_for(_NAME, "an error", lambda s: any(t.error for t in s.tables))
    (table,) = node.status(_NAME).tables
    hint = str(table.error_hint)
    statements = re.findall(r"(GRANT [^;]*;|ALTER DEFAULT [^;]*;)", hint)
    assert len(statements) == 3, hint
    for statement in statements:
        database.execute(statement.replace("<that role>", "owner"))
    node.caught_up(_NAME, database)
    # A table that the owner makes now needs nothing more.
    database.execute(
        "SET ROLE owner; CREATE TABLE app.u (id integer PRIMARY KEY); INSERT INTO app.u VALUES (2)"
    )
    node.node.sql(f"{_ALTER} REFRESH PUBLICATION")
    node.caught_up(_NAME, database)
    assert node.rows("u", schema="app", subscription=_NAME) == [(2,)]
    node.node.sql(f"DROP SUBSCRIPTION {_QUOTED}")
