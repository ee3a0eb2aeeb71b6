"""Receive and send bytes and messages on a client's socket, with timeouts (be-secure.c, pqcomm.c).

The socket is already accepted, with or without TLS. A ``ServerSession`` turns the client's bytes
into events, one at a time. ``send`` returns when the kernel has accepted all bytes, so a slow
client blocks only its own thread and one portion of memory. The limits of the ``ServerSession``
bound how much input is read ahead.

A socket is used by one thread; any thread may call ``shut_down``, ``stop_reading`` and
``send_last``.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import ConnectionFailure
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Event
from penstock.query_memory import MEMORY, Held
from penstock.sqlstate import OutOfMemory
from penstock.stats.backend_status import Encryption

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""The poll event for a client that closed its side. Only Linux has it; other systems only notice a
connection that is closed in both directions."""
_PORTION: Final = 1 << 16
"""The bytes that are sent at once. Some of them must be accepted within the write timeout."""
_RECEIVE: Final = 1 << 16
_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of a TLS handshake; a startup packet begins with 0."""
_TICK_S: Final = 0.25
"""Seconds of one wait while a client reads nothing."""


class ClientSocket:
    """One client's socket. ``address`` and ``port`` are the client's; ``stopped``: ``stop_reading``
    was called."""

    def __init__(self, accepted: socket.socket, *, write_timeout_s: float) -> None:
        self._socket = accepted
        self._write_timeout_s = write_timeout_s or None
        self.address, self.port = accepted.getpeername()[:2]
        self.tls: Encryption | None = None
        self._cut_off = False  # True if ``send`` ended in the middle of its data
        self._sending = threading.RLock()  # ``waiting`` may send
        self.stopped = self._down = False
        self.blocked: Callable[[], None] = _do_nothing
        """Called before ``send`` waits for the client."""
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def receive(self, timeout_s: float | None) -> bytes | None:
        """Return received bytes; b"" at the end of the connection, None after a timeout.

        ``timeout_s``: None to wait for ever. Raises ConnectionFailure for a broken connection.
        """
        try:
            if not self._readable(timeout_s):
                return None
            self._socket.settimeout(timeout_s)
            return self._socket.recv(_RECEIVE)
        except (TimeoutError, ssl.SSLWantReadError):
            return None  # nothing arrived, or only a part of a TLS record
        except ssl.SSLEOFError:
            return b""
        except (OSError, ValueError) as error:
            raise _broken(error) from None

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        """Send all of ``data``. Raises ConnectionFailure if the connection is broken or the client
        does not read.

        ``waiting`` is called repeatedly while the client reads nothing, and at once if it has sent
        a message, which ``waiting`` may receive. ``waiting`` must raise after its own timeout;
        without ``waiting`` the write timeout applies. After an error nothing more can be sent,
        because the client has only a part of the data.
        """
        with self._sending:
            self._send(data, waiting)

    def _send(self, data: bytes, waiting: Callable[[], object] | None) -> None:
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

    def send_last(self, data: bytes) -> None:
        """Send ``data`` if the client reads it at once; nothing can be sent after it. For another
        thread than that of the socket. Raises ConnectionFailure."""
        if not self._sending.acquire(blocking=False):
            raise ConnectionFailure("the client does not read")
        try:
            self._send(data, None)
        finally:
            self._cut_off = True
            self._sending.release()

    def _send_some(self, portion: memoryview, waiting: Callable[[], object] | None) -> int:
        """Send at least some bytes of a portion, and return their number. TLS requires that the
        same portion is passed again until the socket accepts some of it."""
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
            self.blocked()
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
        """True if the client has closed its side, perhaps without reading the last data."""
        try:
            return not self.stopped and self._poll(_HUNG_UP, 0.0)
        except (OSError, ValueError):  # its thread has closed it meanwhile
            return False

    def begins_with_tls(self, timeout_s: float) -> bool:
        """Tell whether the client's first byte begins a TLS handshake; False if nothing comes."""
        try:
            if not self._readable(timeout_s):
                return False
            return self._socket.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
        except (OSError, ValueError):
            return False  # the next read tells

    def start_tls(self, context: ssl.SSLContext, timeout_s: float) -> None:
        """Do the TLS handshake as the server. Raises ConnectionFailure."""
        self._socket.settimeout(timeout_s)
        try:
            encrypted = context.wrap_socket(
                self._socket, server_side=True, do_handshake_on_connect=False
            )
            self._socket = encrypted  # it has the descriptor now, which ``shut_down`` needs
            if self._down:
                self.shut_down()
            encrypted.do_handshake()
        except (OSError, ValueError) as error:
            raise ConnectionFailure(f"could not accept SSL connection: {error}") from None
        cipher, _, bits = encrypted.cipher() or ("", "", 0)
        alpn = encrypted.selected_alpn_protocol()
        self.tls = Encryption(encrypted.version() or "", cipher, bits, alpn is not None)

    def stop_reading(self) -> None:
        """Make the thread that uses the socket see the end of input. It can still send what the
        client reads at once."""
        self.stopped = True
        with contextlib.suppress(OSError):
            # The TLS socket's own shutdown would end both directions.
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def shut_down(self) -> None:
        """End the connection; the thread that uses the socket will notice."""
        self._down = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Data that was sent before still arrives."""
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


def _do_nothing() -> None:
    pass


def _broken(error: Exception) -> ConnectionFailure:
    return ConnectionFailure(f"could not receive data from client: {error}")


_WAIT_S: Final = 1.0
"""The longest single wait, in seconds."""


class ClientLeft(ConnectionFailure):
    """The client has closed its side, or the connection is broken."""


class MessagePump:
    """Reads and writes the messages of one connection."""

    def __init__(self, sock: ClientSocket, session: ServerSession) -> None:
        self._socket = sock
        self._session = session
        self._unfinished: Held | None = None

    def forget(self) -> None:
        """Give back the memory that an unfinished message was counted with."""
        if self._unfinished is not None:
            self._unfinished.release()
            self._unfinished = None

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        """Send bytes. ``waiting``: as for ``ClientSocket.send``. Raises ConnectionFailure."""
        if data:
            self._socket.send(data, waiting)

    def next_event(self, timeout_s: float | None) -> Event | None:
        """Return the client's next message; None after ``timeout_s`` seconds (None: wait for ever).

        Raises ClientLeft, ConnectionFailure, and the errors of ``ServerSession`` for bad messages.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (event := self._session.next_event()) is None:
            remaining = _WAIT_S if deadline is None else deadline - time.monotonic()
            data = self._socket.receive(max(0.0, min(_WAIT_S, remaining)))
            if data:
                self._take(len(data))
                self._session.feed(data)
            elif data is not None:
                if not self._socket.stopped:  # otherwise the client can still get an error
                    self._session.end_of_input()
                raise ClientLeft("unexpected EOF on client connection")
            elif deadline is not None and remaining <= 0:
                return None
        self.forget()
        return event

    def _take(self, size: int) -> None:
        """Count bytes of an unfinished message. The connection ends if they are too many: what
        comes next would be the rest of the message."""
        if self._unfinished is None:
            self._unfinished = Held(MEMORY)
        try:
            self._unfinished.take(size)
        except OutOfMemory as error:
            raise ConnectionFailure(
                error.message, detail=error.detail, hint=error.hint, sqlstate=error.sqlstate
            ) from None
