"""A subscription that was away fetches what it missed, or streams it where it must."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.walreceiver import backlog as backlog_module
from penstock.walreceiver import stream
from penstock.walreceiver.connection import Connection

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_FETCHED = "fetching the backlog by "
_BY_QUERY = "fetching the backlog by query"
_BY_COPY = "fetching the backlog by COPY"
_STREAMED = "streaming it instead"


@pytest.fixture
def as_if_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that only libpq can read."""
    monkeypatch.setattr(Connection, "is_encrypted", lambda self: True)


@pytest.fixture(params=["socket", "libpq"])
def read_by(request: pytest.FixtureRequest) -> str:
    """Who reads the sessions of the backlog."""
    if request.param == "libpq":
        request.getfixturevalue("as_if_encrypted")
    return str(request.param)


def miss_something(node: LocalNode, database: Database) -> None:
    """Small and large transactions of every kind while the subscription is disabled."""
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, n integer, v text);"
        "INSERT INTO t SELECT i, 0, repeat('a', 50) FROM generate_series(1, 5000) i;"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    for number in range(200):
        database.execute("UPDATE t SET n = n + 1 WHERE id %% 199 = %s", (number % 199,))
    database.execute("INSERT INTO t SELECT i, 1, 'b' FROM generate_series(5001, 25000) i")
    database.execute("DELETE FROM t WHERE id % 7 = 0; UPDATE t SET id = -id WHERE id % 11 = 0")


def catch_up(node: LocalNode, database: Database) -> None:
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    # And behind it the stream goes on from where the backlog ended.
    database.execute("UPDATE t SET v = 'behind' WHERE id % 100 = 1")
    node.caught_up("s", database)
    with database.connect() as connection:
        expected = publisher_rows(connection, "public.t")
    member = node.cut().tables["public", "t"]
    found = delta_rows(member.uri, member.version)
    assert not difference("t", expected, found)


def test_what_was_missed_is_fetched(
    read_by: str,
    local_node: Callable[..., LocalNode],
    database: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    node = local_node(
        backlog_copy_threshold="64kB", logical_decoding_work_mem="1MB", apply_queue_mem="2MB"
    )
    miss_something(node, database)
    catch_up(node, database)
    assert (_BY_QUERY in caplog.text) is (read_by == "libpq")
    assert (_BY_COPY in caplog.text) is (read_by == "socket")
    assert _STREAMED not in caplog.text


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "_FIRST_WAL", 64 << 10)
    for module in (backlog_module, stream):
        monkeypatch.setattr(module, "SMALLEST_WAL", 64 << 10)
    monkeypatch.setattr(backlog_module, "_GROWTH", 1)
    monkeypatch.setattr(backlog_module, "_REST_BYTES", 1)


@pytest.mark.usefixtures("small_windows")
def test_windows_of_two_sessions_are_applied_in_order(
    read_by: str,
    local_node: Callable[..., LocalNode],
    database: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "penstock.walreceiver")
    node = local_node(backlog_copy_threshold="64kB", apply_batch_idle=0)
    miss_something(node, database)
    catch_up(node, database)
    way = _BY_COPY if read_by == "socket" else _BY_QUERY
    assert f"{way}, 2 at once" in caplog.text
    assert caplog.text.count("window ") > 10
    assert _STREAMED not in caplog.text


@pytest.mark.usefixtures("small_windows", "read_by")
def test_sessions_that_are_lost_lose_nothing(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """Either of the two, whatever it is at: the backlog begins again at the last cut."""
    node = local_node(backlog_copy_threshold=0, wal_retrieve_retry_interval="10ms")
    miss_something(node, database)
    stop = threading.Event()
    writer = threading.Thread(target=write_until, args=(database, stop))
    writer.start()  # so that there is always something to fetch
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    lost = (
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
        " WHERE temporary AND active AND database = current_database()"
        " ORDER BY random() LIMIT 1"
    )
    try:
        for _ in range(6):
            wait_until(lambda: database.rows(lost), "a session of the backlog", 30)
    finally:
        stop.set()
        writer.join()
    catch_up(node, database)


def write_until(database: Database, stop: threading.Event) -> None:
    with database.connect() as connection:
        number = 100_000
        while not stop.is_set():
            number += 1
            connection.execute("INSERT INTO t VALUES (%s, 1, 'c')", (number,))
            connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", (number % 5000,))


@pytest.mark.usefixtures("as_if_encrypted")
def test_long_rows_begin_it_again_by_copy(
    local_node: Callable[..., LocalNode],
    database: Database,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the midst of it, with what came before them in the inbox or applied."""
    caplog.set_level(logging.INFO, "penstock")
    monkeypatch.setattr(backlog_module, "_MESSAGES", 300)
    monkeypatch.setattr(backlog_module, "_REST_BYTES", 1)
    node = local_node(backlog_copy_threshold="64kB")
    miss_something(node, database)
    database.execute("INSERT INTO t VALUES (30000, 1, repeat('long', 300000))")
    database.execute("UPDATE t SET n = n + 1 WHERE id % 5 = 0")
    catch_up(node, database)
    assert _BY_QUERY in caplog.text
    assert _BY_COPY in caplog.text
    assert _STREAMED not in caplog.text


def test_without_a_spare_slot_it_is_streamed(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    with EmbeddedPostgres(18, settings={"max_replication_slots": 2}) as server:
        database = database_on(server)
        node = local_node(backlog_copy_threshold="64kB")
        miss_something(node, database)
        database.execute("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
        catch_up(node, database)
        node.node.sql("DROP SUBSCRIPTION s")
    assert "all replication slots are in use" in caplog.text
    assert _STREAMED in caplog.text


def test_never_fetched_when_told_so(
    local_node: Callable[..., LocalNode], database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    node = local_node(backlog_copy_threshold=-1)
    miss_something(node, database)
    catch_up(node, database)
    assert _FETCHED not in caplog.text


def test_a_table_joins_while_everything_is_fetched(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = local_node(backlog_copy_threshold=0)  # even the head of the stream
    miss_something(node, database)
    catch_up(node, database)
    database.execute(
        "CREATE TABLE late (id integer PRIMARY KEY);"
        "INSERT INTO late SELECT generate_series(1, 1000);"
        "ALTER PUBLICATION p ADD TABLE late"
    )
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    node.caught_up("s", database)
    database.execute("DELETE FROM late WHERE id > 10; INSERT INTO late VALUES (0)")
    node.caught_up("s", database)
    member = node.cut().tables["public", "late"]
    assert sorted(delta_rows(member.uri, member.version)) == [(i,) for i in range(11)]
