"""A node whose work is small starts no Spark; where Spark cannot start, only large work waits."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psycopg
import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import Node
from penstock.embedded import free_port

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def assert_equal(database: Database, node: NodeProcess, *tables: str) -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}")
            found = delta_rows(str(node.warehouse / "public" / table))
            assert not (lack := difference(table, wanted, found)), str(lack)


def caught_up(node: NodeProcess, database: Database) -> None:
    with Node(node.folder) as beside:
        beside.wait_for(str(database.value("SELECT pg_current_wal_flush_lsn()::text")))


@part_of_make_faults
def test_small_work_needs_none_and_large_work_waits_for_it(
    tmp_path: Path, database: Database
) -> None:
    database.execute(
        "CREATE TABLE small (id integer PRIMARY KEY, v text);"
        "INSERT INTO small SELECT i, 'v' FROM generate_series(1, 1000) i;"
        "CREATE TABLE large (id integer PRIMARY KEY, v text);"
        "INSERT INTO large SELECT i, repeat('v', 900) FROM generate_series(1, 20000) i;"
        "CREATE PUBLICATION p FOR TABLE small"
    )
    with contextlib.closing(NodeProcess(tmp_path / "node")) as node:
        port = free_port()
        trust = ["host all all 127.0.0.1/32 trust"]
        parameters = {"port": port, "hba": trust, "wal_retrieve_retry_interval": "2s"}
        node.init(parameters, master="no cluster")
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.sql("CREATE ROLE b LOGIN SUPERUSER")
        node.start()
        caught_up(node, database)
        database.execute("UPDATE small SET v = 'w' WHERE id < 9; DELETE FROM small WHERE id > 999")
        caught_up(node, database)
        assert_equal(database, node, "small")
        with psycopg.connect(f"host=127.0.0.1 port={port} dbname=lake user=b") as client:
            rows = client.execute("SELECT count(*), sum(id) FROM small WHERE v = 'w'").fetchone()
            assert rows == (8, 36)
        assert "Spark" not in node.log()

        database.execute("ALTER PUBLICATION p ADD TABLE large")
        node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        node.wait_for("the error", lambda: "could not start Spark" in node.log())
        assert "HINT:  Look at [spark] in penstock.toml" in node.log()
        database.execute("INSERT INTO small VALUES (0, 'the stream goes on')")
        small = str(node.warehouse / "public" / "small")
        row = (0, "the stream goes on")
        node.wait_for("the stream", lambda: row in delta_rows(small))

        node.stop()
        node.configure(parameters)
        node.start()
        caught_up(node, database)
        assert_equal(database, node, "small", "large")
        assert "Spark has started" in node.log()
