"""A node whose state is in a PostgreSQL: set up by the CLI, away for a while, used by one node."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.node_process import CommandFailed, NodeProcess
from fix_postgres import Database
from penstock import Node, failpoint
from penstock.embedded import EmbeddedPostgres
from penstock.errors import ObjectInUse, StorageError
from penstock.lsn import Lsn
from publishing.lake_node import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, word text); INSERT INTO a SELECT i, md5(i::text)"
    " FROM generate_series(1, 2000) i;"
    "CREATE TABLE b (id int PRIMARY KEY, of_a int); INSERT INTO b SELECT i, i FROM"
    " generate_series(1, 2000) i;"
    "CREATE PUBLICATION p FOR TABLE a, b"
)
_CHANGES = (
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


def test_it_goes_on_when_its_state_has_been_away(
    spark: Any, tmp_path: Path, database: Database, state_server: EmbeddedPostgres
) -> None:
    database.execute(_TABLES)
    parameters = {"state": state_url(state_server), "wal_retrieve_retry_interval": "500ms"}
    with LocalNode(tmp_path / "node", spark, parameters) as node:
        node.subscribe("s", database, "p")
        same(node, database)
        for mode in ("immediate", "fast"):
            state_server.stop(mode)
            for _ in range(5):
                database.execute(_CHANGES)
            with pytest.raises(StorageError, match="state store"):
                node.node.status()
            state_server.start()
            for _ in range(5):
                database.execute(_CHANGES)
            same(node, database)
        with psycopg.connect(state_server.conninfo(), autocommit=True) as connection:
            held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            eventually(lambda: connection.execute(held).fetchone() == (1,), "the node's lock")
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


def test_set_up_and_killed(tmp_path: Path, database: Database, postgres: EmbeddedPostgres) -> None:
    database.execute(_TABLES)
    database.execute("CREATE DATABASE state_of_a_node")
    node = NodeProcess(tmp_path / "node")
    parameters = {"state": state_url(postgres, "state_of_a_node")}
    try:
        node.init(parameters)
        mode = (node.folder / "penstock.toml").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600, "a URL may have a password in it"
        with pytest.raises(CommandFailed, match="holds a node already"):
            NodeProcess(tmp_path / "other").init(parameters)
        assert not (tmp_path / "other" / "penstock.toml").exists()
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.start(f"{failpoint.INSIDE_COPY}:1")
        assert node.wait_end(120) == -9, node.log_tail()
        node.start()
        target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
        node.wait_for("the copy", lambda: _cut(node) >= target)
        node.kill9()
        database.execute(_CHANGES)
        done = node.command("run", "--until-caught-up", "-D", str(node.folder))
        assert "caught up" in done
        with Node(node.folder) as reader:
            cut = reader.cut("s")
        assert cut is not None and len(cut.tables) == 2
    finally:
        node.close()
        with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
            connection.execute("DROP DATABASE state_of_a_node WITH (FORCE)")


def _cut(node: NodeProcess) -> int:
    (subscription,) = node.status()
    tables, cut = subscription["tables"], subscription["cut_lsn"]
    ready = len(tables) == 2 and all(table["state"] == "r" for table in tables)
    return Lsn.parse(cut) if ready and cut else 0
