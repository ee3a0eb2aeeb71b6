"""Open the histories of a subscription's tables, and find where each begins.

Each history table has all changes up to its own LSN. A batch is committed to the history first, so
that LSN is at least the followed table's LSN. If it is lower (the option was off, or the table was
copied again), the history begins again with the table's live rows as of the table's LSN.
``apply.fold_share`` adds batches; ``pipeline.history`` makes the rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Final

import numpy as np

from penstock.errors import NotInPrerequisiteState
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.history_table import open_history
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.schema import DELETED_AT
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.columnar import DecodedChunk
from penstock.pipeline.history import Stamps, copy_rows
from penstock.subscription.target import Target

log = logging.getLogger(__name__)

OPERATION: Final = "HISTORY"

_NONE: Final = np.empty(0, np.int64)
_NOTHING: Final = DecodedChunk((), (), _NONE, _NONE, _NONE, _NONE)


def begin_history(
    spark: Spark,
    warehouse: Warehouse,
    target: Target,
    app_id: str,
    earlier: Collection[str] = (),
) -> DeltaTable:
    """Open the history of a target, and begin it again if it lacks changes that the target has.
    ``earlier``: app ids of subscriptions from which the target and its history may have been taken
    over.

    Raises the errors of ``open_history``; NotInPrerequisiteState if the history cannot begin now.
    """
    history = open_history(warehouse, target.rel.table_name, target.table.schema)
    # The Delta log entries read here must be durable, as for the table (``Targets.open``).
    warehouse.storage.sync_folder(log_folder(history.uri))
    has, lsn = history.transaction_version(app_id), target.marker or INVALID
    if has is None and (taken := _taken_over(history, target, earlier)) is not None:
        has = max(taken, lsn)
        history.commit(app_id=app_id, version_marker=has, operation=OPERATION)
    if has is None or has < lsn:
        if target.half_applied is not None:
            raise NotInPrerequisiteState(
                f'the history of table "{target.table.name}" cannot begin while only some '
                "partitions have the last changes",
                hint="It is tried again; the partitions have them when the next changes come.",
            )
        tables = [target.table] if target.leaves is None else list(target.leaves.tables)
        log.info('the history of table "%s" begins at %s', target.table.name, lsn)
        dead = None if target.table.schema.deleted_at is None else DELETED_AT
        copy_rows(spark, tables, history, lsn, time.time_ns() // 1000, dead)
    if has is None or has < lsn or history.has_staged:
        history.commit(app_id=app_id, version_marker=max(lsn, has or INVALID), operation=OPERATION)
    return history


def _taken_over(history: DeltaTable, target: Target, earlier: Collection[str]) -> int | None:
    """Return the LSN up to which a history has the changes of the last subscription that filled the
    table; None if the history lacks some of them."""
    filled = [(target.table.transaction_version(one) or 0, one) for one in earlier]
    marker, newest = max(filled, default=(0, ""))
    has = history.transaction_version(newest) or 0
    return has if has and has >= marker else None


class TransactionStamps:
    """The ``Stamps`` of one batch, made piece by piece. ``xids``: its transactions so far, some
    of them twice."""

    def __init__(self) -> None:
        self.xids = _NONE
        self._xid, self._finish, self._messages = 0, INVALID, 0

    def of(self, chunk: DecodedChunk, size: int, end: Lsn, time_us: int) -> Stamps:
        """Return the stamps of the next piece. ``size``: the number of its messages; ``end``,
        ``time_us``: as ``Stamps`` says."""
        stamps = Stamps(chunk, size, end, time_us, self._xid, self._finish, self._messages)
        self._xid, self._finish, self._messages = stamps.last()
        self.xids = np.append(self.xids, stamps.transactions())
        return stamps

    def of_undecoded(self, end: Lsn, time_us: int) -> Stamps:
        """Return the stamps of a piece that was written ahead of its commit. It belongs to one
        transaction, and its messages are not decoded."""
        return self.of(_NOTHING, 0, end, time_us)
