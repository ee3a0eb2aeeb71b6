"""pg_export_snapshot: other sessions read what the block that exports it reads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_EXPORT = "SELECT pg_export_snapshot()"
_COUNT = "SELECT count(*)::int FROM exported"
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ"
_SETUP = "CREATE TABLE exported (id int)"


def _told(session: Any, statement: str) -> Any:
    try:
        cursor = session.execute(statement)
        return cursor.fetchall() if cursor.description else cursor.statusmessage
    except psycopg.Error as error:
        return error.diag.sqlstate, error.diag.message_primary


def _story(connect: Callable[[], Any]) -> list[Any]:
    found: list[Any] = []
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(connect()) for _ in range(3))
        first.execute(_BEGIN)
        ((name,),) = first.execute(_EXPORT).fetchall()
        third.execute("INSERT INTO exported VALUES (1)")
        found.append(_told(first, _COUNT))
        second.execute(_BEGIN)
        found.append(_told(second, f"SET TRANSACTION SNAPSHOT '{name}'"))
        found.append(_told(second, _COUNT))
        found.append(_told(second, "COMMIT"))
        found.append(_told(second, _COUNT))

        first.execute("SAVEPOINT s")
        found.append(_told(first, _EXPORT))
        first.execute("ROLLBACK TO s")
        first.execute("COMMIT")
        second.execute(_BEGIN)
        told = _told(second, f"SET TRANSACTION SNAPSHOT '{name}'")
        found.append((told[0], str(told[1]).replace(name, "it")))
        second.execute("ROLLBACK")

        first.execute("BEGIN")  # read committed: the newest state
        first.execute("INSERT INTO exported VALUES (2)")
        ((name,),) = first.execute(_EXPORT).fetchall()
        ((other,),) = first.execute(_EXPORT).fetchall()
        found.append(name != other)
        third.execute("INSERT INTO exported VALUES (3)")
        second.execute(_BEGIN)
        second.execute(f"SET TRANSACTION SNAPSHOT '{name}'")
        found.append(_told(second, _COUNT))  # without what the block has written
        second.execute("ROLLBACK")
        first.execute("ROLLBACK")
        found.append(len(_told(first, _EXPORT)))
    return found


def test_sessions_read_an_exported_snapshot(
    lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    lake.execute(_SETUP)
    server = database_on(18)
    server.execute(_SETUP)

    def stock() -> Any:
        return psycopg.connect(server.conninfo, autocommit=True)

    assert _story(lake.connect) == _story(stock)
