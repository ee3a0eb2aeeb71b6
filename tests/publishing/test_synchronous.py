"""Commits on the port wait for a stock subscriber that synchronous_standby_names names."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TIMEOUT_S = 5
_STATE = "SELECT application_name, sync_priority, sync_state FROM pg_stat_replication ORDER BY 1"


class Waiting(threading.Thread):
    """A statement in a session of its own, and what it was told."""

    def __init__(self, lake: LakeNode, statement: str) -> None:
        super().__init__()
        self.session = lake.connect()
        self.session.add_notice_handler(self.told)
        self.notices: list[tuple[str | None, str | None, str | None]] = []
        self.statement = statement
        self.tag: str | None = None

    def told(self, notice: psycopg.errors.Diagnostic) -> None:
        self.notices.append((notice.severity, notice.message_primary, notice.message_detail))

    def run(self) -> None:
        self.tag = self.session.execute(self.statement).statusmessage

    def ends(self) -> str | None:
        self.join(60)
        assert not self.is_alive(), f"still waiting: {self.statement}"
        self.session.close()
        return self.tag


def name_standbys(lake: LakeNode, names: str) -> None:
    file = lake.node.folder / "penstock.toml"
    kept = [
        line
        for line in file.read_text("utf-8").splitlines()
        if not line.startswith("synchronous_standby_names")
    ]
    kept.insert(0, f"synchronous_standby_names = {json.dumps(names)}")
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    assert lake.rows("SELECT pg_reload_conf()") == [(True,)]
    assert lake.rows("SHOW synchronous_standby_names") == [(names,)]


def waits(lake: LakeNode, number: int, *before: str) -> Waiting:
    """A change whose row is there, and whose client has not been told. ``before``: what its session
    runs before."""
    thread = Waiting(lake, f"INSERT INTO waited VALUES ({number})")
    for statement in before:
        thread.session.execute(statement)
    thread.start()
    query = f"SELECT count(*) FROM waited WHERE id = {number}"
    wait_until(lambda: lake.rows(query) == [(1,)], f"row {number}")
    assert thread.is_alive()
    return thread


def no_stream(lake: LakeNode) -> None:
    wait_until(lambda: lake.rows(_STATE) == [], "the end of the stream")


def test_a_commit_waits(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    target = subscriber()
    target.execute("CREATE TABLE waited (id integer PRIMARY KEY)")
    lake.execute(
        "CREATE TABLE waited (id integer PRIMARY KEY)", "CREATE PUBLICATION waited FOR TABLE waited"
    )
    lake.subscribe(target, "s_one", "waited")

    def rows() -> list[Any]:
        return [number for (number,) in target.rows("SELECT id FROM waited ORDER BY 1")]

    try:
        name_standbys(lake, "FIRST 1 (S_ONE, s_two)")
        wait_until(lambda: lake.rows(_STATE) == [("s_one", 1, "sync")], "the standby")
        lake.execute("INSERT INTO waited VALUES (1)")
        assert rows() == [1], "it has the row before the client goes on"
        lake.execute("SET synchronous_commit = remote_apply", "INSERT INTO waited VALUES (2)")
        assert rows() == [1, 2]
        lake.execute("RESET synchronous_commit")

        target.execute("ALTER SUBSCRIPTION s_one DISABLE")
        no_stream(lake)
        waiting = waits(lake, 3)
        with lake.connect() as other:
            other.execute("SET synchronous_commit = local")
            other.execute("INSERT INTO waited VALUES (4)")
            other.execute("SET synchronous_commit = on")
            assert other.execute("SELECT count(*) FROM waited").fetchall() == [(4,)]
            other.execute("BEGIN")
            other.execute("SET LOCAL synchronous_commit = local")
            other.execute("INSERT INTO waited VALUES (40)")
            assert other.execute("COMMIT").statusmessage == "COMMIT"
            assert other.execute("SHOW synchronous_commit").fetchall() == [("on",)]
        assert waiting.is_alive()
        target.execute("ALTER SUBSCRIPTION s_one ENABLE")
        assert waiting.ends() == "INSERT 0 1"
        assert (rows()[:3], waiting.notices) == ([1, 2, 3], [])

        target.execute("ALTER SUBSCRIPTION s_one DISABLE")
        no_stream(lake)
        waiting = waits(lake, 5, f"SET statement_timeout = '{_TIMEOUT_S}s'")
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > _TIMEOUT_S, "the end of the time")
        assert waiting.is_alive(), "a commit has no timeout"
        waiting.session.cancel_safe()
        assert waiting.ends() == "INSERT 0 1"
        ((_, message, detail),) = waiting.notices
        assert message == "canceling wait for synchronous replication due to user request"
        assert detail == (
            "The transaction has already committed locally, but might not have been replicated "
            "to the standby."
        )
        message = "SELECT count(pg_logical_emit_message({}, 'p', 'c'))"
        lake.execute(message.format("false"))  # belongs to no transaction
        told = Waiting(lake, message.format("true"))
        told.start()
        waiting = waits(lake, 6)
        name_standbys(lake, "")
        assert waiting.ends() == "INSERT 0 1"
        assert told.ends() == "SELECT 1"
        assert waiting.notices == told.notices == []

        name_standbys(lake, "ANY 1 (*)")
        target.execute("ALTER SUBSCRIPTION s_one ENABLE")
        wait_until(lambda: lake.rows(_STATE) == [("s_one", 1, "quorum")], "the standby")
        lake.execute("TRUNCATE waited")
        assert rows() == []
    finally:
        name_standbys(lake, "")
