"""A TCP forwarder that writes down when the standby status updates of a stream arrived.

In: a port of this machine. Out: ``feedback``: (monotonic time in ns, flush LSN) of every update, in
order. TLS and GSS encryption must be off, so that the messages can be read.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Final

_UNTYPED: Final = struct.Struct("!i")
_TYPED: Final = struct.Struct("!ci")
_UPDATE: Final = struct.Struct("!cQQQ")


class _Messages:
    """Splits what a client sends into messages; yields the flush LSNs among them."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False

    def feed(self, data: bytes) -> list[int]:
        self._buffer += data
        found = []
        while (message := self._next()) is not None:
            if message[:1] == b"d" and message[5:6] == b"r":
                found.append(_UPDATE.unpack_from(message, 5)[2])
        return found

    def _next(self) -> bytes | None:
        head = 1 if self._started else 0
        if len(self._buffer) < head + 4:
            return None
        length = head + int(_UNTYPED.unpack_from(self._buffer, head)[0])
        if len(self._buffer) < length:
            return None
        message = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._started = True
        return message


class Tap:
    """Listens on ``port`` until closed."""

    def __init__(self, target: int) -> None:
        self.feedback: list[tuple[int, int]] = []
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                self._spawn(self._forward, client, server, _Messages())
                self._spawn(self._forward, server, client, None)

    def _forward(
        self, source: socket.socket, sink: socket.socket, messages: _Messages | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                now = time.monotonic_ns()
                if messages is not None:
                    self.feedback += [(now, lsn) for lsn in messages.feed(data)]
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
