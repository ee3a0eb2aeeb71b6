"""START_REPLICATION of a slot with an output plugin: what the plugin writes, out (walsender.c).

In: a feed of rows (``Wanted.as_rows``), a context of the plugin. Out: each write as one XLogData
message. The plugin works while the client is sent what it wrote before; between writes the client
is heard, as in any stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from penstock.decoding import LogicalDecodingContext, Output
from penstock.failpoint import AFTER_COMMIT_SENT, INSIDE_TRANSACTION, failpoint
from penstock.lsn import Lsn
from penstock.pgoutput.columnar_encoder import XLogDataHeader, xlog_data_messages
from penstock.protocol.answers import Duplex
from penstock.walsender.feed import Begun, Ended, Feed, FeedFailure, Item, Piece
from penstock.walsender.lake_transactions import Decoded, LakeTransactions
from penstock.walsender.stream import TICK_S, SenderState, Stream
from penstock.wire_rows import data_of, lengths


class _ClientDone(Exception):
    """In the middle of a transaction."""


class PluginStream(Stream):
    """As ``Stream``, with the output of one plugin."""

    def __init__(
        self,
        context: LogicalDecodingContext,
        lake: LakeTransactions,
        wire: Duplex,
        feed: Feed,
        state: SenderState,
        *,
        confirm: Callable[[Lsn], Lsn],
        timeout_s: Callable[[], float],
        check: Callable[[], None] = lambda: None,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        """``context``: started; ``lake``: what the feed's source is of."""
        super().__init__(
            wire, feed, state, confirm=confirm, timeout_s=timeout_s, check=check, told=told
        )
        self._context, self._lake = context, lake
        self._listened = time.monotonic()
        context.tell_progress = self._progress

    def run(self) -> None:
        """As ``Stream.run``; raises what the plugin raises, too."""
        try:
            super().run()
        except _ClientDone:
            return

    def handle(self, item: Item | None) -> None:
        """A transaction whole, from where it begins."""
        if not isinstance(item, Begun):
            super().handle(item)
            return
        transaction = item.transaction
        self._transaction = transaction
        changes = self._changes(item)
        for output in self._context.process(self._lake.items_of(item, changes)):
            messages = _copy_data(output)
            self._put(messages)
            self._begun = True
            self.state.bytes += len(messages)
        for _ in changes:  # of a transaction that the plugin's filter has passed by
            pass
        if self._begun:
            failpoint(AFTER_COMMIT_SENT)
            self.state.transactions += 1
        self._transaction, self._begun = None, False
        self.state.sent = transaction.end

    def _progress(self, lsn: Lsn, xid: int, skipped_xact: bool) -> None:
        """Hear the client while the plugin works (WalSndUpdateProgress)."""
        now = time.monotonic()
        if now - self._listened >= TICK_S:
            self._listened = now
            self._client_done()
            self._check_timeout()
            self._check()

    def _changes(self, begun: Begun) -> Iterator[Decoded]:
        """Of the transaction that has begun, as the feed has them."""
        while True:
            item = self._feed.next(TICK_S)
            match item:
                case Ended():
                    return
                case FeedFailure(error):
                    raise error
                case Piece():
                    failpoint(INSIDE_TRANSACTION)
                    yield self._lake.piece(item, begun.transaction)
            if self._client_done():
                raise _ClientDone
            self._check_timeout()
            self._check()


def _copy_data(output: Output) -> bytes:
    """CopyData messages with XLogData, one for each write."""
    data, at = output.data.cast(pa.binary()), np.asarray(output.lsns)
    send_time = time.time_ns() // 1000
    starts = np.flatnonzero(np.diff(at, prepend=at[:1] + np.uint64(1)))
    out = bytearray()
    for start, stop in zip(starts, [*starts[1:], len(at)], strict=True):
        part = data.slice(start, stop - start)
        header = XLogDataHeader(Lsn(int(at[start])), send_time)
        out += data_of(xlog_data_messages([part], lengths(part), header))
    return bytes(out)
