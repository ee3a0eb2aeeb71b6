"""A node whose state is in a PostgreSQL: set up by the CLI, killed in its copy and after it.

Part of ``make faults`` only: ``make test`` has ``end_to_end/test_state_store.py``.
"""

from __future__ import annotations

import stat
from pathlib import Path

import psycopg
import pytest

from end_to_end.test_state_store import CHANGES, TABLES, state_url
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import Node, failpoint
from penstock.embedded import CommandFailed, EmbeddedPostgres
from penstock.lsn import Lsn

pytestmark = [
    part_of_make_faults,
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.slow,
]


def test_set_up_and_killed(tmp_path: Path, database: Database, postgres: EmbeddedPostgres) -> None:
    database.execute(TABLES)
    database.execute("CREATE DATABASE state_of_a_node")
    node = NodeProcess(tmp_path / "node")
    parameters = {"state": state_url(postgres, "state_of_a_node")}
    try:
        node.init(parameters)
        mode = (node.folder / "penstock.toml").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600, "a URL may have a password in it"
        with pytest.raises(CommandFailed, match="holds a node already"):
            NodeProcess(tmp_path / "other").init(parameters)
        assert not (tmp_path / "other" / "penstock.toml").exists()
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.start(f"{failpoint.INSIDE_COPY}:1")
        assert node.wait_end(120) == -9, node.log_tail()
        node.start()
        target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
        node.wait_for("the copy", lambda: _cut(node) >= target)
        node.kill9()
        database.execute(CHANGES)
        done = node.command("run", "--until-caught-up", "-D", str(node.folder))
        assert "caught up" in done
        with Node(node.folder) as reader:
            cut = reader.cut("s")
        assert cut is not None and len(cut.tables) == 2
    finally:
        node.close()
        with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
            connection.execute("DROP DATABASE state_of_a_node WITH (FORCE)")


def _cut(node: NodeProcess) -> int:
    (subscription,) = node.status()
    tables, cut = subscription["tables"], subscription["cut_lsn"]
    ready = len(tables) == 2 and all(table["state"] == "r" for table in tables)
    return Lsn.parse(cut) if ready and cut else 0
