"""A node whose work is small starts no Spark; where Spark cannot start, only large work waits."""

from __future__ import annotations

import contextlib
import time
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


@part_of_make_faults
def test_a_jvm_that_is_killed_is_started_again(tmp_path: Path, database: Database) -> None:
    """Between jobs and while it works; whoever waits for it is told, and the copies go on."""
    database.execute(
        "CREATE TABLE one (id integer PRIMARY KEY, v text);"
        "CREATE TABLE two (id integer PRIMARY KEY, v text);"
        "INSERT INTO one SELECT i, repeat('v', 900) FROM generate_series(1, 20000) i;"
        "INSERT INTO two SELECT i, repeat('w', 900) FROM generate_series(1, 100000) i;"
        "CREATE PUBLICATION p FOR TABLE one"
    )
    with contextlib.closing(NodeProcess(tmp_path / "node")) as node:
        node.init({"wal_retrieve_retry_interval": "500ms"})
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.start()
        caught_up(node, database)
        assert_equal(database, node, "one")
        node.kill_below(b"java")
        database.execute("ALTER PUBLICATION p ADD TABLE two")
        node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        node.wait_for("a second start", lambda: node.log().count("Spark has started") == 2)
        node.kill_below(b"java")  # the copy has just begun, or is about to
        caught_up(node, database)
        assert_equal(database, node, "one", "two")
        assert node.log().count("Spark has started") >= 3
        assert node.log().count("Spark has ended") >= 2


@part_of_make_faults
def test_a_start_of_spark_does_not_hold_up_the_end(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM while a JVM that takes a minute is started."""
    slow = tmp_path / "slow" / "bin" / "java"
    slow.parent.mkdir(parents=True)
    slow.write_text('#!/bin/sh\necho begun > "$0.begun"\nexec sleep 60\n')
    slow.chmod(0o755)
    (slow.parents[1] / "release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(slow.parents[1]))
    database.execute(
        "CREATE TABLE one (id integer PRIMARY KEY, v text);"
        "INSERT INTO one SELECT i, repeat('v', 900) FROM generate_series(1, 20000) i;"
        "CREATE PUBLICATION p FOR TABLE one"
    )
    with contextlib.closing(NodeProcess(tmp_path / "node")) as node:
        node.init({"wal_retrieve_retry_interval": "500ms"})
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.start()
        node.wait_for("the start of Java", lambda: slow.with_name("java.begun").exists())
        begun = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - begun < 5
