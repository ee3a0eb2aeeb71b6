"""Framing: cut a stream of bytes into messages (pqcomm.c), the same way in both directions.

In: bytes, split anywhere. Out: startup packets (a length, then the body) and typed messages (a type
byte, a length, the body). A length beyond its limit is refused as soon as the header is there, so
that the reader never waits for more than one message of the allowed size. The content of a message
is left to ``frontend_messages``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ProtocolViolation

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
        """Bytes that have arrived and were not handed out."""
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

        ``limit_of`` gets the type as soon as it is there; it returns the largest length, counted as
        the protocol does (with the four bytes of the length itself), or raises. Raises
        ProtocolViolation for an impossible length (pq_getmessage).
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
    """Return a typed message as it goes over the wire."""
    return kind + (len(payload) + LENGTH_SIZE).to_bytes(LENGTH_SIZE, "big") + payload
