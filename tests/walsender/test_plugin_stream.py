"""The stream of a plugin: what it passes by does not end it; its client is heard while it works."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence

from penstock.catalog import EmittedMessage, LakeTransaction
from penstock.decoding import (
    Change,
    DecodedDatabase,
    DecodedSlot,
    LogicalDecodingContext,
    MessageChange,
    OutputPlugin,
    OutputReader,
    RelationData,
    ReorderBufferTXN,
    find_plugin,
)
from penstock.decoding.publication_rules import AsPublished
from penstock.lsn import Lsn
from penstock.protocol.answers import Notice
from penstock.protocol.backend_messages import notice_response
from penstock.protocol.copy_both import XLOG_DATA
from penstock.protocol.frontend_messages import CopyData, FrontendMessage
from penstock.walsender.feed import Feed, Item, Portion, TransactionBegin, TransactionEnd
from penstock.walsender.lake_transactions import LakeTransactions
from penstock.walsender.stream import TICK_S, SenderState, Stream


class _Client:
    """Takes everything."""

    def __init__(self) -> None:
        self.data = b""
        self.says: list[FrontendMessage] = []

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        if waiting is None:
            raise AssertionError("the client's replies are not read")
        self.data += data

    def notice(self, notice: Notice) -> bytes:
        return notice_response(notice.message)

    def next_message(self, timeout_s: float) -> FrontendMessage | None:
        return self.says.pop(0) if self.says else None


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
    told = MessageChange(True, "p", content, lsns[1], place)
    return [
        TransactionBegin(transaction),
        Portion((), b"", 1, message=told),
        TransactionEnd(transaction),
    ]


class _Slow(OutputPlugin):
    """Takes its time, and writes nothing; meanwhile the client asks for a keepalive."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    def begin(self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN) -> None:
        """Writes nothing."""

    def change(
        self,
        ctx: LogicalDecodingContext,
        txn: ReorderBufferTXN,
        relation: RelationData,
        change: Change,
    ) -> None:
        """Does not come."""

    def commit(self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        now = Lsn(1000), Lsn(1000), Lsn(1000)
        self._client.says.append(CopyData(struct.pack("!cQQQqb", b"r", *now, 0, 1)))
        time.sleep(2 * TICK_S)
        ctx.update_progress()
        self.answer = self._client.data


def _stream(
    plugin: OutputPlugin, client: _Client, feed: _Items, options: Sequence[tuple[str, str]] = ()
) -> tuple[Lsn, int]:
    """The position that was sent, and how many transactions were decoded."""
    state = SenderState("s", Lsn(1000))
    with LogicalDecodingContext(
        plugin,
        DecodedSlot("s", "p"),
        options,
        database=DecodedDatabase(publications=lambda names: AsPublished(lambda oid: None)),
        reader=OutputReader(as_bytes=True),
    ) as context:
        stream = Stream(
            context,
            LakeTransactions(None),  # type: ignore[arg-type]  # the feed has a list
            client,
            feed,
            state,
            confirm=lambda flush: flush,
            timeout_s=lambda: 0.0,
        )
        while feed.waiting:
            stream.handle(feed.next(0))
    return state.sent, context.stats.total_txns


def test_a_transaction_that_a_filter_passes_by() -> None:
    feed = _Items([*_told(1000, "east", b"not local"), *_told(1048, None, b"local")])
    client = _Client()
    sent = _stream(find_plugin("test_decoding"), client, feed, [("only-local", "1")])
    assert b"content:local" in client.data
    assert b"not local" not in client.data
    assert sent == (Lsn(1096), 1)


_PGOUTPUT = [("proto_version", "4"), ("publication_names", "p"), ("messages", "on")]


def test_a_begin_stands_where_the_change_stands_that_it_comes_with() -> None:
    """pgoutput_send_begin writes at the position of the callback in which it is called."""
    client = _Client()
    _stream(find_plugin("pgoutput"), client, _Items(_told(1000, None, b"")), _PGOUTPUT)
    sent, at = [], 0
    while at < len(client.data):
        _, length, _, lsn, _, _ = XLOG_DATA.unpack_from(client.data, at)
        sent.append((client.data[at + XLOG_DATA.size :][:1], lsn))
        at += 1 + length
    assert sent == [(b"B", 1040), (b"M", 1040), (b"C", 1048)]


def test_origin_none_leaves_out_messages_as_well() -> None:
    """FilterByOrigin is asked of the whole transaction."""
    feed = _Items([*_told(1000, "east", b"not local"), *_told(1048, None, b"local")])
    client = _Client()
    _, transactions = _stream(
        find_plugin("pgoutput"), client, feed, [*_PGOUTPUT, ("origin", "none")]
    )
    assert b"not local" not in client.data
    assert (client.data.count(b"local"), transactions) == (1, 1)


class _Warning(_Slow):
    def begin(self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN) -> None:
        ctx.warning("slow")

    def commit(self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        """Writes nothing."""


def test_replies_are_read_while_a_warning_waits() -> None:
    client = _Client()
    begun, _, ended = _told(1000, None, b"")
    _stream(_Warning(client), client, _Items([begun, ended]))
    assert client.data == notice_response("slow")


def test_a_client_is_answered_while_a_plugin_works() -> None:
    client = _Client()
    plugin = _Slow(client)
    begun, _, ended = _told(1000, None, b"")
    _stream(plugin, client, _Items([begun, ended]))
    assert plugin.answer[:1] + plugin.answer[5:6] == b"dk"
