"""The histories of a subscription's tables: where each begins, and what a batch adds.

In: open targets, decoded chunks. Out: the history tables, each with everything up to its own LSN,
which is never below its table's: a batch is committed to the history first. Where it is below (the
option was off, the table was copied again) the history begins again with the table's rows as of
its LSN. What its rows are is decided in ``pipeline.history``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from penstock.errors import NotInPrerequisiteState
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.history_table import fit, open_history
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.columnar import ChangeBatch, DecodedChunk
from penstock.pipeline.fold import fold
from penstock.pipeline.history import HistoryWork, Stamps
from penstock.pipeline.history_copy import copy_rows
from penstock.pipeline.table_work import TableWork
from penstock.subscription.relation_map import Share, first_message
from penstock.subscription.target import Target

log = logging.getLogger(__name__)

OPERATION: Final = "HISTORY"

_NONE: Final = np.empty(0, np.int64)
_NOTHING: Final = DecodedChunk((), (), _NONE, _NONE, _NONE, _NONE)


def begin_history(spark: Spark, warehouse: Warehouse, target: Target, app_id: str) -> DeltaTable:
    """The history of a target, which has what the target has.

    Raises what ``open_history`` raises, NotInPrerequisiteState where it cannot begin now.
    """
    history = open_history(warehouse, target.rel.table_name, target.table.schema)
    # As for the table (``Targets.open``): what is relied upon must be durable.
    warehouse.storage.sync_folder(log_folder(history.uri))
    has, lsn = history.transaction_version(app_id), target.marker or INVALID
    if has is None or has < lsn:
        if target.ahead is not None:
            raise NotInPrerequisiteState(
                f'the history of table "{target.table.name}" cannot begin while only some '
                "partitions have the last changes",
                hint="It is tried again; the partitions have them when the next changes come.",
            )
        tables = [target.table] if target.leaves is None else list(target.leaves.tables)
        log.info('the history of table "%s" begins at %s', target.table.name, lsn)
        copy_rows(spark, tables, history, lsn, time.time_ns() // 1000)
    if has is None or has < lsn or history.has_staged:
        history.commit(app_id=app_id, version_marker=max(lsn, has or INVALID), operation=OPERATION)
    return history


class TransactionStamps:
    """Of one batch, piece by piece."""

    def __init__(self) -> None:
        self._xid, self._finish, self._messages = 0, INVALID, 0

    def of(self, chunk: DecodedChunk, size: int, end: Lsn, time_us: int) -> Stamps:
        """Of the next piece. ``size``: its messages; ``end``, ``time_us``: as ``Stamps`` says."""
        stamps = Stamps(chunk, size, end, time_us, self._xid, self._finish, self._messages)
        self._xid, self._finish, self._messages = stamps.last()
        return stamps

    def ahead(self, end: Lsn, time_us: int) -> Stamps:
        """Of a piece that was done ahead of its commit: it is of one transaction."""
        return self.of(_NOTHING, 0, end, time_us)


def history_works(
    share: Share, stamps: Stamps, app_id: str, resolution: str
) -> Iterator[TableWork]:
    """The works of a share whose target has a history, to be done one after the other: what comes
    before a TRUNCATE is not lost in one."""
    target = share.target
    history = target.history
    assert history is not None
    fit(history, target.table.name, target.table.schema)
    marker = history.transaction_version(app_id)
    first = first_message(stamps.chunk, None if marker is None else Lsn(marker), stamps.end)
    for changes, truncate, start in _segments(share):
        net = fold(
            changes,
            target.table.schema,
            truncates=() if truncate is None else (truncate,),
            from_sequence=start,
            with_versions=True,
            stamped=stamps.columns,
            resolution=resolution,
        )
        work = HistoryWork(history, stamps, first, truncate)
        yield TableWork(target.table, net, leaves=target.leaves, history=work)


def _segments(share: Share) -> Iterator[tuple[tuple[ChangeBatch, ...], int | None, int]]:
    """Changes with the TRUNCATE that they come after, if one, and where they begin."""
    starts = [share.first, *share.truncates]
    ends = [*share.truncates, np.iinfo(np.int64).max]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        parts = (_between(batch, start, end) for batch in share.changes)
        changes = tuple(part for part in parts if len(part))
        if changes or number:
            yield changes, start if number else None, start


def _between(batch: ChangeBatch, start: int, end: int) -> ChangeBatch:
    low, high = np.searchsorted(batch.sequence, (start, end))
    here = slice(low, high)
    return ChangeBatch(
        batch.relation,
        batch.sequence[here],
        batch.operation[here],
        batch.new.slice(low, high - low),
        {name: mask[here] for name, mask in batch.unchanged.items()},
        None if batch.old is None else batch.old.slice(low, high - low),
        batch.old_kind[here],
    )
