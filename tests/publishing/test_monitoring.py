"""/metrics and pg_stat_replication_slots of a node with a subscriber."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fix_postgres import Database
from publishing.lake_node import LakeNode, eventually, free_port

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

    database.execute("ALTER SUBSCRIPTION watched DISABLE")
    eventually(
        lambda: scrape(lake)["penstock_replication_slot_active", "watched"] == 0, "free slot"
    )
    lake.execute("INSERT INTO m VALUES (3)")
    behind = scrape(lake)
    assert behind["penstock_replication_slot_waiting_transactions", "watched"] == 1
    assert behind["penstock_replication_slot_lag_bytes", "watched"] > 0
    assert behind["penstock_replication_slot_oldest_waiting_seconds", "watched"] > 0
    assert behind["penstock_replication_slot_transactions_total", "watched"] == 2
    assert ("penstock_walsender_sent_lsn", "watched") not in behind


def test_the_view_has_the_columns_of_18(
    lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    with database_on(18).connect() as server:
        for view in ("pg_stat_replication_slots", "pg_stat_replication", "pg_replication_slots"):
            ours = lake.connection.execute(f"SELECT * FROM {view}").description  # type: ignore[call-overload]
            theirs = server.execute(f"SELECT * FROM {view}").description
            assert [(c.name, c.type_code) for c in ours] == [(c.name, c.type_code) for c in theirs]
