"""Messages around changes: B, C, O; S, E, c, A of streamed and b, P, K, r, p of prepared
transactions (proto.c).

In: a reader behind the type byte. Out: the message. Errors: ProtocolViolation.
"""

from __future__ import annotations

from typing import TypeVar

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.pgoutput.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Origin,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
)
from penstock.pgoutput.reader import Reader

_Prepared = TypeVar("_Prepared", Prepare, CommitPrepared, StreamPrepare)


def read_begin(reader: Reader) -> Begin:
    """Read ``B`` (logicalrep_read_begin)."""
    final_lsn = _set(reader.lsn(), "final_lsn not set in begin message")
    return Begin(final_lsn, reader.int64(), reader.uint32())


def read_commit(reader: Reader) -> Commit:
    """Read ``C`` (logicalrep_read_commit)."""
    _no_flags(reader.uint8(), "commit")
    return Commit(reader.lsn(), reader.lsn(), reader.int64())


def read_origin(reader: Reader) -> Origin:
    """Read ``O`` (logicalrep_read_origin)."""
    return Origin(reader.lsn(), reader.string())


def read_stream_start(reader: Reader) -> StreamStart:
    """Read ``S`` (logicalrep_read_stream_start)."""
    return StreamStart(reader.uint32(), reader.uint8() == 1)


def read_stream_commit(reader: Reader) -> StreamCommit:
    """Read ``c`` (logicalrep_read_stream_commit)."""
    xid = reader.uint32()
    _no_flags(reader.uint8(), "commit")
    return StreamCommit(xid, reader.lsn(), reader.lsn(), reader.int64())


def read_stream_abort(reader: Reader, parallel: bool) -> StreamAbort:
    """Read ``A`` (logicalrep_read_stream_abort): LSN and time are sent only if ``parallel``."""
    xid, subxid = reader.uint32(), reader.uint32()
    if not parallel:
        return StreamAbort(xid, subxid)
    return StreamAbort(xid, subxid, reader.lsn(), reader.int64())


def read_begin_prepare(reader: Reader) -> BeginPrepare:
    """Read ``b`` (logicalrep_read_begin_prepare)."""
    prepare_lsn = _set(reader.lsn(), "prepare_lsn not set in begin prepare message")
    end_lsn = _set(reader.lsn(), "end_lsn not set in begin prepare message")
    return BeginPrepare(prepare_lsn, end_lsn, reader.int64(), reader.uint32(), reader.string())


def read_prepared(reader: Reader, kind: type[_Prepared], called: str) -> _Prepared:
    """Read ``P``, ``K`` and ``p``, which have the same fields (logicalrep_read_prepare_common)."""
    _no_flags(reader.uint8(), called)
    return kind(
        _set(reader.lsn(), f"LSN not set in {called} message"),
        _set(reader.lsn(), f"end_lsn not set in {called} message"),
        reader.int64(),
        reader.uint32(),
        reader.string(),
    )


def read_rollback_prepared(reader: Reader) -> RollbackPrepared:
    """Read ``r`` (logicalrep_read_rollback_prepared)."""
    _no_flags(reader.uint8(), "rollback prepared")
    return RollbackPrepared(
        _set(reader.lsn(), "prepare_end_lsn is not set in rollback prepared message"),
        _set(reader.lsn(), "rollback_end_lsn is not set in rollback prepared message"),
        reader.int64(),
        reader.int64(),
        reader.uint32(),
        reader.string(),
    )


def _set(lsn: Lsn, message: str) -> Lsn:
    if not lsn:
        raise ProtocolViolation(message)
    return lsn


def _no_flags(flags: int, called: str) -> None:
    if flags:
        raise ProtocolViolation(f"unrecognized flags {flags} in {called} message")
