"""Messages that wait for the applier: pieces, and batches of them.

In: runs of messages as they arrive, with Commits among them, each run one buffer. Out: the messages
of a piece as one chunk for the columnar decoder, divided after any Commit. A message is never an
object of its own: what is known of each is in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.cells import window
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.chunk import MessageChunk
from penstock.subscription.ahead import AheadOfCommit
from penstock.subscription.frame_run import FrameRun
from penstock.subscription.spool import SpooledFrames, SpooledMessages

_COMMIT: Final = ord("C")
_COMMIT_SIZE: Final = 1 + 1 + 8 + 8 + 8
_FINISH_LSN_AT: Final = 2
_END_LSN_AT: Final = 10
_TIME_AT: Final = 18

_SMALL: Final = 64 << 10
"""Bytes up to which parts that follow one another become one: each has arrays of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Messages that came together. ``commits``: positions of Commits; ``end_lsns``: of each."""

    chunk: MessageChunk
    commits: NDArray[np.int64]
    end_lsns: NDArray[np.uint64]

    @classmethod
    def of(cls, chunk: MessageChunk) -> _Part:
        """Raises ProtocolViolation where a Commit is too short."""
        commits = np.flatnonzero(chunk.kinds == _COMMIT)
        starts = chunk.starts[commits]
        if (chunk.ends[commits] - starts < _COMMIT_SIZE).any():
            raise ProtocolViolation("insufficient data left in message")
        fields = window(np.frombuffer(chunk.buffer, np.uint8), ">u8")
        return cls(chunk, commits, fields[starts + _END_LSN_AT].astype(np.uint64))

    def fields(self, at: int, dtype: str) -> NDArray[np.uint64]:
        """A field of eight bytes of each Commit."""
        buffer = np.frombuffer(self.chunk.buffer, np.uint8)
        return window(buffer, dtype)[self.chunk.starts[self.commits] + at]

    def divided(self, commits: int) -> tuple[_Part, _Part]:
        """What goes up to a Commit, of which this is the number, counted from one; the rest."""
        at = int(self.commits[commits - 1]) + 1
        begin = _Part(self.chunk.between(0, at), self.commits[:commits], self.end_lsns[:commits])
        rest = self.chunk.between(at, len(self.chunk))
        return begin, _Part(rest, self.commits[commits:] - at, self.end_lsns[commits:])

    @classmethod
    def joined(cls, parts: Sequence[_Part]) -> _Part:
        """All as one."""
        bases = np.cumsum([0, *(len(part.chunk) for part in parts)]).tolist()
        commits = [part.commits + base for part, base in zip(parts, bases, strict=False)]
        return cls(
            MessageChunk.joined([part.chunk for part in parts]),
            np.concatenate([np.empty(0, np.int64), *commits]),
            np.concatenate([np.empty(0, np.uint64), *(part.end_lsns for part in parts)]),
        )


@dataclass(slots=True)
class Piece:
    """Messages in order, in memory or on disk; on disk there are no Commits among them. ``ahead``:
    what has begun with it."""

    parts: list[_Part] = field(default_factory=list)
    count: int = 0
    size: int = 0
    transactions: int = 0
    """How many end in it."""
    spooled: SpooledFrames | SpooledMessages | None = None
    ahead: AheadOfCommit | None = None

    @classmethod
    def of_run(cls, run: FrameRun) -> Piece:
        """What is on disk of a transaction that has committed; it is this one's from here on."""
        return cls(count=run.count, size=run.size, spooled=run.spooled, ahead=run.ahead)

    def add(self, chunk: MessageChunk) -> None:
        """Append what has come. Raises ProtocolViolation."""
        self._append(_Part.of(chunk))

    def _append(self, part: _Part) -> None:
        if not len(part.chunk):
            return
        self.count += len(part.chunk)
        self.size += part.chunk.size
        self.transactions += len(part.commits)
        parts = self.parts
        parts.append(part)
        # Small ones join with those of about their size, so that a byte is copied a few times at
        # most and there are few parts, however the messages come.
        while len(parts) > 1 and _alike(parts[-2].chunk.size, parts[-1].chunk.size):
            parts[-2:] = [_Part.joined(parts[-2:])]

    def chunk(self) -> MessageChunk:
        """All messages, for the columnar decoder; the parts are one from then on."""
        if self.spooled is not None:
            return self.spooled.chunk()
        if len(self.parts) != 1:
            self.parts = [_Part.joined(self.parts)]
        return self.parts[0].chunk

    @property
    def end_lsns(self) -> NDArray[np.uint64]:
        """Where each transaction ends that ends in it."""
        return np.concatenate([np.empty(0, np.uint64), *(part.end_lsns for part in self.parts)])

    @property
    def finish_lsns(self) -> NDArray[np.uint64]:
        """Where their commit records begin."""
        found = (part.fields(_FINISH_LSN_AT, ">u8") for part in self.parts)
        return np.concatenate([np.empty(0, np.uint64), *found])

    @property
    def first_end_lsn(self) -> Lsn:
        """Of the first transaction that ends in it; INVALID: none does."""
        with_commits = (part for part in self.parts if len(part.commits))
        first = next(with_commits, None)
        return INVALID if first is None else Lsn(int(first.end_lsns[0]))

    @property
    def last_end_lsn(self) -> Lsn:
        """Of the last one."""
        last = self._last()
        return INVALID if last is None else Lsn(int(last.end_lsns[-1]))

    @property
    def last_commit_time(self) -> int:
        """When the last one committed, us since 1970."""
        last = self._last()
        return 0 if last is None else int(last.fields(_TIME_AT, ">i8")[-1]) + EPOCH_MICROSECONDS

    def _last(self) -> _Part | None:
        return next((part for part in reversed(self.parts) if len(part.commits)), None)

    def ending_upto(self, lsn: Lsn) -> int:
        """How many transactions end there or before."""
        return sum(
            int(np.searchsorted(part.end_lsns, np.uint64(lsn), "right")) for part in self.parts
        )

    def cut_after(self, transactions: int) -> Piece:
        """Split off what comes behind so many Commits, which are there."""
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
        self.spooled = SpooledMessages.write(folder, self.chunk())
        self.parts = []

    def forget(self) -> None:
        """Free what it holds on disk."""
        if self.ahead is not None:
            self.ahead.forget()
            self.ahead = None
        if self.spooled is not None:
            self.spooled.remove()


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole transactions. ``end_lsn``: end of the last one's commit record; ``commit_time``: when,
    us since 1970."""

    pieces: tuple[Piece, ...]
    end_lsn: Lsn
    commit_time: int
    transactions: int
    frames: int

    @classmethod
    def of(cls, pieces: tuple[Piece, ...]) -> Batch:
        """Pieces of which the last one ends with a Commit."""
        return cls(
            pieces=pieces,
            end_lsn=pieces[-1].last_end_lsn,
            commit_time=pieces[-1].last_commit_time,
            transactions=sum(piece.transactions for piece in pieces),
            frames=sum(piece.count for piece in pieces),
        )

    def open_end_lsn(self, piece: int) -> Lsn:
        """End LSN of the transaction that reaches out of the piece with this number, if any."""
        for follower in self.pieces[piece + 1 :]:
            if follower.transactions:
                return follower.first_end_lsn
        return self.end_lsn

    def halves(self) -> tuple[Batch, Batch]:
        """Its transactions in two batches, where there are several; it is used up."""
        left, number = self.transactions // 2, 0
        while left > self.pieces[number].transactions:
            left -= self.pieces[number].transactions
            number += 1
        rest = self.pieces[number].cut_after(left)
        second = (*((rest,) if rest.count else ()), *self.pieces[number + 1 :])
        return Batch.of(self.pieces[: number + 1]), replace(Batch.of(second), end_lsn=self.end_lsn)

    def forget(self) -> None:
        """Free what the batch holds on disk."""
        for piece in self.pieces:
            piece.forget()


def _alike(former: int, last: int) -> bool:
    return former <= 2 * last and max(former, last) <= _SMALL
