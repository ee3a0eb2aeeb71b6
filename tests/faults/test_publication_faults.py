"""A node is killed right after ALTER PUBLICATION, before its subscriber has read what came before:
each commit is sent by the publications of its place all the same, as by a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock.embedded import free_port, wait_until
from penstock.failpoint import BEFORE_SEQUENCE
from publishing.lake_node import drop_subscriptions

pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_PASSWORD: Final = "a lake of secrets"
_TABLES: Final = ("t", "done")
_BEGIN: Final = (
    *(f"CREATE TABLE {table} (id int PRIMARY KEY, a int)" for table in _TABLES),
    "CREATE PUBLICATION p FOR TABLE t",
    "CREATE PUBLICATION always FOR TABLE done",
)
_KILLED_AFTER: Final = (
    ("INSERT INTO t VALUES (1, 1)", "ALTER PUBLICATION p DROP TABLE t"),
    ("INSERT INTO t VALUES (2, 2)", "ALTER PUBLICATION p ADD TABLE t (id) WHERE (id > 3)"),
    ("INSERT INTO t VALUES (3, 3), (4, 4)", "ALTER PUBLICATION p SET TABLE t"),
)
_NOT_IN_THE_LOG: Final = "INSERT INTO t VALUES (5, 5)"
_AT_LAST: Final = (
    "ALTER PUBLICATION p DROP TABLE t",
    "INSERT INTO t VALUES (6, 6)",
    "INSERT INTO done VALUES (1, 1)",
)


class _Killed:
    """A node that goes on after each kill."""

    def __init__(self, folder: Path) -> None:
        self.node, port = NodeProcess(folder), free_port()
        self.conninfo = f"host=127.0.0.1 port={port} dbname=lake user=b password='{_PASSWORD}'"
        self.node.init({"port": port})
        self.node.sql(f"CREATE ROLE b LOGIN REPLICATION SUPERUSER PASSWORD '{_PASSWORD}'")

    def start(self, failpoint: str = "") -> None:
        self.node.start(failpoint)
        self.node.wait_for("the port", self._listens)

    def _listens(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.conninfo):
            return True
        return False

    def play(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for statement in statements:
                session.execute(statement.encode())

    def kill_and_start(self, failpoint: str = "") -> None:
        self.node.kill9()
        self.start(failpoint)


def test_nothing_is_lost_and_nothing_sent_that_was_not_published(
    tmp_path: Path, spark: Any, database_on: Callable[..., Database]
) -> None:
    publisher, away, follows, theirs = (database_on(18) for _ in range(4))
    killed = _Killed(tmp_path / "node")
    with contextlib.closing(killed.node), contextlib.ExitStack() as stack:
        killed.start()
        killed.play(*_BEGIN)
        for statement in _BEGIN:
            publisher.execute(statement)
        # By itself: CREATE SUBSCRIPTION would wait for its own transaction in the same cluster.
        publisher.execute("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
        for database, name, conninfo, options in (
            (theirs, "theirs", publisher.conninfo, "create_slot = false"),
            (away, "away", killed.conninfo, "create_slot"),
            (follows, "follows", killed.conninfo, "create_slot"),
        ):
            for table in _TABLES:
                database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, a int)")
            stack.callback(drop_subscriptions, database)
            quoted = conninfo.replace("'", "''")
            database.execute(
                f"CREATE SUBSCRIPTION {name} CONNECTION '{quoted}' PUBLICATION p, always "
                f"WITH ({options})"
            )
            wait_until(partial(_is_copied, database), f"the first copy of {name}")
        away.execute("ALTER SUBSCRIPTION away DISABLE")
        for number, statements in enumerate(_KILLED_AFTER, 1):
            killed.play(*statements)
            killed.kill_and_start(BEFORE_SEQUENCE if number == len(_KILLED_AFTER) else "")
        with contextlib.suppress(psycopg.OperationalError):
            killed.play(_NOT_IN_THE_LOG)
        assert killed.node.wait_end(60) == -9, killed.node.log_tail()
        killed.start()
        killed.play(*_AT_LAST)
        before = (statement for statements in _KILLED_AFTER for statement in statements)
        for statement in (*before, _NOT_IN_THE_LOG, *_AT_LAST):
            publisher.execute(statement)
        away.execute("ALTER SUBSCRIPTION away ENABLE")
        for database in (theirs, away, follows):
            wait_until(partial(_has_all, database), "the last row")
        expected = theirs.rows("SELECT * FROM t ORDER BY id")
        assert expected == [(1, 1), (4, None), (5, 5)]
        assert away.rows("SELECT * FROM t ORDER BY id") == expected
        assert follows.rows("SELECT * FROM t ORDER BY id") == expected


def _is_copied(database: Database) -> bool:
    states = database.rows(
        "SELECT DISTINCT srsubstate::text FROM pg_subscription_rel JOIN pg_subscription s "
        "ON s.oid = srsubid JOIN pg_database d ON d.oid = subdbid "
        "WHERE datname = current_database()"
    )
    return states == [("r",)]


def _has_all(database: Database) -> bool:
    return database.rows("SELECT * FROM done") == [(1, 1)]
