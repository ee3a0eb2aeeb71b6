"""Streamed transactions, which arrive before they have committed (worker.c,
apply_handle_stream_*, apply_handle_prepare).

The XLogData frames include blocks of streamed transactions (protocol version 2) and prepared
transactions (version 3). The inbox gets the frames of whole transactions in commit order, as
version 1 sends them, so later code need not know how a transaction arrived. A server writes the
blocks to a file and applies them after the Stream Commit, or applies them at once in a parallel
worker; the rows are invisible before the commit. A Delta table has no invisible rows, but can have
files that no Delta log entry names. With streaming = parallel, full runs are written to such files
while the transaction is open (``applyparallelworker``).

    receiving thread                                thread "write ahead"      applying thread

    Stream Start
      Relation, Insert ...   --> tail of the open
    Stream Stop                  transaction
                                   | full, or all tails fill the memory
                                   v
                                 run on disk  ----> decode, fold, write new
                                                    rows to files
    Stream Abort             --> of a subtransaction: its first frame and all later ones are cut
                                 off, also from files; of the transaction: all is deleted
    Stream Commit            --> Begin, runs, tail, Commit: one transaction
                                   v
                                 inbox  ------------------------------------> takes the files of a
                                                                              run if they are still
                                                                              valid, else its frames

    Begin Prepare ... Prepare, Stream Prepare  --> ``prepared``: durable in the warehouse
    Commit Prepared  --> Begin, the kept frames, Commit: to the inbox
    Rollback Prepared  --> forgotten

All transactions' tails share one memory limit. Until the commit only the frames count, not the
files written from them. Other transactions use a transaction's Relation messages only once it has
committed. So this module keeps the newest definition of each relation, and sends it again after a
transaction that contains an older one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import ProtocolViolation
from penstock.pgoutput.columnar import XLOGDATA_HEADER, MessageChunk
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Message,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
)
from penstock.subscription.applyparallelworker import ParallelApplyWorker
from penstock.subscription.frame_run import FrameRun
from penstock.subscription.inbox import Inbox
from penstock.subscription.logical_messages import KIND, as_transactions
from penstock.subscription.prepared import PreparedTransactions

_PROTO_VERSION: Final = 3
_CONTROL: Final = re.compile(b"[SEcAbPKrp]")
_RELATION: Final = b"R"
_CHANGES: Final = b"RYIUDTM"
"""The messages of a block; each has an xid after its type byte."""
_ORIGIN: Final = b"O"
_ROWS: Final = b"IUD"
_TRUNCATE: Final = ord("T")
_AFTER_STOP: Final = {b"c": "COMMIT", b"A": "ABORT", b"p": "PREPARE"}
_SEEN: Final = np.isin(np.arange(256), tuple(b"SEcAbPKrpM"))
"""Kinds of messages in a backlog that need handling here; other messages are passed on. So are
Relation messages: only the blocks of a stream need them here, and a backlog has no blocks."""
_NO_HEADER: Final = b"w" + bytes(XLOGDATA_HEADER - 1)
_XID: Final = slice(XLOGDATA_HEADER + 1, XLOGDATA_HEADER + 5)
_OID: Final = struct.Struct("!I")


class StreamedTransactions:
    """The open transactions of a stream, which become whole transactions for an ``Inbox``. The
    receiving thread calls ``add``."""

    def __init__(
        self,
        inbox: Inbox,
        spool_folder: Path,
        prepared: PreparedTransactions,
        *,
        piece_bytes: int,
        piece_frames: int,
        worker: ParallelApplyWorker | None = None,
        check: Callable[[bytes], None] | None = None,
    ) -> None:
        """``piece_bytes``: the size of a run, and the bound of memory for all open transactions
        together. ``worker``: starts work on runs of open transactions. ``check``: raises an error
        for a Relation message that must not be passed on."""
        self._inbox = inbox
        self._prepared = prepared
        self._spool_folder = spool_folder
        self.limit(piece_bytes, piece_frames)
        self._worker, self._check = worker, check
        self._open: dict[int, OpenTransaction] = {}
        self._block: OpenTransaction | None = None
        self.clear()

    def limit(self, piece_bytes: int, piece_frames: int) -> None:
        """Set the sizes for later frames."""
        self._piece_bytes = piece_bytes
        self._piece_frames = piece_frames

    def clear(self, *, parallel: bool = False) -> None:
        """Forget everything: another stream begins. ``parallel``: it has streaming = parallel."""
        for transaction in self._open.values():
            transaction.forget()
        if self._block is not None:
            self._block.forget()
        self._open = {}
        self._block = None
        self._decoder = Decoder(_PROTO_VERSION, parallel=parallel)
        self._definitions: dict[int, SentRelation] = {}
        self._untold: set[int] = set()
        self._arrivals = 0
        self.surplus = 0
        """The number of frames given to the inbox, less the number received. It falls while
        transactions wait here, and rises with each Begin and Commit made for them."""

    def add(self, messages: Sequence[bytes] | MessageChunk, now: float) -> None:
        """Take frames from the stream, or messages of a backlog.

        Raises ProtocolViolation, StorageError, and the errors of ``check``.
        """
        if self._check is not None and isinstance(messages, MessageChunk):
            for index in np.flatnonzero(messages.kinds == ord(_RELATION)).tolist():
                self._check(messages.message(index))
        if not isinstance(messages, MessageChunk):
            self._add(messages, now)
        elif self._block is not None or self._untold or _SEEN[messages.kinds].any():
            self._add([_NO_HEADER + message for message in messages.messages()], now)
        else:
            self._inbox.add(messages, now)

    def _add(self, frames: Sequence[bytes], now: float) -> None:
        if min(map(len, frames)) <= XLOGDATA_HEADER:
            raise ProtocolViolation("insufficient data left in message")
        kinds = bytes([frame[XLOGDATA_HEADER] for frame in frames])
        at = 0
        for found in _CONTROL.finditer(kinds):
            self._changes(frames[at : found.start()], kinds[at : found.start()], now)
            self._control(frames[found.start()], now)
            at = found.end()
        self._changes(frames[at:] if at else frames, kinds[at:], now)

    def _changes(self, frames: Sequence[bytes], kinds: bytes, now: float) -> None:
        """Take the frames between two control messages."""
        if not frames:
            return
        if self._block is None:
            if self._untold:
                self._tell_definitions(now)
            self._learn(frames, kinds)
            if KIND in kinds:
                told = as_transactions(frames, kinds)
                self.surplus += len(told) - len(frames)
                frames = told
            self._inbox.add(frames, now)
            return
        self.surplus -= len(frames)
        self._put(self._block, frames, kinds)

    def _learn(self, frames: Sequence[bytes], kinds: bytes) -> None:
        at = kinds.find(_RELATION)
        while at >= 0:
            definition = self._definition(frames[at])
            self._definitions[definition.oid] = definition
            at = kinds.find(_RELATION, at + 1)

    def _definition(self, frame: bytes, place: int = 0) -> SentRelation:
        if len(frame) < XLOGDATA_HEADER + 1 + _OID.size:
            raise ProtocolViolation("insufficient data left in message")
        if self._check is not None:
            self._check(frame[XLOGDATA_HEADER:])
        self._arrivals += 1
        (oid,) = _OID.unpack_from(frame, XLOGDATA_HEADER + 1)
        return SentRelation(oid, frame, self._arrivals, place)

    def _put(self, block: OpenTransaction, frames: Sequence[bytes], kinds: bytes) -> None:
        """Add frames to a block, without their xids."""
        if kinds[:1] == _ORIGIN:  # it concerns the whole transaction, and has no xid
            block.tail.frames.append(frames[0])
            block.tail.size += len(frames[0])
            frames, kinds = frames[1:], kinds[1:]
        if kinds.strip(_CHANGES):
            kind = chr(kinds.strip(_CHANGES)[0])
            raise ProtocolViolation(f'message type "{kind}" inside of a streamed block')
        place = block.frames
        if block.preparing:
            block.used |= _named(frames, kinds)
            stripped = frames
        else:
            stripped = self._without_xids(block, frames)
        at = kinds.find(_RELATION)
        while at >= 0:
            block.definitions.append(self._definition(stripped[at], place + at))
            at = kinds.find(_RELATION, at + 1)
        step = self._piece_frames  # read once: another thread may change it meanwhile
        for start in range(0, len(stripped), step):
            part = stripped[start : start + step]
            block.tail.frames += part
            block.tail.size += sum(map(len, part))
            if self._is_full(block.tail):
                block.seal(self._spool_folder, self._worker)
        self._bound_memory()

    @staticmethod
    def _without_xids(block: OpenTransaction, frames: Sequence[bytes]) -> Sequence[bytes]:
        place, last, own = block.frames, b"", struct.pack("!I", block.xid)
        for number, frame in enumerate(frames):
            xid = frame[_XID]
            if xid != last:
                last = xid
                if xid != own:
                    block.first.setdefault(xid, place + number)
        return [frame[: _XID.start] + frame[_XID.stop :] for frame in frames]

    def _is_full(self, tail: FrameRun) -> bool:
        return tail.size >= self._piece_bytes or len(tail.frames) >= self._piece_frames

    def _bound_memory(self) -> None:
        """Move transactions to disk, the largest first, until the rest fits into memory."""
        waiting = [*self._open.values()]
        if self._block is not None and self._block.preparing:
            waiting.append(self._block)
        while sum(each.tail.size for each in waiting) >= self._piece_bytes:
            largest = max(waiting, key=lambda each: each.tail.size)
            largest.seal(self._spool_folder, self._worker)

    def _control(self, frame: bytes, now: float) -> None:
        message = self._decoder.decode(frame[XLOGDATA_HEADER:])
        inside = self._block is not None
        if inside and not isinstance(message, StreamStop | Prepare):
            raise _misplaced(frame[XLOGDATA_HEADER : XLOGDATA_HEADER + 1])
        # ``surplus`` counts a Commit only once the inbox has its transaction, and a Prepare once it
        # is durable: otherwise all received frames might seem to be in a cut.
        match message:
            case StreamCommit():
                self._commit(message, frame[:XLOGDATA_HEADER], now)
            case CommitPrepared():
                self._commit_prepared(message, frame[:XLOGDATA_HEADER], now)
            case _:
                self._other(message)
                self.surplus -= 1

    def _other(self, message: Message) -> None:
        match message:
            case StreamStart():
                self._begin_block(message)
            case StreamStop():
                self._block = None
            case StreamAbort():
                self._abort(message)
            case BeginPrepare():
                self._block = OpenTransaction(message.xid, message)
            case Prepare():
                self._prepare(message)
            case StreamPrepare():
                transaction = self._open.pop(message.xid, None)
                if transaction is None:
                    raise ProtocolViolation(f"STREAM PREPARE of unknown transaction {message.xid}")
                self._keep(message, transaction)
            case RollbackPrepared():
                self._prepared.roll_back(message)

    def _begin_block(self, message: StreamStart) -> None:
        if not message.xid:
            raise ProtocolViolation("invalid transaction ID in streamed replication transaction")
        if message.first_segment == (message.xid in self._open):
            raise ProtocolViolation(
                f"STREAM START message of transaction {message.xid} is not in its place"
            )
        self._block = self._open.setdefault(message.xid, OpenTransaction(message.xid))

    def _prepare(self, message: Prepare) -> None:
        block = self._block
        if block is None:
            # The transaction changed nothing, or was rolled back before it was decoded
            # (ReorderBufferPrepare). COMMIT PREPARED follows only in the first case.
            self._keep(message, OpenTransaction(message.xid))
            return
        if block.preparing is None:
            raise ProtocolViolation("PREPARE message without STREAM STOP")
        if block.preparing.prepare_lsn != message.prepare_lsn:  # apply_handle_prepare
            raise ProtocolViolation(
                f"incorrect prepare LSN {message.prepare_lsn} in prepare message "
                f"(expected {block.preparing.prepare_lsn})"
            )
        known = [self._definitions[oid] for oid in sorted(block.used) if oid in self._definitions]
        self._keep(message, block, known)
        # The publisher does not send these definitions again, although this transaction has not
        # committed: later changes may need them.
        self._block = None
        for own in block.definitions:
            self._definitions[own.oid] = own
            self._untold.add(own.oid)

    def _keep(
        self,
        message: Prepare | StreamPrepare,
        transaction: OpenTransaction,
        known: Sequence[SentRelation] = (),
    ) -> None:
        """Pass a prepared transaction to ``prepared``. ``known``: earlier definitions that its
        changes need and that another stream would lack."""
        if transaction.tail.frames:
            transaction.seal(self._spool_folder)
        runs = transaction.sealed
        for run in runs:
            run.drop_pending()  # COMMIT PREPARED may come only after a restart of the node
        if known:
            first = FrameRun([each.frame for each in known])
            first.spill(self._spool_folder)
            runs = [first, *runs]
        oids = {each.oid for each in (*known, *transaction.definitions)}
        self._prepared.keep(message, runs, sorted(oids))

    def _tell_definitions(self, now: float) -> None:
        frames = [self._definitions[oid].frame for oid in sorted(self._untold)]
        self._untold.clear()
        self.surplus += len(frames)
        self._inbox.add(frames, now)

    def _commit_prepared(self, message: CommitPrepared, header: bytes, now: float) -> None:
        runs, oids = self._prepared.commit(message)
        begin = Begin(message.commit_lsn, message.commit_time, message.xid)
        commit = Commit(message.commit_lsn, message.end_lsn, message.commit_time)
        known = [self._definitions[oid].frame for oid in oids if oid in self._definitions]
        rest = [*known, header + encode(commit)]
        if sum(run.size for run in runs) < self._piece_bytes:
            rest = [frame for run in runs for frame in run.unspilled().frames] + rest
            runs = []
        self.surplus += sum(run.count for run in runs) + len(rest)
        self._inbox.add_transaction(header + encode(begin), runs, rest, now)

    def _abort(self, message: StreamAbort) -> None:
        transaction = self._open.get(message.xid)
        if transaction is None:
            return  # nothing of the transaction came
        if message.xid == message.subxid:
            del self._open[message.xid]
            transaction.forget()
        else:
            transaction.cut_off(struct.pack("!I", message.subxid))

    def _commit(self, message: StreamCommit, header: bytes, now: float) -> None:
        transaction = self._open.pop(message.xid, None)
        if transaction is None:
            raise ProtocolViolation(f"STREAM COMMIT of unknown transaction {message.xid}")
        begin = Begin(message.commit_lsn, message.commit_time, message.xid)
        commit = Commit(message.commit_lsn, message.end_lsn, message.commit_time)
        rest = [
            *transaction.tail.frames,
            *self._definitions_after(transaction),
            header + encode(commit),
        ]
        self.surplus += transaction.sealed_frames + len(rest)  # the Begin is the Stream Commit's
        self._inbox.add_transaction(header + encode(begin), transaction.sealed, rest, now)

    def _definitions_after(self, transaction: OpenTransaction) -> list[bytes]:
        """Return newer Relation messages of the relations that the transaction defines.

        After the commit, the publisher relies on the newest definition that it has sent, outside of
        streamed transactions or in a committed one. A reader of whole transactions would otherwise
        use the transaction's older definition.
        """
        newer: dict[int, bytes] = {}
        for own in transaction.definitions:
            known = self._definitions.get(own.oid)
            if known is not None and known.arrival > own.arrival:
                newer[own.oid] = known.frame
            else:
                self._definitions[own.oid] = own
                newer.pop(own.oid, None)
        return list(newer.values())


def _named(frames: Sequence[bytes], kinds: bytes) -> set[int]:
    """Return the OIDs of the relations that the frames change."""
    found = {frame[_XID] for frame, kind in zip(frames, kinds, strict=True) if kind in _ROWS}
    oids = {_OID.unpack(oid)[0] for oid in found if len(oid) == _OID.size}
    for frame, kind in zip(frames, kinds, strict=True):
        if kind == _TRUNCATE:
            truncate = Decoder().decode(frame[XLOGDATA_HEADER:])
            oids.update(getattr(truncate, "relation_oids", ()))
    return oids


def _misplaced(kind: bytes) -> ProtocolViolation:
    """Return the error for a message that must not come inside of a block
    (apply_handle_stream_commit and its kin)."""
    if kind in _AFTER_STOP:
        return ProtocolViolation(f"STREAM {_AFTER_STOP[kind]} message without STREAM STOP")
    return ProtocolViolation(f'message type "{kind.decode()}" inside of a block')


# Open transactions: the frames of a transaction that has not committed (worker.c, subxact_info and
# its file).
#
# Each frame belongs to a subtransaction. Frames are kept in runs, in memory or on disk, without
# those of aborted subtransactions. ``StreamedTransactions`` reads the messages.


@dataclass(frozen=True, slots=True)
class SentRelation:
    """A Relation message. ``arrival``: its number among all Relation messages of the stream;
    ``place``: its frame's number in the transaction."""

    oid: int
    frame: bytes
    arrival: int
    place: int = 0


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that has not committed.

    ``preparing``: its Begin Prepare, if it is sent whole and ends with a Prepare; ``used``: the
    OIDs of the relations that such a transaction changes. ``first``: for each subtransaction, the
    number of frames before its first frame.
    """

    xid: int
    preparing: BeginPrepare | None = None
    sealed: list[FrameRun] = field(default_factory=list)
    tail: FrameRun = field(default_factory=FrameRun)
    sealed_frames: int = 0
    first: dict[bytes, int] = field(default_factory=dict)
    definitions: list[SentRelation] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    @property
    def frames(self) -> int:
        return self.sealed_frames + len(self.tail.frames)

    def seal(self, folder: Path, worker: ParallelApplyWorker | None = None) -> None:
        """Move the frames in memory to disk. ``worker``: starts work on them before the commit."""
        self.tail.spill(folder)
        if worker is not None and self.tail.spooled is not None and self.preparing is None:
            known = [each.frame for each in self.definitions if each.place < self.sealed_frames]
            self.tail.pending = worker.begin(self.tail.spooled, known)
        self.sealed.append(self.tail)
        self.sealed_frames += self.tail.count
        self.tail = FrameRun()

    def cut_off(self, subxid: bytes) -> None:
        """Forget a subtransaction: all frames from its first change on. They belong to it, or to
        subtransactions inside it (stream_abort_internal)."""
        start = self.first.get(subxid)
        if start is None:
            return  # it changed nothing here, or was forgotten with its parent
        while self.sealed and self.sealed_frames > start:
            run = self.sealed.pop()
            self.sealed_frames -= run.count
            if self.sealed_frames < start:
                self.tail = run.unspilled()
            else:
                run.forget()
                self.tail = FrameRun()
        self.tail.keep(start - self.sealed_frames)
        self.first = {xid: place for xid, place in self.first.items() if place < start}
        self.definitions = [each for each in self.definitions if each.place < start]

    def forget(self) -> None:
        """Delete the transaction's files."""
        for run in self.sealed:
            run.forget()
