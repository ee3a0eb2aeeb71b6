"""One story of a node whose warehouse is in an object store: from ``penstock init`` to its readers.

In: a node that is not set up yet, databases to follow and to be followed by. Out: every row
compared at every reader: the port, a PostgreSQL that subscribes, a Spark without a node. On the way
the node is killed as often as is asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import Node, failpoint
from penstock.embedded import free_port, wait_until
from publishing.lake_node import drop_subscriptions

_READER: Final = Path(__file__).with_name("run_spark_read.py")
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
_OWN: Final = "SELECT id, word FROM own ORDER BY id"

IN_COPY: Final = f"{failpoint.INSIDE_COPY}:1"
IN_STREAM: Final = f"{failpoint.BETWEEN_COMMITS}:1"


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

    def killed_at(self, place: str, database: Database) -> None:
        """Run it with an armed failpoint until its SIGKILL."""
        self.start(place)
        if place == IN_STREAM:
            self.caught_up(database)
            database.execute(_CHANGES)
        assert self.wait_end(120) == -9, self.log_tail()

    def caught_up(self, database: Database) -> None:
        """Wait for a cut with both tables that holds what is committed now."""
        target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
        self.wait_for("catching up", lambda: self._cut() >= target, timeout=240)

    def _cut(self) -> int:
        with Node(self.folder) as reader:
            cut = reader.cut("s")
        return -1 if cut is None or len(cut.tables) < 2 else int(cut.lsn)

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        """A session on the port."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            yield connection


def whole_way(
    node: PortNode,
    spark_uri: str,
    database: Database,
    subscriber: Database,
    kills: Sequence[str] = (),
) -> None:
    """The story. ``kills``: failpoints, IN_COPY before IN_STREAM."""
    database.execute(_SETUP)
    node.set_up(database)
    assert not (node.folder / "warehouse").exists()
    for place in kills:
        node.killed_at(place, database)
    node.start()
    node.caught_up(database)
    for _ in range(5):
        database.execute(_CHANGES)
    node.caught_up(database)
    with node.session() as session:
        for name, rows in _wanted(database).items():
            assert session.execute(_ROWS[name]).fetchall() == rows
    own = _written_on_the_port(node)
    _followed(node, database, subscriber, own)
    seen = _read_by_spark(spark_uri, "public/a", "public/b", "public/own")
    assert seen == [*_wanted(database).values(), own]
    assert node.stop() == 0


def _wanted(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    return {name: database.rows(query) for name, query in _ROWS.items()}


def _written_on_the_port(node: PortNode) -> list[tuple[Any, ...]]:
    """A table of the node's own, changed by Delta in Spark; its rows."""
    with node.session() as session:
        session.execute("CREATE TABLE own (id int PRIMARY KEY, word text)")
        session.execute("INSERT INTO own VALUES (1, 'one'), (2, 'two'), (3, 'three')")
        session.execute("UPDATE own SET word = 'zwei' WHERE id = 2")
        session.execute("DELETE FROM own WHERE id = 3")
        session.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        return session.execute(_OWN).fetchall()


def _followed(
    node: PortNode, database: Database, subscriber: Database, own: list[tuple[Any, ...]]
) -> None:
    """A stock PostgreSQL subscribes to the node: the copy, then a change."""
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
        wanted = {_OWN: own, **{_ROWS[name]: rows for name, rows in _wanted(database).items()}}
        wait_until(
            lambda: all(subscriber.rows(query) == rows for query, rows in wanted.items()),
            "rows at the subscriber",
            180,
        )
    finally:
        drop_subscriptions(subscriber)


def _read_by_spark(warehouse: str, *tables: str) -> list[list[tuple[Any, ...]]]:
    """Rows as a Spark without a node sees them."""
    done = subprocess.run(
        [sys.executable, str(_READER), warehouse, *tables],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [[tuple(row) for row in json.loads(line)] for line in done.stdout.splitlines()]
