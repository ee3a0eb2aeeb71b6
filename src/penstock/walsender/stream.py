"""START_REPLICATION: send transactions, receive confirmations (walsender.c, WalSndLoop).

``Stream`` takes transactions from a feed, and sends each write of the slot's output plugin as one
XLogData message, and keepalives. The client gets earlier writes while the plugin works, and its
messages are read between writes. If the plugin writes nothing for a transaction, a keepalive sends
the transaction's position. The position that the client has flushed is confirmed in its slot.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.decoding import LogicalDecodingContext
from penstock.errors import ConnectionFailure, ProtocolViolation
from penstock.failpoint import AFTER_COMMIT_SENT, AFTER_CONFIRM, INSIDE_TRANSACTION, failpoint
from penstock.lsn import Lsn
from penstock.protocol.answers import Duplex, Notice
from penstock.protocol.backend_messages import copy_data
from penstock.protocol.copy_both import StandbyStatusUpdate, decode_standby_message, keepalive
from penstock.protocol.frontend_messages import CopyData, CopyDone
from penstock.walsender.feed import (
    Feed,
    FeedFailure,
    Item,
    Portion,
    TransactionBegin,
    TransactionEnd,
)
from penstock.walsender.lake_transactions import Decoded, LakeTransactions

TICK_S: Final = 0.05
"""The longest wait for something to send, in seconds, and so the longest delay of an answer."""


# How long the client takes (walsender.c, LagTrackerWrite and LagTrackerRead).
#
# A sample is a position in the log and the time at which it was sent. When the client reports that
# it has written, flushed or applied that position, the lag is the time since then. A client that
# has replied twice that it has applied everything waits for nothing: then there is no lag to show.

_INTERVAL_S: Final = 1.0
"""The least time between two samples (WALSND_LOGICAL_LAG_TRACK_INTERVAL_MS)."""
_SAMPLES: Final = 8192
"""The most samples of a client that does not reply (LAG_TRACKER_BUFFER_SIZE)."""
_HEADS: Final = 3


@dataclass(frozen=True, slots=True)
class Lags:
    """The lags in seconds, None if unknown."""

    write: float | None = None
    flush: float | None = None
    replay: float | None = None


class LagTracker:
    """The lags of one stream. Times are those of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._samples = tuple(deque[tuple[Lsn, float]](maxlen=_SAMPLES) for _ in range(_HEADS))
        self._last: tuple[Lsn, float] | None = None
        self._applied_all = False
        self.lags = Lags()

    def sent(self, lsn: Lsn, now: float) -> None:
        """Take a sample of the position just sent."""
        if self._last is not None and (lsn <= self._last[0] or now - self._last[1] < _INTERVAL_S):
            return
        self._last = lsn, now
        for samples in self._samples:
            samples.append((lsn, now))

    def reply(self, write: Lsn, flush: Lsn, apply: Lsn, sent: Lsn, now: float) -> None:
        """Take the positions of a reply; ``sent``: what has been sent so far
        (ProcessStandbyReplyMessage)."""
        found = [
            _read(samples, lsn, now)
            for samples, lsn in zip(self._samples, (write, flush, apply), strict=True)
        ]
        idle = self._applied_all and apply == sent
        self._applied_all = apply == sent
        known = (self.lags.write, self.lags.flush, self.lags.replay)
        self.lags = Lags(
            *(
                old if new is None and not idle else new
                for old, new in zip(known, found, strict=True)
            )
        )


def _read(samples: deque[tuple[Lsn, float]], lsn: Lsn, now: float) -> float | None:
    """Return the time since the newest sample up to ``lsn`` was sent; None if there is no new
    one."""
    time = None
    while samples and samples[0][0] <= lsn:
        _, time = samples.popleft()
    return None if time is None else now - time


@dataclass(slots=True)
class SenderState:
    """The state of one stream for the statistics; only its thread writes it. ``reply_time``: when
    the client has sent its latest reply, in microseconds since the Unix epoch. ``lags``: how long
    the client takes."""

    slot: str
    sent: Lsn
    write: Lsn | None = None
    flush: Lsn | None = None
    apply: Lsn | None = None
    reply_time: int | None = None
    lags: Lags = Lags()


class _ClientDone(Exception):
    """The client has ended the stream in the middle of a transaction."""


