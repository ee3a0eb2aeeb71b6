"""Copies whose end nobody recorded, on a real catalog and real Delta tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehouse.tables import ACCOUNTS, write
from penstock.catalog import Catalog, Subscription, SubscriptionRel, SubscriptionRelState
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.subscription.copy_target import copy_marker
from penstock.subscription.tablesync import recover

POINT = Lsn(0x1000)


@pytest.fixture
def subscription(catalog: Catalog) -> Subscription:
    """With tables ``one`` and ``other``, whose copies were committed in state d."""
    with catalog.write() as t:
        subscription = t.subscriptions.create(
            "s", conninfo="host=h", publications=["p"], slot_name="s"
        )
        names = [("public", "one"), ("public", "other")]
        t.relations.add(subscription.oid, names, SubscriptionRelState.INIT)
    return subscription


@pytest.fixture
def warehouse(tmp_path: Path, catalog: Catalog, subscription: Subscription) -> Warehouse:
    warehouse = Warehouse(str(tmp_path / "warehouse"), False)
    for rel in catalog.relations(subscription.oid):
        catalog.set_state(rel, SubscriptionRelState.DATASYNC, None)
        table = warehouse.create(rel.schema, rel.table, ACCOUNTS)
        table.stage(written=write(table, range(3)))
        table.commit(
            app_id=subscription.app_id,
            version_marker=POINT,
            operation="COPY",
            extra_markers={copy_marker(rel, subscription.app_id): POINT},
        )
    return warehouse


@pytest.fixture
def recovered(
    catalog: Catalog, subscription: Subscription, warehouse: Warehouse
) -> Callable[[], list[SubscriptionRel]]:
    def run() -> list[SubscriptionRel]:
        states: Any = catalog
        recover(catalog.relations(subscription.oid), warehouse, states, subscription.app_id)
        return list(catalog.relations(subscription.oid))

    return run


def test_a_committed_copy_is_recorded(recovered: Callable[[], list[SubscriptionRel]]) -> None:
    states = [(rel.state, rel.lsn) for rel in recovered()]
    assert states == [(SubscriptionRelState.FINISHEDCOPY, POINT)] * 2


def test_a_table_that_cannot_be_read_is_copied_again_and_keeps_nobody(
    recovered: Callable[[], list[SubscriptionRel]], warehouse: Warehouse
) -> None:
    table = warehouse.open("public", "one")
    assert table is not None
    first = Path(local_path(table.uri)) / "_delta_log" / f"{0:020}.json"
    first.write_text('{"commitInfo": ')
    one, other = recovered()
    assert (one.state, one.lsn) == (SubscriptionRelState.INIT, None)
    assert (other.state, other.lsn) == (SubscriptionRelState.FINISHEDCOPY, POINT)
    again, _ = recovered()
    assert again.sync_id == one.sync_id, "once"
