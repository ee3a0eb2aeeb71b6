"""What a plugin passes by does not end its stream."""

from __future__ import annotations

from collections.abc import Callable

from penstock.catalog import EmittedMessage, LakeTransaction
from penstock.decoding import LogicalDecodingContext, find_plugin
from penstock.lsn import Lsn
from penstock.pgoutput.messages import LogicalMessage
from penstock.protocol.frontend_messages import FrontendMessage
from penstock.walsender.every_table import EveryTable
from penstock.walsender.feed import Begun, Ended, Feed, Item, Piece
from penstock.walsender.lake_transactions import LakeTransactions
from penstock.walsender.plugin_stream import PluginStream
from penstock.walsender.stream import SenderState


class _Client:
    """Takes everything."""

    def __init__(self) -> None:
        self.data = b""

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        self.data += data

    def next_message(self, timeout_s: float) -> FrontendMessage | None:
        return None


class _Items(Feed):
    """Of a list, without a thread."""

    def __init__(self, items: list[Item]) -> None:
        self.waiting = items

    def next(self, timeout_s: float) -> Item | None:
        return self.waiting.pop(0)


def _told(place: int, origin: str | None, content: bytes) -> list[Item]:
    lsns = Lsn(place), Lsn(place + 40), Lsn(place + 48)
    message = EmittedMessage(True, "p")
    transaction = LakeTransaction(place, *lsns, 0, (), origin=origin, message=message)
    told = LogicalMessage(True, lsns[1], "p", content)
    return [Begun(transaction), Piece((), b"", 1, message=told), Ended(transaction)]


def test_a_transaction_that_a_filter_passes_by() -> None:
    feed = _Items([*_told(1000, "east", b"not local"), *_told(1048, None, b"local")])
    client, state = _Client(), SenderState("s", Lsn(1000))
    options = [("only-local", "1")]
    with LogicalDecodingContext(
        find_plugin("test_decoding"), plugin_name="test_decoding", slot_name="s", options=options
    ) as context:
        stream = PluginStream(
            context,
            LakeTransactions(None, EveryTable()),  # type: ignore[arg-type]  # the feed has a list
            client,
            feed,
            state,
            confirm=lambda flush: flush,
            timeout_s=lambda: 0.0,
        )
        while feed.waiting:
            stream.handle(feed.next(0))
    assert b"content:local" in client.data
    assert b"not local" not in client.data
    assert (state.sent, state.transactions) == (Lsn(1096), 1)