class Stream:
    """One stream. ``confirm`` records the position that the client has flushed, and returns it."""

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
        """Take a started ``context``, and the ``lake`` that the feed's source belongs to.

        ``timeout_s`` returns the present wal_sender_timeout, 0 for none. ``check`` raises if the
        stream must end. ``told`` is called once ``state`` has the client's latest reply.
        """
        self._context, self._lake = context, lake
        self._told_others = told
        self._wire = wire
        self._feed = feed
        self.state = state
        self._confirm = confirm
        self._timeout_s = timeout_s
        self._check = check
        self._heard = time.monotonic()
        self._asked = False
        self._done = False
        self._sending = self._wrote = False
        self._owed: bool | None = None  # a keepalive to send once the current send has ended
        self._confirmed = Lsn(0)
        self._told: Lsn | None = None
        self._listened = time.monotonic()
        self._lag = LagTracker()
        context.tell_progress = self._progress
        context.warn = self._warn

    def run(self) -> None:
        """Send until the client is done. Raises ConnectionFailure, the feed's PenstockError and
        the plugin's errors."""
        self._keepalive()
        try:
            while not self._client_done():
                self._check_timeout()
                self._check()
                self.handle(self._feed.next(TICK_S))
        except _ClientDone:
            return

    def handle(self, item: Item | None) -> None:
        """Send the transaction that begins with ``item``, if there is one. Raises the feed's
        PenstockError, and the plugin's errors."""
        match item:
            case None:
                self._tell_position()
            case TransactionBegin():
                self._send(item)
            case FeedFailure(error):
                raise error

    # Sending

    def _send(self, begun: TransactionBegin) -> None:
        """Send all of a transaction."""
        changes, self._wrote = self._changes(begun), False
        for messages in self._context.copy_data(self._lake.items_of(begun, changes)):
            self._put_writes(messages)
        for _ in changes:  # the plugin's filter may have skipped the transaction
            pass
        if self._wrote:
            failpoint(AFTER_COMMIT_SENT)
        self.state.sent = begun.transaction.end
        self._lag.sent(self.state.sent, time.monotonic())

    def _changes(self, begun: TransactionBegin) -> Iterator[Decoded]:
        """Yield the feed's changes of the transaction that has begun."""
        while True:
            item = self._feed.next(TICK_S)
            match item:
                case TransactionEnd():
                    return
                case FeedFailure(error):
                    raise error
                case Portion():
                    yield self._lake.portion(item, begun.transaction)
                    failpoint(INSIDE_TRANSACTION)
            if self._client_done():
                raise _ClientDone
            self._check_timeout()
            self._check()

    def _progress(self, lsn: Lsn, xid: int, skipped_xact: bool) -> None:
        """Read the client's messages while the plugin works (WalSndUpdateProgress)."""
        now = time.monotonic()
        if now - self._listened >= TICK_S:
            self._listened = now
            self._client_done()
            self._check_timeout()
            self._check()

    def _warn(self, notice: Notice) -> None:
        """Send the plugin's earlier writes, and then its warning."""
        for messages in self._context.waiting():
            self._put_writes(messages)
        self._put(self._wire.notice(notice))

    def _put_writes(self, messages: bytes) -> None:
        self._put(messages)
        self._wrote = True

    def _keepalive(self, *, reply_requested: bool = False) -> None:
        if self._sending:
            self._owed = reply_requested or bool(self._owed)
            return
        message = keepalive(
            self.state.sent, time.time_ns() // 1000, reply_requested=reply_requested
        )
        self._put(copy_data(message))

    def _put(self, data: bytes) -> None:
        self._sending = True
        self._wire.send(data, self._blocked)
        self._sending = False
        owed, self._owed = self._owed, None
        if owed is not None:
            self._keepalive(reply_requested=owed)

    def _blocked(self) -> None:
        """Read the messages of a client whose socket takes no data now; it may still send replies
        (WalSndWriteData)."""
        self._client_done()
        self._check_timeout()

    def _tell_position(self) -> None:
        """Send a keepalive if nothing else waits and the client lacks the end position."""
        state = self.state
        if self._told == state.sent:
            return
        if (state.flush or Lsn(0)) < state.sent:
            self._keepalive()
        self._told = state.sent

    # Receiving

    def _client_done(self) -> bool:
        while not self._done and (message := self._wire.next_message(0.0)) is not None:
            self._heard, self._asked = time.monotonic(), False
            if isinstance(message, CopyDone):
                self._done = True
                break
            if not isinstance(message, CopyData):
                raise ProtocolViolation(
                    f"unexpected message {type(message).__name__} while streaming"
                )
            update = decode_standby_message(message.data)
            self.state.reply_time = update.send_time
            if isinstance(update, StandbyStatusUpdate):
                self._reply(update)
        return self._done

    def _reply(self, update: StandbyStatusUpdate) -> None:
        state = self.state
        # The client may send any 64 bits; the statistics show only positions that were sent.
        state.write, state.flush, state.apply = (
            min(at, state.sent) for at in (update.write, update.flush, update.apply)
        )
        self._lag.reply(state.write, state.flush, state.apply, state.sent, time.monotonic())
        state.lags = self._lag.lags
        # A client knows later positions only from keepalives, never beyond what was sent.
        flush = min(update.flush, state.sent)
        if flush > self._confirmed:
            self._confirmed = self._confirm(flush)
            failpoint(AFTER_CONFIRM)
        self._told_others()
        if update.reply_requested:
            self._keepalive()

    def _check_timeout(self) -> None:
        timeout_s = self._timeout_s()
        if not timeout_s:
            return
        silent = time.monotonic() - self._heard
        if silent >= timeout_s:
            raise ConnectionFailure("terminating walsender process due to replication timeout")
        # WalSndKeepaliveIfNecessary: ask a client once if it is silent for half of the timeout.
        if silent >= timeout_s / 2 and not self._asked:
            self._asked = True
            self._keepalive(reply_requested=True)
