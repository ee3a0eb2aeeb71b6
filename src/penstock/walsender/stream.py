"""START_REPLICATION: transactions out, confirmations in (walsender.c, WalSndLoop).

In: a feed of transactions and the client's messages. Out: pgoutput's stream with its keepalives. A
transaction without published changes is not sent; its position reaches the client by keepalives.
The position that the client has flushed is confirmed in its slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.catalog import LakeTransaction, PrepareRecord, TwoPhaseKind
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ConnectionFailure, ProtocolViolation
from penstock.failpoint import AFTER_COMMIT_SENT, AFTER_CONFIRM, INSIDE_TRANSACTION, failpoint
from penstock.lsn import Lsn
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Message,
    Origin,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamCommit,
    StreamStart,
    StreamStop,
    TypeMessage,
)
from penstock.protocol.answers import Duplex
from penstock.protocol.backend_messages import copy_data
from penstock.protocol.copy_both import (
    StandbyStatusUpdate,
    decode_standby_message,
    keepalive,
    xlog_data,
)
from penstock.protocol.frontend_messages import CopyData, CopyDone
from penstock.relation import Relation
from penstock.walsender.feed import Begun, Ended, Feed, FeedFailure, Item, Piece
from penstock.walsender.wanted import was_prepared

TICK_S: Final = 0.05
"""Seconds to wait for something to send at most, and so the delay of an answer."""

_BLOCK_BYTES: Final = 16 << 20
"""Bytes after which a block of a streamed transaction ends."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SenderState:
    """The state of one stream for the statistics; only its thread writes it.

    ``blocks`` counts blocks of streamed transactions, which ``transactions`` counts, too.
    """

    slot: str
    sent: Lsn
    write: Lsn | None = None
    flush: Lsn | None = None
    apply: Lsn | None = None
    transactions: int = 0
    bytes: int = 0
    streamed: int = 0
    blocks: int = 0
    streamed_bytes: int = 0


