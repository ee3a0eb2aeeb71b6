"""Connecting, failing to connect, and failing later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tls
from fix_proxy import Proxy
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import AuthenticationFailure, ConnectionFailure, PublisherError
from penstock.identifiers import quote_literal
from penstock.walreceiver.connection import Connection, literal_list
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.snapshot_holder import SnapshotHolder
from penstock.walreceiver.table_locks import TableLocks

SECRET = "s3cr3t"


def connect(conninfo: str, **options: Any) -> Connection:
    return Connection.connect(ConnInfo.parse(conninfo), "test", **options)


@pytest.mark.parametrize("replication", [True, False])
def test_session_settings(database: Any, replication: bool) -> None:
    database.execute(
        f"ALTER DATABASE {database.name} SET datestyle = 'German';"
        f"ALTER DATABASE {database.name} SET timezone = 'Asia/Kathmandu';"
        f"ALTER DATABASE {database.name} SET extra_float_digits = 0;"
        f"ALTER DATABASE {database.name} SET search_path = 'somewhere'"
    )
    with connect(database.conninfo, replication=replication) as connection:
        rows = connection.query(
            "SELECT current_setting('datestyle'), current_setting('intervalstyle'),"
            " current_setting('extra_float_digits'), current_setting('timezone'),"
            " current_setting('client_encoding'), current_setting('search_path'),"
            " current_setting('application_name'), NULL, ''"
        )
        assert rows == [("ISO, MDY", "postgres", "3", "UTC", "UTF8", "", "test", None, "")]
        assert connection.server_version >= 180000


def test_errors_keep_the_servers_fields_and_the_session(database: Any) -> None:
    with connect(database.conninfo) as connection:
        with pytest.raises(PublisherError) as caught:
            connection.query("SELECT nonsense", prefix="could not: ")
        assert caught.value.sqlstate == "42703"
        assert caught.value.message == 'could not: column "nonsense" does not exist'
        with pytest.raises(PublisherError) as raised:
            connection.query(
                "DO $$ BEGIN RAISE 'm' USING DETAIL = 'd', HINT = 'h', ERRCODE = 'P0999'; END $$"
            )
        assert (raised.value.message, raised.value.hint) == ("m", "h")
        assert (raised.value.detail or "").startswith("d")
        assert connection.query("SELECT 1") == [("1",)]
        assert connection.query("SELECT 1; SELECT 2") == [("2",)]


def test_a_statement_timeout_ends_the_wait(database: Any) -> None:
    with connect(database.conninfo) as connection:
        started = time.monotonic()
        with pytest.raises(ConnectionFailure) as caught:
            connection.query("SELECT pg_sleep(60)", timeout_s=0.2)
        assert time.monotonic() - started < 10
        assert caught.value.sqlstate == "57014"
        assert not connection.is_open


def test_cancel_from_another_thread(database: Any) -> None:
    with connect(database.conninfo, replication=False) as connection:
        watcher = database.connect()

        def cancel_when_running() -> None:
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
            )
            while watcher.execute(waiting, (connection.backend_pid,)).fetchone() != (1,):
                pass
            connection.cancel()

        thread = threading.Thread(target=cancel_when_running)
        thread.start()
        with pytest.raises(PublisherError, match="canceling statement due to user request"):
            connection.query("SELECT pg_sleep(60)")
        thread.join()
        assert connection.query("SELECT 1") == [("1",)]


def test_cancel_of_a_server_in_this_process(
    database: Any, make_proxy: Callable[[int], Proxy]
) -> None:
    """It can answer only while the interpreter is not held; it may never do so."""
    proxy = make_proxy(database.server.port)
    with connect(proxy.conninfo(database.conninfo), replication=False) as connection:

        def cancel_when_running() -> None:
            while not database.value(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            ):
                pass
            connection.cancel()

        thread = threading.Thread(target=cancel_when_running)
        thread.start()
        with pytest.raises(PublisherError, match="canceling statement due to user request"):
            connection.query("SELECT pg_sleep(60)")
        thread.join()
        proxy.stall()
        connection.cancel()
        proxy.resume()
        assert connection.query("SELECT 1") == [("1",)]


def test_terminated_session(database: Any) -> None:
    with connect(database.conninfo) as connection:
        database.rows("SELECT pg_terminate_backend(%s, 10000)", (connection.backend_pid,))
        with pytest.raises(ConnectionFailure) as caught:
            connection.query("SELECT 1")
        assert not isinstance(caught.value, AuthenticationFailure)


def test_repr_hides_the_password(database: Any) -> None:
    with connect(f"{database.conninfo} password={SECRET}") as connection:
        assert SECRET not in repr(connection)
        assert "open" in repr(connection)


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(
        18,
        settings={"max_wal_senders": 1, "max_connections": 10, "superuser_reserved_connections": 1},
        hba=[
            "host all rejected all reject",
            "host all wanted all scram-sha-256",
        ],
    ) as server:
        server.psql(
            f"CREATE ROLE wanted LOGIN REPLICATION PASSWORD '{SECRET}';"
            "CREATE ROLE ordinary LOGIN; CREATE ROLE nologin; CREATE ROLE rejected LOGIN"
        )
        yield server


def _once_there_is_a_walsender(conninfo: str) -> Connection:
    """The server has one, which ends a moment after its last client."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return connect(conninfo)
        except ConnectionFailure as error:
            if "max_wal_senders" not in error.message or time.monotonic() > deadline:
                raise


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("addition", "text", "sqlstate", "hint"),
    [
        ("user=wanted password=WRONG", "password authentication failed", "28P01", "password"),
        ("user=wanted", "no password supplied", "28P01", "password"),
        ("user=nobody_here", 'role "nobody_here" does not exist', "28000", "CREATE ROLE"),
        ("user=nologin", "is not permitted to log in", "28000", "LOGIN"),
        ("user=rejected", "pg_hba.conf rejects", "28000", "pg_hba.conf"),
        ("dbname=nodb", 'database "nodb" does not exist', "3D000", "connection string"),
        ("user=ordinary", "permission denied to start WAL sender", "42501", "REPLICATION"),
    ],
)
def test_who_is_refused(
    guarded: EmbeddedPostgres, addition: str, text: str, sqlstate: str, hint: str
) -> None:
    with pytest.raises(AuthenticationFailure) as caught:
        _once_there_is_a_walsender(f"{guarded.conninfo()} {addition}")
    assert caught.value.message.startswith("could not connect to the publisher: connection to ")
    assert text in caught.value.message
    assert caught.value.sqlstate == sqlstate
    assert hint in (caught.value.hint or "")
    assert "WRONG" not in caught.value.report()


