"""``messages = true``: what sessions emit lands in a table, in order and once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from end_to_end.compare import query
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import failpoint
from penstock.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = "CREATE TABLE t (a int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t"


def messages(warehouse: Path) -> list[dict[str, Any]]:
    table = DeltaTable(str(warehouse / "_penstock" / "messages"))
    found = query("SELECT * FROM m ORDER BY commit_lsn, position", m=table)
    return list(found.to_pylist())


def emit(transactional: bool, prefix: str, content: str) -> str:
    return f"SELECT pg_logical_emit_message({transactional}, '{prefix}', '{content}')"


@pytest.mark.parametrize("version", [18, in_make_faults(16), in_make_faults(14)])
def test_they_are_in_order_and_told_with_their_transactions(
    local_node: Callable[..., LocalNode], database_on: Callable[[int], Database], version: int
) -> None:
    database = database_on(version)
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p", "messages = true")
    node.caught_up("s", database)
    with database.connect() as connection:
        alone = connection.execute(emit(False, "alone", "0").encode()).fetchone()
        with connection.transaction():
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute(emit(True, "with", "1").encode())
            (xid,) = connection.execute("SELECT pg_current_xact_id()::text::int").fetchone() or (0,)
            connection.execute(
                "INSERT INTO t SELECT i, repeat('v', 99) FROM generate_series(2, 4000) i"
            )
            connection.execute(emit(True, "with", "2").encode())
            connection.execute(emit(False, "out of it", "3").encode())
        connection.execute("BEGIN; INSERT INTO t VALUES (0)")
        connection.execute(emit(True, "rolled back", "4").encode())
        connection.execute(emit(False, "kept", "5").encode())
        connection.execute("ROLLBACK")
    assert alone is not None
    node.caught_up("s", database)
    found = messages(node.warehouse)
    told = [(m["prefix"], m["content"], m["transactional"], m["xid"]) for m in found]
    # One of no transaction is sent when it is read, ahead of the transaction that emitted it.
    assert told == [
        ("alone", b"0", False, 0),
        ("out of it", b"3", False, 0),
        ("with", b"1", True, xid),
        ("with", b"2", True, xid),
        ("kept", b"5", False, 0),
    ]
    assert found[0]["lsn"] == found[0]["commit_lsn"] == Lsn.parse(alone[0])
    assert found[2]["commit_time"] == found[3]["commit_time"]
    assert found[2]["lsn"] < found[3]["lsn"] < found[3]["commit_lsn"] <= node.cut().lsn
    assert len(node.rows("t")) == 4000
    # Until the publisher says that the ROLLBACK's own record is passed, it counts as lag.
    node.wait_for("s", "no lag", lambda status: status.lag_bytes == 0)


def test_without_the_option_there_is_no_table(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute(emit(False, "alone", "0"))
    node.caught_up("s", database)
    assert not (node.warehouse / "_penstock" / "messages").exists()


def is_at(node: NodeProcess, lsn: int) -> bool:
    return Lsn.parse(node.status()[0]["cut_lsn"] or "0/0") >= lsn


@part_of_make_faults
def test_a_kill_loses_and_doubles_none(tmp_path: Path, database: Database) -> None:
    database.execute(_TABLES)
    node = NodeProcess(tmp_path / "node")
    try:
        node.init()
        node.sql(
            f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p"
            " WITH (messages = true)"
        )
        for number, name in enumerate([failpoint.AFTER_MESSAGES, failpoint.AFTER_CUT] * 2):
            node.start(f"{name}:1")
            node.wait_for("the stream", lambda: node.status()[0]["state"] == "streaming")
            database.execute(f"INSERT INTO t VALUES ({number}); {emit(True, 't', str(number))}")
            database.execute(emit(False, "n", str(number)))
            assert node.wait_end(60) == -9
            database.execute(emit(False, "after", str(number)))
            database.execute(f"DELETE FROM t WHERE a = {number}")  # flushes the WAL
            target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
            node.start()
            node.wait_for("a cut with all of it", partial(is_at, node, target))
            node.kill9()
        found = [(m["prefix"], m["content"].decode()) for m in messages(node.warehouse)]
        assert found == [(prefix, str(n)) for n in range(4) for prefix in ("t", "n", "after")]
    finally:
        node.close()