class Stream:
    """One stream. ``confirm`` records the position that the client has flushed, and returns it."""

    def __init__(
        self,
        wire: Duplex,
        feed: Feed,
        state: SenderState,
        *,
        confirm: Callable[[Lsn], Lsn],
        timeout_s: Callable[[], float],
        check: Callable[[], None] = lambda: None,
        told: Callable[[], None] = lambda: None,
        two_phase_at: Lsn | None = None,
    ) -> None:
        """Take the stream's parts; ``two_phase_at`` is as in the feed's source.

        ``timeout_s`` gives the present wal_sender_timeout, 0 for none. ``check`` raises if the
        stream must end. ``told`` is called once ``state`` has what the client has said.
        """
        self._told_others = told
        self._two_phase_at = two_phase_at
        self._wire = wire
        self._feed = feed
        self.state = state
        self._confirm = confirm
        self._timeout_s = timeout_s
        self._check = check
        self._heard = time.monotonic()
        self._asked = False
        self._done = False
        self._sending = False
        self._owed: bool | None = None  # a keepalive that waits for the end of a send
        self._confirmed = Lsn(0)
        self._told: Lsn | None = None
        self._relations: dict[int, Relation] = {}
        self._transaction: LakeTransaction | None = None
        self._begun = False
        self._streamed = False
        self._block: int | None = None  # bytes sent in the block that is open
        self._streamed_relations: dict[int, Relation] = {}

    def run(self) -> None:
        """Send until the client is done. Raises ConnectionFailure and the feed's PenstockError."""
        self._keepalive()
        while not self._client_done():
            self._check_timeout()
            self._check()
            self.handle(self._feed.next(TICK_S))

    def handle(self, item: Item | None) -> None:
        """Send the next item; None if none has come. Raises the feed's PenstockError."""
        match item:
            case None:
                self._tell_position()
            case Begun(transaction, streamed):
                self._transaction, self._begun = transaction, False
                self._streamed = streamed
                self._begin_prepare(transaction)
            case Piece():
                self._send_piece(item)
            case Ended(transaction):
                self._end(transaction)
            case FeedFailure(error):
                raise error

    # What is sent

    def _send_piece(self, piece: Piece) -> None:
        transaction = self._transaction
        assert transaction is not None
        if self._streamed:
            self._open_block(transaction)
        elif not self._begun and transaction.is_transaction:
            self._begin(transaction)
        # A worker that applies a streamed transaction may not have seen what was sent before it.
        known = self._streamed_relations if self._streamed else self._relations
        xid = transaction.xid if self._streamed else None
        for relation in piece.relations:
            if known.get(relation.oid) != relation:
                known[relation.oid] = relation
                self._send_types(relation, piece, transaction)
                self._send(RelationMessage(relation, xid), transaction.begin)
        self._put(piece.data)
        failpoint(INSIDE_TRANSACTION)
        self.state.bytes += len(piece.data)
        if self._block is not None:
            self._block += len(piece.data)
            self.state.streamed_bytes += len(piece.data)
            if self._block >= _BLOCK_BYTES:
                self._close_block(transaction)

    def _send_types(self, relation: Relation, piece: Piece, transaction: LakeTransaction) -> None:
        """send_relation_and_attrs: a Type message for each column of a type of the node's own."""
        xid = transaction.xid if self._streamed else None
        for attribute in relation.attributes:
            name = piece.types.get(attribute.type_oid)
            if name is not None:
                self._send(TypeMessage(attribute.type_oid, *name, xid), transaction.begin)

    def _begin_prepare(self, transaction: LakeTransaction) -> None:
        """Send Begin Prepare at once, even if nothing of the transaction is published."""
        begin = opening(transaction, self._two_phase_at)
        if begin is not None:
            self._begin(transaction, begin)

    def _begin(self, transaction: LakeTransaction, begin: Message | None = None) -> None:
        self._begun = True
        ordinary = Begin(transaction.commit, as_sent(transaction.commit_time), transaction.xid)
        self._send(begin or ordinary, transaction.begin)
        if transaction.origin is not None:
            origin_lsn = transaction.origin_lsn or Lsn(0)
            self._send(Origin(origin_lsn, transaction.origin), transaction.begin)

    def _open_block(self, transaction: LakeTransaction) -> None:
        if self._block is not None:
            return
        self._block = 0
        self.state.blocks += 1
        self._send(StreamStart(transaction.xid, not self._begun), transaction.begin)
        if not self._begun and transaction.origin is not None:
            self._send(Origin(Lsn(0), transaction.origin), transaction.begin)
        self._begun = True

    def _close_block(self, transaction: LakeTransaction) -> None:
        if self._block is not None:
            self._block = None
            self._send(StreamStop(), transaction.begin)

    def _end(self, transaction: LakeTransaction) -> None:
        prepared = closing(transaction, self._two_phase_at)
        if prepared is not None:
            for message, lsn in prepared:
                self._send(message, lsn)
            failpoint(AFTER_COMMIT_SENT)
            self.state.transactions += bool(prepared)
        elif self._begun:
            self._close_block(transaction)
            ends = transaction.commit, transaction.end, as_sent(transaction.commit_time)
            commit = StreamCommit(transaction.xid, *ends) if self._streamed else Commit(*ends)
            self._send(commit, transaction.end)
            failpoint(AFTER_COMMIT_SENT)
            self.state.transactions += 1
            self.state.streamed += self._streamed
        self._relations |= self._streamed_relations
        self._streamed_relations = {}
        self._transaction, self._begun, self._streamed = None, False, False
        self.state.sent = transaction.end

    def _send(self, message: Message, lsn: Lsn) -> None:
        self._put(xlog_data(lsn, _now_us(), encode(message)))

    def _keepalive(self, *, reply_requested: bool = False) -> None:
        if self._sending:
            self._owed = reply_requested or bool(self._owed)
            return
        message = keepalive(self.state.sent, _now_us(), reply_requested=reply_requested)
        self._put(copy_data(message))

    def _put(self, data: bytes) -> None:
        self._sending = True
        self._wire.send(data, self._blocked)
        self._sending = False
        owed, self._owed = self._owed, None
        if owed is not None:
            self._keepalive(reply_requested=owed)

    def _blocked(self) -> None:
        """Listen to a client that takes nothing now; it may still say that it is there
        (WalSndWriteData)."""
        self._client_done()
        self._check_timeout()

    def _tell_position(self) -> None:
        """Send a keepalive if there is nothing to send and the client lacks only the position."""
        state = self.state
        if self._transaction is not None or self._told == state.sent:
            return
        if (state.flush or Lsn(0)) < state.sent:
            self._keepalive()
        self._told = state.sent

    # What is heard

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
            if isinstance(update, StandbyStatusUpdate):
                self._reply(update)
        return self._done

    def _reply(self, update: StandbyStatusUpdate) -> None:
        state = self.state
        # The client may send any 64 bits; the statistics show only positions that were sent.
        state.write, state.flush, state.apply = (
            min(at, state.sent) for at in (update.write, update.flush, update.apply)
        )
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


