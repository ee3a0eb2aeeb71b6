"""A node's parameters as the options that each room declares for itself."""

from __future__ import annotations

from pathlib import Path

from penstock.node.guc import Parameters
from penstock.pipeline.apply import ApplyOptions
from penstock.pipeline.compact import CompactOptions
from penstock.pipeline.snapshot import CopyOptions
from penstock.subscription.streaming import StreamOptions
from penstock.subscription.upkeep import UpkeepOptions


def copy_options(parameters: Parameters) -> CopyOptions:
    """For the initial copy."""
    return CopyOptions(unit_bytes=parameters.copy_unit_size)


def stream_options(parameters: Parameters, spool: Path) -> StreamOptions:
    """For the stream and the upkeep beside it."""
    return StreamOptions(
        apply=ApplyOptions(),
        upkeep=UpkeepOptions(
            compact=CompactOptions(
                small_files=parameters.compact_small_files,
                dead_ratio=parameters.compact_dead_ratio,
                batch_bytes=max(1, parameters.maintenance_work_mem // 4),
            ),
            checkpoint_commits=parameters.checkpoint_commits,
            cuts_kept=parameters.cuts_kept,
        ),
        spool_folder=spool,
        piece_bytes=parameters.logical_decoding_work_mem,
        piece_frames=parameters.apply_batch_rows,
        queue_bytes=parameters.apply_queue_mem,
        batch_delay=parameters.apply_batch_delay,
        batch_idle=parameters.apply_batch_idle,
        backlog_delay=parameters.apply_backlog_delay,
        backlog_threshold=parameters.backlog_copy_threshold,
        status_interval=parameters.wal_receiver_status_interval,
        receiver_timeout=parameters.wal_receiver_timeout,
    )
