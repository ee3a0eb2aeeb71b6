"""Live numbers: what was reported last comes back, and a damaged file costs nothing."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from penstock.catalog import Catalog, SubscriptionStatistics, TableStatistics
from penstock.catalog.pg_stat_subscription import SubscriptionCounts
from penstock.lsn import Lsn

_NUMBERS = "SELECT numbers FROM penstock_stat_subscription WHERE subid = 16384"
_DAMAGE = "UPDATE penstock_stat_subscription SET numbers = ? WHERE subid = 16384"
NUMBERS = SubscriptionStatistics(
    subid=16384,
    pid=4711,
    state="streaming",
    updated_at=1.5,
    received_lsn=Lsn.parse("1/5"),
    cut_lsn=Lsn.parse("1/2"),
    publisher_lsn=Lsn.parse("1/A"),
    publisher_at=1.0,
    caught_up_at=0.5,
    waiting=False,
    retained_bytes=7,
    wal_status="reserved",
    slot_at=1.0,
    tables=(TableStatistics("public.t", rows_copied=3, bytes_total=9, version=2),),
)


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'state.db'}"


def test_the_last_report_counts(tmp_path: Path) -> None:
    with Catalog.create(url(tmp_path)) as catalog:
        other = replace(NUMBERS, subid=16385)
        catalog.statistics.report([NUMBERS, other])
        newer = replace(NUMBERS, state="copying", pid=None, tables=())
        catalog.statistics.report([newer])
        catalog.statistics.report([])
        assert catalog.statistics.all() == {16384: newer, 16385: other}
        catalog.statistics.keep_only([16385])
        assert catalog.statistics.all() == {16385: other}
        catalog.statistics.keep_only([])
        assert catalog.statistics.all() == {}


def test_a_new_state_store_has_no_numbers_of_the_one_before(tmp_path: Path) -> None:
    """Its object ids may be those of other subscriptions."""
    with Catalog.create(url(tmp_path)) as catalog:
        catalog.statistics.report([NUMBERS])
        catalog.statistics.count(16384, SubscriptionCounts(apply_error_count=7))
    (tmp_path / "state.db").unlink()
    with Catalog.create(url(tmp_path)) as catalog:
        assert catalog.statistics.all() == {}
        assert catalog.statistics.counts() == {}


def test_positions_are_positions_and_lag_is_from_the_cut(tmp_path: Path) -> None:
    with Catalog.create(url(tmp_path)) as catalog:
        catalog.statistics.report([NUMBERS])
        (numbers,) = catalog.statistics.all().values()
    assert numbers == NUMBERS
    assert str(numbers.received_lsn) == "1/5"
    assert numbers.lag_bytes_at(2.0) == 8
    assert replace(numbers, publisher_lsn=None).lag_bytes_at(2.0) is None


def test_numbers_that_are_out_of_date_are_not_told_as_true() -> None:
    assert NUMBERS.lag_seconds_at(2.0) == 0.0
    assert replace(NUMBERS, waiting=True).lag_seconds_at(2.0) == 1.5
    assert replace(NUMBERS, state="waiting to retry").lag_seconds_at(2.0) == 1.5
    assert replace(NUMBERS, caught_up_at=None).lag_seconds_at(2.0) is None
    assert NUMBERS.lag_seconds_at(100.5) == 100.0  # nobody reports any more
    silent = replace(NUMBERS, updated_at=20.0)  # the node reports, and hears nothing
    assert (silent.lag_seconds_at(20.5), silent.lag_bytes_at(20.5)) == (20.0, None)
    assert NUMBERS.slot(2.0) == (7, "reserved")
    assert NUMBERS.slot(100.0) == (None, None)  # the publisher has not told for long
    assert NUMBERS.lag_bytes_at(100.0) is None


def test_a_report_is_no_change_of_the_catalog(tmp_path: Path) -> None:
    with Catalog.create(url(tmp_path)) as catalog:
        before = catalog.generation()
        catalog.statistics.report([NUMBERS])
        assert catalog.generation() == before


def test_damaged_numbers_are_reported_again(tmp_path: Path) -> None:
    with Catalog.create(url(tmp_path)) as catalog:
        other = replace(NUMBERS, subid=16385)
        catalog.statistics.report([NUMBERS, other])
        with closing(sqlite3.connect(tmp_path / "state-stat.db")) as file, file:
            (whole,) = file.execute(_NUMBERS).fetchone()
            for place in range(len(whole)):
                damaged = f"{whole[:place]}~{whole[place + 1 :]}"
                file.execute(_DAMAGE, [damaged])
                file.commit()
                assert catalog.statistics.all().keys() >= {16385}
        catalog.statistics.report([NUMBERS])
        assert catalog.statistics.all() == {16384: NUMBERS, 16385: other}


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    with Catalog.create(url(tmp_path)) as catalog:
        catalog.statistics.report([NUMBERS])
    (tmp_path / "state-stat.db").write_bytes(b"garbage" * 1000)
    with Catalog.open(url(tmp_path)) as catalog:
        assert catalog.statistics.all() == {}
        catalog.statistics.report([NUMBERS])
        assert catalog.statistics.all() == {16384: NUMBERS}


def test_fields_of_another_version_are_left_out(tmp_path: Path) -> None:
    with Catalog.create(url(tmp_path)) as catalog:
        catalog.statistics.report([NUMBERS])
        with catalog.statistics._write() as connection:
            (text,) = connection.exec_driver_sql(
                "SELECT numbers FROM penstock_stat_subscription"
            ).one()
            numbers = {**json.loads(text), "of_tomorrow": 1}
            numbers["tables"][0]["of_tomorrow"] = 1
            connection.exec_driver_sql(
                "UPDATE penstock_stat_subscription SET numbers = ?", (json.dumps(numbers),)
            )
        assert catalog.statistics.all() == {16384: NUMBERS}


def test_counts_outlive_a_new_count(tmp_path: Path) -> None:
    with Catalog.create(url(tmp_path)) as catalog:
        catalog.statistics.count(16384, SubscriptionCounts(confl_insert_exists=2))
        with catalog.statistics._write() as connection:
            connection.exec_driver_sql(
                "ALTER TABLE penstock_stat_subscription_stats DROP COLUMN confl_update_exists"
            )
    with Catalog.open(url(tmp_path)) as catalog:
        catalog.statistics.count(16384, SubscriptionCounts(confl_update_exists=1))
        counts = SubscriptionCounts(confl_insert_exists=2, confl_update_exists=1)
        assert catalog.statistics.counts() == {16384: counts}
