"""Slots on every server version, and the errors that a user meets first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.embedded import EmbeddedPostgres
from penstock.errors import (
    ConnectionFailure,
    DuplicateObject,
    NotInPrerequisiteState,
    ObjectInUse,
    PublisherError,
    UndefinedObject,
)
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.snapshot_holder import SnapshotHolder
from penstock.walreceiver.stream import ReplicationStream

VERSIONS = [14, 15, 16, 17, 18]


@pytest.fixture(params=VERSIONS)
def any_database(request: pytest.FixtureRequest, database_on: Callable[..., Any]) -> Any:
    return database_on(request.param)


def test_create_state_drop(any_database: Any) -> None:
    with Publisher.connect(any_database.conninfo) as publisher:
        slot = publisher.create_slot("s1")
        assert (slot.name, slot.snapshot_name) == ("s1", None)
        with pytest.raises(DuplicateObject) as duplicate:
            publisher.create_slot("s1")
        assert duplicate.value.message == (
            'could not create replication slot "s1": replication slot "s1" already exists'
        )
        any_database.execute("CREATE TABLE t AS SELECT generate_series(1, 1000) i")
        state = publisher.slot_state("s1")
        assert state is not None
        assert state.confirmed_flush_lsn == slot.consistent_point
        assert state.retained_bytes > 0
        assert (state.plugin, state.active_pid, state.temporary) == ("pgoutput", None, False)
        assert publisher.drop_slot("s1")
        assert publisher.slot_state("s1") is None
        assert not publisher.drop_slot("s1", missing_ok=True)
        with pytest.raises(UndefinedObject) as missing:
            publisher.drop_slot("s1")
        assert missing.value.message == (
            'could not drop replication slot "s1" on publisher: '
            'replication slot "s1" does not exist'
        )
        assert missing.value.sqlstate == "42704"


def test_exported_snapshot(any_database: Any) -> None:
    any_database.execute("CREATE TABLE t (i int); INSERT INTO t VALUES (1)")
    with SnapshotHolder(ConnInfo.parse(any_database.conninfo), "holder") as holder:
        name, point = holder.open()
        any_database.execute("INSERT INTO t VALUES (2)")
        reader = any_database.connect(autocommit=True)
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{name}'")
        assert reader.execute("SELECT i FROM t").fetchall() == [(1,)]
        assert point > 0
        assert holder.alive
        holder.check()
        assert reader.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (1,)
    assert not holder.alive
    wait_for(any_database, "SELECT count(*) = 0 FROM pg_replication_slots")


def test_a_lost_snapshot_is_noticed(any_database: Any) -> None:
    with SnapshotHolder(ConnInfo.parse(any_database.conninfo), "holder") as holder:
        holder.open()
        any_database.rows(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots"
            " WHERE slot_name = 'holder'"
        )
        with pytest.raises(ConnectionFailure, match="held the exported snapshot is gone"):
            holder.check()
        assert not holder.alive


def test_the_servers_timeouts_do_not_end_the_holder(any_database: Any) -> None:
    any_database.execute(
        f"ALTER DATABASE {any_database.name} SET idle_in_transaction_session_timeout = '100ms';"
        f"ALTER DATABASE {any_database.name} SET idle_session_timeout = '100ms'"
    )
    with SnapshotHolder(ConnInfo.parse(any_database.conninfo), "holder") as holder:
        name, _ = holder.open()
        none = "-c idle_session_timeout=0 -c idle_in_transaction_session_timeout=0"
        with psycopg.connect(any_database.conninfo, autocommit=True, options=none) as clock:
            clock.execute("SELECT pg_sleep(0.3)")
            assert holder.alive
            clock.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            clock.execute(f"SET TRANSACTION SNAPSHOT '{name}'")


def test_a_slot_in_use(any_database: Any) -> None:
    any_database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    options = "proto_version '1', publication_names 'p'"
    with (
        Publisher.connect(any_database.conninfo) as one,
        Publisher.connect(any_database.conninfo) as two,
    ):
        slot = one.create_slot("busy")
        stream = ReplicationStream(one.connection)
        stream.start("busy", slot.consistent_point, options)
        with pytest.raises(ObjectInUse) as in_use:
            ReplicationStream(two.connection).start("busy", slot.consistent_point, options)
        assert in_use.value.message.startswith(
            'could not start WAL streaming: replication slot "busy" is active for PID'
        )
        assert in_use.value.hint is not None
        with pytest.raises(ObjectInUse, match='replication slot "busy" is active'):
            two.drop_slot("busy", timeout_s=0.3)
        with Publisher.connect(any_database.conninfo) as three:
            dropped = threading.Thread(target=three.drop_slot, args=("busy",))
            dropped.start()
            stream.stop()
            one.close()
            dropped.join(10)
            assert not dropped.is_alive()
            assert three.slot_state("busy") is None


def test_no_such_slot(any_database: Any) -> None:
    with Publisher.connect(any_database.conninfo) as publisher:
        with pytest.raises(UndefinedObject) as caught:
            ReplicationStream(publisher.connection).start("gone", publisher.current_wal_lsn(), "")
        assert caught.value.message == (
            'could not start WAL streaming: replication slot "gone" does not exist'
        )
        assert "SELECT pg_create_logical_replication_slot('gone', 'pgoutput')" in (
            caught.value.hint or ""
        )


@pytest.fixture(params=[14, 18])
def small_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(
        request.param, settings={"wal_level": "replica", "max_replication_slots": 1}
    ) as server:
        yield server


@pytest.mark.postgres
def test_server_without_logical_wal_then_without_free_slots(small_server: EmbeddedPostgres) -> None:
    with Publisher.connect(small_server.conninfo()) as publisher:
        with pytest.raises(NotInPrerequisiteState) as caught:
            publisher.check_wal_level()
        wanted = (
            '"wal_level" >= "logical"' if small_server.version == 18 else "wal_level >= logical"
        )
        assert caught.value.message == f"logical decoding requires {wanted}"
        assert caught.value.sqlstate == "55000"
        assert "ALTER SYSTEM SET wal_level = logical" in (caught.value.hint or "")
        with pytest.raises(NotInPrerequisiteState, match="logical decoding requires"):
            publisher.create_slot("s")
    small_server.psql("ALTER SYSTEM SET wal_level = logical")
    small_server.restart()
    with Publisher.connect(small_server.conninfo()) as publisher:
        publisher.create_slot("only")
        with pytest.raises(PublisherError) as full:
            publisher.create_slot("another")
        assert full.value.message == (
            'could not create replication slot "another": all replication slots are in use'
        )
        assert full.value.sqlstate == "53400"
        assert "max_replication_slots" in (full.value.hint or "")


def wait_for(database: Any, condition: str) -> None:
    """Wait on the server until the condition holds (10 s)."""
    database.execute(
        f"DO $$ BEGIN FOR i IN 1..1000 LOOP IF ({condition}) THEN RETURN; END IF;"
        " PERFORM pg_sleep(0.01); PERFORM pg_stat_clear_snapshot(); END LOOP;"
        " RAISE 'not reached'; END $$"
    )
