"""One client's socket (be-secure.c, pqcomm.c): bytes both ways, and messages, within time limits.

The socket is accepted already, with or without TLS. A ``ServerSession`` turns the client's bytes
into events, one at a time. ``send`` returns when the kernel has taken everything, so a slow client
blocks only its own thread and one portion of memory. The state machine's limits bound how far input
is read ahead.

One thread uses a socket; ``shut_down`` and ``stop_reading`` may be called from any.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import ConnectionFailure
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Event

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""The event for a client that closed its side. Only Linux has it; elsewhere only a connection that
is broken both ways is found."""
_PORTION: Final = 1 << 16
"""Bytes that are sent at once; some of them must get through within the write timeout."""
_RECEIVE: Final = 1 << 16
_TICK_S: Final = 0.25
"""Seconds of one wait while a client takes nothing."""


class ClientSocket:
    """One client's socket. ``address`` and ``port`` are the client's; ``stopped``: by
    ``stop_reading``."""

    def __init__(self, accepted: socket.socket, *, write_timeout_s: float) -> None:
        self._socket = accepted
        self._write_timeout_s = write_timeout_s or None
        self.address, self.port = accepted.getpeername()[:2]
        self.tls = False
        self._cut_off = False  # True if ``send`` ended in the middle of its data
        self.stopped = False
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def receive(self, timeout_s: float | None) -> bytes | None:
        """Return bytes, b"" at the end of the connection, None if nothing came within the time.

        ``timeout_s``: None to wait for ever. Raises ConnectionFailure for a broken connection.
        """
        try:
            if not self._readable(timeout_s):
                return None
            self._socket.settimeout(timeout_s)
            return self._socket.recv(_RECEIVE)
        except (TimeoutError, ssl.SSLWantReadError):
            return None  # nothing came, or only a part of a TLS record
        except ssl.SSLEOFError:
            return b""
        except (OSError, ValueError) as error:
            raise _broken(error) from None

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        """Send all of it. Raises ConnectionFailure if the connection is broken or the client takes
        nothing.

        ``waiting`` is called repeatedly while the client takes nothing, and at once if the client
        has sent a message, which ``waiting`` may receive. It raises after too long a time; without
        ``waiting`` the write timeout applies. After either error nothing more can be sent, since
        the client has only a part of the data.
        """
        if self._cut_off:
            raise ConnectionFailure("connection to client lost")
        view = memoryview(data)
        self._cut_off = True
        try:
            self._socket.settimeout(0.0)
            while view:
                view = view[self._send_some(view[:_PORTION], waiting) :]
        except (OSError, ValueError) as error:
            raise _broken(error) from None
        self._cut_off = False

    def _send_some(self, portion: memoryview, waiting: Callable[[], object] | None) -> int:
        """Send at least some bytes of a portion, and return their number. Until some are taken, TLS
        must be given the same portion again."""
        blocked: float | None = None
        while True:
            ready = select.POLLOUT
            try:
                return self._socket.send(portion)
            except ssl.SSLWantReadError:
                ready = select.POLLIN
            except (BlockingIOError, ssl.SSLWantWriteError):
                pass
            now = time.monotonic()
            blocked = blocked or now
            if self.stopped:
                raise ConnectionFailure("terminating connection: the client does not read")
            if waiting is not None:
                self._poll(ready | select.POLLIN, _TICK_S)
                waiting()
                self._socket.settimeout(0.0)
            elif self._write_timeout_s and now - blocked >= self._write_timeout_s:
                raise ConnectionFailure(
                    "terminating connection: the client does not read",
                    detail=f"Nothing could be sent for {self._write_timeout_s:g} s.",
                )
            else:
                self._poll(ready, _TICK_S)

    @property
    def left(self) -> bool:
        """True if the client has closed its side; it may not have read the last data."""
        return not self.stopped and self._poll(_HUNG_UP, 0.0)

    def start_tls(self, context: ssl.SSLContext, timeout_s: float) -> None:
        """Do the TLS handshake as the server. Raises ConnectionFailure."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket = context.wrap_socket(self._socket, server_side=True)
        except (OSError, ValueError) as error:
            raise ConnectionFailure(f"could not accept SSL connection: {error}") from None
        self.tls = True

    def stop_reading(self) -> None:
        """Make the thread that uses the socket see the end of input. It can still send data that
        the client takes at once."""
        self.stopped = True
        with contextlib.suppress(OSError):
            # Not the TLS socket's own shutdown, which would end both ways.
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def shut_down(self) -> None:
        """End the connection; the thread that uses the socket then sees its end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; data that was sent still arrives."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _readable(self, timeout_s: float | None) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return self._poll(select.POLLIN, timeout_s)

    def _poll(self, events: int, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def _broken(error: Exception) -> ConnectionFailure:
    return ConnectionFailure(f"could not receive data from client: {error}")


_WAIT_S: Final = 1.0
"""The most seconds of one wait."""


class ClientLeft(ConnectionFailure):
    """The client has closed its side, or the connection broke."""


class MessagePump:
    """Read and write the messages of one connection."""

    def __init__(self, sock: ClientSocket, session: ServerSession) -> None:
        self._socket = sock
        self._session = session

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        """Send bytes. ``waiting``: called while the client takes nothing. Raises
        ConnectionFailure."""
        if data:
            self._socket.send(data, waiting)

    def next_event(self, timeout_s: float | None) -> Event | None:
        """Return the client's next message; None after ``timeout_s`` seconds (None: wait for ever).

        Raises ClientLeft, ConnectionFailure, and the state machine's errors for bad messages.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (event := self._session.next_event()) is None:
            remaining = _WAIT_S if deadline is None else deadline - time.monotonic()
            data = self._socket.receive(max(0.0, min(_WAIT_S, remaining)))
            if data:
                self._session.feed(data)
            elif data is not None:
                if not self._socket.stopped:  # if this side has stopped, the client still listens
                    self._session.end_of_input()
                raise ClientLeft("unexpected EOF on client connection")
            elif deadline is not None and remaining <= 0:
                return None
        return event
