"""Rows that are written on a node to a table that a subscription of it maintains."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock.embedded import free_port, wait_until
from penstock.failpoint import BEFORE_CUT
from publishing.lake_node import PASSWORD, LakeNode
from publishing.test_cascade import follows

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLE = "CREATE SCHEMA own; CREATE TABLE own.t (id integer PRIMARY KEY, v text)"
_ALL = "SELECT id, v FROM own.t ORDER BY id"


def test_own_rows_go_to_every_subscriber(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """Stock subscribers with origin = any and none, as a stock node would send them: at once, in
    order with what the subscription applies, and nothing that it applies to origin = none."""
    source, every, none = subscriber(18), subscriber(18), subscriber(18)
    for database in (source, every, none):
        database.execute(_TABLE)
    source.execute("CREATE PUBLICATION own FOR TABLE own.t")
    lake.node.sql(f"CREATE SUBSCRIPTION own CONNECTION '{source.conninfo}' PUBLICATION own")
    follows(lake, source, "own")
    lake.execute("CREATE PUBLICATION own FOR TABLE own.t")
    lake.subscribe(every, "own_any", "own")
    lake.subscribe(none, "own_none", "own", "copy_data = false, origin = none")

    def arrived(local: list[int]) -> None:
        def both() -> bool:
            found = [(number, "local") for number in local]
            mine = every.rows("SELECT id, v FROM own.t WHERE v = 'local' ORDER BY id")
            return mine == found == none.rows(_ALL)

        wait_until(both, f"the rows {local}")

    lake.execute("INSERT INTO own.t VALUES (9001, 'local')")
    arrived([9001])  # nothing has come from the publisher since
    source.execute("INSERT INTO own.t SELECT i, 'source' FROM generate_series(1, 5) i")
    follows(lake, source, "own")
    lake.execute("INSERT INTO own.t VALUES (9002, 'local')")
    arrived([9001, 9002])
    lake.execute("UPDATE own.t SET v = 'local' WHERE id = 3")
    wait_until(lambda: (3, "local") in every.rows(_ALL), "a local change of the publisher's row")
    lake.execute("DELETE FROM own.t WHERE id IN (3, 9001)")
    wait_until(lambda: none.rows(_ALL) == [(9002, "local")], "the local deletion")

    def write() -> None:
        for number in range(10, 40):
            source.execute(f"INSERT INTO own.t VALUES ({number}, 'source')")

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(9010, 9015):
        lake.execute(f"INSERT INTO own.t VALUES ({number}, 'local')")
    writer.join()
    follows(lake, source, "own")
    arrived([9002, *range(9010, 9015)])
    lake.caught_up("own_any")
    wanted = [(i, "source") for i in (1, 2, 4, 5, *range(10, 40))]
    wanted += [(i, "local") for i in (9002, *range(9010, 9015))]
    assert every.rows(_ALL) == wanted
    errors = "SELECT sum(apply_error_count) FROM pg_stat_subscription_stats"
    assert (every.value(errors), none.value(errors)) == (0, 0)
    every.execute("DROP SUBSCRIPTION own_any")
    none.execute("DROP SUBSCRIPTION own_none")
    lake.node.sql("DROP SUBSCRIPTION own")


@part_of_make_faults
@pytest.mark.faults
def test_a_row_that_is_written_after_a_kill(
    tmp_path: Path, subscriber: Callable[..., Database]
) -> None:
    """It comes between two commits of the subscription that have no cut between them, and reaches
    origin = none all the same."""
    source, none = subscriber(18), subscriber(18)
    for database in (source, none):
        database.execute(_TABLE)
    source.execute("CREATE PUBLICATION own FOR TABLE own.t")
    port, node = free_port(), NodeProcess(tmp_path / "node")
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=lake password='{PASSWORD}'"
    quoted = conninfo.replace("'", "''")
    try:
        node.init({"port": port})
        node.sql(
            f"CREATE SUBSCRIPTION own CONNECTION '{source.conninfo}' PUBLICATION own;"
            f"CREATE ROLE lake LOGIN REPLICATION SUPERUSER PASSWORD '{PASSWORD}'"
        )
        node.start()
        node.wait_for("the first cut", lambda: node.status()[0]["cut_lsn"], 180)
        node.sql("CREATE PUBLICATION own FOR TABLE own.t")
        wait_until(lambda: _listens(port), "the port")
        none.execute(
            f"CREATE SUBSCRIPTION own CONNECTION '{quoted}' PUBLICATION own"
            " WITH (copy_data = false, origin = none)"
        )
        node.kill9()
        node.start(f"{BEFORE_CUT}:1")
        source.execute("INSERT INTO own.t VALUES (1, 'source')")
        assert node.wait_end(180) == -9, node.log_tail()
        node.sql("ALTER SUBSCRIPTION own DISABLE")
        node.start()
        wait_until(lambda: _listens(port), "the port")
        with psycopg.connect(conninfo, autocommit=True) as session:
            session.execute("INSERT INTO own.t VALUES (9001, 'local')")
            node.sql("ALTER SUBSCRIPTION own ENABLE")
            source.execute("INSERT INTO own.t VALUES (2, 'source')")
            rows = "SELECT id FROM own.t ORDER BY id"
            wait_until(
                lambda: session.execute(rows).fetchall() == [(1,), (2,), (9001,)],
                "the publisher's rows",
            )
        wait_until(lambda: none.rows(_ALL) == [(9001, "local")], "the row of the session")
        none.execute("DROP SUBSCRIPTION own")
    finally:
        node.close()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
