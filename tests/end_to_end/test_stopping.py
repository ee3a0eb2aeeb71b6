"""Signals to ``penstock start`` and ``penstock run``: SIGTERM, Ctrl-C, both, during a copy."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from fix_proxy import Proxy
from penstock import Node
from penstock.embedded import CommandFailed

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_RUN = ("run", "--until-caught-up")
_ROWS = 30_000
_SLOW = "md5(repeat(note, 1000)) <> ''"
"""A row filter that takes the publisher a quarter of a millisecond."""

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
