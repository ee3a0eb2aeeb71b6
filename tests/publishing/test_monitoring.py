"""/metrics and pg_stat_replication_slots of a node with a subscriber."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fix_postgres import Database
from penstock.embedded import free_port, wait_until
from publishing.lake_node import LakeNode
from publishing.recvlogical import recvlogical

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.postgres]


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    folder: Path = tmp_path_factory.mktemp("monitored") / "node"
    with LakeNode(folder, spark, metrics_port=free_port()) as started:
        yield started


def scrape(lake: LakeNode) -> dict[tuple[str, str], float]:
    """(name, first label) -> value."""
    url = f"http://127.0.0.1:{lake.node.parameters.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


_WORKERS = (
    "SELECT {columns} FROM pg_stat_subscription v JOIN pg_stat_activity a USING (pid)"
    " JOIN pg_subscription s ON s.oid = v.subid WHERE v.subname = 'workers' AND {kind} ORDER BY 1"
)
_SAME = (
    "v.relid::regclass::text, v.worker_type, a.usename = pg_get_userbyid(subowner),"
    " a.usesysid = subowner, a.datname = current_database(), a.application_name, a.client_addr,"
    " a.client_hostname, a.client_port, a.backend_start <= now(), a.query, a.backend_type"
)
_COPIES = _WORKERS.format(columns=_SAME, kind="relid IS NOT NULL")
_APPLY = _WORKERS.format(
    columns=f"{_SAME}, a.state, a.wait_event_type, a.wait_event, a.xact_start, a.query_start,"
    " a.state_change >= a.backend_start",
    kind="relid IS NULL",
)
_PID = _WORKERS.format(columns="a.pid", kind="relid IS NULL AND a.state = 'idle'")


def test_workers_are_seen_and_ended_as_on_a_server(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    source, stock = subscriber(18), subscriber(18)
    for database in (source, stock):
        database.execute("CREATE TABLE w1 (id int); CREATE TABLE w2 (id int)")
    source.execute("CREATE PUBLICATION workers FOR ALL TABLES")

    def alike(query: str, number: int) -> bool:
        found = lake.rows(query)
        return len(found) == number and found == stock.rows(query)

    for slot in ("lake", "stock"):
        source.execute(f"SELECT pg_create_logical_replication_slot('workers_{slot}', 'pgoutput')")
    with source.connect(autocommit=False) as writer:
        writer.execute("SELECT pg_current_xact_id()")  # the slots of copies wait for its end
        for slot, execute in (("lake", lake.execute), ("stock", stock.execute)):
            execute(
                f"CREATE SUBSCRIPTION workers CONNECTION '{source.conninfo}' PUBLICATION workers"
                f" WITH (create_slot = false, slot_name = workers_{slot})"
            )
        wait_until(lambda: alike(_COPIES, 2), "the copies")
        copier = "SELECT min(pid) FROM pg_stat_subscription WHERE relid IS NOT NULL"
        ((before,),) = lake.rows(copier)
        lake.execute(f"SELECT pg_terminate_backend({before})")
        wait_until(lambda: lake.rows(copier) not in ([(None,)], [(before,)]), "another copy")
        wait_until(lambda: alike(_COPIES, 2), "the copies")
    wait_until(lambda: alike(_APPLY, 1), "the streams")
    pids = {}
    for rows in (lake.rows, stock.rows):
        ((pids[rows],),) = rows(_PID)
        assert rows(f"SELECT pg_terminate_backend({pids[rows]}, 20000)") == [(True,)]
    for rows, pid in pids.items():
        wait_until(lambda r=rows, p=pid: r(_PID) not in ([], [(p,)]), "another worker")  # type: ignore[misc]
    assert alike(_APPLY, 1)
    assert lake.rows(_COPIES) == []
    source.execute("INSERT INTO w2 VALUES (1)")
    wait_until(lambda: lake.rows("SELECT id FROM w2") == [(1,)], "the row")
    errors = "SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 'workers'"
    assert lake.rows(errors) == [(0,)]
    lake.execute("DROP SUBSCRIPTION workers")
    stock.execute("DROP SUBSCRIPTION workers")


def test_a_subscriber_is_seen(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    lake.execute("CREATE TABLE m (id integer PRIMARY KEY)", "CREATE PUBLICATION m FOR TABLE m")
    database = subscriber(18)
    database.execute("CREATE TABLE m (id integer PRIMARY KEY)")
    lake.subscribe(database, "watched", "m")
    lake.execute("INSERT INTO m VALUES (1)", "INSERT INTO m VALUES (2)")
    lake.caught_up("watched")
    assert database.rows("SELECT count(*) FROM m") == [(2,)]

    now = scrape(lake)
    end = now["penstock_sequencer_lsn", ""]
    assert now["penstock_replication_slot_active", "watched"] == 1
    assert now["penstock_replication_slot_confirmed_flush_lsn", "watched"] == end
    assert now["penstock_replication_slot_waiting_transactions", "watched"] == 0
    assert now["penstock_replication_slot_transactions_total", "watched"] == 2
    assert now["penstock_walsender_flush_lsn", "watched"] == end
    assert now["penstock_walsender_lag_bytes", "watched"] == 0
    assert now["penstock_sequencer_tables", ""] >= 1

    ((name, spilled, transactions, size),) = lake.rows(
        "SELECT slot_name, spill_txns, total_txns, total_bytes FROM pg_stat_replication_slots"
    )
    assert (name, spilled, transactions) == ("watched", 0, 2)
    assert size == now["penstock_replication_slot_bytes_total", "watched"] > 0
    ((reply,),) = lake.rows("SELECT reply_time FROM pg_stat_replication")
    assert abs((datetime.now(UTC) - reply).total_seconds()) < 60

    database.execute("ALTER SUBSCRIPTION watched DISABLE")
    wait_until(
        lambda: scrape(lake)["penstock_replication_slot_active", "watched"] == 0, "free slot"
    )
    lake.execute("INSERT INTO m VALUES (3)")
    behind = scrape(lake)
    assert behind["penstock_replication_slot_waiting_transactions", "watched"] == 1
    assert behind["penstock_replication_slot_lag_bytes", "watched"] > 0
    assert behind["penstock_replication_slot_oldest_waiting_seconds", "watched"] > 0
    assert behind["penstock_replication_slot_transactions_total", "watched"] == 2
    assert ("penstock_walsender_sent_lsn", "watched") not in behind


def test_parameters_that_only_a_node_has_are_shown(lake: LakeNode) -> None:
    assert lake.rows("SHOW query_mem") == [("1GB",)]
    assert lake.rows("SELECT current_setting('max_running_statements')") == [("-1",)]
    assert lake.rows("SELECT setting FROM pg_settings WHERE name = 'query_mem'") == [("1GB",)]
    with pytest.raises(psycopg.Error, match="cannot be changed now") as error:
        lake.execute("SET query_mem = '2GB'")
    assert error.value.sqlstate == "55P02"


def test_lags_are_those_of_the_clients_replies(lake: LakeNode) -> None:
    """pg_recvlogical tells what it has written and flushed, and never that it has applied."""
    lake.execute(
        "CREATE TABLE lagging (id int)",
        "SELECT pg_create_logical_replication_slot('lagging', 'test_decoding')",
    )
    lags = (
        "SELECT write_lag, flush_lag, replay_lag FROM pg_stat_replication"
        " WHERE application_name = 'pg_recvlogical'"
    )
    start = ("--slot=lagging", "--start", "-f", "-", "-s", "1")
    with recvlogical(lake, "lake", *start):

        def seen() -> bool:
            lake.execute("INSERT INTO lagging VALUES (1)")
            found = lake.rows(lags)
            return bool(found and found[0][0] and found[0][1])

        wait_until(seen, "the lags")
        ((write, flush, replay),) = lake.rows(lags)
        assert write.total_seconds() > 0 and flush.total_seconds() > 0 and replay is None
    wait_until(lambda: lake.rows(lags) == [], "its end")
    lake.execute("SELECT pg_drop_replication_slot('lagging')", "DROP TABLE lagging")


def test_the_view_has_the_columns_of_18(
    lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    with database_on(18).connect() as server:
        for view in ("pg_stat_replication_slots", "pg_stat_replication", "pg_replication_slots"):
            ours = lake.connection.execute(f"SELECT * FROM {view}").description
            theirs = server.execute(f"SELECT * FROM {view}").description
            assert ours is not None and theirs is not None
            assert [(c.name, c.type_code) for c in ours] == [(c.name, c.type_code) for c in theirs]
