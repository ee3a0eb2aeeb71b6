"""All statements of a process share ``query_mem``; who needs more than is left is told so."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from psycopg.pq import ExecStatus

from fix_lake import LakeServer
from penstock.embedded import wait_until
from penstock.pipeline.duck import lent
from penstock.query_memory import MEMORY, OWN, QueryMemory, belongs_to
from penstock.sqlstate import OutOfMemory

_MEGABYTE = 1 << 20
_LIMIT = 64 * _MEGABYTE
_SESSIONS = 12
_TABLES = "FROM pg_type a, pg_type b, pg_type c"
_SORT = f"SELECT a.oid, b.oid {_TABLES} ORDER BY 1 DESC, 2"
_ROWS = f"SELECT a.typname, b.typname, c.typname {_TABLES}"
_VALUES = "VALUES " + ", ".join(f"({n}, 'name {n}')" for n in range(100_000))
_SMALL = "SELECT count(*) > 100 FROM pg_type"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeServer]:
    lake = LakeServer(tmp_path)
    with lake.catalog.write() as t:
        t.roles.create("ann", login=True)
    before, MEMORY.limit = MEMORY.limit, _LIMIT
    assert MEMORY.lent == 0
    yield lake
    MEMORY.limit = before
    lake.close()


def connect(lake: LakeServer) -> psycopg.Connection[Any]:
    return lake.connect(replication="false", user="ann")


def resident() -> int:
    """The bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("statement", [_SORT, _ROWS, _VALUES], ids=["sort", "rows", "values"])
@pytest.mark.parametrize("extended", [False, True])
def test_a_statement_that_needs_more_is_told_of_the_parameter(
    lake: LakeServer, statement: str, extended: bool
) -> None:
    with connect(lake) as connection:
        cursor = psycopg.Cursor(connection) if extended else connection.cursor()
        with pytest.raises(psycopg.errors.OutOfMemory) as error:
            cursor.execute(statement, prepare=extended)
        told = error.value.diag
        assert told.message_primary == "out of memory"
        assert '"query_mem" (64MB)' in (told.message_detail or "")
        assert 'Increase "query_mem"' in (told.message_hint or "")
        assert connection.execute(_SMALL).fetchone() == (True,)
    assert MEMORY.lent == 0


def test_many_sessions_have_no_more_memory_together(lake: LakeServer) -> None:
    """Small statements go on meanwhile."""
    errors: list[str] = []

    def run(statement: str) -> None:
        with connect(lake) as connection:
            try:
                connection.execute(statement)
            except psycopg.Error as error:
                errors.append(error.sqlstate or "")

    with connect(lake) as connection:
        connection.execute(_SMALL)
        before = most = resident()
        sessions = [
            threading.Thread(target=run, args=([_SORT, _ROWS, _VALUES][number % 3],), daemon=True)
            for number in range(_SESSIONS)
        ]
        for session in sessions:
            session.start()
        while any(session.is_alive() for session in sessions):
            assert connection.execute(_SMALL).fetchone() == (True,)
            assert MEMORY.lent <= _LIMIT
            most = max(most, resident())
    assert errors == ["53200"] * _SESSIONS
    assert most - before < _LIMIT + _SESSIONS * OWN + 64 * _MEGABYTE
    wait_until(lambda: MEMORY.lent == 0, "the memory of the sessions")


def test_rows_count_until_their_client_has_read_them(lake: LakeServer) -> None:
    """Who does not read leaves less to others, until the connection ends."""
    rows = f"SELECT repeat('x', 200) {_TABLES} LIMIT "
    with connect(lake) as other:
        other.execute(f"{rows} 26000")
        silent = connect(lake)
        with silent:
            silent.pgconn.send_query(f"{rows} 24000".encode())
            select.select([silent.pgconn.socket], [], [])  # its first rows
            with pytest.raises(psycopg.errors.OutOfMemory):
                other.execute(f"{rows} 26000")
            silent.pgconn.finish()
        wait_until(lambda: MEMORY.lent == 0, "the end of the session")
        other.execute(f"{rows} 26000")


