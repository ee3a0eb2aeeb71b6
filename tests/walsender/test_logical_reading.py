"""Calls of slot functions: how far they read, and where they leave the slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fix_lake import LakeServer, slot_reading
from penstock.catalog import EmittedMessage, LakeTransaction
from penstock.errors import NotInPrerequisiteState, RequiredChangesRemoved, StorageError
from penstock.lsn import Lsn
from penstock.sqlstate import QueryCanceled
from penstock.walsender.feed import Changes, ChangeSource, TransactionBegin, TransactionEnd
from penstock.walsender.logical_reading import SlotCall, SlotRequest
from penstock.walsender.slots import Slots

_OPTIONS = (("proto_version", "1"), ("publication_names", "p"))


class _Nothing:
    """Of every transaction."""

    def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
        for transaction in transactions:
            yield TransactionBegin(transaction)
            yield TransactionEnd(transaction)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LakeServer]:
    with closing(LakeServer(tmp_path)) as server:
        yield server


def test_a_cancelled_call_leaves_the_slot_where_it_is(server: LakeServer) -> None:
    slots = Slots(server.catalog, server.sequencer, 4)
    begin = slots.create("s", "pgoutput", pid=1, database=5).lsn
    ends = [server.sequencer.emit(EmittedMessage(False, "p"), b"") for _ in range(300)]
    left = 150

    def cancelled() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise QueryCanceled("canceling statement due to user request")

    def confirmed() -> Lsn:
        return slots.all()[0].slot.confirmed_flush_lsn

    with closing(opened(server, slots, lambda: None)) as call:
        call.succeed()  # nobody has asked for its rows
    assert confirmed() == begin
    with closing(opened(server, slots, cancelled)) as call, pytest.raises(QueryCanceled):
        list(call.batches())
    assert confirmed() == begin
    with closing(opened(server, slots, lambda: None, upto=ends[9])) as call:
        assert list(call.batches()) == []
        call.succeed()
    assert confirmed() == ends[9]


@pytest.mark.parametrize("confirm", [True, False], ids=["get", "peek"])
def test_a_slot_whose_changes_are_gone_is_lost(server: LakeServer, confirm: bool) -> None:
    """Unless it is the warehouse that is not there."""
    there = False

    def check_warehouse() -> None:
        if not there:
            raise StorageError("there is no warehouse")

    class Gone(_Nothing):
        def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
            yield from super().changes(transactions[:1])
            raise RequiredChangesRemoved("the files are gone")

    slots = Slots(server.catalog, server.sequencer, 4, check_warehouse=check_warehouse)
    slots.create("s", "pgoutput", pid=1, database=5)
    for _ in range(2):
        server.sequencer.emit(EmittedMessage(False, "p"), b"")

    def read() -> None:
        with closing(opened(server, slots, lambda: None, source=Gone(), confirm=confirm)) as call:
            list(call.batches())

    with pytest.raises(StorageError):
        read()
    assert slots.all()[0].slot.invalidation_reason is None
    there = True
    with pytest.raises(RequiredChangesRemoved):
        read()
    assert slots.all()[0].slot.invalidation_reason == "wal_removed"
    with pytest.raises(NotInPrerequisiteState, match='can no longer access replication slot "s"'):
        read()
    slots.drop("s", pid=1, wait=False, cancelled=lambda: False)


def opened(
    server: LakeServer,
    slots: Slots,
    cancelled: Any,
    upto: Lsn | None = None,
    source: ChangeSource | None = None,
    confirm: bool = True,
) -> SlotCall:
    """pg_logical_slot_get_binary_changes"""
    reading = slot_reading(
        server.catalog, server.sequencer, slots, lambda wanted: source or _Nothing()
    )
    request = SlotRequest("f", True, confirm, "s", upto, None, _OPTIONS)
    return reading.open(request, 1, cancelled, lambda notice: None)