def _now_us() -> int:
    return time.time_ns() // 1000


# The messages of pgoutput for prepared transactions (pgoutput.c, protocol version 3).
#
# In: an entry of the log, and the position from which on PREPAREs are sent. Out: the messages in
# front of its changes and behind them. None if the stream does without two-phase commit, or the
# entry is an ordinary transaction.


def as_sent(time: int) -> int:
    """Convert microseconds since the Unix epoch to those since 2000, as messages have them."""
    return time - EPOCH_MICROSECONDS


def opening(transaction: LakeTransaction, two_phase_at: Lsn | None) -> Message | None:
    """Return Begin Prepare, even if nothing is published: the verdict comes without changes."""
    at = _prepared_here(transaction, two_phase_at)
    record = transaction.two_phase
    if at is None or record is None:
        return None
    return BeginPrepare(at.lsn, at.end, as_sent(at.time), transaction.xid, record.gid)


def closing(
    transaction: LakeTransaction, two_phase_at: Lsn | None
) -> Sequence[tuple[Message, Lsn]] | None:
    """Return the last messages with their positions, None for an ordinary Commit."""
    record = transaction.two_phase
    if record is None or two_phase_at is None:
        return None
    found: list[tuple[Message, Lsn]] = []
    xid, gid, end = transaction.xid, record.gid, transaction.end
    at = _prepared_here(transaction, two_phase_at)
    if at is not None:
        found.append((Prepare(at.lsn, at.end, as_sent(at.time), xid, gid), end))
    time, was = as_sent(transaction.commit_time), record.prepare
    match record.kind:
        case TwoPhaseKind.COMMIT_PREPARED:
            found.append((CommitPrepared(transaction.commit, end, time, xid, gid), end))
        case TwoPhaseKind.ROLLBACK_PREPARED if was is not None:
            prepared = as_sent(was.time)
            found.append((RollbackPrepared(was.end, end, prepared, time, xid, gid), end))
    return found


def _prepared_here(transaction: LakeTransaction, two_phase_at: Lsn | None) -> PrepareRecord | None:
    """Return the PREPARE that is sent with the entry, None if there is none. It is the entry's own,
    or that of a committed transaction whose PREPARE was not sent at its time
    (ReorderBufferFinishPrepared)."""
    record = transaction.two_phase
    if record is None or two_phase_at is None:
        return None
    match record.kind:
        case TwoPhaseKind.PREPARE if transaction.commit >= two_phase_at:
            return PrepareRecord(transaction.commit, transaction.end, transaction.commit_time)
        case TwoPhaseKind.COMMIT_PREPARED if not was_prepared(record, two_phase_at):
            return record.prepare
    return None
