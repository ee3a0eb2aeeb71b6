"""Frames of a transaction that has not committed, in memory or on disk.

A run collects XLogData frames and returns them, or their file. After the commit, runs become pieces
of the ``inbox``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.subscription.applyparallelworker import PendingRun
from penstock.subscription.spool import SpooledFrames


@dataclass(slots=True)
class FrameRun:
    """A run of frames. ``pending``: the work that has begun on a run on disk."""

    frames: list[bytes] = field(default_factory=list)
    size: int = 0
    spooled: SpooledFrames | None = None
    pending: PendingRun | None = None

    @property
    def count(self) -> int:
        """The number of frames."""
        return len(self.frames) if self.spooled is None else self.spooled.count

    def spill(self, folder: Path) -> None:
        """Move the frames to disk."""
        self.spooled = SpooledFrames.write(folder, self.frames)
        self.frames = []

    def unspilled(self) -> FrameRun:
        """Return the same run in memory, and no longer on disk."""
        if self.spooled is None:
            return self
        self.drop_pending()
        frames = self.spooled.load()
        self.spooled.remove()
        return FrameRun(frames, size=self.size)

    def keep(self, count: int) -> None:
        """Forget all frames but the first ``count``."""
        del self.frames[count:]
        self.size = sum(map(len, self.frames))

    def drop_pending(self) -> None:
        """Drop the work begun before the commit; the run then waits for the commit."""
        if self.pending is not None:
            self.pending.forget()
            self.pending = None

    def forget(self) -> None:
        """Delete the files of a spilled run."""
        self.drop_pending()
        if self.spooled is not None:
            self.spooled.remove()
