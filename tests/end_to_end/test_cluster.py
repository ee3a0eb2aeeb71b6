"""The same on a standalone Spark cluster: a master and two workers from the PySpark wheel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.standalone_cluster import StandaloneCluster
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database

pytestmark = [part_of_make_faults, pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """``spark://127.0.0.1:port`` of a master and two workers (folders ``worker-0``, ``-1``)."""
    with StandaloneCluster(tmp_path) as cluster:
        cluster.start_worker()
        cluster.start_worker()
        yield cluster.url


def test_copy_and_stream_on_a_cluster(cluster: str, tmp_path: Path, database: Database) -> None:
    for table in ("one", "two"):
        database.execute(
            f"CREATE TABLE {table} (id integer PRIMARY KEY, v text, n numeric(12,2));"
            f"INSERT INTO {table} SELECT i, repeat('v', 200), i FROM generate_series(1, 20000) i"
        )
    database.execute("CREATE PUBLICATION p FOR TABLE one, two")
    with contextlib.closing(NodeProcess(tmp_path / "node")) as node:
        node.init({"copy_unit_size": "1MB"}, master=cluster, executor_memory="512m")
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        run = ("run", "-D", str(node.folder), "--until-caught-up", "--timeout", "120")
        assert "caught up" in node.command(*run)
        assert_equal(database, node)
        database.execute("UPDATE one SET v = 'new' WHERE id % 3 = 0; DELETE FROM two WHERE id < 99")
        database.execute(
            "UPDATE two SET id = -id WHERE id % 5 = 0; INSERT INTO one VALUES (0, 'i')"
        )
        assert "caught up" in node.command(*run)
        assert_equal(database, node)
    for number in range(2):
        assert list((tmp_path / f"worker-{number}").glob("app-*/*/stderr")), "a worker was idle"


def assert_equal(database: Database, node: NodeProcess) -> None:
    with database.connect() as connection:
        for table in ("one", "two"):
            wanted = publisher_rows(connection, f"public.{table}")
            found = delta_rows(str(node.warehouse / "public" / table))
            assert not (lack := difference(table, wanted, found)), str(lack)
