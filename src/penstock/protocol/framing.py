"""Framing: cut a stream of bytes into messages (pqcomm.c), the same way in both directions.

The bytes may be split anywhere. They are cut into startup packets (a length, then the body) and
typed messages (a type byte, a length, the body). A length beyond its limit is refused as soon as
the header has arrived, so the reader never waits for more than one message of the allowed size.
``frontend_messages`` reads the content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.protocol.encoding import UTF8, ClientEncoding

LENGTH_SIZE: Final = 4
_SHORTEST_STARTUP: Final = 4  # the protocol version
_COMPACT_AT: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """One typed message: the type as a byte's value, and what follows the length."""

    kind: int
    payload: bytes = field(repr=False)


class FrameReader:
    """A buffer of the bytes that have arrived; it hands out whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0

    @property
    def buffered(self) -> int:
        """The number of bytes that have arrived and were not returned."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_startup(self, limit: int) -> bytes | None:
        """Return the body of a packet without a type byte, None while it is incomplete.

        ``limit``: bytes of the body. Raises ProtocolViolation for an impossible length
        (ProcessStartupPacket).
        """
        if self.buffered < LENGTH_SIZE:
            return None
        size = self._length(self._at) - LENGTH_SIZE
        if not _SHORTEST_STARTUP <= size <= limit:
            raise ProtocolViolation("invalid length of startup packet")
        if self.buffered < LENGTH_SIZE + size:
            return None
        return self._take(LENGTH_SIZE, size)

    def next_frame(self, limit_of: Callable[[int], int]) -> Frame | None:
        """Return the next typed message, None while it is incomplete.

        ``limit_of`` gets the type as soon as it has arrived; it returns the largest length, which
        includes the four bytes of the length itself, or raises. Raises ProtocolViolation for an
        impossible length (pq_getmessage).
        """
        if not self.buffered:
            return None
        kind = self._buffer[self._at]
        limit = limit_of(kind)
        if self.buffered < 1 + LENGTH_SIZE:
            return None
        length = self._length(self._at + 1)
        if not LENGTH_SIZE <= length <= limit:
            raise ProtocolViolation("invalid message length")
        if self.buffered < 1 + length:
            return None
        return Frame(kind, self._take(1 + LENGTH_SIZE, length - LENGTH_SIZE))

    def _length(self, at: int) -> int:
        return int.from_bytes(self._buffer[at : at + LENGTH_SIZE], "big", signed=True)

    def _take(self, skip: int, size: int) -> bytes:
        begin = self._at + skip
        self._at = begin + size
        with memoryview(self._buffer) as view:
            taken = bytes(view[begin : self._at])
        # Moving the rest to the front for every small message would cost the square of their
        # number.
        if self._at == len(self._buffer) or self._at >= _COMPACT_AT:
            del self._buffer[: self._at]
            self._at = 0
        return taken


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return the bytes of a typed message."""
    return kind + (len(payload) + LENGTH_SIZE).to_bytes(LENGTH_SIZE, "big") + payload


# A cursor over one message's payload (pqformat.c). Every read is checked against the end, so a
# truncated message always raises ProtocolViolation.


class MessageReader:
    """A reader of big-endian integers, NUL-terminated strings and counted bytes."""

    def __init__(self, payload: bytes, encoding: ClientEncoding = UTF8) -> None:
        self._payload = payload
        self._at = 0
        self._encoding = encoding

    @property
    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self._payload) - self._at

    def raw(self, size: int) -> bytes:
        """Return ``size`` bytes. Raises ProtocolViolation if fewer are left (pq_copymsgbytes)."""
        if size < 0 or size > self.left:
            raise ProtocolViolation("insufficient data left in message")
        taken = self._payload[self._at : self._at + size]
        self._at += size
        return taken

    def byte(self) -> int:
        if not self.left:
            raise ProtocolViolation("no data left in message")
        return self.raw(1)[0]

    def uint16(self) -> int:
        return int.from_bytes(self.raw(2), "big")

    def int32(self) -> int:
        return int.from_bytes(self.raw(4), "big", signed=True)

    def uint32(self) -> int:
        return int.from_bytes(self.raw(4), "big")

    def int64(self) -> int:
        return int.from_bytes(self.raw(8), "big", signed=True)

    def lsn(self) -> Lsn:
        return Lsn(int.from_bytes(self.raw(8), "big"))

    def raw_string(self) -> bytes:
        """Return a NUL-terminated string without conversion (pq_getmsgrawstring)."""
        end = self._payload.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("invalid string in message")
        text = self.raw(end - self._at)
        self._at += 1
        return text

    def string(self) -> str:
        """Return a NUL-terminated string in the client's encoding (pq_getmsgstring)."""
        return self._encoding.decode(self.raw_string())

    def counted(self) -> bytes | None:
        """Return bytes behind their int32 length; None for length -1."""
        size = self.int32()
        return None if size == -1 else self.raw(size)

    def finish(self) -> None:
        """Raise ProtocolViolation if bytes are left (pq_getmsgend)."""
        if self.left:
            raise ProtocolViolation("invalid message format")
