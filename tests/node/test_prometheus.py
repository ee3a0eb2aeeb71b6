"""What a scrape gets: names, labels and values; the names are a promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from wsgiref.util import setup_testing_defaults

from prometheus_client.parser import text_string_to_metric_families

from penstock.catalog import SubscriptionCounts
from penstock.lsn import Lsn
from penstock.node.monitoring import (
    NodeReport,
    SenderReport,
    SequencerReport,
    SlotReport,
    application,
)
from penstock.node.status import SubscriptionStatus, TableStatus

SLOT = SlotReport("s", True, False, False, 100, 20, 2, 1.5, 0.0, 7, 900)
SENDER = SenderReport("s", "app", 110, None, 0, 0.0)
TABLE = TableStatus(
    "public.t",
    state="d",
    rows_copied=7,
    bytes_copied=1024,
    bytes_total=4096,
    rows_applied=5,
    update_missing=1,
    unfilled=("a", "b"),
)
SUBSCRIPTION = SubscriptionStatus(
    1,
    None,
    "streaming",
    1.0,
    name="sub",
    enabled=True,
    publications=("p",),
    slot_name="s",
    cut_lsn=Lsn(4),
    tables=(TABLE, TableStatus("public.p", state="p")),
)
REPORT = NodeReport("1.2", (SUBSCRIPTION,), SequencerReport(120, 4, 3), (SLOT,), (SENDER,), 10, 10)


def scrape(report: NodeReport, path: str = "/metrics") -> tuple[str, str]:
    """Status line and body."""
    environ: dict[str, object] = {}
    setup_testing_defaults(environ)
    environ["PATH_INFO"] = path
    status: list[str] = []

    def start_response(line: str, *_: object) -> Callable[[bytes], object]:
        status.append(line)
        return len

    body = application(lambda: report)(environ, start_response)
    return status[0], b"".join(body).decode()


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, label values in the order of the labels' names) -> value."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counts_of_the_view_are_there() -> None:
    """By each type of conflict that pg_stat_subscription_stats has a column for."""
    counts = SubscriptionCounts(apply_error_count=2, sync_error_count=3, confl_insert_exists=4)
    counted = replace(SUBSCRIPTION, counts=counts)
    found = samples(scrape(replace(REPORT, subscriptions=(counted,)))[1])
    prefix = "penstock_subscription_"
    assert found[(f"{prefix}apply_errors_total", ("sub",))] == 2
    assert found[(f"{prefix}sync_errors_total", ("sub",))] == 3
    assert found[(f"{prefix}conflicts_total", ("sub", "insert_exists"))] == 4
    assert found[(f"{prefix}conflicts_total", ("sub", "multiple_unique_conflicts"))] == 0
    assert found[(f"{prefix}values_out_of_range_total", ("sub",))] == 0


def test_values_stand_under_their_names() -> None:
    found = samples(scrape(REPORT)[1])
    assert found[("penstock_build_info", ("1.2",))] == 1
    assert found[("penstock_sequencer_lsn", ())] == 120
    assert found[("penstock_replication_slot_waiting_transactions", ("s",))] == 2
    assert found[("penstock_replication_slot_transactions_total", ("s",))] == 7
    assert found[("penstock_walsender_sent_lsn", ("app", "s"))] == 110
    assert found[("penstock_subscription_cut_lsn", ("sub",))] == 4
    assert found[("penstock_subscription_tables_parked", ("sub",))] == 1
    assert found[("penstock_subscription_state", ("streaming", "sub"))] == 1
    table = ("sub", "public.t")
    assert found[("penstock_table_copied_bytes", table)] == 1024
    assert found[("penstock_table_copy_bytes", table)] == 4096
    assert found[("penstock_table_columns_unfilled", table)] == 2
    assert found[("penstock_table_state", ("d", *table))] == 1


def test_what_is_not_known_has_no_sample() -> None:
    found = samples(scrape(REPORT)[1])
    assert ("penstock_walsender_flush_lsn", ("app", "s")) not in found
    assert ("penstock_subscription_lag_seconds", ("sub",)) not in found
    assert ("penstock_subscription_slot_gone", ("sub",)) not in found
    assert ("penstock_table_version", ("sub", "public.t")) not in found


def test_a_node_that_publishes_nothing_has_no_sequencer() -> None:
    assert "penstock_sequencer" not in scrape(NodeReport("1"))[1]


def test_metrics_have_one_address() -> None:
    assert scrape(REPORT, "/")[0].startswith("404")
    assert scrape(REPORT)[0].startswith("200")
