"""A cursor over one message's bytes (pqformat.c).

In: the payload. Out: its fields one after another. Every read is checked against the end, so that a
truncated message raises ProtocolViolation and nothing else.
"""

from __future__ import annotations

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn


class Reader:
    """A reader of big-endian integers and NUL-terminated strings."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def raw(self, size: int) -> bytes:
        """Return ``size`` bytes. Raises ProtocolViolation if fewer are left."""
        end = self._at + size
        if size < 0 or end > len(self._payload):
            raise ProtocolViolation("insufficient data left in message")
        taken = self._payload[self._at : end]
        self._at = end
        return taken

    def char(self) -> str:
        """Return one byte as a character."""
        return chr(self.raw(1)[0])

    def uint8(self) -> int:
        return self.raw(1)[0]

    def uint16(self) -> int:
        return int.from_bytes(self.raw(2), "big")

    def uint32(self) -> int:
        return int.from_bytes(self.raw(4), "big")

    def int32(self) -> int:
        return int.from_bytes(self.raw(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.raw(8), "big", signed=True)

    def lsn(self) -> Lsn:
        return Lsn(int.from_bytes(self.raw(8), "big"))

    def string(self) -> str:
        """Return a NUL-terminated string in the client encoding, UTF8."""
        end = self._payload.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("invalid string in message")
        text = self.raw(end - self._at)
        self.raw(1)
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            raise ProtocolViolation(
                'invalid byte sequence for encoding "UTF8" in message', sqlstate="22021"
            ) from None

    def finish(self) -> None:
        """Raise ProtocolViolation if bytes are left."""
        if self._at != len(self._payload):
            raise ProtocolViolation("invalid message format")
