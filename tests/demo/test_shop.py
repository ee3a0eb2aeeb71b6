"""The shop of the demo: it loads, every kind of work runs, the pace is kept and ends cleanly."""

from __future__ import annotations

import random
from importlib import resources

import pytest

from fix_postgres import Database
from penstock.demo import story
from penstock.embedded import wait_until

SHOP = resources.files("penstock.demo").joinpath("shop.sql").read_text("utf-8")


@pytest.fixture
def shop(database: Database) -> Database:
    database.server.psql(SHOP, database.name)
    return database


def test_every_kind_of_work_runs_and_writes(shop: Database) -> None:
    connection = shop.connect()
    for work in story.MIX:
        wrote = rolled_back = 0
        for seed in range(5):
            try:
                with connection.transaction(), connection.cursor() as cursor:
                    work(cursor, random.Random(seed))
                    row = cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()
                    wrote += row is not None and row[0] is not None
            except story.Rollback:
                rolled_back += 1
        assert (rolled_back == 5) if work is story.change_mind else wrote, work.__name__


def test_traffic_keeps_its_pace_and_stops(shop: Database) -> None:
    running = story.Traffic(shop.conninfo, per_second=50)
    running.start()
    wait_until(lambda: running.counts.transactions >= 50, "50 transactions", 30)
    running.stop()
    done = running.counts.transactions
    assert (
        shop.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND state = 'active'"
        )
        == 1
    )
    assert running.counts.transactions == done


def test_traffic_tells_what_it_failed_with(database: Database) -> None:
    running = story.Traffic(database.conninfo, per_second=1000)
    running.start()
    for thread in running._threads:
        thread.join()
    with pytest.raises(Exception, match="does not exist"):
        running.stop()
