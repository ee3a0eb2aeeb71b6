"""Parameters of a stream, as ``node`` gives them and as one subscription takes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from penstock.pipeline.table_work import ApplyOptions
from penstock.subscription.upkeep import UpkeepOptions


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Parameters of a stream, in seconds and bytes."""

    apply: ApplyOptions
    track_commit_timestamp: bool
    """Whether it is told of changes of rows that others have written last."""
    upkeep: UpkeepOptions
    spool_folder: Path
    piece_bytes: int
    piece_frames: int
    queue_bytes: int
    batch_delay: float
    batch_idle: float
    backlog_delay: float
    backlog_threshold: int
    """Bytes of WAL to be behind before a backlog is fetched and not streamed; -1: never."""
    status_interval: float
    receiver_timeout: float

    def of(self, app_id: str) -> StreamOptions:
        """For the subscription with that app id."""
        if not self.track_commit_timestamp:
            return self
        compact = replace(self.upkeep.compact, own=app_id)
        upkeep = replace(self.upkeep, compact=compact)
        return replace(self, apply=replace(self.apply, own=app_id), upkeep=upkeep)
