"""Databases that hold state, as they are opened: their settings, and what their errors say."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import QueuePool

from fix_postgres import Database
from fix_proxy import Proxy
from penstock.catalog import Catalog
from penstock.catalog.store import map_errors, open_engine, parse_url, transaction
from penstock.errors import StorageError
from penstock.lsn import Lsn
from penstock.wait_event import WaitEventType, longest_wait


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


def in_time(work: Callable[[], object]) -> BaseException:
    """The error of what must fail within seconds."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(15)
    assert not thread.is_alive(), "it still waits"
    assert raised, "no error"
    return raised[0]


@pytest.mark.parametrize("inside", [False, True], ids=["begin", "inside a transaction"])
def test_a_server_that_takes_queries_and_never_answers_is_given_up(
    database: Database, make_proxy: Callable[[int], Proxy], inside: bool
) -> None:
    proxy = make_proxy(database.server.port)
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database.name}?tcp_user_timeout=1000"
    engine = open_engine(parse_url(url), durable=True)
    assert set(silences(engine)) == {1.0}

    def ask() -> None:
        with transaction(engine, write=True) as connection:
            if inside:
                connection.execute(text("SELECT 1"))
                proxy.stall()
            connection.execute(text("SELECT 1"))

    with transaction(engine, write=False) as connection:
        connection.execute(text("SELECT 1"))  # it stays in the pool
    if not inside:
        proxy.stall()
    began = time.monotonic()
    error = in_time(ask)
    assert time.monotonic() - began < 5
    assert isinstance(error, StorageError)
    assert error.message == (
        "could not use the node's state store: the server has not answered for 1 s"
    )
    assert longest_wait(WaitEventType.STATE_STORE) is None
    proxy.resume()
    with transaction(engine, write=True) as connection:
        assert connection.execute(text("SELECT 7")).scalar_one() == 7
    engine.dispose()


def silences(engine: Engine) -> Iterator[float | None]:
    """The seconds for which its connections wait for an answer."""
    with engine.connect() as connection:
        yield getattr(connection.connection.driver_connection, "silence_s", None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", 20.0), ("?tcp_user_timeout=0", None), ("?tcp_user_timeout=7000", 7.0)],
)
def test_the_time_for_an_answer(database: Database, query: str, expected: float | None) -> None:
    engine = open_engine(parse_url(url_of(database, query)), durable=True)
    assert list(silences(engine)) == [expected]
    engine.dispose()


def test_a_server_that_waits_for_a_lock_says_so(database: Database) -> None:
    database.execute("CREATE TABLE held (v int)")
    engine = open_engine(parse_url(url_of(database, "?tcp_user_timeout=2000")), durable=True)

    def wait() -> None:
        with transaction(engine, write=True) as connection:
            connection.execute(text("SELECT FROM held"))

    with database.connect(autocommit=False) as holder:
        holder.execute("LOCK held")
        error = in_time(wait)
    engine.dispose()
    assert isinstance(error, StorageError)
    assert (error.sqlstate, error.hint) == (
        "55P03",
        "Another process keeps it locked; end that process.",
    )


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