@pytest.mark.postgres
def test_tls_that_a_server_does_not_have(guarded: EmbeddedPostgres) -> None:
    with pytest.raises(ConnectionFailure) as caught:
        connect(f"{guarded.conninfo()} sslmode=require")
    assert "ssl = on" in (caught.value.hint or "")
    assert not isinstance(caught.value, AuthenticationFailure)


@pytest.mark.postgres
def test_certificates_that_do_not_fit(tmp_path: Path) -> None:
    with EmbeddedPostgres(17) as server, EmbeddedPostgres(17) as other:
        for each in (server, other):
            tls.switch_on(each)
        for root, mode, hint in (
            (None, "verify-ca", "Put the certificate"),
            (other, "verify-ca", "Another authority"),
            (server, "verify-full", "Name the host"),
        ):
            copied = tmp_path / "root.crt"
            if root is not None:
                copied.write_bytes((root.data_dir / "server.crt").read_bytes())
            with pytest.raises(ConnectionFailure) as caught:
                connect(f"{server.conninfo()} sslmode={mode} sslrootcert={copied}")
            assert hint in (caught.value.hint or ""), caught.value.message


@pytest.mark.postgres
def test_right_password(guarded: EmbeddedPostgres) -> None:
    conninfo = f"{guarded.conninfo()} user=wanted password={SECRET}"
    with _once_there_is_a_walsender(conninfo) as connection:
        assert connection.query("SELECT 1") == [("1",)]


@pytest.mark.postgres
def test_all_walsenders_in_use(guarded: EmbeddedPostgres) -> None:
    # A walsender of another test may be on its way out.
    senders = "SELECT FROM pg_stat_activity WHERE backend_type = 'walsender'"
    with psycopg.connect(guarded.conninfo(), autocommit=True) as session:
        while session.execute(senders).rowcount:
            pass
    with (
        _once_there_is_a_walsender(guarded.conninfo()),
        pytest.raises(ConnectionFailure) as caught,
    ):
        connect(guarded.conninfo())
    assert caught.value.sqlstate == "53300"
    assert "max_wal_senders" in (caught.value.hint or "")
    assert not isinstance(caught.value, AuthenticationFailure)


def test_nobody_listens(make_proxy: Callable[[int], Any]) -> None:
    proxy = make_proxy(1)
    port = proxy.port
    proxy.close()
    with pytest.raises(ConnectionFailure) as caught:
        connect(f"host=127.0.0.1 port={port} user=u dbname=d")
    assert caught.value.sqlstate == "08006"
    assert "running" in (caught.value.hint or "")


def test_a_deaf_host_times_out(database: Any, make_proxy: Callable[[int], Any]) -> None:
    proxy = make_proxy(database.server.port)
    proxy.stall()
    with pytest.raises(ConnectionFailure) as caught:
        connect(f"{proxy.conninfo(database.conninfo)} connect_timeout=2")
    assert "timeout expired" in caught.value.message
    proxy.resume()
    with connect(proxy.conninfo(database.conninfo)) as connection:
        proxy.cut()
        with pytest.raises(ConnectionFailure):
            connection.query("SELECT 1")


def test_an_interrupt_waits_for_no_deaf_host(
    database: Any, make_proxy: Callable[[int], Any]
) -> None:
    """Neither while it is connected to, nor while it is asked; what it answers later is closed."""
    proxy = make_proxy(database.server.port)
    conninfo = f"{proxy.conninfo(database.conninfo)} connect_timeout=30"
    interrupted = threading.Event()

    def interrupt() -> None:
        if interrupted.is_set():
            raise InterruptedError

    def takes(call: Callable[[], object]) -> float:
        threading.Timer(0.3, interrupted.set).start()
        began = time.monotonic()
        with pytest.raises(InterruptedError):
            call()
        interrupted.clear()
        return time.monotonic() - began

    with connect(conninfo, interrupt=interrupt) as connection:
        assert connection.query("SELECT 1") == [("1",)]
        proxy.stall()
        assert takes(lambda: connect(conninfo, interrupt=interrupt)) < 3
        parsed = ConnInfo.parse(conninfo)
        assert takes(lambda: TableLocks(parsed, "locks", interrupt)) < 3
        assert takes(lambda: SnapshotHolder(parsed, "slot").open(interrupt)) < 3
        assert takes(lambda: connection.query("SELECT 1")) < 3
        assert not connection.is_open
    proxy.resume()
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database.name}'"
    wait_until(lambda: database.value(asked) == 1, "the end of the late sessions")


def test_quoting() -> None:
    assert quote_literal("it's") == "'it''s'"
    assert quote_literal("a\\b'") == "E'a\\\\b'''"
    assert literal_list(["a", "b'"]) == "'a', 'b'''"
