"""A node is killed when rows have left their partition and have not arrived in another one.

Part of ``make faults`` only.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import failpoint
from penstock.embedded import free_port, wait_until
from publishing.heard import heard, listen
from publishing.lake_node import drop_subscriptions

pytestmark = [
    part_of_make_faults,
    pytest.mark.faults,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.slow,
]

_PASSWORD = "secret of the bank"
_TABLES = (
    "CREATE TABLE t (a int PRIMARY KEY, v text) PARTITION BY RANGE (a)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
    "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
    "INSERT INTO t VALUES (15, 'fifteen')",
    "CREATE PUBLICATION moves FOR TABLE t",
)


def test_a_row_is_neither_lost_nor_in_both(tmp_path: Path, database: Database) -> None:
    node, port = NodeProcess(tmp_path / "node"), free_port()
    conninfo = (
        f"host=127.0.0.1 port={port} dbname=lake user=b password='{_PASSWORD}' connect_timeout=5"
    )
    try:
        node.init({"port": port})
        node.sql(f"CREATE ROLE b LOGIN REPLICATION SUPERUSER PASSWORD '{_PASSWORD}'")
        node.start(failpoint.BETWEEN_BLOCK_COMMITS)
        _run(conninfo, *_TABLES)
        for table in ("t1", "t2"):
            database.execute(f"CREATE TABLE {table} (a int PRIMARY KEY, v text)")
        quoted = conninfo.replace("'", "''")
        database.execute(f"CREATE SUBSCRIPTION moves CONNECTION '{quoted}' PUBLICATION moves")
        wait_until(lambda: _rows(database) == [(1, "one"), (2, "two"), (15, "fifteen")], "a copy")
        wait_until(
            lambda: (
                not database.rows("SELECT 1 FROM pg_subscription_rel WHERE srsubstate::text <> 'r'")
            ),
            "the end of the copy",
        )
        listen(database, "t1", "t2")
        with pytest.raises(psycopg.OperationalError):
            _run(conninfo, "UPDATE t SET a = 19 - a WHERE a <> 2")
        assert node.wait_end(60) == -9, node.log_tail()
        node.start()
        moved = [(2, "two"), (4, "fifteen"), (18, "one")]
        wait_until(lambda: _there(conninfo), "the port")
        with psycopg.connect(conninfo, autocommit=True) as session:
            found = session.execute("SELECT a, v FROM t ORDER BY a").fetchall()
        assert found == moved
        wait_until(lambda: _rows(database) == moved, f"the rows {moved}")
        assert len(heard(database)) == 1
    finally:
        with contextlib.suppress(psycopg.Error):
            database.execute("ALTER SUBSCRIPTION moves DISABLE")
            database.execute("ALTER SUBSCRIPTION moves SET (slot_name = NONE)")
        drop_subscriptions(database)
        node.close()


def _run(conninfo: str, *statements: str) -> None:
    wait_until(lambda: _there(conninfo), "the port")
    with psycopg.connect(conninfo, autocommit=True) as session:
        for statement in statements:
            session.execute(statement)


def _there(conninfo: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(conninfo):
        return True
    return False


def _rows(database: Database) -> list[tuple[int, str]]:
    return sorted(database.rows("SELECT a, v FROM t1 UNION ALL SELECT a, v FROM t2"))
