"""What status tells while the node or what it needs does not respond: within ten seconds, why."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from end_to_end.standalone_cluster import StandaloneCluster
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_object_store import ObjectStore
from fix_postgres import Database
from fix_proxy import Proxy
from penstock.catalog.pg_stat_subscription import _HEARD_S
from penstock.cli.main import app
from penstock.embedded import free_port
from penstock.node import Node
from penstock.node.status import Health

pytestmark = [part_of_make_faults, pytest.mark.postgres, pytest.mark.slow]

_SETUP: Final = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t"
_WITHIN: Final = 15.0
"""Seconds: ten, and what a busy machine adds."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with contextlib.closing(NodeProcess(tmp_path / "node")) as node:
        yield node


def status(node: NodeProcess) -> tuple[int, Any]:
    """Exit status and the subscription, as ``penstock status`` tells scripts."""
    done = CliRunner().invoke(app, ["status", "-D", str(node.folder), "--json"])
    (told,) = json.loads(done.stdout)
    return done.exit_code, told


def streams(node: NodeProcess) -> None:
    node.wait_for(
        "a stream", lambda: status(node)[0] == 0 and status(node)[1]["state"] == "streaming"
    )


def wait_for_look(node: NodeProcess, what: str, look: Callable[[], bool], within: float) -> None:
    """Wait until a look shows it. Looks that begin after ``within`` seconds must; how long one
    takes depends on the machine."""
    began = time.monotonic()

    def shows() -> bool:
        at = time.monotonic()
        if look():
            return True
        assert at - began < within, f"{what}: not told {at - began:.1f} s later"
        return False

    node.wait_for(what, shows, 180)


def told(node: NodeProcess, cause: str) -> Any:
    """Wait until the status says that the node does not respond, and why."""

    def is_told() -> bool:
        code, found = status(node)
        return code == Health.NOT_RESPONDING and cause in str(found["error"])

    wait_for_look(node, cause, is_told, _WITHIN)
    _, found = status(node)
    assert found["state"] == "not responding"
    assert found["error_hint"]
    return found


def subscribe(node: NodeProcess, database: Database) -> None:
    database.execute(_SETUP)
    node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
    node.start()
    streams(node)


def test_a_suspended_process(node: NodeProcess, database: Database) -> None:
    node.init()
    subscribe(node, database)
    assert node.pid is not None
    os.killpg(node.pid, signal.SIGSTOP)
    found = told(node, f"process {node.pid} is suspended")
    assert f"kill -CONT {node.pid}" in found["error_hint"]
    assert (found["lag_bytes"], found["rows_per_second"]) == (None, 0.0)
    node.go_on()
    streams(node)


def test_a_suspended_process_that_only_publishes(node: NodeProcess) -> None:
    node.init(parameters={"port": free_port()})
    node.start()

    def told() -> tuple[int, str]:
        done = CliRunner().invoke(app, ["status", "-D", str(node.folder)])
        return done.exit_code, done.stdout

    def has_reported() -> bool:
        with Node(node.folder) as opened:
            report = opened._catalog.statistics.node()
            return report is not None and report.pid == node.pid

    node.wait_for("a report", has_reported)
    assert told()[0] == 0
    assert "not responding" not in told()[1]
    os.killpg(node.pid or 0, signal.SIGSTOP)
    wait_for_look(node, "the suspension", lambda: told()[0] == Health.NOT_RESPONDING, _WITHIN)
    assert "[not responding]" in told()[1]
    assert f"kill -CONT {node.pid}" in told()[1]
    node.go_on()
    node.wait_for("a report", lambda: told()[0] == 0)


def test_a_full_disk_under_the_state_store(
    tmp_path: Path, small_disk: Path, database: Database
) -> None:
    with contextlib.closing(NodeProcess(small_disk / "node")) as node:
        node.warehouse_uri = str(tmp_path / "warehouse")
        node.init()
        subscribe(node, database)
        ballast = (small_disk / "ballast").open("wb", buffering=0)
        with contextlib.closing(ballast), contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 1000) i")
        told(node, "No space left on device")
        (small_disk / "ballast").unlink()
        streams(node)


def test_an_object_store_that_stalls(
    node: NodeProcess,
    database: Database,
    s3: ObjectStore,
    make_proxy: Callable[[int], Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = s3.bucket()
    proxy = make_proxy(urlsplit(s3.endpoint).port or 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    node.warehouse_uri = f"s3://{bucket}/lake"
    node.init()
    subscribe(node, database)
    database.execute("INSERT INTO t VALUES (1, 'a')")
    streams(node)
    proxy.stall()
    database.execute("INSERT INTO t SELECT i, 'b' FROM generate_series(2, 1000) i")
    told(node, f"s3://{bucket}/lake")
    proxy.resume()
    proxy.cut()
    streams(node)


def test_a_cluster_without_workers(node: NodeProcess, database: Database, tmp_path: Path) -> None:
    database.execute(_SETUP)
    database.execute("INSERT INTO t SELECT i, repeat('v', 1000) FROM generate_series(1, 12000) i")
    with StandaloneCluster(tmp_path) as cluster:
        node.init(master=cluster.url, executor_memory="512m")
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.start()
        node.wait_for("a copy", lambda: "Spark has started" in node.log())
        told(node, "no executor")
        cluster.start_worker()
        streams(node)


def test_a_silent_publisher(
    node: NodeProcess, database: Database, make_proxy: Callable[[int], Proxy]
) -> None:
    """Its connections stay open, and nothing comes."""
    database.execute(_SETUP)
    proxy = make_proxy(database.server.port)
    node.init()
    conninfo = proxy.conninfo(database.conninfo)
    node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p")
    node.start()
    streams(node)
    proxy.stall()
    database.execute("INSERT INTO t VALUES (1, 'late')")

    def is_told() -> bool:
        code, found = status(node)
        return code == Health.TRIES_AGAIN and "not been heard of" in str(found["error"])

    wait_for_look(node, "the silence", is_told, _HEARD_S + _WITHIN - 10)
    _, found = status(node)
    assert found["lag_seconds"] > 5
    assert found["lag_bytes"] is None
    proxy.resume()
    streams(node)
