"""A copy is of one state: what rewrites, empties or locks a table meanwhile, and who ends it.

Each case stops a copy at a certain moment by a lock or an open transaction on the publisher.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.node.status import SubscriptionStatus, TableStatus
from penstock.pipeline import table_copy
from penstock.pipeline.table_copy import CopyProgress
from penstock.subscription import tablesync
from penstock.walreceiver.snapshot_holder import SnapshotHolder

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_LEFT = (
    "SELECT (SELECT count(*) FROM pg_replication_slots"
    "        WHERE database = current_database() AND temporary)"
    " + (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    "    AND pid <> pg_backend_pid() AND application_name LIKE 'penstock%%')"
)
"""Slots and sessions of copies."""


def table(status: SubscriptionStatus, name: str) -> TableStatus:
    (found,) = [one for one in status.tables if one.name == f"public.{name}"]
    return found


def versions(node: LocalNode, name: str) -> list[int]:
    """Versions of a table's log."""
    log = node.warehouse / "public" / name / "_delta_log"
    return sorted(int(entry.stem) for entry in log.glob("*.json"))


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for name in tables:
            wanted = publisher_rows(connection, f"public.{name}")
            assert not (lack := difference(name, wanted, node.rows(name))), str(lack)


@contextmanager
def held(database: Database, sql: str) -> Iterator[psycopg.Connection[Any]]:
    """An open transaction that has run ``sql``."""
    with closing(psycopg.connect(database.conninfo)) as connection:
        connection.execute(sql)
        yield connection


class Meanwhile:
    """A statement in a session of its own, which waits for whatever the copy holds."""

    def __init__(self, database: Database, sql: str) -> None:
        self.error: Exception | None = None
        self._connection = psycopg.connect(database.conninfo, autocommit=True)
        self.pid = self._connection.info.backend_pid
        self._thread = threading.Thread(target=self._run, args=(sql,))
        self._thread.start()

    def _run(self, sql: str) -> None:
        try:
            with closing(self._connection):
                self._connection.execute(sql)
        except Exception as error:
            self.error = error

    def join(self, timeout: float = 90) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the statement still waits"
        if self.error is not None:
            raise self.error


def waits(database: Database, pid: int) -> bool:
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return bool(database.value(query, (pid,)))


def before_reading(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Call ``do`` once, when a round has its snapshot and its locks and has read nothing yet."""
    original = table_copy.run_copy
    todo = [do]

    def run_copy(*arguments: Any, **named: Any) -> Any:
        if todo:
            todo.pop()()
        return original(*arguments, **named)

    monkeypatch.setattr(tablesync, "run_copy", run_copy)


def after_the_snapshot(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Call ``do`` once, when a round has its snapshot and no locks yet."""
    original = SnapshotHolder.open
    todo = [do]

    def opened(self: SnapshotHolder, *arguments: Any) -> Any:
        found = original(self, *arguments)
        if todo:
            todo.pop()()
        return found

    monkeypatch.setattr(SnapshotHolder, "open", opened)


_TABLES = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text);"
    "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i ORDER BY random();"
    "CREATE TABLE root (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (1000);"
    "CREATE TABLE high PARTITION OF root FOR VALUES FROM (1000) TO (2000);"
    "CREATE TABLE more (id integer PRIMARY KEY, v text);"
    "INSERT INTO root SELECT i, 'v' FROM generate_series(1, 1999) i;"
    "INSERT INTO more SELECT i, 'v' FROM generate_series(2000, 2999) i;"
    "CREATE TABLE other (id integer PRIMARY KEY);"
    "CREATE PUBLICATION p FOR TABLE t, root, other WITH (publish_via_partition_root)"
)