def test_a_long_string_counts_less_than_a_long_tree(lake: LakeServer) -> None:
    with connect(lake) as connection:
        text = "x" * (4 * _MEGABYTE)
        assert connection.execute(f"SELECT length('{text}')").fetchone() == (len(text),)
        with pytest.raises(psycopg.errors.OutOfMemory):
            connection.execute("SELECT " + "1+" * (2 * _MEGABYTE) + "1")
    assert MEMORY.lent == 0


def test_queries_of_tables_share_it_too() -> None:
    """Most of their work spills to disk; what cannot is told of the parameter, too."""
    before, MEMORY.limit = MEMORY.limit, _LIMIT
    try:
        with lent() as duck, lent() as other:
            limit = "SELECT current_setting('memory_limit')"
            limits = [each.execute(limit).fetchone() for each in (duck, other)]
            assert limits == [("40.0 MiB",), ("28.0 MiB",)]
            with lent(change=True) as third:  # a part is left to it
                (found,) = third.execute(limit).fetchone() or ()
            assert found == "30.0 MiB"
        with pytest.raises(OutOfMemory) as error, lent() as duck:
            duck.execute("SELECT list(range) FROM range(100000000)").fetchall()
        assert '"query_mem" (64MB)' in (error.value.detail or "")
    finally:
        MEMORY.limit = before
    assert MEMORY.lent == 0


def test_a_role_leaves_half_to_others() -> None:
    """Also while its portals wait for the client."""
    memory = QueryMemory(_LIMIT)

    def lent_to(role: int | None) -> int:
        belongs_to(role)
        for _ in range(10):
            portals.enter_context(memory.lend(portals.enter_context(duckdb.connect())))
        return memory.lent

    with ExitStack() as portals:
        one = copy_context().run(lent_to, 16400)
        assert _LIMIT // 4 < one <= _LIMIT // 2
        assert one < copy_context().run(lent_to, 16401) <= _LIMIT * 3 // 4
    assert memory.lent == 0 and not memory._owned


def send(connection: psycopg.Connection[Any], data: bytes) -> None:
    """Send bytes that are no whole message."""
    left = memoryview(data)
    while left:
        select.select([], [connection.pgconn.socket], [], 10)
        left = left[os.write(connection.pgconn.socket, left[:_MEGABYTE]) :]


def test_unfinished_messages_are_counted(lake: LakeServer) -> None:
    """A part of a large message holds memory, too; if there is too much of it, the client has to
    connect again: what comes next would be the rest of the message."""
    part = b"Q" + (40 * _MEGABYTE).to_bytes(4, "big") + b" " * (10 * _MEGABYTE)
    with ExitStack() as stack:
        first, second, other = (stack.enter_context(connect(lake)) for _ in range(3))
        send(first, part)
        wait_until(lambda: MEMORY.lent > 8 * _MEGABYTE, "the first part")
        with contextlib.suppress(OSError):
            send(second, part + b" " * (20 * _MEGABYTE))
        with pytest.raises(psycopg.OperationalError) as error:
            second.execute("SELECT 1")
        assert "out of memory" in str(error.value)
        assert other.execute(_SMALL).fetchone() == (True,)
        first.close()
    wait_until(lambda: MEMORY.lent == 0, "the end of the sessions")


@pytest.mark.parametrize("extended", [False, True])
def test_prepared_statements_are_counted(lake: LakeServer, extended: bool) -> None:
    with connect(lake) as connection:
        prepared = 0
        with pytest.raises(psycopg.errors.OutOfMemory):
            for number in range(1000):
                text = f"VALUES {', '.join(f'({n})' for n in range(1000))}"
                if extended:
                    result = connection.pgconn.prepare(b"p%d" % number, text.encode())
                    if result.status == ExecStatus.FATAL_ERROR:
                        raise psycopg.errors.OutOfMemory(result.error_message)
                else:
                    connection.execute(f"PREPARE p{number} AS {text}")
                prepared += 1
        assert prepared > 3
        assert MEMORY.lent > 0
        connection.execute("DEALLOCATE ALL")
        assert MEMORY.lent == 0
        connection.execute(f"PREPARE p AS {text}")
        assert connection.execute("EXECUTE p").rowcount == 1000
    wait_until(lambda: MEMORY.lent == 0, "the end of the session")
