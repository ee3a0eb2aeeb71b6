"""What a node writes of a worker: its numbers, and earlier ones where it does not know its own."""

from __future__ import annotations

from penstock.catalog import SubscriptionStatistics, TableStatistics
from penstock.lsn import Lsn
from penstock.node.reports import carried_on, nothing_known

BEFORE = SubscriptionStatistics(
    subid=5,
    pid=1,
    state="stopped",
    updated_at=9.0,
    received_lsn=Lsn(20),
    cut_lsn=Lsn(10),
    publisher_lsn=Lsn(30),
    cut_time=8.0,
    publisher_at=7.0,
    retained_bytes=3,
    wal_status="reserved",
    slot_at=6.0,
    rows_applied=100,
    error="lost",
    tables=(
        TableStatistics("public.a", rows_copied=4, units_total=2, version=3, rows_applied=9),
        TableStatistics("public.gone", rows_copied=5, version=6, rows_applied=9, error="x"),
    ),
)


def test_positions_stay_until_the_worker_has_its_own() -> None:
    now = SubscriptionStatistics(5, None, "connecting", None, received_lsn=Lsn(25))
    found = carried_on(BEFORE, now)
    assert (found.state, found.received_lsn, found.cut_lsn) == ("connecting", 25, 10)
    assert (found.publisher_lsn, found.publisher_at, found.cut_time) == (30, 7.0, 8.0)
    assert (found.retained_bytes, found.wal_status, found.slot_at) == (3, "reserved", 6.0)
    assert (found.rows_applied, found.error) == (0, None)  # counts and errors are the worker's


def test_numbers_of_a_copy_stay_and_counts_restart() -> None:
    tables = (TableStatistics("public.a", rows_applied=1), TableStatistics("public.new"))
    found = carried_on(BEFORE, SubscriptionStatistics(5, None, "streaming", None, tables=tables))
    assert found.tables == (
        TableStatistics("public.a", rows_copied=4, units_total=2, version=3, rows_applied=1),
        TableStatistics("public.new"),
        TableStatistics("public.gone", rows_copied=5, version=6),
    )
    assert carried_on(nothing_known(5), found).tables == found.tables
