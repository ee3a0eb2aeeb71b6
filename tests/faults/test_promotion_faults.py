"""A node follows a standby, which is promoted, or what it streams from is; and it is killed before
the first acknowledgement after that. What it has is of the new timeline, and it goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from end_to_end.compare import delta_rows
from faults.heavy import in_make_faults, part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import Node, failpoint
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.lakehouse.cuts import Cut
from penstock.lsn import Lsn
from standby import standby_of, telling_what_runs

pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.slow]

_TABLE = """
CREATE TABLE t (id integer PRIMARY KEY);
INSERT INTO t SELECT generate_series(1, 100);
CREATE PUBLICATION p FOR TABLE t
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path / "node")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[list[Database]]:
    """A primary, and standbys one after the other."""
    with ExitStack() as stack:
        # Backups of standbys need whole pages in the WAL.
        settings = {"full_page_writes": True}
        found = [stack.enter_context(EmbeddedPostgres(18, settings=settings))]
        for _ in range(request.param):
            found.append(stack.enter_context(standby_of(found[-1])))
        yield [Database(server, "postgres") for server in found]


def _cut(node: NodeProcess) -> int:
    ((status),) = node.status()
    return int(Lsn.parse(status["cut_lsn"] or "0/0"))


def _follow(node: NodeProcess, publisher: Database) -> None:
    target = int(publisher.value("SELECT pg_last_wal_replay_lsn() - '0/0'") or 0)
    if not publisher.value("SELECT pg_is_in_recovery()"):
        target = int(publisher.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
    node.wait_for("a cut with all of it", lambda: _cut(node) >= target, 120)


def _last_cut(node: NodeProcess) -> Cut:
    with Node(node.folder) as reader:
        cut = reader.cut("s")
    assert cut is not None
    return cut


def _rows(node: NodeProcess) -> list[int]:
    pin = _last_cut(node).tables["public", "t"]
    return sorted(row[0] for row in delta_rows(pin.uri, pin.version))


def _replayed(standby: Database, rows: int) -> None:
    wait_until(lambda: standby.value("SELECT count(*) FROM t") == rows, "the replay", 60)


def _start_at(node: NodeProcess, publisher: Database, name: str) -> None:
    """Start a node that is killed there; it streams."""
    node.start(f"{name}:1")
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = 's'"
    wait_until(lambda: publisher.value(active), "the stream", 60)


@part_of_make_faults
@pytest.mark.parametrize(
    ("servers", "name"),
    [
        (1, failpoint.AFTER_CUT),
        in_make_faults(1, failpoint.BEFORE_CUT),
        in_make_faults(1, failpoint.BEFORE_COMMITS),
        in_make_faults(2, failpoint.AFTER_CUT),
        in_make_faults(3, failpoint.AFTER_CUT),
    ],
    indirect=["servers"],
)
def test_killed_before_the_first_acknowledgement(
    node: NodeProcess, servers: list[Database], name: str
) -> None:
    followed = servers[-1]
    servers[0].execute(_TABLE)
    there = "SELECT count(*) FROM pg_publication_tables"
    wait_until(lambda: followed.value(there) == 1, "the publication on the standby")
    node.init()
    with telling_what_runs(servers[0].server):
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{followed.conninfo}' PUBLICATION p")
        node.start()
        node.wait_for("the copy", lambda: _cut(node) > 0, 120)
    node.kill9()
    wanted = list(range(1, 101))
    for number, (primary, standby) in enumerate(itertools.pairwise(servers), 1):
        _start_at(node, followed, name)
        primary.server.stop("fast")
        standby.server.psql("SELECT pg_promote()")
        standby.execute(f"INSERT INTO t SELECT generate_series({number}001, {number}010)")
        assert node.wait_end(120) == -9, node.log_tail()
        wanted += range(number * 1000 + 1, number * 1000 + 11)
        confirmed = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots"
        confirmed = f"{confirmed} WHERE slot_name = 's'"
        assert name != failpoint.AFTER_CUT or _last_cut(node).lsn > followed.value(confirmed)
        node.start()
        _replayed(followed, len(wanted))
        _follow(node, followed)
        node.kill9()
        assert _rows(node) == wanted
