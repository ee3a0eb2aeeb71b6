"""What has been sent from a slot, over its streams."""

from __future__ import annotations

from penstock.lsn import Lsn
from penstock.walsender.senders import Senders, Totals
from penstock.walsender.stream import SenderState


def test_totals_are_of_all_streams_of_a_slot_until_it_is_made_anew() -> None:
    senders = Senders(2)
    for pid, (slot, transactions) in enumerate([("a", 1), ("b", 2), ("a", 3)]):
        state = SenderState(slot, Lsn(1))
        with senders.running(
            pid, state, user="u", application_name="", address="127.0.0.1", port=1
        ):
            state.transactions, state.bytes = transactions, transactions * 10
            running = senders.totals(slot)
        assert senders.totals(slot) == running
    assert senders.totals("a") == Totals(4, 40)
    senders.forget("a")
    assert senders.totals("a") == Totals()
    assert senders.totals("b") == Totals(2, 20)
