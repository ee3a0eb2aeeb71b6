"""What pgoutput says of a transaction that was prepared (pgoutput.c, protocol version 3).

In: an entry of the log, from where on what is prepared goes out when it is prepared. Out: the
messages in front of its changes and behind them. None where the stream knows nothing of two-phase
commit, or the entry is an ordinary transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.catalog import LakeTransaction, PrepareRecord, TwoPhaseKind
from penstock.civil import EPOCH_MICROSECONDS
from penstock.lsn import Lsn
from penstock.pgoutput.messages import (
    BeginPrepare,
    CommitPrepared,
    Message,
    Prepare,
    RollbackPrepared,
)
from penstock.walsender.wanted import was_prepared


def as_sent(time: int) -> int:
    """Microseconds since the Unix epoch, as messages have them: since 2000."""
    return time - EPOCH_MICROSECONDS


def opening(transaction: LakeTransaction, two_phase_at: Lsn | None) -> Message | None:
    """Begin Prepare, also where nothing of it is published: its verdict comes without changes."""
    at = _prepared_here(transaction, two_phase_at)
    record = transaction.two_phase
    if at is None or record is None:
        return None
    return BeginPrepare(at.lsn, at.end, as_sent(at.time), transaction.xid, record.gid)


def closing(
    transaction: LakeTransaction, two_phase_at: Lsn | None
) -> Sequence[tuple[Message, Lsn]] | None:
    """Messages and where they stand; None: what ends any transaction."""
    record = transaction.two_phase
    if record is None or two_phase_at is None:
        return None
    found: list[tuple[Message, Lsn]] = []
    xid, gid, end = transaction.xid, record.gid, transaction.end
    at = _prepared_here(transaction, two_phase_at)
    if at is not None:
        found.append((Prepare(at.lsn, at.end, as_sent(at.time), xid, gid), end))
    time, was = as_sent(transaction.commit_time), record.prepare
    match record.kind:
        case TwoPhaseKind.COMMIT_PREPARED:
            found.append((CommitPrepared(transaction.commit, end, time, xid, gid), end))
        case TwoPhaseKind.ROLLBACK_PREPARED if was is not None:
            prepared = as_sent(was.time)
            found.append((RollbackPrepared(was.end, end, prepared, time, xid, gid), end))
    return found


def _prepared_here(transaction: LakeTransaction, two_phase_at: Lsn | None) -> PrepareRecord | None:
    """The PREPARE that the entry is sent as: its own one, or that of what is committed and was not
    sent when it was prepared (ReorderBufferFinishPrepared)."""
    record = transaction.two_phase
    if record is None or two_phase_at is None:
        return None
    match record.kind:
        case TwoPhaseKind.PREPARE if transaction.commit >= two_phase_at:
            return PrepareRecord(transaction.commit, transaction.end, transaction.commit_time)
        case TwoPhaseKind.COMMIT_PREPARED if not was_prepared(record, two_phase_at):
            return record.prepare
    return None
