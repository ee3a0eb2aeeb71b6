"""One subscription's trouble is its own: others go on, and statements about it work meanwhile."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.lsn import INVALID
from penstock.node.status import SubscriptionStatus
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.stream import ReplicationStream

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text);"
    "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i;"
    "CREATE PUBLICATION p FOR TABLE t"
)
_FEW_SECONDS = 8


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"host=127.0.0.1 port={server.getsockname()[1]} dbname=x user=x connect_timeout=300"


@contextlib.contextmanager
def reading(slot: str, database: Database) -> Iterator[None]:
    """Somebody else streams from a slot, and confirms nothing."""
    with Connection.connect(ConnInfo.parse(database.conninfo), "other") as connection:
        stream = ReplicationStream(connection)
        stream.start(slot, INVALID, "proto_version '1', publication_names '\"p\"'")
        yield


@part_of_make_faults
def test_a_publisher_that_does_not_answer_hangs_nobody_else(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(_SETUP)
    node = local_node()
    with silent_server() as conninfo:
        for name in ("dead", "gone"):
            node.node.sql(
                f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION p"
                f" WITH (connect = false); ALTER SUBSCRIPTION {name} ENABLE"
            )
            node.wait_for(name, "the attempt", lambda s: s.state == "connecting")
        node.subscribe("s", database, "p")
        node.caught_up("s", database)
        database.execute("UPDATE t SET v = 'w'")
        node.caught_up("s", database)
        assert_equal(node, database, "t")
        began = time.monotonic()
        node.node.sql(
            "ALTER SUBSCRIPTION dead DISABLE; ALTER SUBSCRIPTION gone DISABLE;"
            "ALTER SUBSCRIPTION gone SET (slot_name = NONE); DROP SUBSCRIPTION gone"
        )
        assert node.status("dead").state == "disabled"
        assert [s.name for s in node.node.status()] == ["dead", "s"]
        assert time.monotonic() - began < _FEW_SECONDS
        # Numbers about the others are written all the while.
        written = node.status("s").updated_at or 0
        node.wait_for("s", "newer numbers", lambda s: (s.updated_at or 0) > written)
        began = time.monotonic()
        node.node.stop()
        assert time.monotonic() - began < 60
        assert {s.name: s.state for s in node.node.status()} == {
            "dead": "disabled",
            "s": "not running",
        }


def test_what_waits_to_retry_is_shown_and_can_be_disabled_and_dropped(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """A slot that somebody else reads for longer than any number of tries would last."""
    database.execute(_SETUP)
    database.execute("SELECT pg_create_logical_replication_slot('busy', 'pgoutput')")
    with reading("busy", database):
        node = local_node(wal_retrieve_retry_interval="50ms")
        node.subscribe("s", database, "p", "slot_name = 'busy', create_slot = false")

        def many_tries(status: SubscriptionStatus) -> bool:
            return status.state == "waiting to retry" and status.error_count > 25

        node.wait_for("s", "many tries", many_tries)
        assert 'replication slot "busy" is active for PID' in str(node.status("s").error)
        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        assert node.status("s").state == "disabled"
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.wait_for("s", "many tries", many_tries)
    database.execute("UPDATE t SET v = 'w'")
    node.caught_up("s", database)
    assert_equal(node, database, "t")
    node.wait_for("s", "health", lambda s: s.state == "streaming" and s.error is None)


@part_of_make_faults
def test_a_full_disk_heals_by_itself(
    local_node: Callable[..., LocalNode], database: Database, small_disk: Path
) -> None:
    """Full during a batch, with on_table_error = park, and during a copy: nobody says ENABLE."""
    noise = "SELECT i, string_agg(md5(random()::text), '') FROM generate_series(1, 10000) i"
    database.execute(_SETUP)
    database.execute(
        "CREATE TABLE late (id integer PRIMARY KEY, v text);"
        f"INSERT INTO late {noise}, generate_series(1, 40) GROUP BY i"
    )
    node = local_node(warehouse=str(small_disk / "warehouse"), wal_retrieve_retry_interval="50ms")
    node.subscribe("s", database, "p", "on_table_error = park")
    node.caught_up("s", database)
    before = node.rows("t")
    database.execute(
        f"INSERT INTO t {noise.replace('i,', '1000 + i,', 1)}, generate_series(1, 40) GROUP BY i"
    )

    def full(status: SubscriptionStatus) -> bool:
        told = "No space left on device" in str(status.error) and status.error_count > 10
        return told and status.state == "waiting to retry"

    node.wait_for("s", "a full disk", full)
    assert node.rows("t") == before
    assert [t.state for t in node.status("s").tables] == ["r"]
    subprocess.run(["mount", "-o", "remount,size=32m", small_disk], check=True)
    node.caught_up("s", database)
    assert_equal(node, database, "t")
    with (small_disk / "ballast").open("wb", buffering=0) as sink, contextlib.suppress(OSError):
        while True:
            sink.write(bytes(1 << 16))
    database.execute("ALTER PUBLICATION p ADD TABLE late")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    node.wait_for("s", "a full disk", lambda s: "No space left on device" in str(s))
    (small_disk / "ballast").unlink()
    node.caught_up("s", database)
    assert_equal(node, database, "t", "late")
