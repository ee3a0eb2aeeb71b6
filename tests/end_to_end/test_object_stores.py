"""A node whose warehouse is in an object store: from ``penstock init`` to its readers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from faults.node_process import NodeProcess
from fix_object_store import SECRET, ObjectStore
from fix_postgres import Database
from penstock.lsn import Lsn
from publishing.lake_node import drop_subscriptions, eventually, free_port

_TESTS: Final = Path(__file__).parents[1]
_SETUP: Final = (
    "CREATE TABLE a (id int PRIMARY KEY, word text); INSERT INTO a SELECT i, md5(i::text)"
    " FROM generate_series(1, 3000) i;"
    "CREATE TABLE b (id int PRIMARY KEY, of_a int); INSERT INTO b SELECT i, i FROM"
    " generate_series(1, 500) i;"
    "CREATE PUBLICATION p FOR TABLE a, b"
)
_CHANGES: Final = (
    "BEGIN; INSERT INTO a SELECT max(id) + 1, 'new' FROM a; UPDATE b SET of_a = of_a + 1"
    " WHERE id % 100 = 0; DELETE FROM b WHERE id = (SELECT min(id) FROM b); COMMIT"
)
_ROWS: Final = {
    "a": "SELECT id, word FROM a ORDER BY id",
    "b": "SELECT id, of_a FROM b ORDER BY id",
}


class PortNode(NodeProcess):
    """A node in a process of its own, with a port where everybody local is let in."""

    def __init__(self, folder: Path, warehouse: str) -> None:
        super().__init__(folder, warehouse_uri=warehouse)
        self.port = free_port()
        self.conninfo = f"host=127.0.0.1 port={self.port} dbname=lake user=lake connect_timeout=20"

    def set_up(self, database: Database) -> None:
        """Node, role and subscription, all by the CLI while nothing runs."""
        trust: Any = ["host all all 127.0.0.1/32 trust"]
        self.init({"port": self.port, "hba": trust, "sequencer_interval": "50ms"})
        self.sql("CREATE ROLE lake LOGIN SUPERUSER REPLICATION")
        self.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")

    def caught_up(self, database: Database) -> None:
        """Wait for a cut with both tables that holds what is committed now."""
        target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
        self.wait_for("catching up", lambda: self._cut() >= target, timeout=180)

    def _cut(self) -> int:
        (subscription,) = self.status()
        tables, cut = subscription["tables"], subscription["cut_lsn"]
        ready = len(tables) == 2 and all(table["state"] == "r" for table in tables)
        return Lsn.parse(cut) if ready and cut else -1

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        """A session on the port."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            yield connection


def whole_way(node: PortNode, spark_uri: str, database: Database, subscriber: Database) -> None:
    """Subscribe, read on the port, write there, publish, read by Spark; all rows compared."""
    database.execute(_SETUP)
    node.set_up(database)
    assert not (node.folder / "warehouse").exists()
    node.start()
    node.caught_up(database)
    for _ in range(5):
        database.execute(_CHANGES)
    node.caught_up(database)
    wanted = {name: database.rows(query) for name, query in _ROWS.items()}
    with node.session() as session:
        for name, query in _ROWS.items():
            assert session.execute(query).fetchall() == wanted[name]
        session.execute("CREATE TABLE own (id int PRIMARY KEY, word text)")
        session.execute("INSERT INTO own VALUES (1, 'one'), (2, 'two'), (3, 'three')")
        session.execute("UPDATE own SET word = 'zwei' WHERE id = 2")
        session.execute("DELETE FROM own WHERE id = 3")
        session.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    own = [(1, "one"), (2, "zwei")]
    subscriber.execute(
        "CREATE TABLE a (id int PRIMARY KEY, word text);"
        "CREATE TABLE b (id int PRIMARY KEY, of_a int);"
        "CREATE TABLE own (id int PRIMARY KEY, word text)"
    )
    subscriber.execute(
        f"CREATE SUBSCRIPTION of_the_lake CONNECTION '{node.conninfo}' PUBLICATION everything"
    )
    try:
        database.execute(_CHANGES)
        wanted = {name: database.rows(query) for name, query in _ROWS.items()}
        eventually(
            lambda: all(subscriber.rows(query) == wanted[name] for name, query in _ROWS.items()),
            "rows at the subscriber",
            120,
        )
        assert subscriber.rows("SELECT * FROM own ORDER BY id") == own
    finally:
        drop_subscriptions(subscriber)
    seen = _read_by_spark(spark_uri, "public/a", "public/b", "public/own")
    assert seen == [wanted["a"], wanted["b"], own]
    assert node.stop() == 0


def _read_by_spark(warehouse: str, *tables: str) -> list[list[tuple[Any, ...]]]:
    """Rows as a Spark without Penstock's node sees them."""
    done = subprocess.run(
        [sys.executable, str(_TESTS / "faults" / "run_spark_read.py"), warehouse, *tables],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [[tuple(row) for row in json.loads(line)] for line in done.stdout.splitlines()]


@pytest.mark.spark
@pytest.mark.slow
def test_s3(s3: ObjectStore, tmp_path: Path, database: Database, database_on: Any) -> None:
    bucket = s3.bucket()
    node = PortNode(tmp_path / "node", f"s3://{bucket}/lake")
    try:
        whole_way(node, f"s3a://{bucket}/lake", database, database_on(18))
        written = node.log() + (node.folder / "penstock.toml").read_text("utf-8")
        assert SECRET not in written
        with (node.folder / "state.db").open("rb") as state:
            assert SECRET.encode() not in state.read()
    finally:
        node.close()
