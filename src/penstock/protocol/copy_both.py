"""Messages inside CopyBoth (Streaming Replication Protocol; walsender.c).

A receiver's CopyData payloads are read as frozen messages; a walsender's messages are written as
bytes. Times are microseconds since the Unix epoch, UTC. The walsender decides when to send;
``pgoutput`` makes the content of XLogData.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.protocol.framing import MessageReader

XLOG_DATA: Final = struct.Struct("!cIcQQQ")
"""The head of XLogData as a CopyData message: d, length, w, start and end of the data, time."""

_INT64_MASK: Final = (1 << 64) - 1
_KEEPALIVE: Final = struct.Struct("!cQQ?").pack


@dataclass(frozen=True, slots=True)
class StandbyStatusUpdate:
    """The receiver's progress; LSNs are those of the last byte + 1."""

    write: Lsn
    flush: Lsn
    apply: Lsn
    send_time: int
    reply_requested: bool


@dataclass(frozen=True, slots=True)
class HotStandbyFeedback:
    """Sent by physical standbys; a logical publisher has no use for it."""

    send_time: int
    xmin: int
    xmin_epoch: int
    catalog_xmin: int
    catalog_xmin_epoch: int


def xlog_data(lsn: Lsn, send_time: int, payload: bytes) -> bytes:
    """Return XLogData as a CopyData message of a logical walsender: start = end = lsn."""
    return xlog_data_head(lsn, send_time, len(payload)) + payload


def xlog_data_head(lsn: Lsn, send_time: int, size: int = 0) -> bytes:
    """Return the head of such a message, before its payload of ``size`` bytes."""
    length = XLOG_DATA.size + size - 1  # of all but the type
    return XLOG_DATA.pack(b"d", length, b"w", lsn, lsn, _to_server_epoch(send_time))


def keepalive(end: Lsn, send_time: int, *, reply_requested: bool = False) -> bytes:
    """Return a keepalive as the payload of a CopyData message."""
    return _KEEPALIVE(b"k", end, _to_server_epoch(send_time), reply_requested)


def decode_standby_message(payload: bytes) -> StandbyStatusUpdate | HotStandbyFeedback:
    """Read a message of a receiver. Raises ProtocolViolation (ProcessStandbyMessage)."""
    reader = MessageReader(payload)
    kind = reader.byte()
    message: StandbyStatusUpdate | HotStandbyFeedback
    if kind == ord("r"):
        write, flush, apply = reader.lsn(), reader.lsn(), reader.lsn()
        message = StandbyStatusUpdate(write, flush, apply, _time(reader), reader.byte() != 0)
    elif kind == ord("h"):
        message = HotStandbyFeedback(
            _time(reader), reader.uint32(), reader.uint32(), reader.uint32(), reader.uint32()
        )
    else:
        raise _unexpected(kind)
    reader.finish()
    return message


def _time(reader: MessageReader) -> int:
    return reader.int64() + EPOCH_MICROSECONDS


def _to_server_epoch(time: int) -> int:
    return (time - EPOCH_MICROSECONDS) & _INT64_MASK


def _unexpected(kind: int) -> ProtocolViolation:
    return ProtocolViolation(f'unexpected message type "{chr(kind)}"')
