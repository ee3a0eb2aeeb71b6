"""/metrics without Spark: subscriptions of a node, and a port that is taken."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from penstock import Node
from penstock.catalog import Catalog
from penstock.embedded import free_port
from penstock.errors import ConfigurationError
from penstock.lsn import Lsn
from penstock.node.monitoring import Monitoring, node_report
from penstock.node.prometheus import NodeReport
from penstock.node.status import SubscriptionStatus, TableStatus

STATUS = SubscriptionStatus(
    name="shop",
    enabled=True,
    state="streaming",
    publications=("p",),
    slot_name="shop",
    received_lsn=Lsn(30),
    applied_lsn=Lsn(20),
    cut_lsn=Lsn(20),
    publisher_lsn=Lsn(40),
    lag_bytes=20,
    lag_seconds=None,
    rows_applied=7,
    rows_per_second=1.0,
    cut_age_seconds=3.0,
    publisher_age_seconds=None,
    retained_wal_bytes=None,
    wal_status="lost",
    transactions_applied=3,
    error_count=1,
    error=None,
    error_detail=None,
    error_hint=None,
    updated_at=1.0,
    tables=(TableStatus("public.a", "r", None), TableStatus("public.b", "d", None)),
)


def test_a_report_of_subscriptions(tmp_path: Path) -> None:
    Node.init(tmp_path).close()
    catalog = Catalog.open(f"sqlite:///{tmp_path / 'state.db'}")
    report = node_report(catalog, [STATUS], None)
    catalog.close()
    (subscription,) = report.subscriptions
    assert (subscription.cut_lsn, subscription.lag_bytes, subscription.changes) == (20, 20, 7)
    assert (subscription.transactions, subscription.errors, subscription.stopped) == (3, 1, False)
    assert (subscription.tables_ready, subscription.tables) == (1, 2)
    assert (subscription.cut_age_seconds, subscription.slot_gone) == (3.0, True)
    assert [(t.table, t.state) for t in report.tables] == [("public.a", "r"), ("public.b", "d")]
    assert report.sequencer is None


def test_it_serves_until_it_is_stopped() -> None:
    port = free_port()
    served = Monitoring("127.0.0.1", port, lambda: NodeReport("1"))
    served.start()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert b'penstock_build_info{version="1"} 1.0' in answer.read()
    other = Monitoring("127.0.0.1", port, lambda: NodeReport("1"))
    with pytest.raises(ConfigurationError, match="could not serve metrics"):
        other.start()
    other.stop()
    served.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20)
