"""Messages inside CopyBoth (Streaming Replication Protocol; walsender.c).

A receiver's CopyData payloads are read as frozen messages; a walsender's messages are written as
bytes. Times are microseconds since the Unix epoch, UTC. The walsender decides when to send;
``pgoutput`` makes the content of XLogData.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import copy_bytes, int32_at, int64_at
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation
from penstock.kernel import BYTES, kernel
from penstock.lsn import Lsn
from penstock.protocol.framing import MessageReader

XLOG_DATA: Final = struct.Struct("!cIcQQQ")
"""The head of XLogData as a CopyData message: d, length, w, start and end of the data, time."""

_HEAD: Final = XLOG_DATA.size
_LENGTH_AT: Final = 1
_LSN_AT: Final = 6
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


# Many messages of XLogData in one buffer, as a source makes them.


def read_xlog_data(messages: bytes) -> tuple[NDArray[np.uint64], pa.Array]:
    """Return the LSNs and the payloads of messages. Raises ProtocolViolation for others."""
    most = len(messages) // _HEAD
    lsns, offsets = np.zeros(most, np.int64), np.zeros(most + 1, np.int32)
    data = np.empty(len(messages), np.uint8)
    count = _checked(_read(np.frombuffer(messages, np.uint8), _HEAD, lsns, offsets, data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    payloads = pa.Array.from_buffers(pa.binary(), count, buffers)
    return lsns[:count].view(np.uint64), payloads


def cut_xlog_data(messages: bytes, size: int, more: int) -> Iterator[tuple[int, bytes]]:
    """Yield portions of messages, with their numbers. A portion ends with the message by which it
    has ``size`` bytes; each message counts ``more`` bytes than it has."""
    buffer, at = np.frombuffer(messages, np.uint8), 0
    ends = np.zeros(2, np.int64)
    while at < len(messages):
        count = _checked(_cut(buffer[at:], _HEAD, size, more, ends))
        yield count, messages[at : at + int(ends[0])]
        at += int(ends[0])


def insert_int32(messages: bytes, count: int, place: int, value: int) -> bytes:
    """Insert a number at a place of the payloads of ``count`` messages."""
    out = np.empty(len(messages) + 4 * count, np.uint8)
    number = np.frombuffer(struct.pack("!I", value), np.uint8)
    _checked(_insert(np.frombuffer(messages, np.uint8), _HEAD, place, number, out))
    return out.tobytes()


def _checked(count: int) -> int:
    if count < 0:
        raise ProtocolViolation("the messages are not XLogData")
    return count


@kernel(f"int64({BYTES}, int64, int64[::1], int32[::1], uint8[::1])")
def _read(
    messages: NDArray[np.uint8],
    head: int,
    lsns: NDArray[np.int64],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> int:
    """Write LSNs and payloads; return the number of messages, -1 for a bad length."""
    at = to = count = 0
    while at < len(messages):
        size = int32_at(messages, at + _LENGTH_AT) + 1 - head if at + head <= len(messages) else -1
        if size < 0 or at + head + size > len(messages):
            return -1
        lsns[count] = int64_at(messages, at + _LSN_AT)
        copy_bytes(messages, at + head, size, out, to)
        at += head + size
        to += size
        count += 1
        offsets[count] = to
    return count


@kernel(f"int64({BYTES}, int64, int64, int64, int64[::1])")
def _cut(
    messages: NDArray[np.uint8], head: int, most: int, more: int, ends: NDArray[np.int64]
) -> int:
    """Write the end of the first messages that have ``most`` bytes; return their number, -1 for a
    bad length."""
    at = count = counted = 0
    while at < len(messages) and counted < most:
        size = int32_at(messages, at + _LENGTH_AT) + 1 - head if at + head <= len(messages) else -1
        if size < 0 or at + head + size > len(messages):
            return -1
        at += head + size
        counted += head + size + more
        count += 1
    ends[0] = at
    return count


@kernel(f"int64({BYTES}, int64, int64, {BYTES}, uint8[::1])")
def _insert(
    messages: NDArray[np.uint8],
    head: int,
    place: int,
    number: NDArray[np.uint8],
    out: NDArray[np.uint8],
) -> int:
    """Write the messages with the number; return how many they are, -1 for a bad length, or if
    there is no room."""
    at = to = count = 0
    while at < len(messages):
        size = int32_at(messages, at + _LENGTH_AT) + 1 - head if at + head <= len(messages) else -1
        end = to + head + size + len(number)
        if size < place or at + head + size > len(messages) or end > len(out):
            return -1
        copy_bytes(messages, at, head + place, out, to)
        length = head + size + len(number) - 1
        for byte in range(4):
            out[to + _LENGTH_AT + byte] = length >> (24 - 8 * byte) & 0xFF
        copy_bytes(number, 0, len(number), out, to + head + place)
        copy_bytes(messages, at + head + place, size - place, out, to + head + place + len(number))
        at += head + size
        to = end
        count += 1
    return count


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
