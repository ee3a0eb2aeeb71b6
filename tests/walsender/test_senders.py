"""What has been sent from a slot, over its streams."""

from __future__ import annotations

from pathlib import Path

from fix_lake import LakeServer
from penstock.decoding.reorder_buffer import DecodingStats
from penstock.walsender.senders import Senders
from penstock.walsender.slots import Slots


def test_counts_are_of_all_readers_of_a_slot_until_it_is_made_anew() -> None:
    senders = Senders()
    for slot, transactions in (("a", 1), ("b", 2), ("a", 3)):
        senders.stats(slot).total_txns += transactions
    assert senders.stats("a") == DecodingStats(4)
    senders.forget("a")
    assert senders.stats("a") == DecodingStats()
    assert senders.stats("b") == DecodingStats(2)


def test_a_slot_that_is_made_is_told(tmp_path: Path) -> None:
    server = LakeServer(tmp_path)
    try:
        made: list[str] = []
        slots = Slots(server.catalog, server.sequencer, 4, made.append)
        slots.create("a", "pgoutput", pid=1, database=5)
        slots.create("b", "pgoutput", pid=1, database=5, temporary=True)
        assert made == ["a", "b"]
        slots.drop("a", pid=1, wait=False, cancelled=lambda: False)
        slots.end_session(1)
        assert made[2:] == ["a", "b"], "what is dropped is forgotten"
    finally:
        server.close()


def test_a_reading_that_outlives_its_session_gives_back_its_own_slot_alone(tmp_path: Path) -> None:
    server = LakeServer(tmp_path)
    try:
        slots = Slots(server.catalog, server.sequencer, 4)
        slots.create("t", "pgoutput", pid=1, database=5, temporary=True)
        left = slots.held("t", 1, version=18)
        left.__enter__()
        slots.end_session(1)
        slots.create("t", "pgoutput", pid=2, database=5)
        with slots.held("t", 2, version=18):
            left.__exit__(None, None, None)
            assert [state.active_pid for state in slots.all()] == [2]
    finally:
        server.close()
