"""Law 1: what is acknowledged is on disk: data, vectors, log entries, folders and the cut.

Every fsync of a node and its executors is written down, and so is the arrival of every status
update at the publisher's side. With ``fsync`` off the same count finds them missing: it does look.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from faults import sync_log
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from faults.tap import Tap
from fix_postgres import Database
from penstock.lakehouse.deletion_vectors import vector_uri

pytestmark = [
    pytest.mark.faults,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/fd"),
]

_BATCHES = (
    "UPDATE a SET v = 'new' WHERE id < 20; INSERT INTO b SELECT i FROM generate_series(200, 250) i",
    "DELETE FROM a WHERE id % 7 = 0; UPDATE b SET v = 'x'; INSERT INTO c VALUES (1, 'c')",
    "TRUNCATE b; INSERT INTO b VALUES (1, 'b'); UPDATE a SET id = -id WHERE id > 50",
)


@pytest.fixture
def traced_node(tmp_path: Path, database: Database) -> Iterator[Callable[[bool], Any]]:
    """Runs the batches through a node; gives (warehouse, calls, feedback)."""
    with contextlib.ExitStack() as stack:

        def run(fsync: bool) -> Any:
            tap = stack.enter_context(contextlib.closing(Tap(database.server.port)))
            node = stack.enter_context(contextlib.closing(NodeProcess(tmp_path / "node")))
            node.init({"fsync": fsync})
            node.environment.update(sync_log.environment(tmp_path / "calls"))
            replicate(node, tap, database)
            return node.warehouse, sync_log.read(tmp_path / "calls"), tap.feedback

        yield run


def replicate(node: NodeProcess, tap: Tap, database: Database) -> None:
    """Copy three tables and apply three batches, each acknowledged before the next."""
    for table in "abc":
        database.execute(f"CREATE TABLE {table} (id integer PRIMARY KEY, v text)")
    for table in "ab":
        database.execute(f"INSERT INTO {table} SELECT i, 'v' FROM generate_series(1, 100) i")
    database.execute("CREATE PUBLICATION p FOR TABLE a, b, c")
    conninfo = f"{database.conninfo} port={tap.port} sslmode=disable gssencmode=disable"
    node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p")
    node.start()

    def acknowledged() -> bool:
        return bool(tap.feedback) and tap.feedback[-1][1] >= target

    target = 1
    node.wait_for("the first acknowledgement", acknowledged)
    for batch in _BATCHES:
        database.execute(f"BEGIN; {batch}; COMMIT")
        target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
        node.wait_for("an acknowledgement", acknowledged)
    assert node.stop() == 0


def log_entries(table: Path) -> Iterator[tuple[int, Path, list[dict[str, Any]]]]:
    """(version, path, actions), in order."""
    for path in sorted((table / "_delta_log").glob("*.json")):
        lines = path.read_text("utf-8").splitlines()
        yield int(path.stem), path, [json.loads(line) for line in lines]


def files_of(table: Path, versions: Callable[[int], bool]) -> Iterator[Path]:
    """Every file that some versions of a table brought, the log entries included."""
    for version, path, actions in log_entries(table):
        if not versions(version):
            continue
        yield path
        for add in (action["add"] for action in actions if "add" in action):
            yield table / add["path"]
            if vector := add.get("deletionVector"):
                yield Path(vector_uri(f"file://{table}", vector).removeprefix("file://"))


def unsynced(path: Path, calls: sync_log.Calls, until: int) -> list[str]:
    """What of a file is not on disk at a moment: its content, or its name in its folder."""
    name, named_at = str(path), 0
    content = name
    if name in calls.source:
        content, named_at = calls.source[name]
    content_at = min(calls.synced.get(content, []) + calls.synced.get(name, []), default=until + 1)
    lacks = [] if content_at <= until else [f"{path} is not synced"]
    after = max(named_at, content_at)
    if not any(after <= at <= until for at in calls.synced.get(str(path.parent), [])):
        lacks.append(f"the folder of {path} is not synced")
    return lacks


def check(
    warehouse: Path, calls: sync_log.Calls, feedback: list[tuple[int, int]]
) -> tuple[int, list[str]]:
    """(files looked at, what was acknowledged before it was on disk)."""
    cuts = warehouse / "_penstock" / "cuts"
    looked, lacks = 0, []
    for version, _, actions in log_entries(cuts):
        for add in (action["add"] for action in actions if "add" in action):
            rows = pq.read_table(cuts / add["path"]).to_pylist()
            lsn = rows[0]["lsn"]
            until = next((at for at, flush in feedback if flush >= lsn), None)
            if until is None:
                continue
            paths = [*files_of(cuts, lambda v, n=version: v == n)]  # type: ignore[misc]
            for row in rows:
                table = Path(row["uri"].removeprefix("file://"))
                paths += files_of(table, lambda v, n=row["version"]: v <= n)  # type: ignore[misc]
            for path in paths:
                lacks += unsynced(path, calls, until)
            looked += len(paths)
    return looked, lacks


@part_of_make_faults
def test_everything_is_on_disk_before_it_is_acknowledged(
    traced_node: Callable[[bool], Any],
) -> None:
    warehouse, calls, feedback = traced_node(True)
    looked, lacks = check(warehouse, calls, feedback)
    assert not lacks, "\n".join(lacks)
    assert looked > 50
    tables = [warehouse / "public" / table for table in "abc"]
    assert any(path.suffix == ".bin" for table in tables for path in files_of(table, bool))
    # The folders themselves were made durable too.
    first = next(at for at, flush in feedback if flush)
    for folder in (warehouse, warehouse / "public"):
        assert min(calls.synced[str(folder)]) < first


@part_of_make_faults
def test_the_count_finds_what_is_missing(traced_node: Callable[[bool], Any]) -> None:
    warehouse, calls, feedback = traced_node(False)
    looked, lacks = check(warehouse, calls, feedback)
    assert len(lacks) > looked > 50
