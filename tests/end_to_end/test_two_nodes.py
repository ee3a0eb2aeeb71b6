"""Two nodes with one id on one warehouse: a copied folder, a restored machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.compare import delta_rows
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_object_store import ObjectStore
from fix_postgres import Database
from penstock import Node
from penstock.embedded import CommandFailed, wait_until
from penstock.lakehouse.log import entry_uri, list_log
from penstock.lakehouse.storage import Storage

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

_SETUP = "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t"
_IN_USE = 1


@pytest.fixture(params=["file", pytest.param("s3", marks=part_of_make_faults)])
def node(
    request: pytest.FixtureRequest, tmp_path: Path, database: Database
) -> Iterator[NodeProcess]:
    """A running node with a subscription."""
    node = NodeProcess(tmp_path / "node", warehouse=tmp_path / "warehouse")
    if request.param == "s3":
        s3: ObjectStore = request.getfixturevalue("s3")
        node.warehouse_uri = f"s3://{s3.bucket()}/lake"
    database.execute(_SETUP)
    with contextlib.closing(node):
        node.init()
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.start()
        caught_up(node, database)
        yield node


@pytest.fixture
def copy(node: NodeProcess, tmp_path: Path) -> Iterator[NodeProcess]:
    """A copy of its folder."""
    shutil.copytree(node.folder, tmp_path / "copy")
    copy = NodeProcess(tmp_path / "copy", warehouse=node.warehouse)
    with contextlib.closing(copy):
        yield copy


def caught_up(node: NodeProcess, database: Database) -> None:
    target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
    with Node(node.folder) as reader:
        node.wait_until(lambda: reached(reader, target), "a cut")


def reached(reader: Node, target: int) -> bool:
    (s,) = reader.status()
    ready = [table.state for table in s.tables] == ["r"]
    return ready and s.cut_lsn is not None and s.cut_lsn >= target


def test_a_copy_is_refused_while_the_node_runs(
    node: NodeProcess, copy: NodeProcess, database: Database
) -> None:
    began = time.monotonic()
    copy.start()
    assert copy.wait_end(60) == _IN_USE
    assert time.monotonic() - began < 15
    told = copy.log()
    assert "is in use by another node" in told and str(node.folder) in told
    assert re.search(rf'host "{socket.gethostname()}" with PID {node.pid} since \d{{4}}-', told)
    database.execute("INSERT INTO t SELECT generate_series(1, 100)")
    caught_up(node, database)
    assert node.stop() == 0
    copy.start()
    caught_up(copy, database)


def test_a_copy_with_the_warehouse_in_its_folder(tmp_path: Path, database: Database) -> None:
    """It has a warehouse of its own, and the running node's slot."""
    database.execute(_SETUP)
    node = NodeProcess(tmp_path / "node", warehouse=tmp_path / "node" / "warehouse")
    copy = NodeProcess(tmp_path / "copy", warehouse=tmp_path / "copy" / "warehouse")
    with contextlib.closing(node), contextlib.closing(copy):
        node.init()
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.start()
        caught_up(node, database)
        shutil.copytree(node.folder, copy.folder)
        copy.configure()  # the warehouse in its own folder
        with pytest.raises(CommandFailed, match="is in use by another node"):
            copy.sql("DROP SUBSCRIPTION s")
        copy.start()
        assert copy.wait_end(60) == _IN_USE
        assert str(node.folder) in copy.log()
        database.execute("INSERT INTO t SELECT generate_series(1, 100)")
        caught_up(node, database)


@part_of_make_faults
def test_a_node_that_was_replaced_ends(
    node: NodeProcess, copy: NodeProcess, database: Database
) -> None:
    """It was suspended, and the copy, as on another machine, has taken its place."""
    os.killpg(node.pid, signal.SIGSTOP)
    # its walsender waits for the suspended process; the server would end it by wal_sender_timeout
    database.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
    database.execute("INSERT INTO t SELECT generate_series(1, 100)")
    copy.start()
    caught_up(copy, database)
    os.killpg(node.pid, signal.SIGCONT)
    assert node.wait_end(60) == _IN_USE
    assert "is in use by another node" in node.log() and str(copy.folder) in node.log()
    database.execute("INSERT INTO t SELECT generate_series(101, 200)")
    caught_up(copy, database)
    with Node(copy.folder) as reader:
        cut = reader.cut("s")
    assert cut is not None
    pin = cut.tables["public", "t"]
    assert sorted(delta_rows(pin.uri, pin.version)) == [(i,) for i in range(1, 201)]


@part_of_make_faults
def test_a_signal_ends_the_wait_for_the_other_node(node: NodeProcess, copy: NodeProcess) -> None:
    """As it ends a node that runs: nothing is wrong."""
    os.killpg(node.pid, signal.SIGSTOP)
    copy.start()
    node_waits = "waiting for its next sign"
    wait_until(lambda: node_waits in copy.log(), node_waits, state=copy.log)
    began = time.monotonic()
    assert copy.stop() == 0
    assert time.monotonic() - began < 15
    os.killpg(node.pid, signal.SIGCONT)


@part_of_make_faults
def test_a_killed_node_starts_again_at_once(node: NodeProcess, database: Database) -> None:
    """Its lease, which it has not given back, is known to be of an ended process."""
    node.kill9()
    storage = Storage(node.warehouse_uri)
    uri = f"{storage.uri}/_penstock/running"
    entry = json.loads(storage.read(entry_uri(uri, list_log(storage, uri).newest or 0)))
    assert entry["pid"] == node.pid and not entry["free"]
    began = time.monotonic()
    node.start()
    database.execute("INSERT INTO t VALUES (1)")
    caught_up(node, database)
    assert time.monotonic() - began < 25
    assert "in use" not in node.log()
