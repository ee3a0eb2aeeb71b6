"""What the receiver has and the applier has not yet: whole transactions, within bounded memory.

In: XLogData frames in the order of the stream. Out: batches, each a run of whole transactions in
one or more pieces. A piece is at most ``piece_bytes`` or ``piece_frames`` large, so a transaction
larger than that comes as several pieces; those of a transaction that is still arriving are spilled
to disk (reorderbuffer.c spills likewise). ``full()`` tells the receiver to stop reading, so that a
backlog of finished transactions waits in the publisher's WAL and not here. Nothing is decoded here
but the kind byte of each message; clocks are passed in.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from penstock.civil import EPOCH_MICROSECONDS
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.chunk import XLOGDATA_HEADER, MessageChunk
from penstock.subscription.ahead import AheadOfCommit
from penstock.subscription.spool import SpooledFrames

BACKLOG_BYTES: Final = 8 << 20
"""So much waiting means a backlog, or a stream that is as fast as one: a steady 30,000 small
transactions a second leave half of it between two batches."""

_COMMIT: Final = ord("C")
_END_LSN_AT: Final = XLOGDATA_HEADER + 1 + 1 + 8
_COMMIT_TIME_AT: Final = _END_LSN_AT + 8
_UINT64: Final = struct.Struct("!Q")
_INT64: Final = struct.Struct("!q")


@dataclass(slots=True)
class FrameRun:
    """A run of frames. ``commits``: positions of Commit messages among them. ``ahead``: what has
    begun with it, where it is on disk."""

    frames: list[bytes] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    size: int = 0
    spooled: SpooledFrames | None = None
    ahead: AheadOfCommit | None = None

    def chunk(self) -> MessageChunk:
        """The messages as one buffer for the columnar decoder."""
        return MessageChunk.from_copy_data(self.spooled.load() if self.spooled else self.frames)

    def cut_after(self, commit: int) -> FrameRun:
        """Split off the frames after a Commit, of which this is the position."""
        end = commit + 1
        rest = FrameRun(self.frames[end:], [at - end for at in self.commits if at > commit])
        rest.size = sum(map(len, rest.frames))
        del self.frames[end:]
        self.commits = [at for at in self.commits if at <= commit]
        self.size -= rest.size
        return rest

    def absorb(self, follower: FrameRun) -> None:
        """Take the frames of the piece that follows this one."""
        base = len(self.frames)
        self.frames += follower.frames
        self.commits += [base + commit for commit in follower.commits]
        self.size += follower.size

    @property
    def count(self) -> int:
        """How many frames it has."""
        return len(self.frames) if self.spooled is None else self.spooled.count

    def spill(self, folder: Path) -> None:
        """Move the frames to disk."""
        self.spooled = SpooledFrames.write(folder, self.frames)
        self.frames = []

    def unspilled(self) -> FrameRun:
        """The same run in memory, and not on disk."""
        if self.spooled is None:
            return self
        self.drop_ahead()
        frames = self.spooled.load()
        self.spooled.remove()
        return FrameRun(frames, size=self.size)

    def keep(self, count: int) -> None:
        """Forget all frames of a run without commits but the first ones."""
        del self.frames[count:]
        self.size = sum(map(len, self.frames))

    def drop_ahead(self) -> None:
        """Nothing of it is done before its commit."""
        if self.ahead is not None:
            self.ahead.forget()
            self.ahead = None

    def forget(self) -> None:
        """Free what a spilled piece holds on disk."""
        self.drop_ahead()
        if self.spooled is not None:
            self.spooled.remove()


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole transactions. ``end_lsn``: end of the last one's commit record; ``commit_time``: when,
    us since 1970."""

    pieces: tuple[FrameRun, ...]
    end_lsn: Lsn
    commit_time: int
    transactions: int
    frames: int

    def open_end_lsn(self, piece: int) -> Lsn:
        """End LSN of the transaction that reaches out of the piece with this number, if any."""
        for follower in self.pieces[piece + 1 :]:
            if follower.commits:
                return _end_lsn(follower.frames[follower.commits[0]])
        return self.end_lsn

    def halves(self) -> tuple[Batch, Batch]:
        """Its transactions in two batches, where there are several; it is used up."""
        commits = [(number, at) for number, p in enumerate(self.pieces) for at in p.commits]
        number, at = commits[len(commits) // 2 - 1]
        rest = self.pieces[number].cut_after(at)
        second = (*((rest,) if rest.frames else ()), *self.pieces[number + 1 :])
        return _batch_of(self.pieces[: number + 1]), replace(
            _batch_of(second), end_lsn=self.end_lsn
        )

    def forget(self) -> None:
        """Free what the batch holds on disk."""
        for piece in self.pieces:
            piece.forget()


class Inbox:
    """The queue between the receiving thread and the applying one."""

    def __init__(
        self, spool_folder: Path, *, piece_bytes: int, piece_frames: int, memory_bytes: int
    ) -> None:
        self._spool_folder = spool_folder
        self.limit(piece_bytes, piece_frames, memory_bytes)
        self._sealed: deque[FrameRun] = deque()
        self._open = FrameRun()
        self._in_memory = 0
        self._transactions = 0
        self._first_at: float | None = None
        self._quiet = False
        self._gathering = False
        self._changed = threading.Condition()

    def limit(self, piece_bytes: int, piece_frames: int, memory_bytes: int) -> None:
        """Other sizes of pieces and of all, for what comes from now on."""
        self._piece_bytes = piece_bytes
        self._piece_frames = piece_frames
        self._memory_bytes = memory_bytes

    def add(self, frames: Sequence[bytes], now: float) -> None:
        """Take frames from the stream; ``now`` is a monotonic time in seconds."""
        with self._changed:
            for frame in _split(frames, self._piece_frames):
                self._append(frame)
            if self._first_at is None and self._transactions:
                self._first_at = now
            self._quiet = False
            self._changed.notify_all()

    def add_transaction(
        self, begin: bytes, spilled: Sequence[FrameRun], rest: Sequence[bytes], now: float
    ) -> None:
        """A whole transaction: its first frame, runs that are on disk, the other frames, of which
        the last one is the Commit."""
        with self._changed:
            if spilled:
                self._seal()
                self._append([begin])
                self._seal()
                self._sealed.extend(spilled)
                begins = []
            else:
                begins = [begin]
            self.add([*begins, *rest], now)

    def quiet(self) -> None:
        """The stream has nothing more to give now: what is here need not wait for others."""
        with self._changed:
            self._quiet = True
            self._changed.notify_all()

    def full(self) -> bool:
        """Whether finished transactions fill the memory, so that the receiver must pause."""
        with self._changed:
            if self._gathering:
                return False
            # Without a finished transaction nothing could be taken: what arrives goes on, and is
            # spilled.
            return self._in_memory >= self._memory_bytes and self._transactions > 0

    def gather(self, on: bool) -> None:
        """While it is on, take what comes, though it is more than the memory is for: a batch is
        made again that was small enough once."""
        with self._changed:
            self._gathering = on

    def empty(self) -> bool:
        """Whether no frame waits here, neither of a finished nor of an arriving transaction."""
        with self._changed:
            return not self._sealed and not self._open.frames

    def wait(self, seconds: float) -> None:
        """Wait until frames arrive, at most ``seconds``."""
        with self._changed:
            self._changed.wait(seconds)

    def ready(self, now: float, *, delay: float, backlog_delay: float) -> bool:
        """Whether to close a batch: a piece is full, the stream is quiet, or the oldest transaction
        waits ``delay`` s; ``backlog_delay`` s on a stream that comes fast.

        A batch has costs that do not depend on its size. When much comes, the head of the stream is
        far away, and a fuller piece brings it nearer sooner.
        """
        with self._changed:
            if not self._transactions:
                return False
            if any(piece.commits for piece in self._sealed):
                return True
            age = 0.0 if self._first_at is None else now - self._first_at
            longest = backlog_delay if self._in_memory >= BACKLOG_BYTES else delay
            return age >= longest or self._quiet

    def newest_end_lsn(self) -> Lsn:
        """The end of the last transaction that has come and waits; INVALID: none does."""
        with self._changed:
            pieces = reversed([*self._sealed, self._open])
            last = next((piece for piece in pieces if piece.commits), None)
            return INVALID if last is None else _end_lsn(last.frames[last.commits[-1]])

    def has_upto(self, end_lsn: Lsn) -> bool:
        """Whether a transaction waits here that ends there or before."""
        with self._changed:
            return self._transactions > 0 and self._oldest_end_lsn() <= end_lsn

    def _oldest_end_lsn(self) -> Lsn:
        first = next(piece for piece in [*self._sealed, self._open] if piece.commits)
        return _end_lsn(first.frames[first.commits[0]])

    def take(self, now: float, limit: Lsn | None = None) -> Batch | None:
        """The next batch, or None when no transaction is complete; nothing that ends beyond
        ``limit``."""
        with self._changed:
            if not self._transactions:
                return None
            if limit is not None and self._oldest_end_lsn() > limit:
                return None
            pieces: list[FrameRun] = []
            while self._sealed:
                pieces.append(self._sealed.popleft())
                if pieces[-1].commits:
                    break
            else:
                pieces.append(self._open)
                self._open = FrameRun()
            last = pieces[-1]
            within = len(last.commits)
            if limit is not None:
                within = bisect_right(last.commits, limit, key=lambda at: _end_lsn(last.frames[at]))
            return self._taken(pieces, last.commits[within - 1], now)

    def take_upto(self, end_lsn: Lsn, now: float) -> Batch | None:
        """The batch that ends there, whatever it takes; None when nothing has come up to there.

        Call it once everything up to there has come.
        """
        with self._changed:
            pieces = [*self._sealed, self._open]
            commits = [
                (number, at)
                for number, piece in enumerate(pieces)
                for at in piece.commits
                if _end_lsn(piece.frames[at]) <= end_lsn
            ]
            if not commits:
                return None
            last, commit = commits[-1]
            for _ in range(min(last + 1, len(self._sealed))):
                self._sealed.popleft()
            if last == len(pieces) - 1:
                self._open = FrameRun()
            return replace(self._taken(pieces[: last + 1], commit, now), end_lsn=end_lsn)

    def _taken(self, pieces: list[FrameRun], commit: int, now: float) -> Batch:
        """Pieces that have left the queue as a batch; what comes after a Commit of the last one
        goes back."""
        self._put_back(pieces[-1].cut_after(commit))
        self._in_memory -= sum(p.size for p in pieces if p.spooled is None)
        batch = _batch_of(tuple(pieces))
        self._transactions -= batch.transactions
        self._first_at = now if self._transactions else None
        return batch

    def clear(self) -> None:
        """Forget everything: the stream is started again from the last cut."""
        with self._changed:
            for piece in self._sealed:
                piece.forget()
            self._sealed.clear()
            self._open = FrameRun()
            self._in_memory = self._transactions = 0
            self._first_at = None

    def _append(self, frames: Sequence[bytes]) -> None:
        piece = self._open
        base = len(piece.frames)
        piece.frames.extend(frames)
        commits = [base + i for i, frame in enumerate(frames) if frame[XLOGDATA_HEADER] == _COMMIT]
        piece.commits += commits
        size = sum(map(len, frames))
        piece.size += size
        self._in_memory += size
        self._transactions += len(commits)
        if piece.size >= self._piece_bytes or len(piece.frames) >= self._piece_frames:
            self._seal()
            self._spill()

    def _seal(self) -> None:
        if self._open.frames:
            self._sealed.append(self._open)
            self._open = FrameRun()

    def _spill(self) -> None:
        """Move sealed pieces of the transaction that is still arriving to disk."""
        if self._in_memory < self._memory_bytes:
            return
        # From the newest one back to the last Commit: all those are of one transaction.
        for piece in reversed(self._sealed):
            if piece.commits:
                break
            if piece.spooled is None:
                piece.spill(self._spool_folder)
                self._in_memory -= piece.size

    def _put_back(self, rest: FrameRun) -> None:
        if not rest.frames:
            return
        follower = self._sealed[0] if self._sealed else self._open
        # what is on disk stays there; the rest is a piece of its own in front of it
        if follower.spooled is not None:
            self._sealed.appendleft(rest)
            return
        rest.absorb(follower)
        if self._sealed:
            self._sealed[0] = rest
        else:
            self._open = rest


def _end_lsn(commit: bytes) -> Lsn:
    """Of a frame with a Commit."""
    return Lsn(_UINT64.unpack_from(commit, _END_LSN_AT)[0])


def _split(frames: Sequence[bytes], most: int) -> Sequence[Sequence[bytes]]:
    return [frames[i : i + most] for i in range(0, len(frames), most)]


def _batch_of(pieces: tuple[FrameRun, ...]) -> Batch:
    last_commit = pieces[-1].frames[pieces[-1].commits[-1]]
    return Batch(
        pieces=pieces,
        end_lsn=_end_lsn(last_commit),
        commit_time=_INT64.unpack_from(last_commit, _COMMIT_TIME_AT)[0] + EPOCH_MICROSECONDS,
        transactions=sum(len(p.commits) for p in pieces),
        frames=sum(piece.count for piece in pieces),
    )
