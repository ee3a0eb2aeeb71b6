"""The extended query protocol by hand: the same messages to a server and to a node.

In: frontend messages. Out: what comes back, each message as a tuple that can be compared: without
oids of tables, lengths of types and what only a server of its own can say.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock.protocol import frontend_messages as m
from penstock.protocol.framing import FrameReader
from penstock.protocol.startup import PROTOCOL_3_0, StartupMessage
from protocol.client_messages import encode_frontend, encode_startup

_READY: Final = ord("Z")
_FIELD: Final = struct.Struct("!IhIhih")
_LEFT_OUT: Final = b"SN"
_TIMEOUT_S: Final = 60
Said = tuple[Any, ...]


class Wire:
    """A session; a context manager. Trust is all it knows of authentication."""

    def __init__(self, port: int, user: str, database: str, **parameters: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self._frames = FrameReader()
        given = {"user": user, "database": database, "client_encoding": "UTF8", **parameters}
        self._socket.sendall(encode_startup(StartupMessage(PROTOCOL_3_0, tuple(given.items()))))
        assert self.until_ready()[-1] == ("Z", "I")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, *messages: m.FrontendMessage) -> list[Said]:
        """Send the messages, and Sync; what comes back up to ReadyForQuery."""
        self.send(*messages, m.Sync())
        return self.until_ready()

    def ask(self, text: str) -> list[Said]:
        """A simple query."""
        self.send(m.Query(text))
        return self.until_ready()

    def send(self, *messages: m.FrontendMessage) -> None:
        self._socket.sendall(b"".join(map(encode_frontend, messages)))

    def until_ready(self) -> list[Said]:
        """Messages up to ReadyForQuery, or the end of the connection."""
        out: list[Said] = []
        for frame in self.frames():
            if frame.kind not in _LEFT_OUT:
                out.append(_read(chr(frame.kind), frame.payload))
            if frame.kind == _READY:
                break
        return out

    def frames(self) -> Iterator[Any]:
        """Whatever comes."""
        while True:
            frame = self._frames.next_frame(lambda _: 1 << 30)
            if frame is not None:
                yield frame
                continue
            data = self._socket.recv(1 << 16)
            if not data:
                return
            self._frames.feed(data)


def _read(kind: str, payload: bytes) -> Said:
    match kind:
        case "T":
            return (kind, *_fields(payload))
        case "t":
            (count,) = struct.unpack_from("!H", payload)
            return (kind, *struct.unpack_from(f"!{count}I", payload, 2))
        case "D":
            return (kind, *_cells(payload))
        case "E":
            parts = (part.decode() for part in payload.rstrip(b"\0").split(b"\0"))
            told = {part[0]: part[1:] for part in parts}
            return (kind, told["S"], told["C"], told["M"])
        case "C":
            return (kind, payload[:-1].decode())
        case "Z":
            return (kind, payload.decode())
    return (kind,)


def _fields(payload: bytes) -> Iterator[Said]:
    at = 2
    for _ in range(struct.unpack_from("!H", payload)[0]):
        end = payload.index(b"\0", at)
        _, _, oid, size, typmod, code = _FIELD.unpack_from(payload, end + 1)
        yield payload[at:end].decode(), oid, size, typmod, code
        at = end + 1 + _FIELD.size


def _cells(payload: bytes) -> Iterator[bytes | None]:
    at = 2
    for _ in range(struct.unpack_from("!H", payload)[0]):
        (length,) = struct.unpack_from("!i", payload, at)
        at += 4
        yield None if length < 0 else payload[at : at + length]
        at += max(length, 0)


def query(
    text: str,
    *values: bytes | None,
    types: Sequence[int] = (),
    formats: Sequence[int] = (),
    results: Sequence[int] = (),
    rows: int = 0,
) -> list[m.FrontendMessage]:
    """One unnamed statement from Parse to Execute."""
    return [
        m.Parse("", text, tuple(types)),
        m.Describe(m.STATEMENT, ""),
        m.Bind("", "", tuple(formats), values, tuple(results)),
        m.Describe(m.PORTAL, ""),
        m.Execute("", rows),
    ]
