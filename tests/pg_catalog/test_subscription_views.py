"""What the port tells of subscriptions: their tables from the first moment, their workers now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backend.two_servers import two_servers
from fix_lake import LakeServer
from fix_postgres import Database
from penstock.catalog import SubscriptionCounts, SubscriptionRelState, SubscriptionStatistics
from penstock.lsn import Lsn
from penstock.node.running import ShownWorkers
from penstock.subscription.worker_status import WorkerStatus

_STATES = "SELECT srrelid::regclass::text, srsubstate, srsublsn FROM pg_subscription_rel ORDER BY 1"
_SYNCED = "SELECT count(*) FILTER (WHERE srsubstate NOT IN ('r', 's')) FROM pg_subscription_rel"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeServer]:
    lake = LakeServer(tmp_path)
    yield lake
    lake.close()


def rows(lake: LakeServer, query: str) -> Any:
    with lake.connect("false") as session:
        return session.execute(query).fetchall()


def answer(session: psycopg.Connection[Any], query: str) -> Any:
    try:
        return session.execute(query).fetchall()
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary, error.diag.message_hint


def subscription(lake: LakeServer) -> int:
    with lake.catalog.write() as t:
        made = t.subscriptions.create("s", conninfo="", publications=("p",), slot_name=None)
        tables = [("public", "a"), ("public", "b"), ("other", "a")]
        t.relations.add(made.oid, tables, SubscriptionRelState.INIT)
    return made.oid


def test_tables_are_there_before_their_copies(lake: LakeServer) -> None:
    subscription(lake)
    waiting = [("a", "i", None), ("b", "i", None), ("other.a", "i", None)]
    assert rows(lake, _STATES) == waiting
    assert rows(lake, _SYNCED) == [(3,)]
    keys = "SELECT count(DISTINCT (srrelid, srsubid)) FROM pg_subscription_rel"
    assert rows(lake, keys.replace("(srrelid, srsubid)", "srrelid")) == [(3,)]
    assert rows(lake, "SELECT to_regclass('a')") == [(None,)], "it is no table to read yet"
    lake.write("a")
    lake.sequencer.step(discover=True)
    assert rows(lake, _STATES) == waiting
    joined = "SELECT c.relname FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid"
    assert rows(lake, joined) == [("a",)]


def test_each_has_an_origin(lake: LakeServer) -> None:
    oid = subscription(lake)
    origins = "SELECT roname, external_id, remote_lsn FROM pg_replication_origin LEFT JOIN"
    origins += " pg_replication_origin_status ON local_id = roident"
    assert rows(lake, origins) == [(f"pg_{oid}", None, None)]
    told = SubscriptionStatistics(oid, 1, "streaming", time.time(), cut_lsn=Lsn(16))
    lake.catalog.statistics.report([told])
    assert rows(lake, origins) == [(f"pg_{oid}", f"pg_{oid}", "0/10")]


def test_workers_and_their_errors_are_shown(lake: LakeServer) -> None:
    oid = subscription(lake)
    workers = (
        "SELECT subid, subname, worker_type, pid, received_lsn, last_msg_send_time IS NULL,"
        " latest_end_lsn, latest_end_time IS NULL FROM pg_stat_subscription"
    )
    assert rows(lake, workers) == [(oid, "s", None, None, None, True, None, True)]
    numbers = SubscriptionStatistics(
        oid,
        4711,
        "streaming",
        time.time(),
        received_lsn=Lsn(32),
        cut_lsn=Lsn(16),
        cut_time=time.time(),
    )
    lake.catalog.statistics.report([numbers])
    assert rows(lake, workers) == [(oid, "s", "apply", 4711, "0/20", True, "0/10", False)]


def test_errors_and_conflicts_are_counted_until_a_reset(lake: LakeServer) -> None:
    oid = subscription(lake)
    store = lake.catalog.statistics
    shown = (
        "SELECT apply_error_count, sync_error_count, confl_insert_exists, confl_update_missing,"
        " confl_delete_missing, stats_reset IS NULL FROM pg_stat_subscription_stats"
    )
    assert rows(lake, shown) == [(0, 0, 0, 0, 0, True)]
    store.count(oid, SubscriptionCounts(apply_error_count=1, confl_insert_exists=1))
    store.count(oid, SubscriptionCounts(sync_error_count=2))
    store.count(oid, SubscriptionCounts(confl_update_missing=3, confl_delete_missing=4))
    assert rows(lake, shown) == [(1, 2, 1, 3, 4, True)]
    reset = "SELECT pg_stat_reset_subscription_stats({}) IS NULL"
    rows(lake, reset.format(oid + 1))
    assert rows(lake, shown) == [(1, 2, 1, 3, 4, True)]
    rows(lake, reset.format(oid))
    assert rows(lake, shown) == [(0, 0, 0, 0, 0, False)]
    first = rows(lake, "SELECT stats_reset FROM pg_stat_subscription_stats")[0][0]
    store.count(oid, SubscriptionCounts(sync_error_count=2))
    later = f"SELECT stats_reset > '{first}'::timestamptz FROM pg_stat_subscription_stats"
    assert rows(lake, shown) == [(0, 2, 0, 0, 0, False)]
    assert rows(lake, later) == [(False,)]
    rows(lake, reset.format("NULL"))
    assert rows(lake, shown) == [(0, 0, 0, 0, 0, False)]
    assert rows(lake, later) == [(True,)]
    store.keep_only([])
    assert rows(lake, shown) == [(0, 0, 0, 0, 0, True)]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (16, ["logical replication worker"] * 2),
        (17, ["logical replication apply worker", "logical replication tablesync worker"]),
    ],
)
def test_workers_are_called_as_in_the_version(
    tmp_path: Path, version: int, told: list[str]
) -> None:
    """As servers of these versions do; what else is shown: ``publishing/test_monitoring.py``."""
    lake = LakeServer(tmp_path, version=version)
    workers = ShownWorkers(lake.sessions, "lake", subscription(lake))
    with (
        workers.apply(WorkerStatus(1), lambda: None) as apply,
        workers.copies([("public", "a"), ("other", "a")], lambda: None) as copies,
    ):
        types = "SELECT pid, backend_type FROM pg_stat_activity WHERE client_addr IS NULL"
        assert rows(lake, f"{types} ORDER BY pid") == [*zip((apply, copies), told, strict=True)]
        of = "SELECT pid, relid::regclass::text FROM pg_stat_subscription ORDER BY 1, 2"
        assert rows(lake, of) == [(apply, None), (copies, "a"), (copies, "other.a")]
    assert rows(lake, f"SELECT pid FROM ({types}) t") == []
    lake.close()


@pytest.mark.postgres
def test_a_subscription_without_a_worker_is_shown_as_on_a_server(
    tmp_path: Path, database: Database
) -> None:
    made = (
        "CREATE SUBSCRIPTION alone CONNECTION 'host=nowhere' PUBLICATION p"
        " WITH (connect = false, slot_name = NONE)"
    )
    queries = [
        "SELECT s.oid = v.subid, v.subname, worker_type, pid, leader_pid, relid, received_lsn,"
        " last_msg_send_time, last_msg_receipt_time, latest_end_lsn, latest_end_time"
        " FROM pg_stat_subscription v JOIN pg_subscription s ON s.subname = v.subname"
        " WHERE v.subname = 'alone'",
        "SELECT subname, apply_error_count, sync_error_count, confl_insert_exists,"
        " confl_update_origin_differs, confl_update_exists, confl_update_missing,"
        " confl_delete_origin_differs, confl_delete_missing, confl_multiple_unique_conflicts"
        " FROM pg_stat_subscription_stats WHERE subname = 'alone'",
        "SELECT count(*) FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid"
        " WHERE subname = 'alone'",
    ]
    have = "SELECT pg_stat_have_stats({}) FROM pg_subscription WHERE subname = 'alone'"
    asked = ["'subscription', 0, oid", "'Subscription', 0, oid", "'subscription', 0, 77"]
    asked += ["'subscription', 1, 77", "'x', 0, 1", "NULL, 0, 1", "'subscription', NULL, 1", "'io'"]
    asked += ["'subscription', 0, NULL", "'function', 0, 1"]
    have = "SELECT pg_stat_have_stats({}) FROM pg_subscription WHERE subname = 'alone'"
    asked = ["'subscription', 0, oid", "'Subscription', 0, oid", "'subscription', 0, 77"]
    asked += ["'subscription', 1, 77", "'x', 0, 1", "NULL, 0, 1", "'subscription', NULL, 1", "'io'"]
    asked += ["'subscription', 0, NULL", "'function', 0, 1"]
    reset = "SELECT pg_stat_reset_subscription_stats"
    was_reset = "SELECT stats_reset IS NULL FROM pg_stat_subscription_stats WHERE subname = 'alone'"
    resets = ["(0)", "(NULL)", "(1)", "('x')", "()", "('1')", "(NULL::oid)"]
    with two_servers(tmp_path, database, [made]) as servers:
        try:
            seen = []
            for server in servers:
                with server.connect() as session:
                    answers = [session.execute(query).fetchall() for query in queries]
                    answers += [answer(session, reset + each) for each in resets]
                    answers.append(session.execute(was_reset).fetchall())
                    answers += [answer(session, have.format(each)) for each in asked]
                    seen.append(answers)
            assert seen[1] == seen[0]
        finally:
            database.execute("DROP SUBSCRIPTION alone")
