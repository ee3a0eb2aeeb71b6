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
from penstock.node.monitoring import Monitoring, NodeReport, node_report
from penstock.node.status import SubscriptionStatus, TableStatus

STATUS = SubscriptionStatus(
    1,
    None,
    "streaming",
    1.0,
    name="shop",
    enabled=True,
    publications=("p",),
    slot_name="shop",
    cut_lsn=Lsn(20),
    wal_status="lost",
    tables=(TableStatus("public.a", state="r"), TableStatus("public.b", state="d")),
)


def test_a_report_of_subscriptions(tmp_path: Path) -> None:
    Node.init(tmp_path).close()
    catalog = Catalog.open(f"sqlite:///{tmp_path / 'state.db'}")
    report = node_report(catalog, [STATUS], None)
    catalog.close()
    (subscription,) = report.subscriptions
    assert (subscription.tables_ready, subscription.table_count) == (1, 2)
    assert (subscription.stopped, subscription.slot_gone) == (False, True)
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