@pytest.mark.parametrize(
    ("version", "ddl"),
    [
        (18, "CLUSTER t USING t_pkey"),
        in_make_faults(14, "ALTER TABLE t ADD COLUMN r double precision DEFAULT random()"),
    ],
)
def test_what_takes_rows_from_a_snapshot_waits_for_the_copy(
    version: int,
    ddl: str,
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It stands in the queue before the copy's readers, so the table's copy ends, and lets it
    pass; the others are copied."""
    database = database_on(version)
    database.execute(_TABLES)
    begun: list[Meanwhile] = []

    def begin() -> None:
        begun.append(Meanwhile(database, ddl))
        wait_until(lambda: waits(database, begun[0].pid), "wait")

    before_reading(monkeypatch, begin)
    node = local_node(wal_retrieve_retry_interval="500ms")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    begun[0].join()
    assert 'the initial copy of table "public.t" makes way' in "\n".join(caplog.messages)
    assert_equal(node, database, "t", "root", "other")


@pytest.mark.parametrize(
    ("version", "ddl"),
    [
        (14, "VACUUM FULL t"),
        (18, "ALTER TABLE t ADD COLUMN r double precision DEFAULT random()"),
        (18, "TRUNCATE t"),
        (18, "ALTER TABLE root ATTACH PARTITION more FOR VALUES FROM (2000) TO (3000)"),
        (18, "ALTER TABLE root DETACH PARTITION high"),
    ],
)
def test_what_changed_before_the_locks_is_copied_again(
    version: int,
    ddl: str,
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = database_on(version)
    database.execute(_TABLES)
    after_the_snapshot(monkeypatch, lambda: database.execute(ddl))
    node = local_node(copy_unit_size="256kB", wal_retrieve_retry_interval="500ms")
    assert_copied_again(node, database, caplog)
    assert node.status("s").error is None


def assert_copied_again(
    node: LocalNode, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A change while the copies begin is noticed, and all rows are there in the end."""
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    assert "was changed while its initial copy began" in caplog.text
    assert_equal(node, database, "t", "root", "other")


@pytest.mark.parametrize("version", [in_make_faults(14), 18])
def test_a_partition_that_was_away_for_a_moment_is_copied(
    version: int,
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the tables' partitions were listed: before it and afterwards all is the same."""
    database = database_on(version)
    database.execute(_TABLES)
    original, away = tablesync._prepare, [True]

    def prepare(*arguments: Any) -> Any:
        if not away:
            return original(*arguments)
        away.pop()
        database.execute("ALTER TABLE root DETACH PARTITION high")
        found = original(*arguments)
        database.execute("ALTER TABLE root ATTACH PARTITION high FOR VALUES FROM (1000) TO (2000)")
        return found

    monkeypatch.setattr(tablesync, "_prepare", prepare)
    assert_copied_again(local_node(wal_retrieve_retry_interval="500ms"), database, caplog)


@pytest.mark.parametrize("version", [in_make_faults(14), 18])
def test_ddl_of_an_open_transaction_and_the_slot_do_not_wait_for_each_other(
    version: int, local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    database = database_on(version)
    database.execute(_TABLES)
    node = local_node(wal_retrieve_retry_interval="500ms")
    node.subscribe("s", database, "p", "enabled = false")
    with held(database, "INSERT INTO other VALUES (1)") as writer:
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        # the copy's slot waits for the writer
        wait_until(lambda: database.value(_LEFT + " > 0"), "wait")
        wait_until(lambda: database.value(_SLOT_WAITS), "wait")
        writer.execute("SET statement_timeout = '20s'")
        writer.execute("ALTER TABLE t ADD COLUMN r double precision DEFAULT random()")
        writer.commit()
    node.caught_up("s", database)
    assert_equal(node, database, "t", "root", "other")


def test_a_locked_table_lets_the_others_go_first(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(_TABLES)
    node = local_node(wal_retrieve_retry_interval="500ms")
    with closing(psycopg.connect(database.conninfo)) as holder:
        lock = "LOCK TABLE t IN ACCESS EXCLUSIVE MODE"
        after_the_snapshot(monkeypatch, lambda: holder.execute(lock))
        node.subscribe("s", database, "p")

        def others(status: SubscriptionStatus) -> bool:
            ready = {one.name for one in status.tables if one.state == "r"}
            return ready == {"public.other", "public.root"} and bool(table(status, "t").error)

        node.wait_for("s", "the other tables", others)
        status = node.status("s")
        assert table(status, "t").state == "i"
        assert str(table(status, "t").error).startswith(
            'could not lock table "public.t" for its initial copy: '
        )
        assert status.error == table(status, "t").error
        assert not status.stopped
        # the hint shows who it is
        query = str(table(status, "t").error_hint).split("publisher: ")[1]
        assert holder.info.backend_pid in {row[0] for row in database.rows(query)}
        # the stream goes on
        database.execute("INSERT INTO other VALUES (7)")
        wait_until(lambda: node.rows("other") == [(7,)], "row")
        holder.rollback()
    node.caught_up("s", database)
    assert_equal(node, database, "t", "root", "other")
    status = node.status("s")
    assert (status.error, table(status, "t").error) == (None, None)


def test_a_table_that_is_locked_before_the_slot_is_told_of(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """Neither the server's answer about a publication (which opens all of its tables, from 16 on)
    nor the making of a slot goes past such a lock, but nothing hangs, and the stop is quick."""
    database.execute(_TABLES)
    node = local_node(wal_retrieve_retry_interval="500ms")
    node.subscribe("s", database, "p", "enabled = false")
    with held(database, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE") as holder:
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.wait_for("s", "three errors", lambda s: all(one.error for one in s.tables))
        holder.rollback()
    node.caught_up("s", database)
    assert_equal(node, database, "t", "root", "other")
    assert node.status("s").error is None


@pytest.mark.parametrize("version", [in_make_faults(14), 18])
def test_nothing_is_left_when_a_waiting_copy_is_stopped(
    version: int, local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    database = database_on(version)
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p", "enabled = false")
    with held(database, "INSERT INTO other VALUES (1)"):
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        wait_until(lambda: database.value(_SLOT_WAITS), "wait")
        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        wait_until(lambda: database.value(_LEFT) == 0, "end", 20)


_SLOT_WAITS = (
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'walsender'"
    " AND datname = current_database() AND wait_event_type = 'Lock'"
)


class InTheMiddle:
    """Stops the thread that takes a copy's results after its second unit, until ``go``. It looks
    whether the copy is cancelled, as it does while it waits for a unit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._go = threading.Event(), threading.Event()
        original = table_copy.run_copy

        def run_copy(*arguments: Any, **named: Any) -> Any:
            told, check = named["progress"], named["check"]

            def progress(copy: CopyProgress) -> None:
                told(copy)
                if (copy.table, copy.units) == ("public.t", 2) and not self.reached.is_set():
                    self.reached.set()
                    wait_until(lambda: check() or self._go.is_set(), "go", 60)

            return original(*arguments, **{**named, "progress": progress})

        monkeypatch.setattr(tablesync, "run_copy", run_copy)

    def wait(self) -> None:
        assert self.reached.wait(60)

    def go(self) -> None:
        self._go.set()


_LARGE = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text);"
    "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 60000) i;"
    "CREATE TABLE u (id integer PRIMARY KEY, v text);"
    "INSERT INTO u SELECT i, repeat('x', 500) FROM generate_series(1, 6000) i;"
    "CREATE PUBLICATION p FOR TABLE t, u"
)


def test_a_copy_ends_with_its_subscription(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(_LARGE)
    middle = InTheMiddle(monkeypatch)
    node = local_node(copy_unit_size="1MB")
    node.subscribe("s", database, "p")
    middle.wait()
    dropping = threading.Thread(target=node.node.sql, args=("DROP SUBSCRIPTION s",))
    dropping.start()
    dropping.join(30)
    assert not dropping.is_alive()
    wait_until(lambda: database.value(_LEFT) == 0, "end", 10)
    assert versions(node, "t") == [0]


@part_of_make_faults
def test_a_copy_ends_with_its_table(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(_LARGE)
    middle = InTheMiddle(monkeypatch)
    node = local_node(copy_unit_size="1MB")
    node.subscribe("s", database, "p")
    middle.wait()
    database.execute("ALTER PUBLICATION p DROP TABLE t")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    middle.go()
    node.caught_up("s", database)
    assert [one.name for one in node.status("s").tables] == ["public.u"]
    assert_equal(node, database, "u")
    assert versions(node, "t") == [0]


@part_of_make_faults
def test_closing_does_not_wait_for_all_units(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(_LARGE)
    middle = InTheMiddle(monkeypatch)
    node = local_node(copy_unit_size="256kB")
    node.subscribe("s", database, "p")
    middle.wait()
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    wait_until(lambda: database.value(_LEFT) == 0, "end", 15)
    assert versions(node, "t") == [0]
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert_equal(node, database, "t", "u")
