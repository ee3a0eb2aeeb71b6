"""The queue between receiver and applier: whole transactions, within bounded memory.

Messages are added in the order of the stream and taken as batches. A batch is a run of whole
transactions in one or more pieces. A piece holds at most ``piece_bytes`` or ``piece_frames``, so a
larger transaction has several pieces. Pieces of a transaction that is still arriving are spilled to
disk, as in reorderbuffer.c. ``full()`` makes the receiver stop reading, so a backlog of finished
transactions waits in the publisher's WAL and not here. Only the kind byte of each message and the
fields of Commits are decoded here; times are passed in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.cells import window
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation
from penstock.lakehouse.batches import runs
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.columnar import MessageChunk
from penstock.subscription.applyparallelworker import PendingRun
from penstock.subscription.frame_run import FrameRun
from penstock.subscription.spool import SpooledFrames, SpooledMessages

BACKLOG_BYTES: Final = 8 << 20
"""The number of waiting bytes that shows a backlog, or a stream as fast as a backlog. With a steady
30,000 small transactions a second, half as many bytes wait between two batches."""


class Inbox:
    """The queue between the receiving thread and the applying thread."""

    def __init__(
        self, spool_folder: Path, *, piece_bytes: int, piece_frames: int, memory_bytes: int
    ) -> None:
        self._spool_folder = spool_folder
        self._changed = threading.Condition()
        self.limit(piece_bytes, piece_frames, memory_bytes)
        self._sealed: deque[Piece] = deque()
        self._open = Piece()
        self._in_memory = 0
        self._transactions = 0
        self._first_at: float | None = None
        self._quiet = False
        self._gathering = False

    def limit(self, piece_bytes: int, piece_frames: int, memory_bytes: int) -> None:
        """Set the sizes of pieces and of the memory, for later messages."""
        with self._changed:
            self._piece_bytes = piece_bytes
            self._piece_frames = piece_frames
            self._memory_bytes = memory_bytes

    def add(self, messages: MessageChunk | Sequence[bytes], now: float) -> None:
        """Take messages, or frames from the stream; ``now`` is a monotonic time in seconds.

        Raises ProtocolViolation."""
        chunk = _chunk(messages)
        with self._changed:
            step = self._piece_frames
            for begin in range(0, len(chunk), step):
                self._append(chunk.between(begin, min(begin + step, len(chunk))))
            if self._first_at is None and self._transactions:
                self._first_at = now
            self._quiet = False
            self._changed.notify_all()

    def add_transaction(
        self, begin: bytes, spilled: Sequence[FrameRun], rest: Sequence[bytes], now: float
    ) -> None:
        """Take a whole transaction: its first frame, runs on disk, and the other frames, the last
        of which is the Commit."""
        with self._changed:
            if spilled:
                self._seal()
                self._append(_chunk([begin]))
                self._seal()
                self._sealed.extend(map(Piece.of_run, spilled))
                begins = []
            else:
                begins = [begin]
            self.add([*begins, *rest], now)

    def quiet(self) -> None:
        """Note that the stream is quiet, so transactions here need not wait for others."""
        with self._changed:
            self._quiet = True
            self._changed.notify_all()

    def full(self) -> bool:
        """Return whether finished transactions fill the memory, so that the receiver must pause."""
        with self._changed:
            if self._gathering:
                return False
            # Without a finished transaction the applier could take nothing, so the rest of the
            # arriving transaction is read, and spilled.
            return self._in_memory >= self._memory_bytes and self._transactions > 0

    def gather(self, on: bool) -> None:
        """Set whether to take messages beyond the memory's bound, to rebuild a batch that once was
        within it."""
        with self._changed:
            self._gathering = on

    def empty(self) -> bool:
        """Return whether no frame of a finished or arriving transaction waits here."""
        with self._changed:
            return not self._sealed and not self._open.count

    def wait(self, seconds: float) -> None:
        """Wait until frames arrive, at most ``seconds``."""
        with self._changed:
            self._changed.wait(seconds)

    def ready(self, now: float, *, delay: float, backlog_delay: float) -> bool:
        """Return whether to close a batch: a piece or the memory is full, or the stream is quiet,
        or the oldest transaction has waited ``delay`` s, on a fast stream ``backlog_delay`` s.

        A batch has fixed costs. When much arrives, the stream's end is far away, and fuller pieces
        reach it sooner.
        """
        with self._changed:
            if not self._transactions:
                return False
            if any(piece.transactions for piece in self._sealed):
                return True
            if self._in_memory >= self._memory_bytes:
                return True  # the receiver pauses, so waiting brings nothing more
            age = 0.0 if self._first_at is None else now - self._first_at
            longest = backlog_delay if self._in_memory >= BACKLOG_BYTES else delay
            return age >= longest or self._quiet

    def newest_end_lsn(self) -> Lsn:
        """Return the end LSN of the last waiting transaction; INVALID if none waits."""
        with self._changed:
            pieces = reversed([*self._sealed, self._open])
            last = next((piece for piece in pieces if piece.transactions), None)
            return INVALID if last is None else last.last_end_lsn

    def has_upto(self, end_lsn: Lsn) -> bool:
        """Return whether a transaction waits here that ends at ``end_lsn`` or before."""
        with self._changed:
            return self._transactions > 0 and self._oldest_end_lsn() <= end_lsn

    def _oldest_end_lsn(self) -> Lsn:
        pieces = [*self._sealed, self._open]
        return next(piece for piece in pieces if piece.transactions).first_end_lsn

    def take(self, now: float, limit: Lsn | None = None) -> Batch | None:
        """Return the next batch, without transactions that end beyond ``limit``; None if no whole
        transaction is left."""
        with self._changed:
            if not self._transactions:
                return None
            if limit is not None and self._oldest_end_lsn() > limit:
                return None
            pieces: list[Piece] = []
            while self._sealed:
                pieces.append(self._sealed.popleft())
                if pieces[-1].transactions:
                    break
            else:
                pieces.append(self._open)
                self._open = Piece()
            last = pieces[-1]
            within = last.transactions if limit is None else last.ending_upto(limit)
            return self._taken(pieces, within, now)

    def take_upto(self, end_lsn: Lsn, now: float) -> Batch | None:
        """Return the batch that ends at ``end_lsn``, however large it is; None if no transaction
        ends there or before. Call it once everything up to ``end_lsn`` has arrived."""
        with self._changed:
            pieces = [*self._sealed, self._open]
            within = [piece.ending_upto(end_lsn) for piece in pieces]
            if not any(within):
                return None
            last = max(number for number, count in enumerate(within) if count)
            for _ in range(min(last + 1, len(self._sealed))):
                self._sealed.popleft()
            if last == len(pieces) - 1:
                self._open = Piece()
            return replace(self._taken(pieces[: last + 1], within[last], now), end_lsn=end_lsn)

    def _taken(self, pieces: list[Piece], transactions: int, now: float) -> Batch:
        """Return pieces taken from the queue as a batch. Take the first ``transactions``
        transactions of the last piece, and put the rest back."""
        self._put_back(pieces[-1].cut_after(transactions))
        waiting = [*self._sealed, self._open]
        self._in_memory = sum(piece.size for piece in waiting if piece.spooled is None)
        batch = Batch.of(tuple(pieces))
        self._transactions -= batch.transactions
        self._first_at = now if self._transactions else None
        return batch

    def clear(self) -> None:
        """Forget everything: the stream is started again from the last cut."""
        with self._changed:
            for piece in self._sealed:
                piece.forget()
            self._sealed.clear()
            self._open = Piece()
            self._in_memory = self._transactions = 0
            self._first_at = None

    def _append(self, chunk: MessageChunk) -> None:
        piece = self._open
        size, transactions = piece.size, piece.transactions
        piece.add(chunk)
        self._in_memory += piece.size - size
        self._transactions += piece.transactions - transactions
        if piece.size >= self._piece_bytes or piece.count >= self._piece_frames:
            self._seal()
            self._spill()

    def _seal(self) -> None:
        if self._open.count:
            self._sealed.append(self._open)
            self._open = Piece()

    def _spill(self) -> None:
        """Move sealed pieces of the arriving transaction to disk."""
        if self._in_memory < self._memory_bytes:
            return
        # Pieces after the last Commit all belong to the arriving transaction.
        for piece in reversed(self._sealed):
            if piece.transactions:
                break
            if piece.spooled is None:
                piece.spill(self._spool_folder)
                self._in_memory -= piece.size

    def _put_back(self, rest: Piece) -> None:
        if not rest.count:
            return
        follower = self._sealed[0] if self._sealed else self._open
        # A spilled follower stays on disk, so the rest becomes a separate piece in front of it.
        if follower.spooled is not None:
            self._sealed.appendleft(rest)
            return
        rest.absorb(follower)
        if self._sealed:
            self._sealed[0] = rest
        else:
            self._open = rest


def _chunk(messages: MessageChunk | Sequence[bytes]) -> MessageChunk:
    if isinstance(messages, MessageChunk):
        return messages
    return MessageChunk.from_copy_data(messages)


# Messages that wait for the applier: pieces, and batches of them.
#
# Messages arrive in runs, each of which is one buffer and may contain Commits. A piece returns its
# messages as one chunk for the columnar decoder, and can be divided after any Commit. Arrays
# describe the messages; none is an object of its own.

_COMMIT: Final = ord("C")
_COMMIT_SIZE: Final = 1 + 1 + 8 + 8 + 8
_FINISH_LSN_AT: Final = 2
_END_LSN_AT: Final = 10
_TIME_AT: Final = 18

_JOINED: Final = 4 << 20
"""Parts are joined up to this many bytes before they are decoded: each part takes half a
millisecond."""

_SMALL: Final = 64 << 10
"""Adjacent parts are joined up to this many bytes, because each part has its own arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Messages that arrived together. ``commits``: the indexes of Commits; ``end_lsns``: the end
    LSN of each Commit."""

    chunk: MessageChunk
    commits: NDArray[np.int64]
    end_lsns: NDArray[np.uint64]

    @classmethod
    def of(cls, chunk: MessageChunk) -> _Part:
        """Return a chunk as a part. Raise ProtocolViolation if a Commit is too short."""
        commits = np.flatnonzero(chunk.kinds == _COMMIT)
        starts = chunk.starts[commits]
        if (chunk.ends[commits] - starts < _COMMIT_SIZE).any():
            raise ProtocolViolation("insufficient data left in message")
        fields = window(np.frombuffer(chunk.buffer, np.uint8), ">u8")
        return cls(chunk, commits, fields[starts + _END_LSN_AT].astype(np.uint64))

    def fields(self, at: int, dtype: str) -> NDArray[np.uint64]:
        """Return a field of eight bytes of each Commit."""
        buffer = np.frombuffer(self.chunk.buffer, np.uint8)
        return window(buffer, dtype)[self.chunk.starts[self.commits] + at]

    def divided(self, commits: int) -> tuple[_Part, _Part]:
        """Return the messages up to the Commit number ``commits``, and the rest."""
        at = int(self.commits[commits - 1]) + 1
        begin = _Part(self.chunk.between(0, at), self.commits[:commits], self.end_lsns[:commits])
        rest = self.chunk.between(at, len(self.chunk))
        return begin, _Part(rest, self.commits[commits:] - at, self.end_lsns[commits:])

    @classmethod
    def joined(cls, parts: Sequence[_Part]) -> _Part:
        """Join parts to one part."""
        bases = np.cumsum([0, *(len(part.chunk) for part in parts)]).tolist()
        commits = [part.commits + base for part, base in zip(parts, bases, strict=False)]
        return cls(
            MessageChunk.joined([part.chunk for part in parts]),
            np.concatenate([np.empty(0, np.int64), *commits]),
            np.concatenate([np.empty(0, np.uint64), *(part.end_lsns for part in parts)]),
        )


@dataclass(slots=True)
class Piece:
    """Messages in order, in memory or on disk; on disk there are no Commits among them.
    ``pending``: the work that has begun on the piece."""

    parts: list[_Part] = field(default_factory=list)
    count: int = 0
    size: int = 0
    transactions: int = 0
    """The number of transactions that end in the piece."""
    spooled: SpooledFrames | SpooledMessages | None = None
    pending: PendingRun | None = None

    @classmethod
    def of_run(cls, run: FrameRun) -> Piece:
        """Return a run on disk, of a committed transaction, as a piece, which then owns the
        files."""
        return cls(count=run.count, size=run.size, spooled=run.spooled, pending=run.pending)

    def add(self, chunk: MessageChunk) -> None:
        """Append messages. Raises ProtocolViolation."""
        self._append(_Part.of(chunk))

    def _append(self, part: _Part) -> None:
        if not len(part.chunk):
            return
        self.count += len(part.chunk)
        self.size += part.chunk.size
        self.transactions += len(part.commits)
        parts = self.parts
        parts.append(part)
        # A small part is joined only with a part of about its size. So each byte is copied only a
        # few times, and there are always few parts.
        while len(parts) > 1 and _alike(parts[-2].chunk.size, parts[-1].chunk.size):
            parts[-2:] = [_Part.joined(parts[-2:])]

    def chunks(self) -> list[MessageChunk]:
        """Return all messages, for the columnar decoder; small parts are joined."""
        if self.spooled is not None:
            return [self.spooled.chunk()]
        found = [part.chunk for part in self.parts]
        sizes = np.array([chunk.size for chunk in found], np.int64)
        return [MessageChunk.joined(found[run]) for run in runs(sizes, _JOINED)]

    @property
    def end_lsns(self) -> NDArray[np.uint64]:
        """The end LSNs of the transactions that end in the piece."""
        return np.concatenate([np.empty(0, np.uint64), *(part.end_lsns for part in self.parts)])

    @property
    def finish_lsns(self) -> NDArray[np.uint64]:
        """The LSNs where the commit records of the transactions that end in the piece begin."""
        found = (part.fields(_FINISH_LSN_AT, ">u8") for part in self.parts)
        return np.concatenate([np.empty(0, np.uint64), *found])

    @property
    def first_end_lsn(self) -> Lsn:
        """The end LSN of the first transaction that ends in the piece; INVALID if none does."""
        with_commits = (part for part in self.parts if len(part.commits))
        first = next(with_commits, None)
        return INVALID if first is None else Lsn(int(first.end_lsns[0]))

    @property
    def last_end_lsn(self) -> Lsn:
        """The end LSN of the last transaction that ends in the piece; INVALID if none does."""
        last = self._last()
        return INVALID if last is None else Lsn(int(last.end_lsns[-1]))

    @property
    def last_commit_time(self) -> int:
        """The commit time of the last transaction that ends in the piece, us since 1970; 0 if none
        does."""
        last = self._last()
        return 0 if last is None else int(last.fields(_TIME_AT, ">i8")[-1]) + EPOCH_MICROSECONDS

    def _last(self) -> _Part | None:
        return next((part for part in reversed(self.parts) if len(part.commits)), None)

    def ending_upto(self, lsn: Lsn) -> int:
        """Return how many transactions end at ``lsn`` or before."""
        return sum(
            int(np.searchsorted(part.end_lsns, np.uint64(lsn), "right")) for part in self.parts
        )

    def cut_after(self, transactions: int) -> Piece:
        """Split off and return the messages after the given number of Commits."""
        parts, left = self.parts, transactions
        begin, rest = Piece(), Piece()
        for number, part in enumerate(parts):
            if left > len(part.commits):
                begin._append(part)
                left -= len(part.commits)
                continue
            mine, others = part.divided(left)
            begin._append(mine)
            for each in (others, *parts[number + 1 :]):
                rest._append(each)
            break
        self.parts, self.count, self.size = begin.parts, begin.count, begin.size
        self.transactions = begin.transactions
        return rest

    def absorb(self, follower: Piece) -> None:
        """Take the messages of the piece that follows this one."""
        for part in follower.parts:
            self._append(part)

    def spill(self, folder: Path) -> None:
        """Move the messages to disk. Raises StorageError."""
        whole = MessageChunk.joined([part.chunk for part in self.parts])
        self.spooled = SpooledMessages.write(folder, whole)
        self.parts = []

    def forget(self) -> None:
        """Delete the piece's files."""
        if self.pending is not None:
            self.pending.forget()
            self.pending = None
        if self.spooled is not None:
            self.spooled.remove()


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole transactions. ``end_lsn``: the end of the last one's commit record; ``commit_time``:
    the time of that commit, us since 1970."""

    pieces: tuple[Piece, ...]
    end_lsn: Lsn
    commit_time: int
    transactions: int
    frames: int

    @classmethod
    def of(cls, pieces: tuple[Piece, ...]) -> Batch:
        """Return pieces, the last of which ends with a Commit, as a batch."""
        return cls(
            pieces=pieces,
            end_lsn=pieces[-1].last_end_lsn,
            commit_time=pieces[-1].last_commit_time,
            transactions=sum(piece.transactions for piece in pieces),
            frames=sum(piece.count for piece in pieces),
        )

    def open_end_lsn(self, piece: int) -> Lsn:
        """Return the end LSN of the transaction that continues after the piece with this number; if
        none does, the batch's end LSN."""
        for follower in self.pieces[piece + 1 :]:
            if follower.transactions:
                return follower.first_end_lsn
        return self.end_lsn

    def halves(self) -> tuple[Batch, Batch]:
        """Divide a batch of several transactions into two batches, which replace it."""
        left, number = self.transactions // 2, 0
        while left > self.pieces[number].transactions:
            left -= self.pieces[number].transactions
            number += 1
        rest = self.pieces[number].cut_after(left)
        second = (*((rest,) if rest.count else ()), *self.pieces[number + 1 :])
        return Batch.of(self.pieces[: number + 1]), replace(Batch.of(second), end_lsn=self.end_lsn)

    def forget(self) -> None:
        """Delete the batch's files."""
        for piece in self.pieces:
            piece.forget()


def _alike(former: int, last: int) -> bool:
    return former <= 2 * last and max(former, last) <= _SMALL
