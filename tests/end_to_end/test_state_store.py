"""A node whose state is in a PostgreSQL: away for a while, and used by one node at a time.

``make faults`` sets one up by the CLI and kills it (``faults/test_state_faults.py``).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock import Node
from penstock.embedded import EmbeddedPostgres, free_port, wait_until
from penstock.errors import ObjectInUse, StorageError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, word text); INSERT INTO a SELECT i, md5(i::text)"
    " FROM generate_series(1, 2000) i;"
    "CREATE TABLE b (id int PRIMARY KEY, of_a int); INSERT INTO b SELECT i, i FROM"
    " generate_series(1, 2000) i;"
    "CREATE PUBLICATION p FOR TABLE a, b"
)
CHANGES = (
    "BEGIN; INSERT INTO a SELECT max(id) + 1, 'new' FROM a; UPDATE b SET of_a = of_a + 1"
    " WHERE id % 100 = 0; DELETE FROM b WHERE id = (SELECT min(id) FROM b); COMMIT"
)


@pytest.fixture
def state_server() -> Iterator[EmbeddedPostgres]:
    """A server of its own for the state, which a test may stop."""
    with EmbeddedPostgres(18) as server:
        yield server


def state_url(server: EmbeddedPostgres, database: str = "postgres") -> str:
    return f"postgresql://postgres@127.0.0.1:{server.port}/{database}"


def same(node: LocalNode, database: Database) -> None:
    """Both tables hold what the publisher's hold."""
    node.caught_up("s", database)
    for name in ("a", "b"):
        wrong = difference(
            name, publisher_rows(database.connect(), f"public.{name}"), node.rows(name)
        )
        assert not wrong, str(wrong)


@part_of_make_faults
def test_it_goes_on_when_its_state_has_been_away(
    spark: Any, tmp_path: Path, database: Database, state_server: EmbeddedPostgres
) -> None:
    database.execute(TABLES)
    parameters = {"state": state_url(state_server), "wal_retrieve_retry_interval": "500ms"}
    with LocalNode(tmp_path / "node", spark, parameters) as node:
        node.subscribe("s", database, "p")
        same(node, database)
        for mode in ("immediate", "fast"):
            state_server.stop(mode)
            for _ in range(5):
                database.execute(CHANGES)
            with pytest.raises(StorageError, match="state store"):
                node.node.status()
            state_server.start()
            for _ in range(5):
                database.execute(CHANGES)
            same(node, database)
        with psycopg.connect(state_server.conninfo(), autocommit=True) as connection:
            held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            wait_until(lambda: connection.execute(held).fetchone() == (1,), "the node's lock")
    assert not (tmp_path / "node" / "state.db").exists()


def test_one_node_at_a_time(
    spark: Any, tmp_path: Path, database: Database, postgres: EmbeddedPostgres
) -> None:
    url = state_url(postgres, database.name)
    with LocalNode(tmp_path / "node", spark, {"state": url}):
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "penstock.toml").write_bytes((tmp_path / "node" / "penstock.toml").read_bytes())
        with Node(copy, spark=spark) as other:
            with pytest.raises(ObjectInUse, match="already running") as refused:
                other.start()
            assert "PID" in (refused.value.detail or "")
    with Node(copy, spark=spark) as other:
        other.start()


HELD = (
    "SELECT pid, classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory'"
    " AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def test_who_has_lost_the_lock_serves_nobody(
    spark: Any, tmp_path: Path, database: Database, postgres: EmbeddedPostgres
) -> None:
    """Not as a library either, and whatever the caller waits for ends."""
    port = free_port()
    parameters = {"state": state_url(postgres, database.name), "port": port}

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    with LocalNode(tmp_path / "node", spark, parameters) as node:
        database.execute(TABLES)
        node.subscribe("s", database, "p")
        same(node, database)
        assert listens()
        ((holder, key),) = database.rows(HELD)
        with psycopg.connect(database.conninfo, autocommit=True) as standby:
            waiting = threading.Thread(
                target=standby.execute, args=("SELECT pg_advisory_lock(%s)", (key,))
            )
            waiting.start()
            blocked = "SELECT cardinality(pg_blocking_pids(%s))"
            pid = standby.info.backend_pid
            wait_until(lambda: database.value(blocked, (pid,)) == 1, "the standby to wait")
            database.execute("SELECT pg_terminate_backend(%s)", (holder,))
            waiting.join()
            wait_until(lambda: not listens(), "the port to be closed")
            for wait in (
                lambda: node.node.wait_until(threading.Event()),
                lambda: node.node.wait_until_caught_up(60),
            ):
                with pytest.raises(ObjectInUse, match="already running"):
                    wait()
