"""What a node writes of a worker: its numbers, and earlier ones where it does not know its own."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.catalog import Catalog, SubscriptionStatistics, TableStatistics
from penstock.embedded import wait_until
from penstock.lsn import Lsn
from penstock.node import Node, reports
from penstock.node.reports import Reports, carried_on, nothing_known
from penstock.node.status import Health, health
from penstock.wait_event import WaitEventType, waiting

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


def test_a_jvm_that_does_not_answer_holds_no_report_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_ANSWERS", "_LONG_WAIT"):
        monkeypatch.setattr(reports, name, 0.2)
    answers = threading.Event()
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        reporter = Reports(catalog, answers.wait)

        def cause() -> str | None:
            found = reporter._find_obstacle()
            return None if found is None else found.event

        with waiting(WaitEventType.SPARK, "a job"):
            wait_until(lambda: cause() == "Spark's JVM does not answer", "the cause")
            answers.set()
            wait_until(lambda: cause() == "Spark has no executor that runs its tasks", "an answer")
        assert cause() is None


def test_a_drop_that_was_interrupted_is_told(tmp_path: Path) -> None:
    with Node.init(tmp_path / "node") as node:
        node.sql(
            "CREATE SUBSCRIPTION s CONNECTION 'host=none' PUBLICATION p "
            "WITH (connect = false, slot_name = NONE)"
        )
        with node._catalog.write() as t:
            t.subscriptions.save(replace(t.subscriptions.get("s"), dropping=True, enabled=True))
        (found,) = node.status()
        assert found.state == "being dropped"
        assert "DROP SUBSCRIPTION s" in str(found.error_hint)
        assert health([found], running=True) is Health.NEEDS_A_PERSON
        node.sql("DROP SUBSCRIPTION s")
        assert node.status() == []
