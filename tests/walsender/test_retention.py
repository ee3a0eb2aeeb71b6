"""Slots behind what Delta keeps: a warning first, then they are given up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.catalog import Catalog
from penstock.lakehouse.warehouse import Warehouse
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slots import Retention, Slots

_DAY = 86400.0


class Clock:
    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@dataclass
class Lake:
    catalog: Catalog
    warehouse: Warehouse
    slots: Slots
    clock: Clock

    def retention(self, keep: float) -> Retention:
        return Retention(self.catalog, self.warehouse, self.slots, keep, self.clock)

    def reason(self) -> str | None:
        return self.slots.all()[0].slot.invalidation_reason


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A slot ``s`` that has not confirmed one commit of table ``a``, which is made now."""
    catalog = Catalog.create(f"sqlite:///{tmp_path / 'state.db'}")
    warehouse = Warehouse(str(tmp_path / "warehouse"))
    sequencer = Sequencer(catalog, warehouse)
    uri = warehouse.table_uri("public", "a")
    kept = {"delta.deletedFileRetentionDuration": "interval 4 days"}
    write_deltalake(uri, pa.table({"id": [1]}), configuration=kept)
    made = Slots(catalog, sequencer, 4)
    made.create("s", "pgoutput", pid=1, database=5)
    write_deltalake(uri, pa.table({"id": [2]}), mode="append")
    sequencer.step()
    with catalog.read() as t:
        (transaction,) = t.transactions.after(made.all()[0].slot.confirmed_flush_lsn, 10)
    yield Lake(catalog, warehouse, made, Clock(transaction.commit_time / 1e6))
    catalog.close()


def test_a_slot_is_warned_of_once_at_half_of_the_retention(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    checked = lake.retention(0.0)
    with caplog.at_level(logging.WARNING):
        lake.clock.at += 1.9 * _DAY
        checked.check()
        assert caplog.messages == []
        lake.clock.at += 0.2 * _DAY
        checked.check()
        checked.check()
    (message,) = caplog.messages
    assert 'slot "s" is' in message and "delta.deletedFileRetentionDuration" in message
    assert lake.reason() is None


def test_a_slot_that_nobody_reads_is_given_up(lake: Lake) -> None:
    checked = lake.retention(_DAY)
    lake.clock.at += 0.9 * _DAY
    checked.check()
    assert lake.reason() is None
    lake.clock.at += 0.2 * _DAY
    with lake.slots.held("s", 7, version=18):
        checked.check()
    assert lake.reason() is None
    checked.check()
    assert lake.reason() == "wal_removed"
    assert lake.slots.oldest() is None, "a lost slot keeps no transactions"
