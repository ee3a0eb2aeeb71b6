"""pg_logical_emit_message on the node: pg_recvlogical hears what it hears of a stock server,
another node keeps what it hears, a stock subscriber passes it by."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from end_to_end.compare import query
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import failpoint
from penstock.catalog import Catalog
from penstock.embedded import wait_until
from penstock.embedded.installation import clients
from penstock.lsn import Lsn
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.messages import Begin, Commit, Insert, LogicalMessage, Message
from publishing.lake_node import PASSWORD, LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]

_SETUP = "CREATE TABLE told (id integer PRIMARY KEY, v text)"
_PUBLISH = "CREATE PUBLICATION told FOR TABLE told"
_WORK = [
    "SELECT pg_logical_emit_message(false, 'alone', 'é')",
    "INSERT INTO told VALUES (1, 'one')",
    "SELECT pg_logical_emit_message(true, 'whole', '\\x000aff'::bytea)",
    "SELECT pg_logical_emit_message(transactional => false, prefix => '', message => '')",
    "SELECT pg_logical_emit_message(true, 'large', repeat('x', 100000))",
]


@pytest.fixture(scope="module")
def follower(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """A node that subscribes to the node."""
    with LocalNode(tmp_path_factory.mktemp("follower") / "node", spark) as started:
        yield started


def answer(session: Any, statement: str) -> Any:
    """The only value that a statement gives, if it gives any."""
    result = session.execute(statement)
    return result.fetchone()[0] if result.description else None


def heard(
    conninfo: str, slot: str, end: str, output: Path, told: list[Lsn]
) -> list[tuple[object, ...]]:
    """What pg_recvlogical writes up to a position, less what differs by server. ``told``: the
    positions that sessions were told of their messages."""
    command = [str(clients().program("pg_recvlogical")), "-d", conninfo, "--slot", slot, "--start"]
    for option in ("proto_version=1", "publication_names=told", "messages=true"):
        command += ["-o", option]
    command += ["-f", str(output), "--endpos", end, "--no-loop"]
    environment = {**os.environ, "PGPASSWORD": PASSWORD}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return [described(message, told) for message in decoded(output.read_bytes())]


def decoded(output: bytes) -> Iterator[Message]:
    decoder, start, at = Decoder(1), 0, 0
    while (at := output.find(b"\n", at)) >= 0:
        try:
            yield decoder.decode(output[start:at])
            start = at + 1
        except Exception:  # a newline inside a message
            pass
        at += 1
    assert start == len(output)


def described(message: Message, told: list[Lsn]) -> tuple[object, ...]:
    kind = type(message).__name__
    match message:
        case LogicalMessage(transactional, lsn, prefix, content, xid):
            return kind, transactional, lsn in told, prefix, content, xid
        case Commit(commit_lsn, end_lsn):
            return kind, commit_lsn < end_lsn
    return (kind,)


def test_pg_recvlogical_and_a_stock_subscriber(
    lake: LakeNode, database: Database, subscriber: Callable[..., Database], tmp_path: Path
) -> None:
    found = {}
    stock = psycopg.connect(database.conninfo, autocommit=True)
    create = "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')"
    target = subscriber()
    target.execute(_SETUP)
    for name, session, conninfo in (
        ("stock", stock, database.conninfo),
        ("node", lake.connection, lake.conninfo()),
    ):
        for statement in (_SETUP, _PUBLISH, create.format(f"told_{name}")):
            session.execute(statement)
        if name == "node":
            lake.subscribe(target, "s_told", "told")
        answers = [answer(session, statement) for statement in _WORK]
        told = [Lsn.parse(text) for text in answers if text is not None]
        end = answer(session, "SELECT pg_current_wal_lsn()")
        assert told[-1] < Lsn.parse(end), "its transaction commits after it"
        found[name] = heard(conninfo, f"told_{name}", end, tmp_path / name, told)
    assert found["node"] == found["stock"]
    kinds = [row[0] for row in found["node"]]
    assert kinds.count("LogicalMessage") == 4
    first = next(row for row in found["node"] if row[0] == "LogicalMessage")
    assert first[1:] == (False, True, "alone", "é".encode(), None)
    assert Begin.__name__ in kinds
    assert Insert.__name__ in kinds
    lake.caught_up("s_told")
    assert target.rows("SELECT id, v FROM told") == [(1, "one")]
    wait_until(
        lambda: (
            lake.rows(
                "SELECT confirmed_flush_lsn >= pg_current_wal_lsn() FROM pg_replication_slots"
                " WHERE slot_name = 's_told'"
            )
            == [(True,)]
        ),
        "the position of a message that is sent to nobody",
    )
    stock.close()
    lake.execute("SELECT pg_drop_replication_slot('told_node')")


def test_another_node_keeps_them(lake: LakeNode, follower: LocalNode) -> None:
    lake.execute(
        "CREATE TABLE kept (id integer PRIMARY KEY)", "CREATE PUBLICATION kept FOR TABLE kept"
    )
    quoted = lake.conninfo().replace("'", "''")
    follower.node.sql(
        f"CREATE SUBSCRIPTION kept CONNECTION '{quoted}' PUBLICATION kept"
        " WITH (messages = true, streaming = on)"
    )
    wait_until(lambda: follower.node.cut("kept") is not None, "the first cut")
    ((position,),) = lake.rows("SELECT pg_logical_emit_message(false, 'a', 'now')")
    lake.execute("SELECT pg_logical_emit_message(true, 'b', 'then')", "INSERT INTO kept VALUES (1)")
    lake.caught_up("kept")
    table = DeltaTable(str(follower.warehouse / "_penstock" / "messages"))
    rows = query("SELECT * FROM m ORDER BY commit_lsn, position", m=table).to_pylist()
    assert [(r["transactional"], r["prefix"], r["content"]) for r in rows] == [
        (False, "a", b"now"),
        (True, "b", b"then"),
    ]
    assert rows[0]["lsn"] == Lsn.parse(position)
    assert rows[0]["xid"] == 0 < rows[1]["xid"]
    follower.node.sql("DROP SUBSCRIPTION kept")


@part_of_make_faults
def test_a_kill_leaves_a_message_once(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node")
    node.init({"port": 0})
    emit = "SELECT pg_logical_emit_message(true, 'k', '{}')"
    command = [sys.executable, "-m", "penstock.cli.main", "sql", "-D", str(node.folder)]
    environment = {**os.environ, "PENSTOCK_FAILPOINT": failpoint.AFTER_EMIT}
    killed = subprocess.run([*command, emit.format("killed")], env=environment, check=False)
    assert killed.returncode == -9
    node.sql(emit.format("after"))
    catalog = Catalog.open(f"sqlite:///{node.folder / 'state.db'}")
    with catalog.read() as t:
        log = t.transactions.after(Lsn(0), 10)
        contents = [t.transactions.content(each) for each in log if each.message is not None]
    assert contents == [b"killed", b"after"]
    catalog.close()
