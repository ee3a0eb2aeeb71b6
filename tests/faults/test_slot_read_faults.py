"""A node is killed while a statement reads a slot by SQL functions: no row of it is lost.

As with a server that is killed, the rows come again until their client is known to have them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.heavy import in_make_faults, part_of_make_faults
from faults.test_block_faults import Bank
from penstock import failpoint
from penstock.embedded import EmbeddedPostgres

pytestmark = [pytest.mark.faults, pytest.mark.slow]

_GET = "SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL, 'include-xids', '0')"
_GET_BYTES = (
    "SELECT data FROM pg_logical_slot_get_binary_changes('b', NULL, NULL, 'proto_version', '1', "
    "'publication_names', 'p')"
)
_TABLE = "CREATE TABLE t (id int PRIMARY KEY)"
_SLOT = "SELECT pg_create_logical_replication_slot('s', 'test_decoding')"
_ROWS = ("INSERT INTO t VALUES (1), (2)", "DELETE FROM t WHERE id = 1")
_CHANGES = [
    "BEGIN",
    "table public.t: INSERT: id[integer]:1",
    "table public.t: INSERT: id[integer]:2",
    "COMMIT",
    "BEGIN",
    "table public.t: DELETE: id[integer]:1",
    "COMMIT",
]
_BEFORE = (in_make_faults(failpoint.AFTER_SLOT_READ), failpoint.AFTER_SLOT_ANSWER)


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    bank = Bank(tmp_path)
    try:
        bank.start()
        bank.run(
            _TABLE,
            "CREATE PUBLICATION p FOR TABLE t",
            _SLOT,
            "SELECT pg_create_logical_replication_slot('b', 'pgoutput')",
            *_ROWS,
        )
        yield bank
    finally:
        bank.node.close()


def _rows(conninfo: str, query: str = _GET) -> list[Any]:
    with psycopg.connect(conninfo, autocommit=True) as session:
        return [data for (data,) in session.execute(query)]


def _killed(bank: Bank) -> None:
    assert bank.node.wait_end(60) == -signal.SIGKILL, bank.node.log_tail()
    bank.start()


@pytest.mark.parametrize("place", _BEFORE)
def test_killed_before_the_client_may_go_on(bank: Bank, place: str) -> None:
    binary = _rows(bank.conninfo, _GET_BYTES.replace("_get_", "_peek_"))
    copy = f"COPY ({_GET}) TO STDOUT"
    for query, prepare in ((_GET, False), (_GET, True), (copy, False), (_GET_BYTES, True)):
        bank.node.stop()
        bank.start(place)
        with (
            pytest.raises(psycopg.OperationalError),
            psycopg.connect(bank.conninfo, autocommit=True) as session,
        ):
            if query == copy:
                with session.cursor().copy(query) as rows:
                    list(rows)
            else:
                session.execute(query, prepare=prepare)
        _killed(bank)
    with psycopg.connect(bank.conninfo, autocommit=True) as session, session.transaction():
        assert [data for (data,) in session.execute(_GET)] == _CHANGES
    assert _rows(bank.conninfo, _GET_BYTES) == binary
    assert _rows(bank.conninfo) == _rows(bank.conninfo, _GET_BYTES) == []


@part_of_make_faults
def test_killed_before_the_client_says_its_next_word(bank: Bank) -> None:
    """Its rows come again, as from a server; afterwards they do not."""
    with EmbeddedPostgres(17, settings={"wal_level": "logical"}) as server:
        with psycopg.connect(server.conninfo(), autocommit=True) as session:
            for statement in (_TABLE, _SLOT, *_ROWS):
                session.execute(statement)
            assert [data for (data,) in session.execute(_GET)] == _CHANGES
            server.kill9()
        server.start()
        assert _rows(server.conninfo()) == _CHANGES
    with psycopg.connect(bank.conninfo, autocommit=True) as session:
        assert [data for (data,) in session.execute(_GET)] == _CHANGES
        bank.node.kill9()
    bank.start()
    with psycopg.connect(bank.conninfo, autocommit=True) as session:
        assert [data for (data,) in session.execute(_GET)] == _CHANGES
        session.execute("SELECT 1")
        bank.node.kill9()
    bank.start()
    assert _rows(bank.conninfo) == []


@part_of_make_faults
def test_killed_when_the_client_has_said_it(bank: Bank) -> None:
    bank.node.stop()
    bank.start(failpoint.AFTER_SLOT_SAVED)
    with psycopg.connect(bank.conninfo, autocommit=True) as session:
        assert [data for (data,) in session.execute(_GET)] == _CHANGES
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    _killed(bank)
    assert _rows(bank.conninfo) == []


def test_killed_while_a_slot_is_made(bank: Bank) -> None:
    """It is there, with what was committed since: a client that asks again is told, as by a
    server. A temporary one is not."""
    slot = "CREATE_REPLICATION_SLOT made {}LOGICAL pgoutput (SNAPSHOT 'export')"
    for temporary in ("TEMPORARY ", ""):
        bank.node.stop()
        bank.start(failpoint.AFTER_SLOT_CREATE)
        with (
            pytest.raises(psycopg.OperationalError),
            psycopg.connect(
                bank.conninfo,
                autocommit=True,
                cursor_factory=psycopg.ClientCursor,
                replication="database",
            ) as session,
        ):
            session.execute(slot.format(temporary))
        _killed(bank)
    bank.run("INSERT INTO t VALUES (3)")
    with pytest.raises(psycopg.errors.DuplicateObject):
        bank.run("SELECT pg_create_logical_replication_slot('made', 'pgoutput')")
    made = _GET_BYTES.replace("'b'", "'made'")
    assert [bytes(data)[:1] for data in _rows(bank.conninfo, made)] == [b"B", b"R", b"I", b"C"]
