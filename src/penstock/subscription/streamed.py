"""Transactions that arrive before they have committed (worker.c, apply_handle_stream_*).

In: XLogData frames as they come, with blocks of streamed transactions among them (protocol version
2). Out: frames of whole transactions to the inbox, in the order of their commits, as version 1 has
them; so nobody after the inbox knows that a transaction was streamed. Until its Stream Commit, a
transaction waits here: in memory at first, then on disk, within one bound for all of them. What a
subtransaction did that was aborted is cut out, and an aborted transaction leaves nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import ProtocolViolation
from penstock.pgoutput.chunk import XLOGDATA_HEADER
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import (
    Begin,
    Commit,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
)
from penstock.subscription.inbox import FrameRun, Inbox

_PROTO_VERSION: Final = 2
_CONTROL: Final = re.compile(b"[SEcA]")
_RELATION: Final = b"R"
_CHANGES: Final = b"RYIUDTM"
"""Messages that a block consists of; each has an xid after its type byte."""
_ORIGIN: Final = b"O"
_XID: Final = slice(XLOGDATA_HEADER + 1, XLOGDATA_HEADER + 5)
_OID: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class _Definition:
    """A Relation message. ``arrival``: which of all it was; ``place``: of its frame."""

    oid: int
    frame: bytes
    arrival: int
    place: int = 0


@dataclass(slots=True)
class _Open:
    """A transaction that has not committed. ``first``: of each subtransaction, how many frames were
    there before its first one."""

    xid: int
    sealed: list[FrameRun] = field(default_factory=list)
    tail: FrameRun = field(default_factory=FrameRun)
    sealed_frames: int = 0
    first: dict[bytes, int] = field(default_factory=dict)
    definitions: list[_Definition] = field(default_factory=list)

    @property
    def frames(self) -> int:
        return self.sealed_frames + len(self.tail.frames)

    def seal(self, folder: Path) -> None:
        """Move what is in memory to disk."""
        self.tail.spill(folder)
        self.sealed.append(self.tail)
        self.sealed_frames += self.tail.count
        self.tail = FrameRun()

    def cut_off(self, subxid: bytes) -> None:
        """Forget a subtransaction and all that came after its first change: that is its own, or of
        those inside it (stream_abort_internal)."""
        start = self.first.get(subxid)
        if start is None:
            return  # it changed nothing here, or went with the one around it
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
        """Free what it holds on disk."""
        for run in self.sealed:
            run.forget()


class StreamedTransactions:
    """Stands before an ``Inbox``; the receiving thread calls ``add``."""

    def __init__(
        self,
        inbox: Inbox,
        spool_folder: Path,
        *,
        piece_bytes: int,
        piece_frames: int,
    ) -> None:
        """``piece_bytes``: so much memory is for all transactions together, too."""
        self._inbox = inbox
        self._spool_folder = spool_folder
        self._piece_bytes = piece_bytes
        self._piece_frames = piece_frames
        self._open: dict[int, _Open] = {}
        self.clear()

    def clear(self) -> None:
        """Forget everything: another stream begins."""
        for transaction in self._open.values():
            transaction.forget()
        self._open = {}
        self._block: _Open | None = None
        self._decoder = Decoder(_PROTO_VERSION)
        self._definitions: dict[int, _Definition] = {}
        self._arrivals = 0
        self.surplus = 0
        """How many more frames the inbox was given than came: fewer while transactions wait here,
        more with the Begins and Commits that were made for them."""

    def add(self, frames: Sequence[bytes], now: float) -> None:
        """Take frames from the stream. Raises ProtocolViolation, StorageError."""
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
        """Frames between two messages of streaming."""
        if not frames:
            return
        if self._block is None:
            self._learn(frames, kinds)
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

    def _definition(self, frame: bytes, place: int = 0) -> _Definition:
        if len(frame) < XLOGDATA_HEADER + 1 + _OID.size:
            raise ProtocolViolation("insufficient data left in message")
        self._arrivals += 1
        (oid,) = _OID.unpack_from(frame, XLOGDATA_HEADER + 1)
        return _Definition(oid, frame, self._arrivals, place)

    def _put(self, block: _Open, frames: Sequence[bytes], kinds: bytes) -> None:
        """Frames of a block, without their xids."""
        if kinds[:1] == _ORIGIN:  # of the whole transaction, and without an xid
            block.tail.frames.append(frames[0])
            block.tail.size += len(frames[0])
            frames, kinds = frames[1:], kinds[1:]
        if kinds.strip(_CHANGES):
            kind = chr(kinds.strip(_CHANGES)[0])
            raise ProtocolViolation(f'message type "{kind}" inside of a streamed block')
        place, last, own = block.frames, b"", struct.pack("!I", block.xid)
        for number, frame in enumerate(frames):
            xid = frame[_XID]
            if xid != last:
                last = xid
                if xid != own:
                    block.first.setdefault(xid, place + number)
        stripped = [frame[: _XID.start] + frame[_XID.stop :] for frame in frames]
        at = kinds.find(_RELATION)
        while at >= 0:
            block.definitions.append(self._definition(stripped[at], place + at))
            at = kinds.find(_RELATION, at + 1)
        for start in range(0, len(stripped), self._piece_frames):
            part = stripped[start : start + self._piece_frames]
            block.tail.frames += part
            block.tail.size += sum(map(len, part))
            if self._is_full(block.tail):
                block.seal(self._spool_folder)
        self._bound_memory()

    def _is_full(self, tail: FrameRun) -> bool:
        return tail.size >= self._piece_bytes or len(tail.frames) >= self._piece_frames

    def _bound_memory(self) -> None:
        """The largest transactions go to disk first."""
        while sum(each.tail.size for each in self._open.values()) >= self._piece_bytes:
            largest = max(self._open.values(), key=lambda each: each.tail.size)
            largest.seal(self._spool_folder)

    def _control(self, frame: bytes, now: float) -> None:
        message = self._decoder.decode(frame[XLOGDATA_HEADER:])
        if not isinstance(message, StreamCommit):
            self.surplus -= 1
        match message:
            case StreamStart():
                self._begin_block(message)
            case StreamStop():
                self._block = None
            case StreamCommit():
                self._outside("COMMIT")
                self._commit(message, frame[:XLOGDATA_HEADER], now)
            case StreamAbort():
                self._outside("ABORT")
                self._abort(message)

    def _outside(self, what: str) -> None:
        if self._block is not None:
            raise ProtocolViolation(f"STREAM {what} message without STREAM STOP")

    def _begin_block(self, message: StreamStart) -> None:
        if not message.xid:
            raise ProtocolViolation("invalid transaction ID in streamed replication transaction")
        if message.first_segment == (message.xid in self._open):
            raise ProtocolViolation(
                f"STREAM START message of transaction {message.xid} is not in its place"
            )
        self._block = self._open.setdefault(message.xid, _Open(message.xid))

    def _abort(self, message: StreamAbort) -> None:
        transaction = self._open.get(message.xid)
        if transaction is None:
            return  # nothing of it came
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
        # Before the inbox has them: no moment may look as if all that came were in a cut.
        self.surplus += 1 + transaction.sealed_frames + len(rest) - 1
        self._inbox.add_transaction(header + encode(begin), transaction.sealed, rest, now)

    def _definitions_after(self, transaction: _Open) -> list[bytes]:
        """Relation messages that came after the transaction's own of the same relations.

        The publisher goes on with the newest that it has sent outside of streams or in one that has
        committed, and so must whoever reads one transaction after the other.
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
