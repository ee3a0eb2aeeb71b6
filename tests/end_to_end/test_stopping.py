"""Signals to ``penstock start`` and ``penstock run``: SIGTERM, Ctrl-C, both, during a copy."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from end_to_end.compare import delta_rows, difference, publisher_rows
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_object_store import ObjectStore
from fix_postgres import Database
from fix_proxy import Proxy
from penstock import Node
from penstock.embedded import CommandFailed, free_port

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_RUN = ("run", "--until-caught-up")
_ROWS = 30_000
_SLOW = "md5(repeat(note, 1000)) <> ''"
"""A row filter that takes the publisher a quarter of a millisecond."""

_WITHIN: Final = 7.0
_STOPPING = "stopping after the current cut; again: stop at once"


@pytest.fixture
def node(tmp_path: Path, database: Database) -> Iterator[NodeProcess]:
    """A node, and a table whose copy by the publication ``slow`` takes a while."""
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, note text);"
        f"INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, {_ROWS}) i;"
        "CREATE PUBLICATION fast FOR TABLE t;"
        f"CREATE PUBLICATION slow FOR TABLE t WHERE ({_SLOW}) WITH (publish = 'insert')"
    )
    process = NodeProcess(tmp_path / "node")
    process.init({"copy_unit_size": "64kB"})
    yield process
    process.close()


def subscribe(node: NodeProcess, database: Database, publication: str) -> None:
    node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION {publication}")


def status(node: NodeProcess) -> Any:
    with Node(node.folder) as found:
        (subscription,) = found.status()
    return subscription


def wait_for_copy(node: NodeProcess) -> None:
    """Wait until this start is in the middle of it."""
    began = time.time()

    def copying() -> bool:
        now = status(node)
        (table,) = now.tables
        told = (now.updated_at or 0) > began and table.state == "d"
        return told and 0 < table.units_copied < table.units_total

    node.wait_for("the copy", copying, timeout=240)


def ended(node: NodeProcess) -> int:
    """The exit status. It has ended in order: nothing is said of a trace, or of Spark."""
    code = node.wait_end(240)
    assert code is not None, node.log_tail()
    assert "Traceback" not in node.log(), node.log()
    assert "KeyboardInterrupt" not in node.log(), node.log()
    return code


def slots(database: Database) -> list[str]:
    rows = database.rows(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )
    return [name for (name,) in rows]


@part_of_make_faults
def test_a_run_that_is_stopped_says_how_far_it_came(node: NodeProcess, database: Database) -> None:
    subscribe(node, database, "slow")
    for number, group in ((signal.SIGTERM, False), (signal.SIGINT, True)):
        node.start(command=_RUN)
        wait_for_copy(node)
        node.signal(number, group=group)
        assert ended(node) == 128 + number
        lines = node.log().splitlines()
        assert _STOPPING in lines
        assert "caught up" not in lines
        # On a slow machine there are lines of its progress, too.
        (told,) = [line for line in lines if line.startswith("s: not caught up, ")]
        assert told.startswith("s: not caught up, has no cut yet of ")
        assert told.endswith(", without tables: public.t")
        assert slots(database) == ["s"]  # nothing of the copy is left at the publisher
    node.start(command=_RUN)
    assert ended(node) == 0
    assert node.log().splitlines()[-1] == "caught up"
    assert_equal(node, database)


@part_of_make_faults
def test_the_second_signal_ends_it_at_once(node: NodeProcess, database: Database) -> None:
    subscribe(node, database, "slow")
    for first, second in (
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGINT),
    ):
        node.start()
        wait_for_copy(node)
        node.signal(first)
        node.signal(second)
        code = node.wait_end(30)
        # The second may come first: the kernel does not queue them in an order.
        assert code in (128 + first, 128 + second), node.log_tail()
        assert "stopping at once" in node.log()


@part_of_make_faults
def test_ctrl_c_ends_a_stream_after_its_cut(node: NodeProcess, database: Database) -> None:
    subscribe(node, database, "fast")
    node.start()
    node.wait_for("the first cut", lambda: status(node).cut_lsn is not None, timeout=240)
    # A hangup, from a terminal or by another process, ends nothing.
    file = node.folder / "penstock.toml"
    file.write_text("cuts_kept = 45\n" + file.read_text("utf-8"), "utf-8")
    node.signal(signal.SIGHUP)
    changed = 'parameter "cuts_kept" changed to "45"'
    node.wait_for("the reload", lambda: changed in node.log())
    node.sql("SELECT pg_reload_conf()")
    told = "received SIGHUP, reloading configuration files"
    node.wait_for("another one", lambda: node.log().count(told) == 2)
    with database.connect() as connection:
        for i in range(20):
            connection.execute("UPDATE t SET note = %s WHERE id <= 5000", (str(i),))
        node.signal(signal.SIGINT, group=True)
        assert ended(node) == 0
        assert "has stopped" in node.log()
        # What is in the last cut was acknowledged, and nothing else.
        (acknowledged,) = connection.execute(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 's'"
        ).fetchone() or (None,)
    with Node(node.folder) as found:
        cut = found.cut("s")
    assert cut is not None
    assert str(cut.lsn) == str(acknowledged)
    node.start(command=_RUN)
    assert ended(node) == 0
    assert_equal(node, database)


def assert_equal(node: NodeProcess, database: Database) -> None:
    with Node(node.folder) as found:
        cut = found.cut("s")
    assert cut is not None
    pin = cut.tables["public", "t"]
    with database.connect() as connection:
        wanted = publisher_rows(connection, "public.t")
    assert not (lack := difference("t", wanted, delta_rows(pin.uri, pin.version))), str(lack)


@part_of_make_faults
@pytest.mark.parametrize("connects", [False, True], ids=["a look waits", "connecting"])
def test_a_silent_publisher_holds_no_stop_up(
    node: NodeProcess, database: Database, make_proxy: Callable[[int], Proxy], connects: bool
) -> None:
    proxy = make_proxy(database.server.port)
    conninfo = proxy.conninfo(database.conninfo)
    node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION fast")
    node.start()
    node.wait_for("the first cut", lambda: status(node).state == "streaming", timeout=240)
    proxy.stall()
    if connects:
        before = proxy.connections
        proxy.cut()
        node.wait_for("an attempt", lambda: proxy.connections > before + 1)
    else:
        node.wait_for("the silence", lambda: "not been heard" in str(status(node).error))
    node.signal(signal.SIGTERM)
    began = time.monotonic()
    assert ended(node) == 0
    assert time.monotonic() - began < 5


def test_a_run_is_not_caught_up_with_another_publisher(
    node: NodeProcess, database: Database, database_on: Callable[..., Database]
) -> None:
    """Its position is before the last cut."""
    other = database_on(16)
    while database.value("SELECT pg_current_wal_insert_lsn()") < other.value(
        "SELECT pg_current_wal_insert_lsn()"
    ):
        database.execute("SELECT pg_switch_wal(); INSERT INTO t SELECT max(id) + 1 FROM t")
    subscribe(node, database, "fast")
    run = (*_RUN, "-D", str(node.folder))
    assert "caught up" in node.command(*run)
    node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{other.conninfo}'")
    with pytest.raises(CommandFailed, match="another publisher") as failed:
        node.command(*run)
    assert "exit status 1" in str(failed.value)
    node.sql("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)")
    node.sql("DROP SUBSCRIPTION s")
    database.execute("SELECT pg_drop_replication_slot('s')")


# What is outside does not answer: connections stay open, and nothing comes.


@pytest.fixture
def stalls(
    tmp_path: Path, database: Database, make_proxy: Callable[[int], Proxy]
) -> Iterator[tuple[NodeProcess, Proxy]]:
    """A node with its state in a PostgreSQL, and the proxy before that."""
    proxy = make_proxy(database.server.port)
    node = NodeProcess(tmp_path / "node")
    node.init({"state": f"postgresql://postgres@127.0.0.1:{proxy.port}/{database.name}"})
    yield node, proxy
    proxy.resume()
    node.close()


@pytest.fixture
def in_s3(
    tmp_path: Path,
    s3: ObjectStore,
    make_proxy: Callable[[int], Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[NodeProcess, Proxy]]:
    """A node with a port and its warehouse in S3, and the proxy before that."""
    bucket = s3.bucket()
    proxy = make_proxy(urlsplit(s3.endpoint).port or 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    node = NodeProcess(tmp_path / "node", warehouse_uri=f"s3://{bucket}/lake")
    node.init({"port": free_port()})
    yield node, proxy
    proxy.resume()
    node.close()


def ends_in_time(node: NodeProcess, *, starts: bool = False) -> None:
    """SIGTERM ends it within five seconds, and what a busy machine adds. ``starts``: an error may
    end the start before."""
    node.signal(signal.SIGTERM)
    began = time.monotonic()
    code = node.wait_end(40)
    assert time.monotonic() - began < _WITHIN, node.log_tail()
    if not starts or code != 1:
        assert code == 0, node.log_tail()
        assert "without answer" in node.log()


@part_of_make_faults
def test_a_silent_state_store_holds_no_stop_up(
    stalls: tuple[NodeProcess, Proxy], database: Database
) -> None:
    node, proxy = stalls
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, note text); CREATE PUBLICATION fast FOR TABLE t"
    )
    subscribe(node, database, "fast")
    node.start()
    node.wait_for("the stream", lambda: node.status()[0]["state"] == "streaming", timeout=240)
    proxy.stall()
    database.execute("INSERT INTO t SELECT i, 'late' FROM generate_series(1, 1000) i")
    ends_in_time(node)
    before = proxy.connections
    node.start()
    node.wait_for("a start that waits", lambda: proxy.connections > before)
    ends_in_time(node)
    proxy.resume()
    proxy.cut()
    node.start(command=_RUN)
    assert ended(node) == 0
    assert_equal(node, database)


def session(node: NodeProcess) -> psycopg.Connection[Any]:
    """A session of the superuser ``root``, once the port listens."""
    port = tomllib.loads((node.folder / "penstock.toml").read_text("utf-8"))["port"]
    opened: list[psycopg.Connection[Any]] = []

    def listens() -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            conninfo = f"host=127.0.0.1 port={port} dbname=lake user=root password=secret"
            opened.append(psycopg.connect(conninfo, autocommit=True))
        return bool(opened)

    node.wait_for("the port", listens, timeout=240)
    return opened[0]


@part_of_make_faults
@pytest.mark.parametrize("committed", [False, True], ids=["before its commit", "in its commit"])
def test_a_silent_object_store_holds_no_stop_up(
    in_s3: tuple[NodeProcess, Proxy], committed: bool
) -> None:
    node, proxy = in_s3
    node.sql("CREATE ROLE root SUPERUSER LOGIN PASSWORD 'secret'")
    node.start()
    with contextlib.closing(session(node)) as client:
        client.execute("CREATE TABLE own (id int PRIMARY KEY)")
        client.execute("INSERT INTO own VALUES (1)")
        if committed:
            place = node.warehouse_uri.removeprefix("s3:/")
            entry = f"{place}/public/own/_delta_log/{2:020}.json"
            proxy.stall_after(f"PUT {entry}".encode())
        else:
            proxy.stall()
        raised: list[psycopg.Error] = []

        def insert() -> None:
            try:
                client.execute("INSERT INTO own VALUES (2)")
            except psycopg.Error as error:
                raised.append(error)

        thread = threading.Thread(target=insert, daemon=True)
        thread.start()
        node.wait_for(
            "the INSERT",
            lambda: proxy.stalled and client.info.transaction_status is TransactionStatus.ACTIVE,
        )
        ends_in_time(node)
        thread.join(30)
    (error,) = raised
    assert error.sqlstate == ("40003" if committed else "57P01"), str(error)
    before = proxy.connections
    node.start()
    node.wait_for("a start that waits", lambda: proxy.connections > before)
    ends_in_time(node, starts=True)
    proxy.resume()
    proxy.cut()
    node.start()
    with contextlib.closing(session(node)) as client:
        rows = client.execute("SELECT id FROM own ORDER BY id").fetchall()
    assert rows == ([(1,), (2,)] if committed else [(1,)])
    assert node.stop() == 0
