"""Commands about subscriptions in transaction blocks: what a stock server takes and refuses there,
and that nothing of a block is there before its COMMIT, or after a ROLLBACK.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.two_servers import Node, Server, outcome, two_servers
from fix_postgres import Database

pytestmark = pytest.mark.postgres

_AWAY = "CONNECTION 'dbname=x host=nowhere.invalid' PUBLICATION"
_BLOCKS = f"""
BEGIN
CREATE SUBSCRIPTION b1 {_AWAY} p WITH (connect = false, slot_name = NONE)
ALTER SUBSCRIPTION b1 SET (binary)
ROLLBACK
BEGIN
CREATE SUBSCRIPTION b1 {_AWAY} p WITH (connect = false, slot_name = NONE, streaming = off)
CREATE SUBSCRIPTION b2 {_AWAY} p WITH (connect = false, slot_name = slot, streaming = off)
CREATE SUBSCRIPTION b4 {_AWAY} p WITH (connect = false, slot_name = NONE)
ALTER SUBSCRIPTION b1 RENAME TO b3
ALTER SUBSCRIPTION b3 OWNER TO t_owner
ALTER SUBSCRIPTION b3 SET PUBLICATION q, r WITH (refresh = false)
ALTER SUBSCRIPTION b2 SET (binary, disable_on_error)
ALTER SUBSCRIPTION b2 SKIP (lsn = '0/77')
ALTER SUBSCRIPTION b2 CONNECTION 'dbname=y host=nowhere.invalid'
DROP SUBSCRIPTION b4
DROP SUBSCRIPTION IF EXISTS b4
COMMIT
BEGIN
ALTER SUBSCRIPTION b2 SET (binary)
COMMIT AND CHAIN
ALTER SUBSCRIPTION b2 SET (binary = false)
ROLLBACK AND CHAIN
DROP SUBSCRIPTION b3
ROLLBACK
COMMIT AND CHAIN
ROLLBACK AND CHAIN
BEGIN
CREATE SUBSCRIPTION b5 {_AWAY} p
ALTER SUBSCRIPTION b3 DISABLE
COMMIT
BEGIN
ALTER SUBSCRIPTION b2 SET (failover)
ROLLBACK
BEGIN
ALTER SUBSCRIPTION b2 SET (two_phase = false)
ROLLBACK
BEGIN
ALTER SUBSCRIPTION b2 REFRESH PUBLICATION
ROLLBACK
BEGIN
ALTER SUBSCRIPTION b2 ENABLE
ALTER SUBSCRIPTION b2 REFRESH PUBLICATION
ROLLBACK
BEGIN
ALTER SUBSCRIPTION b2 ENABLE
ALTER SUBSCRIPTION b2 ADD PUBLICATION s
COMMIT
BEGIN
DROP SUBSCRIPTION b2
ROLLBACK
BEGIN READ ONLY
ALTER SUBSCRIPTION b2 SET (binary = false)
ROLLBACK
BEGIN READ ONLY
CREATE SUBSCRIPTION b6 {_AWAY} p WITH (connect = false)
ROLLBACK
BEGIN
ALTER SUBSCRIPTION nope ENABLE
ALTER SUBSCRIPTION b2 SET (binary = false)
COMMIT
"""
_STATE = (
    "SELECT subname, pg_get_userbyid(subowner) = 't_owner', subenabled, subbinary, subslotname,"
    " subpublications::text, subskiplsn::text, subconninfo FROM pg_subscription"
    " WHERE subname LIKE 'b_' ORDER BY 1"
)
_END = """
BEGIN
ALTER SUBSCRIPTION b2 SET (slot_name = NONE)
DROP SUBSCRIPTION b2
DROP SUBSCRIPTION b3
COMMIT
"""


@pytest.fixture
def servers(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, ["CREATE ROLE t_owner"]) as both:
        yield both


def run(server: Server, script: str) -> list[Any]:
    """What each statement has come to, with the tags that tell a COMMIT from a ROLLBACK."""
    with server.connect() as session:
        cursor = session.cursor()
        done = []
        for statement in script.strip().splitlines():
            came_to = outcome(cursor, statement, server)
            done.append((statement, came_to, cursor.statusmessage if came_to[0] is None else None))
        return done


def state(server: Server) -> list[Any]:
    with server.connect() as session:
        rows: list[Any] = session.execute(_STATE).fetchall()
        return rows


def test_blocks_are_as_a_servers(servers: list[Server]) -> None:
    stock, node = servers
    try:
        assert run(node, _BLOCKS) == run(stock, _BLOCKS)
        assert state(node) == state(stock)
        assert [row[0] for row in state(node)] == ["b2", "b3"]
        assert run(node, _END) == run(stock, _END)
        assert state(node) == state(stock) == []
    finally:
        for name in {row[0] for row in state(stock)}:
            stock.execute(f"ALTER SUBSCRIPTION {name} SET (slot_name = NONE)")
            stock.execute(f"DROP SUBSCRIPTION {name}")


def test_a_block_locks_nothing_and_is_done_whole(servers: list[Server]) -> None:
    """What a server does not have: others change what a block counts on. And what only a node
    refuses."""
    _, node = servers
    assert isinstance(node, Node)
    create = f"CREATE SUBSCRIPTION b7 {_AWAY} p WITH (connect = false, slot_name = NONE)"
    with node.connect() as one, node.connect() as other:
        one.execute("BEGIN")
        one.execute(create.replace("b7", "b8"))
        one.execute(create)
        assert state(node) == []
        assert outcome(one, _STATE)[0] == "0A000"
        one.execute("ROLLBACK")
        one.execute("BEGIN")
        one.execute(create.replace("b7", "b8"))
        one.execute(create)
        other.execute(create)
        assert outcome(one, "COMMIT")[:2] == ("42710", 'subscription "b7" already exists')
        assert [row[0] for row in state(node)] == ["b7"]
        assert outcome(one, "SELECT 1") == (None, None, None)
        for statement in (
            f"CREATE SUBSCRIPTION b9 {_AWAY} p WITH (create_slot = false)",
            "CREATE ROLE t_another",
        ):
            one.execute("BEGIN")
            assert outcome(one, statement)[0] == "0A000"
            assert outcome(one, "SELECT 1")[0] == "25P02"
            one.execute("ROLLBACK")
        one.execute("BEGIN")
        one.execute("ALTER SUBSCRIPTION b7 OWNER TO t_owner")
        one.execute("DROP SUBSCRIPTION b7")
        one.close()
        assert [row[:2] for row in state(node)] == [("b7", False)]


def test_what_parsing_says_is_told_once(servers: list[Server]) -> None:
    name = "r" * 70
    told: list[list[tuple[str | None, str | None]]] = []
    for server in servers:
        with server.connect() as session:
            notices: list[tuple[str | None, str | None]] = []
            session.add_notice_handler(
                lambda each, to=notices: to.append((each.sqlstate, each.message_primary))
            )
            session.execute(f"CREATE ROLE {name}")
            session.execute(f"DROP ROLE {name}")
            told.append(notices)
    assert told[0] == told[1] and len(told[0]) == 2
