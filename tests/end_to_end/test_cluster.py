"""The same on a standalone Spark cluster: a master and two workers from the PySpark wheel."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock.embedded import free_port, wait_until

pytestmark = [part_of_make_faults, pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class Daemon:
    """A process of the cluster with its log."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [_CLASS, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                },
            )

    def wait_for(self, text: str) -> None:
        def said() -> str:
            return self.log.read_text("utf-8", "replace")

        def guard() -> None:
            assert self._process.poll() is None, said()

        wait_until(lambda: text in said(), repr(text), 60, state=said, guard=guard, pause=0.1)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """``spark://127.0.0.1:port`` of a master and two workers (folders ``worker-0``, ``-1``)."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str) -> Daemon:
            daemon = Daemon(tmp_path / f"{name}.log", *arguments)
            return stack.enter_context(contextlib.closing(daemon))

        start("master", _MASTER, *where, "--port", str(port)).wait_for("I have been elected leader")
        workers = [
            start(
                *(f"worker-{i}", _WORKER, *where, "--cores", "1", "--memory", "800m"),
                *("--work-dir", str(tmp_path / f"worker-{i}"), url),
            )
            for i in range(2)
        ]
        for worker in workers:
            worker.wait_for("Successfully registered with master")
        yield url


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
