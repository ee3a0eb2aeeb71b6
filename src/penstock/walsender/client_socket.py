"""One client's socket: bytes both ways, within time limits, with or without TLS (be-secure.c).

In: an accepted socket. Out: what the client sends; what is sent is taken by the kernel before
``send`` returns, so a slow client holds its own thread and one portion of memory, nothing else.
One thread uses it; ``shut_down`` may come from any.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Final

from penstock.errors import ConnectionFailure

_PORTION: Final = 1 << 16
"""Bytes that must get through within the write timeout."""
_RECEIVE: Final = 1 << 16


class ClientSocket:
    """``address`` and ``port`` are the client's."""

    def __init__(self, accepted: socket.socket, *, write_timeout_s: float) -> None:
        self._socket = accepted
        self._write_timeout_s = write_timeout_s or None
        self.address, self.port = accepted.getpeername()[:2]
        self.tls = False
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def receive(self, timeout_s: float | None) -> bytes | None:
        """Bytes, b"" at the end of the connection, None when nothing came within the time.

        ``timeout_s`` None: wait for ever. Raises ConnectionFailure for a broken connection.
        """
        try:
            if not self._readable(timeout_s):
                return None
            self._socket.settimeout(timeout_s)
            return self._socket.recv(_RECEIVE)
        except (TimeoutError, ssl.SSLWantReadError):
            return None  # nothing, or a part of what TLS sends as one piece
        except ssl.SSLEOFError:
            return b""
        except (OSError, ValueError) as error:
            raise _broken(error) from None

    def send(self, data: bytes) -> None:
        """Send all of it. Raises ConnectionFailure: broken, or the client takes nothing."""
        view = memoryview(data)
        try:
            self._socket.settimeout(self._write_timeout_s)
            for start in range(0, len(view), _PORTION):
                self._socket.sendall(view[start : start + _PORTION])
        except TimeoutError:
            raise ConnectionFailure(
                "terminating connection: the client does not read",
                detail=f"Nothing could be sent for {self._write_timeout_s:g} s.",
            ) from None
        except (OSError, ValueError) as error:
            raise _broken(error) from None

    def start_tls(self, context: ssl.SSLContext, timeout_s: float) -> None:
        """The handshake as the server. Raises ConnectionFailure."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket = context.wrap_socket(self._socket, server_side=True)
        except (OSError, ValueError) as error:
            raise ConnectionFailure(f"could not accept SSL connection: {error}") from None
        self.tls = True

    def shut_down(self) -> None:
        """End the connection under the thread that uses it, which then sees its end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; what was sent still arrives."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _readable(self, timeout_s: float | None) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def _broken(error: Exception) -> ConnectionFailure:
    return ConnectionFailure(f"could not receive data from client: {error}")
