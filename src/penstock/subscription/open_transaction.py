"""What has come of a transaction that has not committed (worker.c, subxact_info and its file).

In: frames, and which subtransaction each is of. Out: the same frames in runs, in memory or on disk,
without those of subtransactions that were aborted. Which message means what is ``streamed``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.pgoutput.messages import BeginPrepare
from penstock.subscription.ahead import AheadWriter
from penstock.subscription.frame_run import FrameRun


@dataclass(frozen=True, slots=True)
class SentRelation:
    """A Relation message. ``arrival``: which of all it was; ``place``: of its frame."""

    oid: int
    frame: bytes
    arrival: int
    place: int = 0


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that has not committed. ``preparing``: the message that began it, of one that
    comes whole with its Prepare; ``used``: OIDs that such a one names. ``first``: of each
    subtransaction, how many frames were there before its first one."""

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

    def seal(self, folder: Path, ahead: AheadWriter | None = None) -> None:
        """Move what is in memory to disk. ``ahead``: begins with it before the commit."""
        self.tail.spill(folder)
        if ahead is not None and self.tail.spooled is not None and self.preparing is None:
            known = [each.frame for each in self.definitions if each.place < self.sealed_frames]
            self.tail.ahead = ahead.begin(self.tail.spooled, known)
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
