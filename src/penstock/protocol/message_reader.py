"""A cursor over one message's payload (pqformat.c).

In: the payload and the client's encoding. Out: its fields one after another. Every read is checked
against the end, so that a truncated message raises ProtocolViolation and nothing else.
"""

from __future__ import annotations

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.protocol.encoding import UTF8, ClientEncoding


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
        """Return a NUL-terminated string as it came (pq_getmsgrawstring)."""
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
