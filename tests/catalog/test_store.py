"""Databases that hold state, as they are opened: their settings, and what their errors say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import QueuePool

from fix_postgres import Database
from penstock.catalog import Catalog
from penstock.catalog.store import map_errors, open_engine, parse_url, transaction
from penstock.errors import StorageError
from penstock.lsn import Lsn


def url_of(database: Database, query: str = "") -> str:
    return f"postgresql://postgres@127.0.0.1:{database.server.port}/{database.name}{query}"


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    opened = open_engine(parse_url(url_of(database)), durable=True)
    yield opened
    opened.dispose()


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", (20_000, 10, 5, 2)), ("?tcp_user_timeout=7000&keepalives_idle=77", (7000, 77, 5, 2))],
)
def test_a_server_that_is_gone_without_a_word_is_given_up(
    database: Database, query: str, expected: tuple[int, ...]
) -> None:
    options = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    engine = open_engine(parse_url(url_of(database, query)), durable=True)
    with engine.connect() as connection:
        used = connection.connection.driver_connection
        assert used is not None
        with socket.fromfd(used.fileno(), socket.AF_INET, socket.SOCK_STREAM) as sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            found = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, o)) for o in options]
    engine.dispose()
    assert tuple(found) == expected


def test_settings_of_the_server_do_not_count(database: Database) -> None:
    """Writers wait for each other, whatever isolation the database is set to."""
    for setting in (
        "default_transaction_isolation = serializable",
        "default_transaction_read_only = on",
    ):
        database.execute(f'ALTER DATABASE "{database.name}" SET {setting}')
    rounds = 10

    def write() -> None:
        for _ in range(rounds):
            with catalog.write() as t:
                t.transactions.append([], commit_time=0, size=1)

    with Catalog.create(url_of(database)) as catalog:
        before = catalog.generation()
        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert catalog.generation() == before + len(threads) * rounds
        with catalog.read() as t:
            assert t.transactions.count_after(Lsn(0)) == len(threads) * rounds


@pytest.mark.parametrize(
    ("code", "message", "sqlstate", "hint"),
    [
        ("53100", "could not extend file", "53100", "on the server"),
        ("57014", "not a full row, locked", "58030", "can be reached"),
        ("55P03", "canceling statement", "55P03", "end that process"),
    ],
)
def test_errors_of_a_server(
    engine: Engine, code: str, message: str, sqlstate: str, hint: str
) -> None:
    raised = f"DO $$ BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = '{code}'; END $$"
    with (
        pytest.raises(StorageError, match=message) as error,
        transaction(engine, write=True) as connection,
    ):
        connection.exec_driver_sql(raised)
    assert error.value.sqlstate == sqlstate
    assert hint in (error.value.hint or "")
    assert "folder" not in (error.value.hint or "")


def test_a_full_disk_under_sqlite(tmp_path: Path) -> None:
    engine = open_engine(parse_url(f"sqlite:///{tmp_path / 'state.db'}"), durable=True)
    with transaction(engine, write=True) as connection:
        connection.execute(text("CREATE TABLE t (v text)"))
        connection.exec_driver_sql("PRAGMA max_page_count = 10")
    with (
        pytest.raises(StorageError, match="full") as error,
        transaction(engine, write=True) as connection,
    ):
        connection.execute(text("INSERT INTO t VALUES (:v)"), {"v": "x" * 100_000})
    engine.dispose()
    assert error.value.sqlstate == "53100"
    assert "Free disk space" in (error.value.hint or "")


def test_connections_that_are_all_in_use(tmp_path: Path) -> None:
    """The launcher says so and goes on."""
    engine = create_engine(
        f"sqlite:///{tmp_path / 'state.db'}",
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.01,
    )
    with engine.connect(), pytest.raises(StorageError, match="connections"), map_errors():
        engine.connect()
    engine.dispose()
