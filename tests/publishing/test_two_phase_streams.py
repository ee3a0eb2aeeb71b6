"""Streams of slots with two_phase: a stock PostgreSQL 18 that subscribes with two_phase = true, and
pg_recvlogical. What is prepared on the node is prepared there, and ends there as here.

All of it without Spark: what is staged is written by files.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from faults.heavy import part_of_make_faults
from fix_postgres import Database, _database
from penstock.civil import EPOCH_MICROSECONDS
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.pgoutput import messages as m
from penstock.pgoutput.decoder import Decoder
from publishing.lake_node import LakeNode, drop_subscriptions
from publishing.recvlogical import recvlogical
from publishing.test_prepared_transactions import prepare
from publishing.test_synchronous import Waiting, name_standbys, no_stream

pytestmark = [pytest.mark.postgres]

_SETTINGS = {"max_prepared_transactions": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(18, settings=_SETTINGS) as server, contextlib.closing(server):
        yield server


@pytest.fixture
def database(server: EmbeddedPostgres) -> Iterator[Database]:
    with _database(server) as database:
        yield database
        for (gid,) in database.rows("SELECT gid FROM pg_prepared_xacts"):
            database.execute(f"ROLLBACK PREPARED '{gid}'")
        drop_subscriptions(database)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeNode]:
    with LakeNode(tmp_path / "node", None, max_prepared_transactions=8) as started:
        yield started


def prepared(database: Database) -> int:
    ((count,),) = database.rows("SELECT count(*) FROM pg_prepared_xacts")
    return int(count)


def enabled(database: Database) -> None:
    state = "SELECT subtwophasestate FROM pg_subscription"
    wait_until(lambda: {s for (s,) in database.rows(state)} == {"e"}, "two-phase commit")


def restart(lake: LakeNode) -> None:
    lake.connection.close()
    lake.node.stop()
    lake.node.start()
    lake.connection = lake.connect()


def test_a_subscription_of_a_server(
    lake: LakeNode, database: Database, server: EmbeddedPostgres
) -> None:
    """Both ends are restarted between the two phases; an ordinary transaction comes in between."""
    for table in "kl":
        create = f"CREATE TABLE {table} (id int PRIMARY KEY, v int)"
        lake.execute(create)
        database.execute(create)
    lake.execute("CREATE PUBLICATION p FOR TABLE k, l", "INSERT INTO k VALUES (1, 1), (2, 2)")
    prepare(lake, "before", "INSERT INTO l VALUES (100, 0)")
    lake.subscribe(database, "s", "p", "two_phase = true")
    enabled(database)
    kept = ("UPDATE k SET v = 5 WHERE id = 1", "INSERT INTO l VALUES (1, 1)")
    prepare(lake, "kept", *kept)
    prepare(lake, "gone", "DELETE FROM k WHERE id = 2")
    wait_until(lambda: prepared(database) == 2, "what is prepared")
    assert sorted(database.rows("SELECT * FROM k")) == [(1, 1), (2, 2)]
    lake.execute("INSERT INTO k VALUES (3, 3)")
    lake.caught_up("s")
    assert sorted(database.rows("SELECT * FROM k")) == [(1, 1), (2, 2), (3, 3)]
    restart(lake)
    database.close()
    server.stop()
    server.start()
    assert prepared(database) == 2
    lake.execute("COMMIT PREPARED 'kept'", "ROLLBACK PREPARED 'gone'", "COMMIT PREPARED 'before'")
    lake.caught_up("s")
    assert prepared(database) == 0
    for table in "kl":
        query = f"SELECT * FROM {table}"
        assert sorted(database.rows(query)) == sorted(lake.rows(query))
    restart(lake)
    prepare(lake, "last", "INSERT INTO k VALUES (4, 4)")
    lake.execute("COMMIT PREPARED 'last'")
    lake.caught_up("s")
    assert sorted(database.rows("SELECT * FROM k")) == [(1, 5), (2, 2), (3, 3), (4, 4)]
    assert prepared(database) == 0
    # streams that end with a node, and what is held still when both begin again, are errors, too
    assert "processing remote data" not in server.log_path.read_text("utf-8")


def test_a_subscription_that_asks_for_it_later(lake: LakeNode, database: Database) -> None:
    """What was prepared before comes whole when it is committed, prepared there for a moment."""
    create = "CREATE TABLE k (id int PRIMARY KEY, v int)"
    lake.execute(create, "CREATE PUBLICATION p FOR TABLE k")
    database.execute(create)
    lake.subscribe(database, "s", "p")
    prepare(lake, "one", "INSERT INTO k VALUES (1, 1)")
    lake.caught_up("s")
    assert prepared(database) == 0
    stopped = "SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL"
    database.execute("ALTER SUBSCRIPTION s DISABLE")
    wait_until(lambda: database.rows(stopped) == [(0,)], "the end of its worker")
    database.execute("ALTER SUBSCRIPTION s SET (two_phase = true)")
    database.execute("ALTER SUBSCRIPTION s ENABLE")
    prepare(lake, "two", "INSERT INTO k VALUES (2, 2)")
    wait_until(lambda: prepared(database) == 1, "what is prepared")
    lake.execute("COMMIT PREPARED 'one'")
    lake.caught_up("s")
    assert database.rows("SELECT * FROM k") == [(1, 1)]
    lake.execute("COMMIT PREPARED 'two'")
    lake.caught_up("s")
    assert sorted(database.rows("SELECT * FROM k")) == [(1, 1), (2, 2)]


def test_messages_of_pgoutput(lake: LakeNode) -> None:
    """Also of what is not published; and by a slot that learns of two_phase as it is read."""
    lake.execute("CREATE TABLE k (id int PRIMARY KEY)", "CREATE TABLE other (id int)")
    lake.execute("CREATE PUBLICATION p FOR TABLE k")
    lake.rows("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    prepare(lake, "a", "INSERT INTO k VALUES (1)")
    prepare(lake, "b", "INSERT INTO other VALUES (1)")
    lake.execute("COMMIT PREPARED 'a'", "ROLLBACK PREPARED 'b'")
    once = messages(lake, "peek", "false")
    assert [type(message) for message in once] == [m.Begin, m.RelationMessage, m.Insert, m.Commit]
    since_2000 = time.time() - EPOCH_MICROSECONDS / 1e6
    assert abs(once[0].commit_time / 1e6 - since_2000) < 300
    assert once[-1].commit_time == once[0].commit_time
    found = messages(lake, "get", "true")
    assert [type(message) for message in found] == [
        *(m.BeginPrepare, m.RelationMessage, m.Insert, m.Prepare),
        *(m.BeginPrepare, m.Prepare),
        *(m.CommitPrepared, m.RollbackPrepared),
    ]
    begin, _, _, end, _, other, commit, rollback = found
    assert isinstance(begin, m.BeginPrepare)
    assert isinstance(other, m.Prepare)
    assert isinstance(rollback, m.RollbackPrepared)
    assert abs(begin.prepare_time / 1e6 - since_2000) < 300
    values = [getattr(end, name) for name in m.Prepare.__slots__]
    assert values == [getattr(begin, name) for name in m.BeginPrepare.__slots__]
    assert (begin.gid, commit.gid) == ("a", "a")
    assert (rollback.prepare_end_lsn, rollback.prepare_time) == (other.end_lsn, other.prepare_time)
    ((slot, at),) = lake.rows("SELECT two_phase, two_phase_at FROM pg_replication_slots")
    assert (slot, at is not None) == (True, True)


def messages(lake: LakeNode, way: str, two_phase: str) -> list[Any]:
    options = f"'proto_version', '3', 'publication_names', 'p', 'two_phase', '{two_phase}'"
    function = f"pg_logical_slot_{way}_binary_changes('s', NULL, NULL, {options})"
    decoder = Decoder(proto_version=3)
    return [decoder.decode(bytes(data)) for (data,) in lake.rows(f"SELECT data FROM {function}")]


def test_pg_recvlogical(lake: LakeNode) -> None:
    """Example 2 of "Replication Slots" on the shell: --start waits in the background."""
    lake.execute("CREATE TABLE data(id int PRIMARY KEY, data text)")
    with recvlogical(lake, "lake", "--slot=test", "--create-slot", "--enable-two-phase") as process:
        printed, errors = process.communicate(timeout=60)
        assert (process.returncode, printed, errors) == (0, "", "")
    with recvlogical(lake, "lake", "--slot=test", "--start", "-f", "-") as started:
        active = "SELECT active FROM pg_replication_slots"
        wait_until(lambda: lake.rows(active) == [(True,)], "the stream")
        prepare(lake, "test", "INSERT INTO data(id, data) VALUES (5, '5')")
        output: IO[str] | None = started.stdout
        assert output is not None
        found = [output.readline() for _ in range(3)]
        xid = found[0].split()[-1]
        assert found == [
            f"BEGIN {xid}\n",
            "table public.data: INSERT: id[integer]:5 data[text]:'5'\n",
            f"PREPARE TRANSACTION 'test', txid {xid}\n",
        ]
        lake.execute("COMMIT PREPARED 'test'")
        assert output.readline() == f"COMMIT PREPARED 'test', txid {xid}\n"
        started.send_signal(signal.SIGINT)
        started.wait(60)


@part_of_make_faults
def test_both_phases_wait_for_a_standby(lake: LakeNode, database: Database) -> None:
    """As on a server; a session that gives up the wait is warned, and what it did stays."""
    create = "CREATE TABLE waits (id int PRIMARY KEY)"
    lake.execute(create, "CREATE PUBLICATION p FOR TABLE waits")
    database.execute(create)
    lake.subscribe(database, "s", "p", "two_phase = true")
    enabled(database)
    name_standbys(lake, "s")
    lake.execute("SET synchronous_commit = remote_apply")
    for number, end in enumerate(("COMMIT", "ROLLBACK") * 3):
        prepare(lake, "waits", f"INSERT INTO waits VALUES ({number})")
        assert prepared(database) == 1, "it is there before the client goes on"
        lake.execute(f"{end} PREPARED 'waits'")
        assert prepared(database) == 0
    assert sorted(database.rows("SELECT id FROM waits")) == [(0,), (2,), (4,)]
    database.execute("ALTER SUBSCRIPTION s DISABLE")
    no_stream(lake)

    def is_left(count: int) -> bool:
        return lake.rows("SELECT count(*) FROM pg_prepared_xacts") == [(count,)]

    for statement, left in (("PREPARE TRANSACTION 'left'", 1), ("ROLLBACK PREPARED 'left'", 0)):
        waiting = Waiting(lake, statement)
        if left:
            waiting.session.execute("BEGIN")
            waiting.session.execute("INSERT INTO waits VALUES (100)")
        waiting.start()
        wait_until(partial(is_left, left), statement)
        waiting.join(1)
        assert waiting.is_alive(), "nobody has confirmed it"
        waiting.session.cancel_safe()
        assert waiting.ends() == statement.rpartition(" ")[0]
        ((_, message, _),) = waiting.notices
        assert message == "canceling wait for synchronous replication due to user request"
    name_standbys(lake, "")
