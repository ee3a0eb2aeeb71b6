"""Frames of a transaction that has not committed, in memory or on disk.

In: XLogData frames. Out: the same frames, or their file. ``piece`` has what comes after the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.subscription.ahead import AheadOfCommit
from penstock.subscription.spool import SpooledFrames


@dataclass(slots=True)
class FrameRun:
    """A run of frames. ``ahead``: what has begun with it, where it is on disk."""

    frames: list[bytes] = field(default_factory=list)
    size: int = 0
    spooled: SpooledFrames | None = None
    ahead: AheadOfCommit | None = None

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
        """Forget all frames but the first ones."""
        del self.frames[count:]
        self.size = sum(map(len, self.frames))

    def drop_ahead(self) -> None:
        """Nothing of it is done before its commit."""
        if self.ahead is not None:
            self.ahead.forget()
            self.ahead = None

    def forget(self) -> None:
        """Free what a spilled run holds on disk."""
        self.drop_ahead()
        if self.spooled is not None:
            self.spooled.remove()
