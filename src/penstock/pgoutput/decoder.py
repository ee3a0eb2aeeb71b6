"""Decoder of messages one by one: the reference, to be read with the protocol chapter (proto.c).

In: one message's payload, that is a frame without its XLogData header. Out: its value. The decoder
keeps one bit of state: within a streamed block every change begins with an xid. Speed is left to
``columnar``, which a property test keeps equal to this. Errors: ProtocolViolation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import ProtocolViolation
from penstock.pgoutput import change_reader as change
from penstock.pgoutput import transaction_reader as transaction
from penstock.pgoutput.messages import (
    CommitPrepared,
    Message,
    Prepare,
    StreamPrepare,
    StreamStart,
    StreamStop,
)
from penstock.pgoutput.reader import Reader

_CHANGES: Final[dict[str, Callable[[Reader, int | None], Message]]] = {
    "R": change.read_relation,
    "Y": change.read_type,
    "I": change.read_insert,
    "U": change.read_update,
    "D": change.read_delete,
    "T": change.read_truncate,
    "M": change.read_logical_message,
}

_OTHERS: Final[dict[str, tuple[int, Callable[[Reader], Message]]]] = {
    "B": (1, transaction.read_begin),
    "C": (1, transaction.read_commit),
    "O": (1, transaction.read_origin),
    "S": (2, transaction.read_stream_start),
    "E": (2, lambda reader: StreamStop()),
    "c": (2, transaction.read_stream_commit),
    "b": (3, transaction.read_begin_prepare),
    "P": (3, lambda reader: transaction.read_prepared(reader, Prepare, "prepare")),
    "K": (3, lambda reader: transaction.read_prepared(reader, CommitPrepared, "commit prepared")),
    "r": (3, transaction.read_rollback_prepared),
    "p": (3, lambda reader: transaction.read_prepared(reader, StreamPrepare, "stream prepare")),
}
"""Protocol version that brought each message, and its reader. Stream Abort's has a parameter."""


class Decoder:
    """``proto_version``: as requested. ``parallel``: streaming was requested as ``parallel``."""

    def __init__(self, proto_version: int = 1, *, parallel: bool = False) -> None:
        self._proto_version = proto_version
        self._parallel = parallel
        self._streaming = False

    def decode(self, payload: bytes) -> Message:
        """Decode one message. Raises ProtocolViolation if it is truncated, too long or unknown."""
        reader = Reader(payload)
        message = self._read(reader.char(), reader)
        reader.finish()
        if isinstance(message, StreamStart | StreamStop):
            self._streaming = self._toggled(isinstance(message, StreamStart))
        return message

    def _read(self, kind: str, reader: Reader) -> Message:
        if kind in _CHANGES:
            xid = reader.uint32() if self._streaming else None
            return _CHANGES[kind](reader, xid)
        if kind == "A" and self._proto_version >= 2:
            return transaction.read_stream_abort(reader, self._parallel)
        since, read = _OTHERS.get(kind, (0, None))
        if read is None or self._proto_version < since:
            raise unknown_message(ord(kind))
        return read(reader)

    def _toggled(self, start: bool) -> bool:
        if start == self._streaming:
            raise ProtocolViolation(
                "duplicate STREAM START message"
                if start
                else "STREAM STOP message without STREAM START"
            )
        return start


def unknown_message(kind: int) -> ProtocolViolation:
    """Return PostgreSQL's error for an unknown type byte (worker.c, apply_dispatch)."""
    return ProtocolViolation(f'invalid logical replication message type "??? ({kind})"')
